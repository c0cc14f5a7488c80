"""What the plugin costs, and does, in a project that does not use it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., pytest.RunResult]
Rows = Callable[..., Path]
RowText = Callable[..., str]

_HEAVY = {"click", "filelock", "pydantic", "re2", "rich"}


def test_importing_the_plugin_imports_nothing_of_wisp_and_no_library() -> None:
    program = "import pytest, sys; before = set(sys.modules); import wisp.pytest_plugin; import json\n"
    program += "print(json.dumps(sorted(set(sys.modules) - before)))"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(json.loads(ran.stdout))
    assert {name for name in loaded if name.partition(".")[0] == "wisp"} == {
        "wisp",
        "wisp._version",
        "wisp.pytest_plugin",
    }
    assert not _HEAVY & {name.partition(".")[0] for name in loaded}


def test_a_run_that_does_not_use_it_prints_nothing_and_runs_nothing_of_wisp(
    pytester: pytest.Pytester, run_pytest: Run
) -> None:
    pytester.makepyfile("def test_one(): pass")
    pytester.makeconftest(
        """
        import sys

        def pytest_unconfigure():
            print("\\nloaded:", *sorted(name for name in sys.modules if name.startswith("wisp.")), *(
                sorted({"click", "pydantic", "re2", "rich"} & set(sys.modules))))
        """
    )
    result = run_pytest("-s", everything=True)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        ["loaded: wisp._pytest_plugin wisp._pytest_plugin.tally wisp._version wisp.pytest_plugin"]
    )
    result.stdout.no_fnmatch_line("wisp *: backend*")
    result.stdout.no_fnmatch_line("*= wisp =*")


def test_no_wisp_switches_all_of_it_off(pytester: pytest.Pytester, run_pytest: Run, rows: Rows, row: RowText) -> None:
    rows("probes/own.toml", row("own.row"))
    pytester.makepyfile("def test_one(): pass")
    run_pytest("-p", "no:wisp", everything=True).assert_outcomes(passed=1)
    assert "--wisp-probes" not in run_pytest("-p", "no:wisp", "--help", everything=True).stdout.str()
    assert run_pytest("-p", "no:wisp", "--wisp-probes", everything=True).ret == pytest.ExitCode.USAGE_ERROR


def test_the_options_and_the_markers_are_described(run_pytest: Run) -> None:
    said = run_pytest("--help").stdout.str()
    for option in ("--wisp-probes", "--wisp-all", "--wisp-require", "--wisp-backend", "--wisp-report"):
        assert f"  {option}" in said
    said = run_pytest("--markers").stdout.str()
    for marker in ("macos", "linux", "wisp_requires(capability, ...)", "wisp_probe", "wisp_slow"):
        assert f"@pytest.mark.{marker}: " in said


@pytest.mark.usefixtures("confined", "every_verdict")
def test_no_warning_comes_from_the_plugin(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, run_pytest: Run
) -> None:
    monkeypatch.setenv("PYTHONWARNINGS", "error")
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.wisp_requires("backend")
        def test_refused(assert_refused, wisp_outside):
            assert_refused(f"touch {wisp_outside}/made", effect=wisp_outside / "made")
        """
    )
    result = run_pytest(
        "-W", "error", "--strict-markers", "--strict-config", "--wisp-report=r.json", "--wisp-backend=landlock"
    )
    result.assert_outcomes(passed=3, failed=3, skipped=1, xfailed=1, deselected=1)
    assert "Warning" not in result.stdout.str() + result.stderr.str()
