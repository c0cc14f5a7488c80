"""How a verdict reads: as an outcome of pytest, as a failure, in the summary, and to other tools."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., pytest.RunResult]
Rows = Callable[..., Path]
RowText = Callable[..., str]

_ARGS = ("--wisp-all", "--wisp-backend=landlock")


@pytest.mark.usefixtures("confined", "every_verdict")
def test_each_verdict_is_the_outcome_that_it_should_be(run_pytest: Run) -> None:
    result = run_pytest(*_ARGS, "-rA")
    result.assert_outcomes(passed=3, failed=3, skipped=1, xfailed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    summary = result.stdout.str().partition("short test summary info")[2].splitlines()
    said = sorted(line.partition(" - ")[0].replace("probes/own.toml::own.", "") for line in summary if "own." in line)
    assert said == [
        "FAILED inconclusive",
        "FAILED leaked",
        "FAILED overblocked",
        "PASSED closed",
        "PASSED held",
        "PASSED not-promised",
        "SKIPPED [1] probes/own.toml:1: needs tool.no-such-tool: no-such-tool is not installed, or not on PATH",
        "XFAIL declared",
    ]


@pytest.mark.usefixtures("confined", "every_verdict")
def test_the_summary_counts_every_verdict_and_says_each_limit_once(run_pytest: Run, rows: Rows, row: RowText) -> None:
    limit = 'limits = [{ without = "confine.metadata", because = "a test says so" }]'
    rows("probes/more.toml", row("more.declared", limit, made="$ROOT/probe"))
    run_pytest(*_ARGS).stdout.fnmatch_lines(
        [
            "*= wisp =*",
            "9 rows: 1 held, 1 leaked, 1 overblocked, 2 declared, 1 closed, 1 not-promised, 1 inconclusive, 1 skipped",
            "declared confine.metadata, 2 rows: Landlock *",
            "    more.declared, own.declared",
            "closed confine.metadata, 1 row: Landlock *",
            "    own.closed",
        ],
        consecutive=True,
    )


@pytest.mark.usefixtures("confined")
def test_a_leak_says_what_it_is_for_what_was_seen_and_how_to_repeat_it(
    rows: Rows, row: RowText, run_pytest: Run
) -> None:
    path = rows("probes/own.toml", row("own.leaked", run='echo heard; touch "$ROOT/probe"', made="$ROOT/probe"))
    result = run_pytest("--wisp-backend=landlock")
    result.stdout.fnmatch_lines(
        [
            "*_ own.leaked _*",
            "leaked. Expected: own.leaked is as it should be",
            "why it matters: a test needs it",
            "what was seen: it crossed: $ROOT/probe was made",
            'command: echo heard; touch "$ROOT/probe"',
            "control, without a sandbox:",
            "    crossed, exit status 0",
            "    | heard",
            "confined (landlock: landlock, *):",
            "    crossed, exit status 0",
            "    | heard",
            "to repeat it: pytest probes/own.toml::own.leaked",
            f"row: {path}: own.leaked",
        ],
        consecutive=True,
    )
    assert "Traceback" not in result.stdout.str()
    assert ".py:" not in result.stdout.str()


@pytest.mark.usefixtures("confined")
def test_the_command_to_repeat_a_row_repeats_it(rows: Rows, row: RowText, run_pytest: Run) -> None:
    rows("rows/own.toml", row("own.leaked", made="$ROOT/probe"), row("own.held"))
    failed = run_pytest("--wisp-probes=rows")
    failed.assert_outcomes(passed=1, failed=1)
    line = next(line for line in failed.outlines if line.startswith("to repeat it: "))
    again = run_pytest(*line.removeprefix("to repeat it: pytest ").split())
    again.assert_outcomes(failed=1, deselected=1)


@pytest.mark.usefixtures("confined")
def test_a_packaged_row_is_repeated_by_the_doctor(run_pytest: Run) -> None:
    result = run_pytest("--wisp-probes", "--wisp-backend=none", "-k", "write.create-outside")
    result.assert_outcomes(failed=1, deselected=result.parseoutcomes()["deselected"])
    result.stdout.fnmatch_lines(["to repeat it: wisp doctor write.create-outside"])


@pytest.mark.usefixtures("confined")
def test_the_packaged_rows_hold_where_pytest_runs_them(run_pytest: Run) -> None:
    result = run_pytest("--wisp-probes", "-k", "write.")
    found = result.parseoutcomes()
    assert found["passed"] >= 5
    assert "failed" not in found


@pytest.mark.usefixtures("no_sandbox")
def test_where_nothing_confines_all_rows_are_skipped_and_the_session_fails(
    no_sandbox: str, rows: Rows, row: RowText, run_pytest: Run
) -> None:
    rows("probes/own.toml", row("own.one"), row("own.two"))
    result = run_pytest("-rs")
    result.assert_outcomes(skipped=2)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["2 rows: 2 skipped", f"ERROR: nothing was proved: {no_sandbox}"])
    result.stdout.fnmatch_lines([f"SKIPPED * there is no sandbox to prove: {no_sandbox}"])


@pytest.mark.usefixtures("confined")
def test_without_a_sandbox_by_choice_every_refused_row_leaks(rows: Rows, row: RowText, run_pytest: Run) -> None:
    rows("probes/own.toml", row("own.one"), row("own.two", expect="allowed", made="$ROOT/probe"))
    run_pytest("--wisp-backend=none").assert_outcomes(passed=1, failed=1)


@pytest.mark.usefixtures("confined")
def test_workers_run_the_same_rows_and_their_results_arrive(
    pytester: pytest.Pytester, every_verdict: dict[str, str], run_pytest: Run
) -> None:
    pytester.makepyfile("def test_one(record_property): record_property('wisp', 'not ours')")
    result = run_pytest(*_ARGS, "-p", "xdist", "-n", "2", "--max-worker-restart=0", "--wisp-report=r.json")
    result.assert_outcomes(passed=4, failed=3, skipped=1, xfailed=1)
    result.stdout.fnmatch_lines(["8 rows: 1 held, 1 leaked, 1 overblocked, 1 declared, *", "report: *r.json"])
    found = json.loads((pytester.path / "r.json").read_text())
    assert {one["id"]: one["verdict"] for one in found["probes"]} == every_verdict
    assert found["jobs"] == 2


@pytest.mark.usefixtures("confined")
def test_a_result_is_a_json_text_among_the_properties_of_a_junit_report(
    pytester: pytest.Pytester, every_verdict: dict[str, str], run_pytest: Run
) -> None:
    run_pytest(*_ARGS, "--junitxml=j.xml")
    found = dict[str, str]()
    for case in ET.parse(pytester.path / "j.xml").iter("testcase"):
        (value,) = (one.attrib["value"] for one in case.iter("property") if one.attrib["name"] == "wisp")
        found[case.attrib["name"]] = json.loads(value)["verdict"]
        assert case.attrib["classname"] == "probes.own.toml"
    assert found == every_verdict


@pytest.mark.usefixtures("confined")
def test_rows_that_failed_run_again_with_lf(rows: Rows, row: RowText, run_pytest: Run) -> None:
    rows("rows/own.toml", row("own.leaked", made="$ROOT/probe"), row("own.held"))
    args = ("-p", "cacheprovider", "--wisp-probes=rows", "-o", "cache_dir=cache")
    run_pytest(*args).assert_outcomes(passed=1, failed=1)
    run_pytest(*args, "--lf").assert_outcomes(failed=1, deselected=1)


@pytest.mark.usefixtures("confined")
def test_ctrl_c_leaves_no_scratch_directory_and_a_report_that_says_so(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, rows: Rows, row: RowText
) -> None:
    # Short: the sockets of the stand-ins live below it.
    home = pytester.path / "h"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    started = pytester.path / "started"
    rows("probes/own.toml", row("own.one", run=f'touch "{started}"; exec sleep 60'))
    pytest_process = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--wisp-report=r.json"],
        cwd=pytester.path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    with pytest_process:
        deadline = time.monotonic() + 30
        while not started.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        before = scratch_of(pytest_process.pid)
        pytest_process.send_signal(signal.SIGINT)
        said = pytest_process.communicate(timeout=30)[0].decode()
    assert pytest_process.returncode == pytest.ExitCode.INTERRUPTED, said
    assert len(before) == 1
    assert scratch_of(pytest_process.pid) == []
    found = json.loads((pytester.path / "r.json").read_text())
    assert (found["exitStatus"], found["probes"], found["notRun"]) == (3, [], "pytest ended early, with exit status 2")


def scratch_of(pid: int) -> list[Path]:
    """Return the scratch directories of one process: in /var/tmp, where the home is a temporary directory."""
    return [place for base in (Path.home(), Path("/var/tmp")) for place in base.glob(f".wisp-probe-{pid}-*")]
