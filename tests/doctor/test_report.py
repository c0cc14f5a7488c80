"""What a report counts, its exit status, and its JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from jsonschema import ValidationError

from wisp.doctor.report import VERDICTS, Check, Exposure, Surrounding, rows_as_json
from wisp.probing.probe import Verdict


def test_every_verdict_is_counted_also_those_that_nothing_has(made: Any) -> None:
    report = made.report([made.row("held"), made.row("held"), made.row("declared")])

    assert dict(report.counts) == {
        "held": 2,
        "leaked": 0,
        "overblocked": 0,
        "declared": 1,
        "closed": 0,
        "not-promised": 0,
        "inconclusive": 0,
        "skipped": 0,
    }


@pytest.mark.parametrize("verdict", sorted({"held", "declared", "closed"}))
def test_a_row_that_held_or_has_a_declared_limit_is_well(made: Any, verdict: Verdict) -> None:
    assert made.report([made.row(verdict)]).exit_status() == 0


@pytest.mark.parametrize("verdict", ["leaked", "overblocked"])
def test_a_leak_or_an_overblocked_row_is_worse_than_one_that_proves_nothing(made: Any, verdict: Verdict) -> None:
    rows = [made.row("held"), made.row("inconclusive"), made.row(verdict)]

    assert made.report(rows).exit_status() == 1


def test_a_failed_check_fails_although_every_row_held(made: Any) -> None:
    failed = made.report([made.row("held")], checks=[Check("config", "failed", "it does not parse")])
    noted = made.report([made.row("held")], checks=[Check("config", "note", "worth a look")])

    assert (failed.exit_status(), noted.exit_status()) == (1, 0)


def test_a_machine_without_a_sandbox_fails_although_nothing_leaked(made: Any) -> None:
    assert made.report([], tier=None, not_run="there is no sandbox to prove").exit_status() == 1


def test_a_row_that_must_hold_and_proved_nothing_is_three(made: Any) -> None:
    inconclusive = made.report([made.row("held"), made.row("inconclusive")])
    without_tool = made.report([made.row("held"), made.row("skipped", lacks_tool=True)])

    assert (inconclusive.exit_status(), without_tool.exit_status()) == (3, 3)


def test_rows_that_could_not_run_at_all_are_three(made: Any) -> None:
    assert made.report([], not_run="no scratch directory can be made").exit_status() == 3


def test_what_need_not_hold_here_does_not_make_three_unless_strict(made: Any) -> None:
    reports = [
        made.report([made.row("skipped")]),  # the machine has nothing to hold there
        made.report([made.row("skipped", expect="allowed", lacks_tool=True)]),  # npm is not installed
        made.report([made.row("inconclusive", expect="allowed")]),
        made.report([made.row("inconclusive", promise=False)]),
    ]

    assert [report.exit_status() for report in reports] == [0, 0, 0, 0]
    assert [report.exit_status(strict=True) for report in reports] == [3, 3, 3, 3]


def test_strict_changes_nothing_where_every_row_proved_something(made: Any) -> None:
    rows = [made.row(verdict) for verdict in ("held", "declared", "closed", "not-promised")]

    assert made.report(rows).exit_status(strict=True) == 0


@pytest.mark.parametrize("tier", ["B", None])
def test_the_json_of_a_report_is_what_the_schema_describes(
    made: Any, validate: Callable[[object], None], tier: str | None
) -> None:
    report = made.report(
        [made.row(verdict) for verdict in VERDICTS],
        exposed=[Exposure("tmux", "tmux", ("/tmp/tmux-1000/default",), "type into it", "end it")],
        inside=[Surrounding("seccomp", "a filter is there")],
        tier=tier,
        reason="" if tier else "the kernel has no Landlock",
    )

    validate(json.loads(json.dumps(report.as_json())))


def test_the_schema_refuses_a_report_with_an_unknown_verdict_or_a_missing_count(
    made: Any, validate: Callable[[object], None]
) -> None:
    good = made.report([made.row("held")]).as_json()
    unknown = json.loads(json.dumps(good).replace('"verdict": "held"', '"verdict": "passed"'))
    missing = json.loads(json.dumps(good))
    del missing["counts"]["skipped"]

    validate(good)
    with pytest.raises(ValidationError):
        validate(unknown)
    with pytest.raises(ValidationError):
        validate(missing)


def test_the_json_names_its_exit_status(made: Any) -> None:
    report = made.report([made.row("skipped")])

    assert report.as_json()["exitStatus"] == 0
    assert report.as_json(strict=True)["exitStatus"] == 3


def test_the_list_of_rows_says_what_each_needs(made: Any) -> None:
    assert rows_as_json([made.row("held").probe]) == {
        "schema": 1,
        "rows": [
            {
                "id": "write.create-outside",
                "family": "write",
                "title": "the title of write.create-outside",
                "why": "the reason for it",
                "run": 'touch "$OUTSIDE/probe"',
                "expect": "refused",
                "promise": True,
                "slow": False,
                "layer": ["landlock"],
                "requires": [],
            }
        ],
    }
