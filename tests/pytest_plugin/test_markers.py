"""The markers: what this machine cannot do is skipped with the reason, or an error where it is required."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from wisp.runner import capability

Run = Callable[..., pytest.RunResult]
Rows = Callable[..., Path]
RowText = Callable[..., str]

_HERE = {"linux": "Linux", "darwin": "macOS"}


@pytest.mark.skipif(sys.platform not in _HERE, reason="neither system")
def test_a_test_for_another_system_is_skipped_at_its_own_line_and_one_for_this_runs(
    pytester: pytest.Pytester, run_pytest: Run
) -> None:
    pytester.makepyfile(
        test_it="""
        import pytest

        @pytest.mark.macos
        def test_mac(): pass

        @pytest.mark.linux
        def test_linux(): pass

        @pytest.mark.linux
        @pytest.mark.macos
        def test_both(): pass
        """
    )
    result = run_pytest("-rs", "--strict-markers")
    result.assert_outcomes(passed=2, skipped=1)
    there = "macOS" if sys.platform == "linux" else "Linux"
    result.stdout.fnmatch_lines([f"SKIPPED [[]1[]] test_it.py:*: needs {there}, and this is {_HERE[sys.platform]}"])


def marked(pytester: pytest.Pytester, *arguments: str) -> None:
    """Write a module with a test that needs each of these."""
    lines = ["import pytest\n"]
    for number, one in enumerate(arguments):
        lines.append(f"@pytest.mark.wisp_requires({one})\ndef test_{number}(): pass\n")
    pytester.makepyfile(test_it="\n".join(lines))


@pytest.mark.usefixtures("confined")
def test_what_the_machine_can_do_runs(pytester: pytest.Pytester, run_pytest: Run) -> None:
    names = [
        "backend",
        "tier.B",
        "landlock",
        "seccomp",
        *sorted(capability("landlock").confines),
        "symlinks",
        "tool.sh",
    ]
    marked(pytester, *(repr(name) for name in names), "'backend', 'tool.sh'")
    run_pytest("--strict-markers", "--wisp-backend=landlock").assert_outcomes(passed=len(names) + 1)


@pytest.mark.usefixtures("confined")
def test_what_it_lacks_is_skipped_with_the_probes_own_reason(pytester: pytest.Pytester, run_pytest: Run) -> None:
    limit = next(limit for limit in capability("landlock").limits if limit.name == "confine.metadata")
    marked(pytester, "'tier.A'", "'seatbelt'", "'confine.metadata'", "'tool.no-such-tool'", "'backend', 'mounts'")
    result = run_pytest("-rs", "--wisp-backend=landlock")
    result.assert_outcomes(skipped=5)
    result.stdout.fnmatch_lines_random(
        [
            "SKIPPED * test_it.py:*: needs tier.A: the backend landlock gives tier B here",
            "SKIPPED * test_it.py:*: needs seatbelt: the backend landlock has no such layer here",
            f"SKIPPED * test_it.py:*: needs confine.metadata: {limit.because}",
            "SKIPPED * test_it.py:*: needs tool.no-such-tool: no-such-tool is not installed, or not on PATH",
            "SKIPPED * test_it.py:*: needs mounts: the backend landlock has no such layer here",
        ]
    )


def test_where_nothing_confines_the_reason_is_that(no_sandbox: str, pytester: pytest.Pytester, run_pytest: Run) -> None:
    marked(pytester, "'backend'", "'tier.B'", "'confine.write'")
    result = run_pytest("-rs")
    result.assert_outcomes(skipped=3)
    result.stdout.fnmatch_lines_random(
        [f"SKIPPED * needs {name}: {no_sandbox}" for name in ("backend", "tier.B", "confine.write")]
    )


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("'landlok'", "wisp_requires: there is no capability 'landlok'; did you mean 'landlock'?"),
        ("", "wisp_requires takes the names of capabilities, as texts, and nothing else"),
        ("1", "wisp_requires takes the names of capabilities, as texts, and nothing else"),
        ("'backend', reason='x'", "wisp_requires takes the names of capabilities, as texts, and nothing else"),
    ],
)
def test_a_marker_without_meaning_is_an_error_of_its_test(
    argument: str, said: str, pytester: pytest.Pytester, run_pytest: Run
) -> None:
    marked(pytester, argument)
    result = run_pytest()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([said])
    assert "Traceback" not in result.stdout.str()


@pytest.mark.usefixtures("confined")
def test_a_required_capability_that_is_there_changes_nothing(pytester: pytest.Pytester, run_pytest: Run) -> None:
    marked(pytester, "'landlock'", "'tier.A'")
    result = run_pytest("--wisp-backend=landlock", "--wisp-require=landlock", "--wisp-require", "confine.write")
    result.assert_outcomes(passed=1, skipped=1)
    assert result.ret == pytest.ExitCode.OK


@pytest.mark.usefixtures("confined")
@pytest.mark.parametrize("name", ["tier.A", "seatbelt", "confine.metadata", "tool.no-such-tool"])
def test_a_required_capability_that_is_missing_ends_the_session_before_any_test(
    name: str, pytester: pytest.Pytester, run_pytest: Run
) -> None:
    marked(pytester, "'landlock'")
    result = run_pytest("--wisp-backend=landlock", "--wisp-require=landlock", f"--wisp-require={name}")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stderr.fnmatch_lines([f"Exit: --wisp-require {name}: this machine lacks it: *"])
    result.stdout.no_fnmatch_line("collected*")


@pytest.mark.usefixtures("confined")
def test_to_list_tests_needs_no_capability(pytester: pytest.Pytester, run_pytest: Run) -> None:
    marked(pytester, "'seatbelt'")
    assert run_pytest("--collect-only", "--wisp-require=seatbelt", "--wisp-backend=landlock").ret == pytest.ExitCode.OK


def test_a_required_sandbox_that_is_missing_ends_the_session(
    no_sandbox: str, rows: Rows, row: RowText, run_pytest: Run
) -> None:
    rows("probes/own.toml", row("own.one"))
    result = run_pytest("--wisp-require=backend")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stderr.fnmatch_lines([f"Exit: --wisp-require backend: this machine lacks it: {no_sandbox}"])


@pytest.mark.usefixtures("confined")
def test_a_worker_that_lacks_what_is_required_fails_the_test_instead_of_skipping_it(
    pytester: pytest.Pytester, rows: Rows, row: RowText, run_pytest: Run
) -> None:
    # A worker may run where the controller's check does not hold, on another machine or later.
    pytester.makeconftest(
        """
        from wisp._pytest_plugin import ground

        def pytest_configure(config):
            if hasattr(config, "workerinput"):
                from wisp.sandbox.landlock import LandlockBackend
                ground.backend_named = lambda name, **_: LandlockBackend(abi=1)
        """
    )
    marked(pytester, "'backend'")
    rows("probes/own.toml", row("own.one"))
    result = run_pytest("-p", "xdist", "-n", "1", "--wisp-require=backend")
    result.assert_outcomes(failed=1, errors=1)
    result.stdout.fnmatch_lines_random(
        ["--wisp-require backend: *", "own.one: --wisp-require backend: there is no sandbox*"]
    )
