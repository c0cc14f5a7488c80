"""Gathers everything a report says: the machine, wisp's state, what is exposed, and a verdict for each row."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from wisp.doctor.checks import Subject, check_state, find_subject
from wisp.doctor.exposed import find_exposed
from wisp.doctor.machine import describe_machine
from wisp.doctor.report import Check, Report, Row, Selection
from wisp.errors import ProbeError, SandboxUnavailable, WispError
from wisp.probing.abilities import missing
from wisp.probing.load import packaged_files, packaged_rows
from wisp.probing.probe import Probe, Result
from wisp.probing.run import run_probes
from wisp.sandbox.capability import Capability
from wisp.sandbox.choose import backend_named

if TYPE_CHECKING:
    from wisp.sandbox.backend import Backend

__all__ = ["collect", "load_rows"]

_TOOL = "tool."


def load_rows() -> tuple[tuple[Probe, ...], Check]:
    """Return wisp's own rows, and the check that says whether they could be read (none could when it failed)."""
    try:
        rows = packaged_rows()
    except ProbeError as error:
        return (), Check("probes", "failed", str(error), "Install wisp again: no probe was run.")
    return rows, Check("probes", "ok", f"{len(rows)} probes in {len(packaged_files())} files")


def collect(
    rows: Sequence[Probe],
    *,
    selection: Selection = "default",
    backend: Backend | str | None = None,
    abi: int | None = None,
    more_checks: Sequence[Check] = (),
    jobs: int = 2,
    on_result: Callable[[Result], None] | None = None,
    stop: threading.Event | None = None,
) -> Report:
    """Look at everything, run `rows`, `jobs` side by side, and return the report, not redacted.

    `backend` is a name or a backend; None is what config.json names, or the strongest where it switches the sandbox
    off; `abi` has it work as with that older Landlock interface. `on_result` is called in this thread as each row ends;
    setting `stop` ends the rows early. Rows do not run where nothing can confine them: the report then says why. Raises
    UsageError for an unknown backend's name.
    """
    started, clock = datetime.now(UTC), time.perf_counter()
    subject = find_subject()
    chosen, capability = _choose(backend, subject, abi)
    able = chosen if capability.tier is not None else None
    checks = (*check_state(subject, able), *more_checks)
    exposed = find_exposed(capability)
    machine = describe_machine(capability)
    results, not_run = _run(rows, chosen, capability, jobs, on_result, stop)
    return Report(
        machine=machine,
        checks=checks,
        exposed=exposed,
        rows=tuple(Row(row, result, _lacks_tool(row, result)) for row, result in zip(rows, results, strict=False)),
        selection=selection,
        not_run=not_run,
        started=started.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        seconds=time.perf_counter() - clock,
        jobs=jobs,
    )


def _choose(wanted: Backend | str | None, subject: Subject, abi: int | None) -> tuple[Backend | None, Capability]:
    """Return the backend and what it can enforce; None where wisp has none for this system."""
    if wanted is None:
        configured = "auto" if subject.settings is None else subject.settings.sandbox.backend
        wanted = "auto" if configured == "none" else configured
    if not isinstance(wanted, str):
        return wanted, wanted.capability()
    try:
        backend = backend_named(wanted, abi=abi)
    except SandboxUnavailable as error:
        return None, Capability(error.backend, None, error.reason, (), frozenset(), ())
    return backend, backend.capability()


def _run(
    rows: Sequence[Probe],
    backend: Backend | None,
    capability: Capability,
    jobs: int,
    on_result: Callable[[Result], None] | None,
    stop: threading.Event | None,
) -> tuple[list[Result], str]:
    """Return the results, and why there are none."""
    if backend is None or capability.tier is None:
        return [], f"there is no sandbox to prove: {capability.reason}"
    if not rows:
        return [], "wisp's own probes could not be read"
    try:
        return run_probes(rows, backend=backend, jobs=jobs, on_result=on_result, stop=stop), ""
    except WispError as error:
        return [], str(error)


def _lacks_tool(row: Probe, result: Result) -> bool:
    """Return whether a skipped row was skipped for a program that could be installed, rather than for the machine."""
    if result.verdict != "skipped":
        return False
    return any(name.startswith(_TOOL) and missing(name, Path("/")) for name in row.requires)
