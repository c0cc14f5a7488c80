"""Collecting a report from a real kernel, and from a machine that has nothing to confine with."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from wisp.doctor.report import Check
from wisp.doctor.run import collect, load_rows
from wisp.errors import ProbeError, SandboxUnavailable, UsageError
from wisp.probing.load import load_text
from wisp.probing.probe import Probe, Result
from wisp.sandbox.unconfined import UnconfinedBackend

pytestmark = pytest.mark.linux

_ROWS = """
schema = 1
[[probe]]
id = "write.create-outside"
title = "a file cannot be made outside"
why = "it would outlive the confinement"
run = 'touch "$OUTSIDE/probe"'
expect = "refused"
crossed = { exists = "$OUTSIDE/probe" }
layer = ["landlock"]
operations = [["file-write-create", "$OUTSIDE/probe"]]
[[probe]]
id = "work.create-inside"
title = "a file can be made inside"
why = "nothing works without"
run = 'touch "$ROOT/probe"'
expect = "allowed"
crossed = { exists = "$ROOT/probe" }
operations = [["file-write-create", "$ROOT/probe"]]
"""

_NEEDS_A_TOOL = """
schema = 1
[[probe]]
id = "write.by-a-tool"
title = "a tool cannot write outside"
why = "it would outlive the confinement"
run = 'no-such-program "$OUTSIDE/probe"'
expect = "refused"
crossed = { exists = "$OUTSIDE/probe" }
layer = ["landlock"]
operations = [["file-write-create", "$OUTSIDE/probe"]]
requires = ["tool.no-such-program"]
"""


@pytest.fixture(scope="module")
def rows() -> tuple[Probe, ...]:
    return load_text(_ROWS)


def _landlock(*, abi: int | None = None, without: frozenset[str] = frozenset()) -> Any:
    from wisp.sandbox.landlock import LandlockBackend

    return LandlockBackend(abi=abi, without=without)


def _verdicts(report: Any) -> dict[str, str]:
    return {row.result.id: row.result.verdict for row in report.rows}


def test_a_sandbox_that_holds_gives_a_report_that_is_well(rows: tuple[Probe, ...]) -> None:
    report = collect(rows, backend=_landlock())

    assert _verdicts(report) == {"write.create-outside": "held", "work.create-inside": "held"}
    assert (report.machine.capability.tier, report.not_run, report.exit_status()) == ("B", "", 0)


def test_a_sandbox_with_a_hole_is_caught(rows: tuple[Probe, ...]) -> None:
    report = collect(rows, backend=_landlock(without=frozenset({"landlock"})))

    assert _verdicts(report) == {"write.create-outside": "leaked", "work.create-inside": "held"}
    assert report.exit_status() == 1


def test_a_row_whose_tool_is_missing_is_a_gap() -> None:
    report = collect(load_text(_NEEDS_A_TOOL), backend=_landlock())

    assert _verdicts(report) == {"write.by-a-tool": "skipped"}
    assert (report.rows[0].lacks_tool, report.exit_status()) == (True, 3)


def test_a_kernel_whose_landlock_is_too_old_runs_no_row_and_fails(rows: tuple[Probe, ...]) -> None:
    report = collect(rows, backend=_landlock(abi=2))

    assert (report.rows, report.machine.capability.tier, report.exit_status()) == ((), None, 1)
    assert "before 3" in report.not_run


def test_a_backend_that_confines_nothing_runs_no_row_and_fails(rows: tuple[Probe, ...]) -> None:
    report = collect(rows, backend=UnconfinedBackend())

    assert (report.rows, report.exit_status()) == ((), 1)


def test_a_system_for_which_wisp_has_no_backend_is_told_in_one_sentence(
    rows: tuple[Probe, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: str, **_: object) -> Any:
        raise SandboxUnavailable(name, "this version of wisp confines commands on Linux only, and this is another")

    monkeypatch.setattr("wisp.doctor.run.backend_named", refuse)

    report = collect(rows)

    assert (report.rows, report.machine.capability.backend, report.exit_status()) == ((), "auto", 1)
    assert report.not_run.endswith("this version of wisp confines commands on Linux only, and this is another")


def test_an_unknown_backend_is_a_usage_error(rows: tuple[Probe, ...]) -> None:
    with pytest.raises(UsageError, match="no backend 'seatbelts'"):
        collect(rows, backend="seatbelts")


def test_a_configuration_without_a_sandbox_does_not_keep_the_machine_from_being_proven(
    rows: tuple[Probe, ...], wisp_home: Path
) -> None:
    (wisp_home / "config.json").write_text('{"sandbox": {"backend": "none"}}')

    report = collect(rows)

    assert (report.machine.capability.tier in {"A", "B"}, len(report.rows)) == (True, 2)
    assert [check.status for check in report.checks if check.id == "sandbox"] == ["note"]


def test_a_place_without_room_for_scratch_leaves_the_rest_of_the_report(
    rows: tuple[Probe, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/proc/self/fdinfo")  # a directory in which nobody can make another
    monkeypatch.setattr("wisp.probing.scratch.os.access", lambda *_: True)

    report = collect(rows, backend=_landlock())

    assert (report.rows, report.exit_status()) == ((), 3)
    assert "no scratch directory" in report.not_run
    assert report.checks


def test_each_result_is_told_as_it_comes(rows: tuple[Probe, ...]) -> None:
    told = list[Result]()

    report = collect(rows, backend=_landlock(), on_result=told.append)

    assert sorted(told, key=lambda one: one.id) == sorted((row.result for row in report.rows), key=lambda one: one.id)


def test_a_stop_ends_the_rows_early(rows: tuple[Probe, ...]) -> None:
    stop = threading.Event()
    stop.set()

    report = collect(rows, backend=_landlock(), stop=stop)

    assert set(_verdicts(report).values()) <= {"inconclusive", "held"}


def test_more_checks_are_part_of_the_report(rows: tuple[Probe, ...]) -> None:
    more = Check("probes", "failed", "they could not be read")

    assert collect((), backend=_landlock(), more_checks=[more]).checks[-1] == more


def test_the_report_of_a_real_run_is_what_the_schema_describes(
    rows: tuple[Probe, ...], validate: Callable[[object], None]
) -> None:
    validate(collect(rows, backend=_landlock()).as_json())
    validate(collect(rows, backend=_landlock(abi=2)).as_json())


def test_wisps_own_rows_can_be_read() -> None:
    rows, check = load_rows()

    assert len(rows) >= 50
    assert (check.id, check.status) == ("probes", "ok")


def test_rows_that_cannot_be_read_are_a_failed_check_and_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> tuple[Probe, ...]:
        raise ProbeError("/made/up/write.toml", "write.x", "the key run is missing")

    monkeypatch.setattr("wisp.doctor.run.packaged_rows", refuse)

    rows, check = load_rows()

    assert rows == ()
    assert (check.status, check.summary) == ("failed", "/made/up/write.toml: write.x: the key run is missing")
