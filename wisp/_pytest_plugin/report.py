"""The JSON object of `--wisp-report`: the doctor's, with the rows that pytest ran."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, cast

from wisp.doctor.machine import describe_machine
from wisp.doctor.redact import Redactor, redacted
from wisp.doctor.report import Report, Row
from wisp.probing.probe import Expectation, Probe, Result, Verdict

if TYPE_CHECKING:
    from wisp.sandbox.capability import Capability

__all__ = ["build_report"]


def build_report(
    rows: list[Mapping[str, object]],
    capability: Capability,
    *,
    everything: bool,
    cut_short: str,
    started: float,
    jobs: int,
) -> dict[str, object]:
    """Return the object that `wisp doctor --json` would print for `rows`, redacted.

    pytest looks neither at wisp's state nor at exposed sockets, so `checks` and `exposed` are empty. `exitStatus` is
    what the doctor's would be for these rows. `cut_short` says why rows may be missing; `started` is in seconds since
    the epoch.
    """
    redactor = Redactor.of_this_process()
    nothing = "there are no rows" if capability.tier else f"there is no sandbox to prove: {capability.reason}"
    report = Report(
        machine=describe_machine(capability),
        checks=(),
        exposed=(),
        rows=tuple(_row(row) for row in rows),
        selection="all" if everything else "default",
        not_run=cut_short or ("" if rows else nothing),
        started=datetime.fromtimestamp(started, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        seconds=time.time() - started,
        jobs=jobs,
    )
    return {**redacted(report, redactor).as_json(), "probes": [_redacted(row, redactor) for row in rows]}


def _row(row: Mapping[str, object]) -> Row:
    """Return as much of a row as the counts and the exit status need; what it did stays in the JSON object."""
    inner = cast("Mapping[str, object]", row.get("_", {}))
    name, title = str(row["id"]), str(row["title"])
    expect = cast("Expectation", row["expect"])
    probe = Probe(name, title, "", "", expect, (), promise=bool(row["promise"]), slow=bool(row["slow"]))
    verdict = cast("Verdict", row["verdict"])
    result = Result(name, probe.family, title, expect, verdict, str(row["reason"]), cast("float", row["seconds"]))
    return Row(probe, result, lacks_tool=inner.get("lacksTool") is True)


def _redacted(row: Mapping[str, object], redactor: Redactor) -> dict[str, object]:
    """Return a row's JSON object without what identifies, and without what was only for the way."""
    made = {key: value for key, value in row.items() if key != "_"}
    for key in ("reason", "refusalSaid"):
        made[key] = redactor.text(str(made[key]))
    for key in ("control", "confined"):
        trial = made[key]
        if isinstance(trial, dict):
            made[key] = {**trial, "output": redactor.text(str(trial["output"]))}
    return made
