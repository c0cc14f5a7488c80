"""What the rows and fixtures of one pytest process share: the backend, what it can enforce, and a scratch directory."""

from __future__ import annotations

import contextlib
import difflib
import secrets
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from wisp.config import Settings
from wisp.errors import SandboxUnavailable, UsageError, WispError
from wisp.probing.abilities import ABILITIES, is_ability, missing
from wisp.probing.probe import CAPABILITIES, LAYERS
from wisp.probing.scratch import open_scratch, remove_tree, sweep
from wisp.runner import Runner
from wisp.sandbox.capability import Capability
from wisp.sandbox.choose import backend_named
from wisp.sandbox.confinement import Confinement

if TYPE_CHECKING:
    from wisp.sandbox.backend import Backend

__all__ = ["Ground", "check_requirements", "ground_of"]

_TIERS: Final = ("tier.A", "tier.B")


class Ground:
    """One process's sandbox and scratch directory, each found or made at its first use.

    `name` is the backend's name as the person gave it, `add_cleanup` takes what is to be called at the end.
    """

    def __init__(self, name: str, required: frozenset[str], add_cleanup: Callable[[Callable[[], None]], None]) -> None:
        self.required = required
        self._name = name
        self._add_cleanup = add_cleanup

    @property
    def is_unconfined_by_choice(self) -> bool:
        """Whether the person asked for no sandbox."""
        return self._name == "none"

    @property
    def backend(self) -> Backend:
        """The backend. Raises SandboxUnavailable where wisp has none for this system."""
        return backend_named(self._name)

    @cached_property
    def capability(self) -> Capability:
        """What the backend can enforce on this machine, probed once; no tier where there is no backend."""
        try:
            return self.backend.capability()
        except SandboxUnavailable as error:
            return Capability(error.backend, None, error.reason, (), frozenset(), ())

    @cached_property
    def scratch(self) -> Path:
        """A directory outside what commands may write, removed when pytest ends. Raises WispError."""
        sweep()
        stack = contextlib.ExitStack()
        directory = stack.enter_context(open_scratch())
        self._add_cleanup(stack.close)
        return directory

    def runner(self, directory: Path) -> Runner:
        """Return a runner whose commands start in `directory` and may write only there. Close it."""
        runner = Runner(
            Confinement((str(directory),), network=False), backend=self._name, settings=Settings(), audit=False
        )
        runner.directory = runner.confinement.roots[0]
        return runner

    @contextlib.contextmanager
    def outside(self) -> Iterator[Path]:
        """Make a directory that the default confinement leaves alone, and remove it at the end. Raises WispError."""
        directory = self.scratch / f"outside-{secrets.token_hex(4)}"
        default = Confinement.default()
        if default.allows_write(str(directory)):
            raise WispError(
                f"{self.scratch}: there is no place outside every default root ({', '.join(default.roots)}); "
                "set HOME to a directory that is outside them, or start pytest elsewhere"
            )
        directory.mkdir(mode=0o700)
        try:
            yield directory
        finally:
            remove_tree(directory)

    def why_missing(self, name: str) -> str:
        """Return why this machine lacks the capability `name`, empty when it has it.

        Raises UsageError for a name that is none, WispError when an ability cannot be tried out.
        """
        known = self.capability
        layers = {layer.name: layer for layer in known.layers}
        if name == "backend":
            return "" if known.tier else known.reason
        if name in _TIERS:
            wanted = name.removeprefix("tier.")
            if known.tier is None:
                return known.reason
            return "" if known.tier <= wanted else f"the backend {known.backend} gives tier {known.tier} here"
        if name in layers:
            layer = layers[name]
            return "" if layer.state == "yes" else f"{layer.detail} ({layer.state})"
        if name in LAYERS:
            return f"the backend {known.backend} has no such layer here" + (f": {known.reason}" if known.reason else "")
        if name in known.confines:
            return ""
        limits = {limit.name: limit.because for limit in known.limits}
        if name in limits or name in CAPABILITIES:
            return limits.get(name) or known.reason or f"the backend {known.backend} does not hold it here"
        if is_ability(name):
            return missing(name, self.scratch)
        raise UsageError(_unknown(name, {"backend", *_TIERS, *LAYERS, *CAPABILITIES, *known.confines, *ABILITIES}))


def _unknown(name: str, known: set[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if near:
        return f"there is no capability {name!r}; did you mean {near[0]!r}?"
    return f"there is no capability {name!r}; there are tool.NAME, {', '.join(sorted(known))}"


_KEY: Final = pytest.StashKey[Ground]()


def ground_of(config: pytest.Config) -> Ground:
    """Return what this pytest process shares, made at the first call."""
    if _KEY not in config.stash:
        name = config.getoption("wisp_backend") or "auto"
        required = frozenset(config.getoption("wisp_require") or ())
        config.stash[_KEY] = Ground(name, required, config.add_cleanup)
    return config.stash[_KEY]


def check_requirements(item: pytest.Item) -> None:
    """Skip `item` where the machine lacks what its `wisp_requires` markers name.

    Fails it instead for a marker without meaning, and for a capability that `--wisp-require` names.
    """
    ground = ground_of(item.config)
    for marker in item.iter_markers("wisp_requires"):
        if not marker.args or marker.kwargs or not all(isinstance(name, str) for name in marker.args):
            pytest.fail("wisp_requires takes the names of capabilities, as texts, and nothing else", pytrace=False)
        for name in marker.args:
            try:
                reason = ground.why_missing(name)
            except WispError as error:
                pytest.fail(f"wisp_requires: {error}", pytrace=False)
            if reason and name in ground.required:
                pytest.fail(f"--wisp-require {name}: {reason}", pytrace=False)
            if reason:
                item.add_marker(pytest.mark.skip(reason=f"needs {name}: {reason}"))
