"""`wisp profile`: what a command started here could do, before it is started."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from wisp.refusal.note import visible

if TYPE_CHECKING:
    from wisp.sandbox.capability import Capability
    from wisp.sandbox.confinement import Confinement

__all__ = ["profile"]


@click.command()
@click.option("--network", type=click.Choice(["on", "off"]), help="With or without a network (default: configured).")
@click.option("--writable", multiple=True, metavar="PATH", help="One more directory to write under; repeatable.")
@click.option("--read-only", is_flag=True, help="Write nowhere but in a scratch TMPDIR.")
@click.option("--backend", metavar="NAME", help="What confines: auto, bubblewrap, landlock, seatbelt or none.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def profile(
    *, network: str | None, writable: tuple[str, ...], read_only: bool, backend: str | None, as_json: bool
) -> int:
    """Print the rights, roots and layers of a command that `wisp run` would start here.

    Exit status 0 when this machine can hold it, 1 when nothing would be run.
    """
    from wisp.config import load_settings
    from wisp.errors import SandboxUnavailable, UsageError
    from wisp.sandbox.choose import backend_named, require_tier
    from wisp.sandbox.confinement import Confinement

    if read_only and writable:
        raise UsageError("`--read-only` and `--writable` contradict each other")
    settings = load_settings().sandbox
    confinement = Confinement.default(
        settings=settings,
        writable=writable,
        network=None if network is None else network == "on",
        read_only=read_only,
    )
    why_not, found = "", None
    name = backend or (settings.backend if settings.enabled else "none")
    try:
        chosen = backend_named(name)
        name = chosen.name
        found = chosen.capability()
        require_tier(chosen, settings.require_tier)
        chosen.prepare(confinement).close()
    except SandboxUnavailable as error:
        why_not = str(error)
    if as_json:
        click.echo(json.dumps(_as_json(confinement, name, found, why_not), sort_keys=True))
    else:
        click.echo("\n".join(_as_text(confinement, name, found, why_not)))
    return 1 if why_not else 0


def _as_json(confinement: Confinement, backend: str, found: Capability | None, why_not: str) -> dict[str, object]:
    return {
        "schema": 1,
        "backend": backend,
        "tier": None if found is None else found.tier,
        "runs": not why_not,
        "confined": backend != "none" and not why_not,
        "reason": why_not,
        "network": confinement.network,
        "roots": list(confinement.roots),
        "scratchTmpdir": confinement.scratch_tmpdir,
        "protected": list(confinement.protected),
        "leftOut": [*confinement.notes, *confinement.left_out],
        "layers": []
        if found is None
        else [{"name": one.name, "state": one.state, "detail": one.detail} for one in found.layers],
        "limits": [] if found is None else [{"name": one.name, "because": one.because} for one in found.limits],
    }


def _as_text(confinement: Confinement, backend: str, found: Capability | None, why_not: str) -> list[str]:
    """Return the lines a person reads; plain text, no colour, paths not wrapped so that they can be copied."""
    tier = f", tier {found.tier}" if found is not None and found.tier else ""
    lines = [f"backend    {backend}{tier}"]
    if why_not:
        lines.append(f"           nothing would be run: {why_not}")
    elif backend == "none":
        return [*lines, "           no sandbox: a command can do whatever you can do"]
    lines.append("read       everything this user can read")
    nowhere = "a scratch TMPDIR, removed after" if confinement.scratch_tmpdir else "nothing"
    lines += _listed("write", confinement.roots or (nowhere,))
    lines += [f"{'never':10} {path}" for path in confinement.protected]
    lines.append("devices    null, zero, full, tty, ptmx, terminals of its own, /dev/shm")
    lines.append(f"network    {'on' if confinement.network else 'off: Unix sockets only'}")
    lines += _listed("left out", (*confinement.notes, *confinement.left_out))
    if found is not None:
        lines += _listed("layers", [f"{one.name}: {one.state}, {one.detail}" for one in found.layers])
        lines += _listed("not held", [f"{one.name}: {one.because}" for one in found.limits])
    return [visible(line) for line in lines]


def _listed(heading: str, texts: Sequence[str]) -> list[str]:
    """Return one line a text, the first with the heading."""
    return [f"{'' if index else heading:10} {text}" for index, text in enumerate(texts)]
