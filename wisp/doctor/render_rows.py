"""Single rows in full: what was tried, why, and what happened without and with the sandbox."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from wisp.doctor.page import Page
from wisp.doctor.report import Row
from wisp.doctor.words import ROLES, advice
from wisp.probing.probe import Trial

__all__ = ["add_details"]

_COLUMN: Final = 10


def add_details(page: Page, rows: Iterable[Row]) -> None:
    """Add all that is known of each row."""
    for row in rows:
        _add(page, row)


def _add(page: Page, row: Row) -> None:
    probe, result = row.probe, row.result
    page.heading(f"{result.id}: {probe.title}")
    page.entry("why", probe.why, column=_COLUMN)
    page.entry("command", "", column=_COLUMN)
    page.verbatim(probe.run, indent=4)
    page.entry("expected", _expectation(row), column=_COLUMN)
    _add_trial(page, "without", result.control, is_allowed=probe.expect == "allowed")
    _add_trial(page, "inside", result.confined, is_allowed=probe.expect == "allowed")
    if result.layers:
        page.entry("layers", ", ".join(result.layers), column=_COLUMN)
    told = result.refusal_said != "nothing" or result.refusal_ok is False
    if told and result.refusal_said and result.confined is not None and not result.confined.crossed:
        differs = " (another verdict is expected)" if result.refusal_ok is False else ""
        page.entry("check", f"the refusal check said: {result.refusal_said}{differs}", column=_COLUMN)
    page.entry(
        "verdict",
        f"{result.verdict.upper()}: {result.reason}. ({result.seconds:.2f} s)",
        column=_COLUMN,
        role=ROLES[result.verdict],
    )
    page.below([text for text in (advice(row),) if text], column=_COLUMN)


def _expectation(row: Row) -> str:
    probe = row.probe
    marks = ", ".join(mark for mark, is_on in (("slow", probe.slow), ("not promised", not probe.promise)) if is_on)
    signs = " and ".join(str(sign) for sign in probe.crossed)
    by = f" by {' or '.join(probe.layer)}" if probe.layer else ""
    when = "it works" if probe.expect == "allowed" else "it has crossed"
    return f"{probe.expect}{by}; {when} when: {signs}" + (f" ({marks})" if marks else "")


def _add_trial(page: Page, label: str, trial: Trial | None, *, is_allowed: bool) -> None:
    if trial is None:
        page.entry(label, "it was not run", column=_COLUMN)
        return
    yes, no = ("it works", "it does not work") if is_allowed else ("crossed", "did not cross")
    did = yes if trial.crossed else no
    ended = "did not end in time" if trial.timed_out else f"exit status {trial.exit_status}"
    printed = "it printed:" if trial.output.strip() else "it printed nothing"
    page.entry(label, f"{did}; {ended}; {printed}", column=_COLUMN)
    page.verbatim(trial.output, indent=4)
