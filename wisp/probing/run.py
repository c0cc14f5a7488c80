"""Running probes: the control, then the confined run, in directories of their own; and many of them side by side.

Everything is bounded: time, output, and what is left behind, which is taken away after each row, at the end of the
run, after Ctrl-C, and by the next run when this one is killed.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from wisp.config import PolicySettings, Settings
from wisp.errors import WispError
from wisp.probing import leftovers
from wisp.probing.abilities import missing
from wisp.probing.bare import run_bare
from wisp.probing.interrupt import Interrupt
from wisp.probing.judge import judge
from wisp.probing.oracle import Before, look, signs_missing
from wisp.probing.probe import Probe, Result, Trial, Verdict
from wisp.probing.scratch import open_scratch, remove_tree, sweep
from wisp.probing.standins import StandIns
from wisp.probing.workspace import Workspace, build_workspace
from wisp.realpath import real
from wisp.runner import Runner
from wisp.sandbox.confinement import Confinement
from wisp.sandbox.process import Stop

if TYPE_CHECKING:
    from wisp.outcome import Outcome
    from wisp.sandbox.backend import Backend

__all__ = ["run_control", "run_probe", "run_probes"]

_MOST_OUTPUT: Final = 64 * 1024
_MOST_SHOWN: Final = 400

#: Without it a confinement with a protected path inside a root does not run.
_INSIDE: Final = "confine.protected-inside-root"

#: Rows are wisp's own lines, and some look like what the policy is there to refuse; the person's settings would make
#: two machines differ.
_SETTINGS: Final = Settings(command_policy=PolicySettings(deny=()))


def run_probes(
    probes: Iterable[Probe],
    *,
    backend: Backend,
    jobs: int = 2,
    on_result: Callable[[Result], None] | None = None,
    stop: threading.Event | None = None,
) -> list[Result]:
    """Run rows side by side and return their results in the order of the rows.

    `on_result` is called in this thread as each ends. When `stop` is set, what runs is ended and what has not run is
    `inconclusive`. Removes first what dead runs left. Ctrl-C ends and removes everything, then is raised again.
    Raises WispError when no scratch directory can be made.
    """
    rows = tuple(probes)
    sweep()
    interrupt = Interrupt()
    confines = backend.capability().confines
    with open_scratch() as scratch, ThreadPoolExecutor(max(1, jobs), thread_name_prefix="wisp-probe") as pool:

        def run(probe: Probe) -> Result:
            return run_probe(probe, backend=backend, scratch=scratch, confines=confines, interrupt=interrupt)

        try:
            # The long ones first, so that none of them is what everything waits for at the end.
            futures = {pool.submit(run, row): row for row in sorted(rows, key=lambda row: not row.slow)}
            results = _collect(futures, on_result, stop, interrupt)
        except BaseException:
            interrupt.request()
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return [results[row.id] for row in rows]


def _collect(
    futures: dict[Future[Result], Probe],
    on_result: Callable[[Result], None] | None,
    stop: threading.Event | None,
    interrupt: Interrupt,
) -> dict[str, Result]:
    results = dict[str, Result]()
    pending = set(futures)
    while pending:
        done, pending = wait(pending, timeout=0.1, return_when=FIRST_COMPLETED)
        if stop is not None and stop.is_set() and not interrupt.requested:
            interrupt.request()
        for future in done:
            result = future.result()
            results[result.id] = result
            if on_result is not None:
                on_result(result)
    return results


def run_probe(
    probe: Probe,
    *,
    backend: Backend,
    scratch: Path,
    confines: AbstractSet[str] | None = None,
    interrupt: Interrupt | None = None,
) -> Result:
    """Run one row in `scratch`, unconfined and then under `backend`, and return its verdict.

    `scratch` is a directory outside everything that a command may write (`open_scratch`). `confines` are the
    capabilities that hold under `backend`; asked of it when None. Never raises for what a row or the machine does.
    """
    started = time.perf_counter()
    interrupt = interrupt or Interrupt()
    if interrupt.requested:
        found = _Found("inconclusive", "it was stopped before it ran")
    else:
        found = _run(probe, backend, scratch, confines, interrupt)
        # What was ended by force did nothing more, which must not be taken for a refusal.
        if interrupt.requested and found.verdict != "skipped":
            found = _Found("inconclusive", "it was stopped before its end")
    said = found.confined
    return Result(
        id=probe.id,
        family=probe.family,
        title=probe.title,
        expect=probe.expect,
        verdict=found.verdict,
        reason=found.reason,
        seconds=time.perf_counter() - started,
        control=found.control,
        confined=None if said is None else said.trial,
        backend=backend.name,
        layers=() if said is None else said.layers,
        refusal_ok=None if said is None else said.refusal_ok,
        refusal_said="" if said is None else said.refusal_said,
    )


@dataclass(frozen=True, slots=True)
class _Confined:
    """A confined run, and what the refusal check said of it."""

    trial: Trial
    layers: tuple[str, ...]
    refusal_ok: bool | None
    refusal_said: str


@dataclass(frozen=True, slots=True)
class _Found:
    """A verdict and what it rests on."""

    verdict: Verdict
    reason: str
    control: Trial | None = None
    confined: _Confined | None = None


def _run(
    probe: Probe, backend: Backend, scratch: Path, confines: AbstractSet[str] | None, interrupt: Interrupt
) -> _Found:
    control: Trial | None = None
    try:
        for name in probe.requires:
            reason = missing(name, scratch)
            if reason:
                return _Found("skipped", f"needs {name}: {reason}")
        control = run_control(probe, scratch=scratch, interrupt=interrupt)
        if confines is None:
            confines = backend.capability().confines
        if control.crossed and probe.protected is not None and _INSIDE not in confines:
            return _not_run(probe, control)
        confined = _run_confined(probe, backend, scratch, interrupt) if control.crossed else None
    except WispError as error:
        return _Found("inconclusive", f"nothing was run confined: {error}", control)
    except OSError as error:
        return _Found("inconclusive", f"the row could not be set up: {error}", control)
    verdict, reason = judge(probe, control, None if confined is None else confined.trial, confines)
    return _Found(verdict, reason, control, confined)


def _not_run(probe: Probe, control: Trial) -> _Found:
    """Return what a row gives whose confinement the backend refuses to run at all, as it says."""
    limit = next((one for one in probe.limits if one.without == _INSIDE), None)
    if limit is None:
        return _Found("inconclusive", f"the backend does not hold {_INSIDE}, and the row declares no limit", control)
    return _Found("declared", f"nothing was run, as declared: {limit.because} (no {limit.without})", control)


def run_control(probe: Probe, *, scratch: Path, interrupt: Interrupt | None = None) -> Trial:
    """Run a row's command without any sandbox, as any program would, and return what it did. Raises OSError."""
    with _Trial(probe, scratch, "c") as trial:
        kept = trial.standins.kept
        with run_bare(
            ["/bin/sh", "-c", trial.line],
            cwd=trial.workspace.root,
            env=trial.workspace.environment(),
            seconds=probe.seconds,
            most=_MOST_OUTPUT,
            keep=() if kept is None else (kept,),
            interrupt=interrupt or Interrupt(),
        ) as ran:
            return trial.seen(ran.exit_status, ran.stdout, ran.stderr, truncated=ran.truncated, timed_out=ran.timed_out)


