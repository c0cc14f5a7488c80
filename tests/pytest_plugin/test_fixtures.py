"""`wisp_runner`, `wisp_outside` and `assert_refused`, in a project that uses them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., pytest.RunResult]

pytestmark = pytest.mark.usefixtures("confined")


@pytest.fixture
def run_module(pytester: pytest.Pytester, run_pytest: Run) -> Callable[..., pytest.RunResult]:
    """Write a test module and run it."""

    def run(text: str, *args: str) -> pytest.RunResult:
        pytester.makepyfile(test_it=text)
        return run_pytest("--wisp-backend=landlock", *args)

    return run


RunModule = Callable[..., pytest.RunResult]


def test_a_runner_writes_in_its_directory_alone_and_has_no_network(run_module: RunModule) -> None:
    run_module(
        """
        import os, socket

        def test_it(wisp_runner, tmp_path, tmp_path_factory):
            assert wisp_runner.confinement.roots == (os.path.realpath(tmp_path),)
            assert wisp_runner.confinement.network is False
            assert wisp_runner.run("touch made && pwd").stdout.strip() == os.path.realpath(tmp_path)
            assert (tmp_path / "made").exists()
            other = tmp_path_factory.mktemp("other")
            assert wisp_runner.run(f"touch {other}/made").refusal.verdict == "refused"
            assert not (other / "made").exists()
            connect = "import socket; socket.socket().connect(('127.0.0.1', 9))"
            assert "PermissionError" in wisp_runner.run_argv([__import__("sys").executable, "-c", connect]).stderr
        """
    ).assert_outcomes(passed=1)


def test_a_runner_heeds_no_settings_of_the_person_and_writes_no_log(wisp_home: Path, run_module: RunModule) -> None:
    (wisp_home / "config.json").write_text('{"sandbox": {"enabled": false}, "commandPolicy": {"deny": ["."]}}')
    run_module("def test_it(wisp_runner): assert wisp_runner.run('true').layers").assert_outcomes(passed=1)
    assert [place.name for place in wisp_home.iterdir()] == ["config.json"]


def test_outside_is_a_fresh_directory_that_no_default_root_holds_and_is_removed(
    pytester: pytest.Pytester, run_module: RunModule
) -> None:
    run_module(
        """
        import os, stat
        from pathlib import Path
        import pytest
        from wisp import Confinement

        @pytest.mark.parametrize("number", [1, 2])
        def test_it(number, wisp_runner, wisp_outside):
            assert list(wisp_outside.iterdir()) == []
            assert stat.S_IMODE(wisp_outside.stat().st_mode) == 0o700
            assert str(wisp_outside) == os.path.realpath(wisp_outside)
            for confinement in (wisp_runner.confinement, Confinement.default()):
                assert not confinement.allows_write(str(wisp_outside))
            (wisp_outside / "deep").mkdir()
            (wisp_outside / "deep/file").touch()
            (wisp_outside / "deep").chmod(0)
            with open("seen", "a") as stream:
                stream.write(f"{wisp_outside}\\n")
        """
    ).assert_outcomes(passed=2)
    seen = (pytester.path / "seen").read_text().splitlines()
    assert len(set(seen)) == 2
    assert not any(os.path.lexists(place) for place in seen)
    assert not any(Path(place).parent.exists() for place in seen)


def test_where_no_place_is_outside_the_fixture_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, run_module: RunModule
) -> None:
    # The home of this test is a temporary directory, so scratch directories go to /var/tmp, and that is a root now.
    monkeypatch.setenv("TMPDIR", "/var/tmp")
    result = run_module("def test_it(wisp_outside): pass", "--basetemp=base")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*WispError: */var/tmp/.wisp-probe-*: there is no place outside every default root*"])


def test_what_is_refused_and_works_without_the_sandbox_passes(run_module: RunModule) -> None:
    run_module(
        """
        def test_line(assert_refused, wisp_outside):
            outcome = assert_refused(f"touch {wisp_outside}/made")
            assert outcome.refusal.paths == (f"{wisp_outside}/made",)
            assert (wisp_outside / "made").exists()

        def test_words(assert_refused, wisp_outside):
            assert_refused(["mkdir", f"{wisp_outside}/made"], effect=wisp_outside / "made")

        def test_more_than_once(assert_refused, wisp_outside):
            for _ in range(2):
                assert_refused(f"mkdir {wisp_outside}/made", effect=wisp_outside / "made")
                assert list(wisp_outside.iterdir()) == []

        def test_network(assert_refused):
            import socket, sys
            with socket.create_server(("127.0.0.1", 0)) as server:
                program = f"import socket; socket.create_connection({server.getsockname()})"
                assert_refused([sys.executable, "-c", program], timeout=20)
        """
    ).assert_outcomes(passed=4)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ('assert_refused("touch made")', "was not refused in the sandbox (landlock: landlock, *): exit status 0"),
        (
            'assert_refused("touch made; false", effect=tmp_path / "made")',
            "was not refused in the sandbox (landlock: *): */made is there afterwards",
        ),
        ('assert_refused("echo heard; exit 3")', "proves nothing: the action fails without a sandbox too"),
        (
            'assert_refused(f"touch {wisp_outside}/made", effect=wisp_outside / "other")',
            "proves nothing: without a sandbox it does not make */other either",
        ),
        ('assert_refused("true", effect=wisp_outside)', "proves nothing: its effect is there before it ran: *"),
        (
            'assert_refused("sleep 9", timeout=0.2)',
            "proves nothing: it did not end in time in the sandbox (landlock: *)",
        ),
        (
            "assert_refused(f'echo {tmp_path}/made: Permission denied >&2; exit 1')",
            "was not refused by the sandbox: it failed in the sandbox (landlock: *) for another reason (inside)",
        ),
        ('assert_refused("rm -rf /")', "proves nothing about the sandbox: nothing was run, command denied by policy*"),
    ],
)
def test_what_proves_nothing_or_is_not_refused_fails_with_the_reason(
    call: str, said: str, run_module: RunModule
) -> None:
    result = run_module(f"def test_it(assert_refused, wisp_outside, tmp_path):\n    {call}\n")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"E*{said}*"])
    result.stdout.fnmatch_lines(["test_it.py:2: Failed"])


def test_a_failure_shows_what_the_action_printed(run_module: RunModule) -> None:
    result = run_module("def test_it(assert_refused): assert_refused('echo heard; echo seen >&2; exit 3')")
    result.stdout.fnmatch_lines(["E*exit status 3", "E*    heard", "E*    seen"])


def test_without_a_sandbox_nothing_is_refused(run_module: RunModule) -> None:
    text = "def test_it(assert_refused, wisp_outside): assert_refused(f'touch {wisp_outside}/made')"
    run_module(text).assert_outcomes(passed=1)
    result = run_module(text, "--wisp-backend=none")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E*was not refused in the sandbox (none: no layer): exit status 0"])


def test_an_effect_is_removed_without_following_a_link(pytester: pytest.Pytester, run_module: RunModule) -> None:
    kept = pytester.path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    run_module(
        f"""
        def test_it(assert_refused, wisp_outside):
            assert_refused(f"ln -s {kept} {{wisp_outside}}/made", effect=wisp_outside / "made")
            assert list(wisp_outside.iterdir()) == []
        """
    ).assert_outcomes(passed=1)
    assert (kept / "file").exists()


def test_fixtures_on_a_machine_that_cannot_confine_are_an_error_and_no_pass(
    no_sandbox: str, pytester: pytest.Pytester, run_pytest: Run
) -> None:
    del no_sandbox
    conftest = pytester.path / "conftest.py"
    conftest.write_text(
        conftest.read_text() + "\nimport wisp.runner\nwisp.runner.backend_named = ground.backend_named\n"
    )
    pytester.makepyfile("def test_it(wisp_runner): wisp_runner.run('true')")
    result = run_pytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E*SandboxUnavailable: *"])
