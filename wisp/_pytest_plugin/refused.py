"""`assert_refused`: an action is refused in the sandbox, and works without it."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from wisp.config import Settings
from wisp.errors import PolicyDenied
from wisp.runner import Runner

if TYPE_CHECKING:
    from wisp.outcome import Outcome

__all__ = ["AssertRefused"]


class AssertRefused:
    """Runs an action under a runner's sandbox and then without one; see the fixture `assert_refused`.

    The confined run comes first: after the control the action may be done, and fail for that.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def __call__(
        self, action: str | Sequence[str], *, effect: str | os.PathLike[str] | None = None, timeout: float = 30.0
    ) -> Outcome:
        """Return the outcome of the confined run, or fail the test with the reason.

        `action` is a line for /bin/sh or a list of words; it must not depend on being run for the first time.
        `effect` is a path that only the action makes, absolute or seen from the runner's directory. `timeout` is in
        seconds, for each run.
        """
        __tracebackhide__ = True
        shown = action if isinstance(action, str) else shlex.join(action)
        made = None if effect is None else Path(self._runner.directory) / effect
        if made is not None and os.path.lexists(made):
            pytest.fail(f"{shown}\nproves nothing: its effect is there before it ran: {made}")
        with _removed(made):
            confined = _run(self._runner, action, timeout)
            _check_confined(confined, made, self._runner.backend)
            with Runner(self._runner.confinement, backend="none", settings=Settings(), audit=False) as unconfined:
                unconfined.directory = self._runner.directory
                control = _run(unconfined, action, timeout)
            _check_control(control, made)
        return confined


def _run(runner: Runner, action: str | Sequence[str], timeout: float) -> Outcome:
    __tracebackhide__ = True
    try:
        if isinstance(action, str):
            return runner.run(action, timeout=timeout)
        return runner.run_argv(action, timeout=timeout)
    except PolicyDenied as error:
        pytest.fail(f"proves nothing about the sandbox: nothing was run, {error}")


def _check_confined(outcome: Outcome, made: Path | None, backend: str) -> None:
    __tracebackhide__ = True
    where = f"in the sandbox ({backend}: {', '.join(outcome.layers) or 'no layer'})"
    if made is not None and os.path.lexists(made):
        pytest.fail(f"{outcome.line}\nwas not refused {where}: {made} is there afterwards{_said(outcome)}")
    if outcome.timed_out:
        pytest.fail(f"{outcome.line}\nproves nothing: it did not end in time {where}{_said(outcome)}")
    if outcome.exit_status == 0:
        pytest.fail(f"{outcome.line}\nwas not refused {where}: exit status 0{_said(outcome)}")
    if outcome.refusal is not None and outcome.refusal.verdict == "not-the-sandbox":
        pytest.fail(
            f"{outcome.line}\nwas not refused by the sandbox: it failed {where} for another reason "
            f"({outcome.refusal.cause}){_said(outcome)}"
        )


def _check_control(outcome: Outcome, made: Path | None) -> None:
    __tracebackhide__ = True
    if outcome.exit_status != 0 or outcome.timed_out:
        pytest.fail(f"{outcome.line}\nproves nothing: the action fails without a sandbox too{_said(outcome)}")
    if made is not None and not os.path.lexists(made):
        pytest.fail(f"{outcome.line}\nproves nothing: without a sandbox it does not make {made} either{_said(outcome)}")


def _said(outcome: Outcome) -> str:
    """Return how the run ended and the end of what it printed, each line set in."""
    ended = "it did not end in time" if outcome.timed_out else f"exit status {outcome.exit_status}"
    printed = f"{outcome.stdout}\n{outcome.stderr}".strip()[-2000:]
    return "".join(f"\n    {line}" for line in (ended, *printed.splitlines()))


@contextlib.contextmanager
def _removed(made: Path | None) -> Iterator[None]:
    """Take the effect away at the end: whichever run made it, it was not there before."""
    try:
        yield
    finally:
        if made is not None:
            # No link is followed: rmtree refuses one, and unlink takes the link itself.
            if made.is_dir() and not made.is_symlink():
                shutil.rmtree(made, ignore_errors=True)
            else:
                with contextlib.suppress(OSError):
                    made.unlink()