def _run_confined(probe: Probe, backend: Backend, scratch: Path, interrupt: Interrupt) -> _Confined:
    with _Trial(probe, scratch, "p") as trial:
        space = trial.workspace
        confinement = Confinement((space.root, space.root2), (space.protected,), network=probe.network)
        stop = Stop()
        with (
            Runner(confinement, backend=backend, settings=_SETTINGS, audit=False) as runner,
            interrupt.calling(stop.kill),
        ):
            outcome = runner.run(
                trial.line,
                cwd=space.root,
                env=space.environment(),
                timeout=probe.seconds,
                stop=stop,
                max_output=_MOST_OUTPUT,
            )
            seen = trial.seen(
                outcome.exit_status,
                outcome.stdout,
                outcome.stderr,
                truncated=outcome.truncated,
                timed_out=outcome.timed_out,
            )
        return _compared(probe, space, outcome, seen)


def _compared(probe: Probe, space: Workspace, outcome: Outcome, seen: Trial) -> _Confined:
    """Return the confined run together with whether the refusal check said what the row expects of it."""
    refusal = outcome.refusal
    said = "nothing" if refusal is None else " ".join((refusal.verdict, *map(space.shorten, refusal.paths)))
    agrees: bool | None = None
    wanted = probe.refusal
    if wanted is not None and outcome.confined and not seen.crossed and wanted.unless not in outcome.layers:
        paths = {real(space.expand(path)) for path in wanted.paths}
        agrees = refusal is not None and refusal.verdict == wanted.verdict and set(refusal.paths) == paths
    return _Confined(seen, outcome.layers, agrees, said)


class _Trial:
    """One run's directories, stand-ins and first look; all gone when the context is left."""

    workspace: Workspace
    standins: StandIns

    def __init__(self, probe: Probe, scratch: Path, kind: str) -> None:
        self._probe = probe
        self._scratch = scratch
        # Short: the whole path of a socket in it may have 107 bytes.
        self._name = f"{kind}{secrets.token_hex(4)}"
        # Printed before the row's own command, so that a launcher that failed is not taken for a refusal.
        self._token = f"started-{secrets.token_hex(8)}"
        self._before: Before = {}
        self._stack = ExitStack()

    @property
    def line(self) -> str:
        """The command line: the row's own, after one that shows that the shell ran."""
        return f"echo {self._token}\n{self._probe.run}"

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.callback(remove_tree, self._scratch / self._name)
            self.workspace = build_workspace(self._scratch, self._name, protected_inside=self._probe.protected)
            self.standins = stack.enter_context(StandIns(self._probe, Path(self.workspace.outside)))
            self.workspace = self.workspace.with_variables(self.standins.variables())
            if any(sign.oracle == "alive" for sign in self._probe.crossed):
                stack.callback(leftovers.end_all, self.workspace.mark)
            self._before = look(self._probe, self.workspace)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def seen(self, exit_status: int, stdout: str, stderr: str, *, truncated: bool, timed_out: bool) -> Trial:
        """Return what the command did; to be asked while what it left behind still runs."""
        started = self._token in stdout
        printed = stdout.replace(f"{self._token}\n", "", 1)
        return Trial(
            missing=signs_missing(self._probe, self.workspace, self.standins, self._before, printed),
            exit_status=exit_status,
            output=_shown(self.workspace.shorten(f"{printed}\n{stderr}".strip())),
            timed_out=timed_out,
            # Of a long output only the end is kept; a launcher that failed prints no such amount.
            started=started or truncated,
        )


def _shown(text: str) -> str:
    return text if len(text) <= _MOST_SHOWN else "…" + text[-_MOST_SHOWN:]
