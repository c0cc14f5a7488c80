"""`--wisp-report FILE`: the doctor's JSON object for the rows that pytest ran."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import wisp.doctor
from wisp._pytest_plugin.tally import write_atomically
from wisp.doctor.machine import describe_machine
from wisp.doctor.report import Report
from wisp.runner import capability

Run = Callable[..., pytest.RunResult]
Rows = Callable[..., Path]
RowText = Callable[..., str]


def read(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file."""
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@pytest.mark.usefixtures("confined")
def test_the_report_has_the_shape_of_the_doctors(
    pytester: pytest.Pytester, every_verdict: dict[str, str], run_pytest: Run
) -> None:
    run_pytest("--wisp-all", "--wisp-backend=landlock", "--wisp-report=r.json")
    found = read(pytester.path / "r.json")
    doctors = Report(describe_machine(capability("landlock")), (), (), (), "all", "", "", 0.0, 1).as_json()
    schema = json.loads(Path(wisp.doctor.__file__).with_name("schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(found)
    assert found.keys() == doctors.keys()
    assert found["machine"].keys() == json.loads(json.dumps(doctors["machine"])).keys()
    assert (found["schema"], found["selection"], found["exitStatus"], found["notRun"]) == (1, "all", 1, "")
    assert (found["machine"]["backend"], found["machine"]["tier"]) == ("landlock", "B")
    assert [one["name"] for one in found["machine"]["layers"]] == [one.name for one in capability("landlock").layers]
    assert [one["id"] for one in found["probes"]] == sorted(every_verdict)
    assert {one["id"]: one["verdict"] for one in found["probes"]} == every_verdict
    assert found["counts"] == dict.fromkeys(every_verdict.values(), 1)
    for one in found["probes"]:
        assert one.keys() >= {"id", "family", "title", "expect", "verdict", "reason", "seconds", "promise", "slow"}
        assert "_" not in one


@pytest.mark.usefixtures("confined")
@pytest.mark.parametrize(
    ("more", "status"),
    [((), 0), (('requires = ["tool.no-such-tool"]',), 3), (('requires = ["user-namespaces-of-mars"]',), None)],
)
def test_its_exit_status_is_the_doctors(
    more: tuple[str, ...], status: int | None, pytester: pytest.Pytester, rows: Rows, row: RowText, run_pytest: Run
) -> None:
    rows("probes/own.toml", row("own.one", *more))
    run_pytest("--wisp-report=r.json")
    found = read(pytester.path / "r.json")
    if status is None:
        # The file of rows is wrong, so pytest stopped at it.
        assert (found["exitStatus"], found["probes"]) == (3, [])
        assert found["notRun"].startswith("pytest ended early")
    else:
        assert (found["exitStatus"], found["notRun"]) == (status, "")


def test_without_rows_it_says_that_there_were_none(pytester: pytest.Pytester, run_pytest: Run) -> None:
    pytester.makepyfile("def test_one(): pass")
    result = run_pytest("--wisp-report=r.json")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["report: *r.json"])
    found = read(pytester.path / "r.json")
    assert found["probes"] == []
    assert found["notRun"] != ""
    assert found["exitStatus"] != 0


def test_where_nothing_confines_it_says_so(
    no_sandbox: str, pytester: pytest.Pytester, rows: Rows, row: RowText, run_pytest: Run
) -> None:
    rows("probes/own.toml", row("own.one"))
    run_pytest("--wisp-report=r.json")
    found = read(pytester.path / "r.json")
    assert (found["machine"]["tier"], found["machine"]["reason"], found["exitStatus"]) == (None, no_sandbox, 1)
    assert found["counts"]["skipped"] == 1


@pytest.mark.usefixtures("confined")
def test_it_does_not_name_the_home_directory(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, rows: Rows, row: RowText, run_pytest: Run
) -> None:
    home = pytester.path / "home-of-somebody"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    rows("probes/own.toml", row("own.one", run=f'echo {home}/x; touch "$OUTSIDE/probe"'))
    run_pytest("--wisp-report=r.json").assert_outcomes(passed=1)
    (one,) = read(pytester.path / "r.json")["probes"]
    assert one["control"]["output"] == "~/x"


@pytest.mark.usefixtures("confined")
def test_it_is_replaced_whole_with_the_modes_of_a_new_file(
    pytester: pytest.Pytester, rows: Rows, row: RowText, run_pytest: Run
) -> None:
    rows("probes/own.toml", row("own.one"))
    target = pytester.path / "r.json"
    target.write_text("old")
    (pytester.path / "link.json").symlink_to(target)
    previous = os.umask(0o027)
    try:
        run_pytest("--wisp-report=link.json").assert_outcomes(passed=1)
    finally:
        os.umask(previous)
    assert read(target)["counts"]["held"] == 1
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert (pytester.path / "link.json").is_symlink()
    assert list(pytester.path.glob(".wisp-report-*")) == []


def test_a_report_that_can_no_longer_be_written_fails_the_session(pytester: pytest.Pytester, run_pytest: Run) -> None:
    (pytester.path / "out").mkdir()
    pytester.makepyfile("def test_one(): __import__('shutil').rmtree('out')")
    result = run_pytest("--wisp-report=out/r.json")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["ERROR: --wisp-report: *out/r.json: No such file or directory"])


def test_a_write_that_fails_leaves_the_old_report_and_no_other_file(tmp_path: Path) -> None:
    target = tmp_path / "r.json"
    target.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(target, "\ud800")
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]
