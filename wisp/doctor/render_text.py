"""A report as text for people: at any width, without colour if need be, and complete when piped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Final

from wisp.doctor.page import Page, Role
from wisp.doctor.render_rows import add_details
from wisp.doctor.report import VERDICTS, CheckStatus, Report, Row
from wisp.doctor.words import LAYER_STATES, MEANINGS, ROLES, advice, conclusion, counted
from wisp.probing.probe import Probe, Verdict

__all__ = ["render_list", "render_text"]

_STATUS_ROLES: Final[dict[CheckStatus, Role]] = {"ok": "good", "failed": "bad", "note": "warn"}

#: The verdicts that get a line of their own, gravest first; the others are counted.
_TOLD: Final[tuple[Verdict, ...]] = ("leaked", "overblocked", "inconclusive", "closed", "declared", "skipped")


def render_text(report: Report, *, width: int = 80, strict: bool = False) -> Page:
    """Return the report as a page of at most `width` columns. `report` should be redacted already.

    Rows that were named get all their details, and then what is exposed is left out.
    """
    page = Page(width)
    named = report.selection == "named"
    _add_title(page, report)
    if not named:
        _add_machine(page, report)
    _add_layers(page, report, only_missing=named)
    if not named:
        _add_limits(page, report)
    _add_checks(page, report, only_failed=named)
    if not named:
        _add_exposed(page, report)
    if named:
        add_details(page, report.rows)
    else:
        _add_families(page, report)
    _add_end(page, report, strict=strict)
    return page


def _add_title(page: Page, report: Report) -> None:
    machine = report.machine
    tier = machine.capability.tier
    page.text(
        f"wisp {machine.wisp}, {machine.system} {machine.release} {machine.architecture}: "
        + (f"tier {tier}" if tier else "no sandbox"),
        role="head",
    )


def _add_machine(page: Page, report: Report) -> None:
    machine, capability = report.machine, report.machine.capability
    page.heading("Machine")
    system = f"{machine.distribution}, " if machine.distribution else ""
    page.entry("system", f"{system}{machine.python}, as {'root' if machine.is_root else 'an ordinary user'}")
    if machine.inside:
        for one in machine.inside:
            page.entry("inside", f"{one.kind}: {one.evidence}", role="warn")
        page.below(["What lies around wisp can stop an action before the sandbox does; such a probe is inconclusive."])
    elif machine.system == "Linux":
        page.entry("inside", "no container, namespace or other sandbox is seen around wisp")
    if capability.tier is None:
        page.entry("sandbox", f"none: {capability.reason}", role="bad")
    else:
        page.entry("sandbox", f"{capability.backend}, {_tier_in_words(capability.tier)}")
    if machine.landlock_lacks:
        page.entry("kernel", f"its Landlock cannot yet govern: {', '.join(machine.landlock_lacks)}", role="warn")


def _tier_in_words(tier: str) -> str:
    if tier == "A":
        return "tier A: all writes and the whole network are governed, reading is not"
    return "tier B: writes, network and signals are governed, reading is not; what else stays open is below"


def _add_layers(page: Page, report: Report, *, only_missing: bool) -> None:
    layers = [
        layer for layer in report.machine.capability.layers if layer.state != "yes" or not only_missing
    ]  # fmt: skip
    if layers:
        page.heading("Layers, each tried just now" if not only_missing else "Layers that are not there")
    for layer in layers:
        state = LAYER_STATES[layer.state]
        page.entry(layer.name, f"{state}: {layer.detail}", role="good" if layer.state == "yes" else "bad")
        if layer.loses:
            page.below([f"lost: {layer.loses}"])


def _add_limits(page: Page, report: Report) -> None:
    capability = report.machine.capability
    if not capability.limits or capability.tier is None:
        return
    page.heading(f"Left open on tier {capability.tier}, as declared")
    for limit in capability.limits:
        page.entry(limit.name.removeprefix("confine."), limit.because, column=23)


def _add_checks(page: Page, report: Report, *, only_failed: bool) -> None:
    checks = [check for check in report.checks if check.status == "failed" or not only_failed]
    if checks:
        page.heading("wisp's own state")
    for check in checks:
        role = _STATUS_ROLES[check.status]
        label = check.status if check.status == "ok" else check.status.upper() if check.status == "failed" else "note"
        page.entry(f"{label:7} {check.id}", check.summary, column=20, role=role)
        if check.advice:
            page.below([check.advice], column=20)


def _add_exposed(page: Page, report: Report) -> None:
    if not report.exposed:
        page.heading("Exposed: no control socket (tmux, Docker, D-Bus, ssh-agent ...) within reach")
        return
    page.heading("Exposed: sockets that a confined command can reach as well")
    for one in report.exposed:
        more = f" and {len(one.paths) - 2} more" if len(one.paths) > 2 else ""
        page.entry(one.name, ", ".join(one.paths[:2]) + more, role="warn")
        page.below([f"A command could {one.allows}.", f"To close it: {one.closes}."])


def _add_families(page: Page, report: Report) -> None:
    if report.not_run:
        page.heading("Probes")
        page.text(f"None was run: {report.not_run}.", indent=2, role="bad")
        return
    page.heading("Probes: each action is tried without the sandbox, then inside it")
    limits = {limit.name for limit in report.machine.capability.limits}
    for family in dict.fromkeys(row.result.family for row in report.rows):
        rows = [row for row in report.rows if row.result.family == family]
        page.entry(family, _tally(rows), role=_family_role(rows))
        for verdict in _TOLD:
            _add_told(page, [row for row in rows if row.result.verdict == verdict], limits)
        for row in rows:
            if row.result.refusal_ok is False:
                said = f"{row.result.id}: stopped, but the refusal check said: {row.result.refusal_said or 'nothing'}"
                page.entry("note", said, indent=4, column=14, role="warn")


def _tally(rows: list[Row]) -> str:
    counts = Counter(row.result.verdict for row in rows)
    return ", ".join(f"{counts[verdict]} {_spoken(verdict)}" for verdict in VERDICTS if counts[verdict])


def _spoken(verdict: Verdict) -> str:
    return verdict.replace("-", " ")


def _family_role(rows: list[Row]) -> Role:
    roles = {ROLES[row.result.verdict] for row in rows}
    order: tuple[Role, ...] = ("bad", "warn", "good")
    return next((role for role in order if role in roles), "dim")


def _add_told(page: Page, rows: list[Row], limits: Collection[str]) -> None:
    """Add rows of one verdict; those with the same reason, or the same declared limit, share one entry."""
    groups = dict[str, list[Row]]()
    for row in rows:
        groups.setdefault(_limit_of(row, limits) or row.result.reason, []).append(row)
    for key, same in groups.items():
        verdict = same[0].result.verdict
        grave = verdict in {"leaked", "overblocked"}
        label = verdict.upper() if grave else verdict
        page.entry(label, ", ".join(row.result.id for row in same), indent=4, column=14, role=ROLES[verdict])
        reasons = {row.result.reason for row in same}
        reason = same[0].result.reason if len(reasons) == 1 else f"left open, as declared: {key}, above"
        texts = [f"{reason}.", advice(same[0])]
        if grave or verdict == "inconclusive":
            texts.append("Repeat it: wisp doctor " + " ".join(row.result.id for row in same))
        page.below([text for text in texts if text], indent=4, column=14)


def _limit_of(row: Row, limits: Collection[str]) -> str:
    """Return the name of the limit that a declared row rests on, as it is shown above; empty for another verdict."""
    if row.result.verdict != "declared":
        return ""
    return next((one.without.removeprefix("confine.") for one in row.probe.limits if one.without in limits), "")


def _add_end(page: Page, report: Report, *, strict: bool) -> None:
    page.blank()
    counts = report.counts
    page.items(f"{counts[verdict]} {_spoken(verdict)}" for verdict in VERDICTS)
    page.text(f"{report.seconds:.1f} s, {counted(report.jobs, 'probe')} at a time")
    named = report.selection == "named"
    for verdict in VERDICTS:
        if counts[verdict] and verdict in MEANINGS and not named:
            page.entry(_spoken(verdict), MEANINGS[verdict], column=14)
    if report.rows and not named:
        page.blank()
        page.entry("one probe in full", f"wisp doctor {_example(report)}", indent=0, column=20)
        page.entry("the names of all", "wisp doctor --list", indent=0, column=20)
    page.blank()
    status = report.exit_status(strict=strict)
    roles: dict[int, Role] = {0: "good", 1: "bad"}
    page.text(conclusion(report, strict=strict), role=roles.get(status, "warn"))


def _example(report: Report) -> str:
    """Return the id of a row worth a look: the gravest, or the first."""
    order = {verdict: place for place, verdict in enumerate((*_TOLD, *VERDICTS)[::-1])}
    return max(report.rows, key=lambda row: order[row.result.verdict]).result.id


def render_list(rows: tuple[Probe, ...], *, width: int = 80) -> Page:
    """Return every row on a page: what is expected, id, whether it does not run unasked, and the title below."""
    page = Page(width)
    for row in rows:
        marks = [mark for mark, is_on in (("slow", row.slow), ("not promised", not row.promise)) if is_on]
        suffix = f"  ({', '.join(marks)})" if marks else ""
        page.text(f"{row.expect:9}{row.id}{suffix}", hang=9)
        page.text(row.title, indent=9)
    return page
