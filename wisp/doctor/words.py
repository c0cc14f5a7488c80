"""The sentences of the text report: what each verdict means, what to do about it, and what it all comes to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from wisp.doctor.page import Role
from wisp.doctor.report import Report, Row
from wisp.probing.probe import Verdict
from wisp.sandbox.capability import LayerState

__all__ = ["LAYER_STATES", "MEANINGS", "ROLES", "advice", "conclusion", "counted"]

ROLES: Final[dict[Verdict, Role]] = {
    "held": "good",
    "leaked": "bad",
    "overblocked": "bad",
    "declared": "warn",
    "closed": "good",
    "not-promised": "dim",
    "inconclusive": "warn",
    "skipped": "dim",
}

#: What a verdict that is not plain from its name means, for the foot of a report.
MEANINGS: Final[dict[Verdict, str]] = {
    "leaked": "the sandbox should have stopped it, and did not",
    "overblocked": "it should work inside the sandbox, and does not",
    "declared": "the sandbox leaves it open, and wisp says so above",
    "closed": "the sandbox stopped it, although wisp does not promise that here",
    "not-promised": "the sandbox need not stop it; it is run to see what happens",
    "inconclusive": "it proved nothing, as the action fails without the sandbox as well, or was not really tried",
    "skipped": "it cannot be tried here: this machine or this user lacks something for it",
}

LAYER_STATES: Final[dict[LayerState, str]] = {
    "yes": "yes",
    "not-built": "not built into the kernel",
    "not-enabled": "not enabled at boot",
    "too-old": "too old",
    "refused": "refused",
    "nested": "nested",
    "inconclusive": "inconclusive",
}


def advice(row: Row) -> str:
    """Return what to do about a row's verdict; empty where there is nothing to do."""
    verdict = row.result.verdict
    if verdict == "leaked":
        return "The sandbox has a hole here: let no model run commands on this machine until it is closed."
    if verdict == "overblocked":
        return "The sandbox is in the way of ordinary work here: this is a fault of wisp, or of the machine's set-up."
    if verdict == "inconclusive":
        return "Nothing is proven either way."
    if verdict == "skipped" and row.lacks_tool:
        return "Install it to have this probe run."
    return ""


def counted(number: int, one: str, many: str = "") -> str:
    """Return `1 probe`, `2 probes`."""
    return f"{number} {one}" if number == 1 else f"{number} {many or one + 's'}"


def conclusion(report: Report, *, strict: bool = False) -> str:
    """Return what the report means, in plain words, the gravest first."""
    counts, capability = report.counts, report.machine.capability
    if capability.tier is None:
        if capability.backend == "none":
            return "No sandbox was asked for, so nothing is held and there was nothing to prove."
        return (
            "Nothing can confine a command here: wisp runs none on this machine, unless a person chooses "
            "--backend none."
        )
    said = [*_faults(report), *_gaps(report, strict=strict)]
    proven = _proven(report)
    if proven and not (counts["leaked"] or counts["overblocked"]):
        said.append(proven)
    return " ".join(said)


def _faults(report: Report) -> Iterator[str]:
    counts = report.counts
    if counts["leaked"]:
        yield f"The sandbox does NOT hold: {counted(counts['leaked'], 'probe')} leaked. Let no model run commands here."
    if counts["overblocked"]:
        yield f"The sandbox breaks ordinary work: {counted(counts['overblocked'], 'probe')} overblocked."
    failed = [check.id for check in report.checks if check.status == "failed"]
    if failed:
        yield f"wisp's own state needs care: {', '.join(failed)} failed."


def _gaps(report: Report, *, strict: bool) -> Iterator[str]:
    counts = report.counts
    unproven = sum(row.is_unproven for row in report.rows)
    if report.not_run:
        yield "No probe was run, so nothing is proven."
        if report.machine.inside:
            yield "wisp itself runs inside something (see Machine): run wisp doctor outside of that."
    elif unproven:
        yield f"{counted(unproven, 'probe')} that must hold proved nothing here."
    elif strict and counts["inconclusive"] + counts["skipped"]:
        many = counted(counts["inconclusive"] + counts["skipped"], "probe")
        yield f"{many} proved nothing here, and --strict takes that for a failure."


def _proven(report: Report) -> str:
    counts, tier = report.counts, report.machine.capability.tier
    if not counts["held"] and not counts["declared"] and not counts["closed"]:
        return ""
    held = counts["held"] + counts["closed"]
    proven = f"The sandbox (tier {tier}) holds here" if held else "Nothing leaked that wisp promises to hold"
    if held:
        proven += f": {counted(held, 'probe')} held (each action works without it)"
    if counts["declared"]:
        proven += f"; {counts['declared']} left open, as declared"
    return proven + "."
