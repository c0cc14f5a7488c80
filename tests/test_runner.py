from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import shlex
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import wisp
from wisp import Confinement, Runner, Stop
from wisp.audit.log import AuditLog
from wisp.config import LimitSettings, PolicySettings, SandboxSettings, Settings
from wisp.errors import (
    ConfigError,
    DirectoryMissing,
    LaunchFailed,
    PolicyDenied,
    SandboxUnavailable,
    UsageError,
    WispError,
)
from wisp.outcome import Outcome
from wisp.sandbox.leftovers import proc_stat

pytestmark = [pytest.mark.linux, pytest.mark.wisp_requires("landlock")]

BOUND, LONG = 20.0, 60


@pytest.fixture
def runner(tmp_path: Path, wisp_home: Path) -> Iterator[Runner]:
    """Confines to the test's directory, and keeps an audit log."""
    with Runner(Confinement(roots=(str(tmp_path),))) as runner:
        yield runner


@pytest.fixture
def outside(wisp_home: Path) -> Path:
    """A directory outside every root."""
    place = wisp_home.parent / f"{wisp_home.name}-outside"
    place.mkdir()
    return place


def records(home: Path) -> list[dict[str, object]]:
    log = home / "logs" / "audit.jsonl"
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def kinds(home: Path) -> list[tuple[object, object]]:
    return [
        (one["kind"], details.get("verdict", ""))
        for one in records(home)
        if isinstance(details := one["details"], dict)
    ]


# The steps and their order.


def test_a_line_runs_in_the_shell_and_its_outcome_is_whole(runner: Runner, tmp_path: Path) -> None:
    outcome = runner.run("printf out; printf err >&2; exit 3", cwd=tmp_path)
    assert outcome == Outcome(
        line="printf out; printf err >&2; exit 3",
        directory=str(tmp_path),
        exit_status=3,
        stdout="out",
        stderr="err",
        truncated=False,
        timed_out=False,
        stopped=False,
        seconds=outcome.seconds,
        backend=runner.backend,
        layers=runner.layers,
    )
    assert 0 < outcome.seconds < BOUND


def test_the_decision_is_audited_before_the_outcome(runner: Runner, wisp_home: Path, tmp_path: Path) -> None:
    runner.run("exit 3", cwd=tmp_path)
    decision, outcome = records(wisp_home)
    assert (decision["kind"], outcome["kind"]) == ("policy.decision", "command.outcome")
    assert decision["details"] == {
        "command": "exit 3",
        "workingDirectory": str(tmp_path),
        "verdict": "allowed",
        "sandbox": True,
        "network": True,
        "nested": False,
    }
    details = outcome["details"]
    assert isinstance(details, dict)
    assert details == {
        "command": "exit 3",
        "exitStatus": 3,
        "timedOut": False,
        "truncated": False,
        "stdout": "",
        "stderr": "",
        "seconds": details["seconds"],
    }
    assert decision["session"] == outcome["session"] == runner.session


def test_a_denied_line_never_runs_and_is_audited_with_its_reason(
    runner: Runner, wisp_home: Path, tmp_path: Path
) -> None:
    with pytest.raises(PolicyDenied) as caught:
        runner.run(f"touch {tmp_path}/ran; sudo ls")
    assert not (tmp_path / "ran").exists()
    (record,) = records(wisp_home)
    details = record["details"]
    assert isinstance(details, dict)
    assert (record["kind"], details["verdict"], details["reason"]) == ("policy.decision", "denied", caught.value.reason)


@pytest.mark.parametrize("origin", ["model", "person"])
def test_the_policy_holds_for_everybody(runner: Runner, origin: str) -> None:
    with pytest.raises(PolicyDenied):
        runner.run("sudo ls", origin=origin)  # type: ignore[arg-type]


def test_the_policy_sees_a_program_and_its_words_as_a_line(runner: Runner) -> None:
    with pytest.raises(PolicyDenied):
        runner.run_argv(["sudo", "ls"])


def test_patterns_of_the_settings_decide(tmp_path: Path, wisp_home: Path) -> None:
    settings = Settings(command_policy=PolicySettings(deny=("^echo forbidden",)))
    with Runner(Confinement(roots=(str(tmp_path),)), settings=settings) as runner:
        with pytest.raises(
            PolicyDenied, match=r"command denied by policy: command matches deny pattern \^echo forbidden"
        ):
            runner.run("echo forbidden")
        assert runner.run("echo allowed").stdout == "allowed\n"


def test_a_pattern_that_does_not_compile_stops_the_runner(wisp_home: Path) -> None:
    settings = Settings(command_policy=PolicySettings(deny=("(",)))
    with pytest.raises(ConfigError, match=r"commandPolicy.deny\[0\]"):
        Runner(Confinement(), settings=settings)


def test_a_directory_that_is_missing_is_an_error_and_not_audited(
    runner: Runner, wisp_home: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    for missing in (tmp_path / "no", tmp_path / "file", "", "a\0b", tmp_path / "file" / "x"):
        with pytest.raises(DirectoryMissing, match="working directory does not exist: "):
            runner.run("true", cwd=missing)
    assert records(wisp_home) == []


def test_a_directory_without_permission_is_an_error(runner: Runner, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o600)
    if os.geteuid() == 0:
        assert runner.run("pwd", cwd=closed).stdout == f"{closed}\n"
        return
    with pytest.raises(LaunchFailed, match=f"could not launch /bin/sh: Permission denied: {closed}"):
        runner.run("pwd", cwd=closed)


def test_a_removed_directory_is_an_error(tmp_path: Path, wisp_home: Path) -> None:
    said = script(
        """
        import os
        from wisp import Confinement, Runner, DirectoryMissing
        os.mkdir("gone"); os.chdir("gone"); os.environ["PWD"] = os.getcwd(); os.rmdir("../gone")
        for make in (Runner, lambda: Runner(Confinement(roots=("/tmp",)))):
            try:
                make()
            except DirectoryMissing as error:
                print(error)
        """,
        tmp_path,
    )
    assert said.splitlines() == [f"working directory does not exist: {tmp_path}/gone (it was removed)"] * 2


def test_the_directory_of_a_command_is_a_real_path(runner: Runner, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert runner.run("pwd", cwd=tmp_path / "link").stdout == f"{tmp_path}/real\n"


def test_a_relative_directory_is_seen_from_where_the_runner_was_made(
    tmp_path: Path, wisp_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path)
    with Runner(Confinement(roots=(str(tmp_path),))) as runner:
        monkeypatch.chdir("/")
        assert runner.run("pwd").stdout == f"{tmp_path}\n"
        assert runner.run("pwd", cwd="sub").stdout == f"{tmp_path}/sub\n"


def test_the_directory_of_a_command_never_widens_what_it_may_do(runner: Runner, outside: Path, tmp_path: Path) -> None:
    refused = runner.run("touch here", cwd=outside)
    assert refused.exit_status != 0
    assert refused.refusal is not None
    assert (refused.refusal.verdict, refused.refusal.paths) == ("refused", (f"{outside}/here",))
    assert list(outside.iterdir()) == []
    assert runner.run("touch here", cwd=tmp_path).exit_status == 0


def test_a_refusal_is_told_to_both_and_audited(runner: Runner, outside: Path, wisp_home: Path) -> None:
    outcome = runner.run(f"touch {outside}/x")
    assert outcome.refusal is not None
    assert (outcome.refusal.verdict, outcome.refusal.evidence) == ("refused", "path")
    assert outcome.for_model().splitlines()[-1] == outcome.model_note
    assert f"refused writing to {outside}/x" in outcome.model_note
    assert f"refused writing to {outside}/x" in outcome.person_note
    details = records(wisp_home)[-1]["details"]
    assert isinstance(details, dict)
    assert {name: details.get(name) for name in ("sandboxRefusal", "sandboxEvidence", "sandboxPaths")} == {
        "sandboxRefusal": "refused",
        "sandboxEvidence": "path",
        "sandboxPaths": [f"{outside}/x"],
    }


def test_a_command_that_only_prints_the_words_of_a_refusal_and_succeeds_is_not_judged(runner: Runner) -> None:
    assert runner.run("echo 'touch: /x: Permission denied' >&2").refusal is None


def test_without_a_sandbox_there_is_no_verdict_and_the_decision_says_so(tmp_path: Path, wisp_home: Path) -> None:
    with Runner(Confinement(roots=(str(tmp_path),)), backend="none") as runner:
        outcome = runner.run("echo 'touch: /x: Permission denied' >&2; exit 1")
    assert (outcome.refusal, outcome.backend, outcome.confined, outcome.layers) == (None, "none", False, ())
    details = records(wisp_home)[0]["details"]
    assert isinstance(details, dict)
    assert details["sandbox"] is False


def test_a_confinement_that_cannot_be_held_runs_nothing_and_is_not_audited_as_allowed(
    tmp_path: Path, wisp_home: Path
) -> None:
    protected = tmp_path / "inside"
    protected.mkdir()
    confinement = Confinement(roots=(str(tmp_path),), protected=(str(protected),))
    with Runner(confinement, backend="landlock") as runner, pytest.raises(SandboxUnavailable):
        runner.run(f"touch {tmp_path}/ran")
    assert not (tmp_path / "ran").exists()
    assert records(wisp_home) == []


def test_a_root_that_was_replaced_runs_nothing(tmp_path: Path, wisp_home: Path, outside: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    with Runner(Confinement(roots=(str(root),))) as runner:
        assert runner.run(f"touch {root}/x").exit_status == 0
        root.rename(tmp_path / "aside")
        root.symlink_to(outside)
        with pytest.raises(SandboxUnavailable):
            runner.run(f"touch {root}/y", cwd="/")
    assert list(outside.iterdir()) == []


def test_a_tier_that_is_asked_for_and_not_given_is_an_error(tmp_path: Path, wisp_home: Path) -> None:
    for tier, backend in (("A", "landlock"), ("A", "none"), ("B", "none")):
        settings = Settings(sandbox=SandboxSettings(require_tier=tier))  # type: ignore[arg-type]
        with pytest.raises(SandboxUnavailable, match=f"`sandbox.requireTier` is {tier}"):
            Runner(Confinement(roots=(str(tmp_path),)), settings=settings, backend=backend)
    Runner(Confinement(), settings=Settings(sandbox=SandboxSettings(require_tier="B"))).close()


def test_an_unknown_backend_is_a_usage_error(wisp_home: Path) -> None:
    with pytest.raises(
        UsageError, match="there is no backend 'firejail'; choose one of auto, bubblewrap, landlock, seatbelt, none"
    ):
        Runner(Confinement(), backend="firejail")


# What a command is given.


def test_a_command_is_told_which_sandbox_holds_it(runner: Runner) -> None:
    assert runner.run('echo "$WISP_SANDBOX"').stdout == f"{runner.backend}\n"
    assert runner.run('echo "$WISP_SANDBOX"', env={"WISP_SANDBOX": "none"}).stdout == f"{runner.backend}\n"


def test_the_environment_is_passed_on_or_replaced(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONE", "1")
    assert runner.run('echo "$ONE$TWO"').stdout == "1\n"
    assert runner.run('echo "$ONE$TWO"', env={"TWO": "2"}).stdout == "2\n"


@pytest.mark.parametrize("environment", ["all", "allow-list"])
def test_keys_of_wisps_own_never_reach_a_command(
    environment: str, tmp_path: Path, wisp_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("WISP_API_KEY", "OPENAI_API_KEY", "WISP_OTHER_TOKEN", "OTHER_THING"):
        monkeypatch.setenv(name, "seen")
    settings = Settings(
        sandbox=SandboxSettings(environment=environment, environment_allow=("OTHER_*",))  # type: ignore[arg-type]
    )
    with Runner(Confinement(roots=(str(tmp_path),)), settings=settings) as runner:
        assert runner.run("env | sed -n 's/=seen$//p'").stdout == "OTHER_THING\n"
        given = {"WISP_API_KEY": "seen", "OPENAI_API_KEY": "seen"}
        assert runner.run("env | sed -n 's/=seen$//p'", env=given).stdout == "OPENAI_API_KEY\n"


def test_on_the_allow_list_a_command_is_given_no_more_than_it_names(
    tmp_path: Path, wisp_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNNAMED", "1")
    monkeypatch.setenv("CARGO_HOME", "2")
    monkeypatch.setenv("LC_TIME", "C")
    settings = Settings(sandbox=SandboxSettings(environment="allow-list", environment_allow=("CARGO_*",)))
    with Runner(Confinement(roots=(str(tmp_path),)), settings=settings) as runner:
        said = runner.run('echo "$UNNAMED|$CARGO_HOME|$LC_TIME|$HOME|$WISP_SANDBOX"').stdout
    assert said == f"|2|C|{os.environ['HOME']}|{runner.backend}\n"


def test_a_key_of_wisps_own_on_the_allow_list_stops_the_runner(wisp_home: Path) -> None:
    settings = Settings(sandbox=SandboxSettings(environment_allow=("WISP_API_KEY",)))
    with pytest.raises(ConfigError, match=r"sandbox.environmentAllow\[0\]: WISP_API_KEY holds a key"):
        Runner(Confinement(), settings=settings)


@pytest.mark.wisp_requires("confine.protected-inside-root")
def test_a_guarded_project_can_be_worked_in_and_its_hooks_not_written(
    tmp_path: Path, wisp_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".git" / "hooks").mkdir(parents=True)
    (tmp_path / ".git" / "config").write_text("[core]\n")
    monkeypatch.chdir(tmp_path)
    settings = Settings(sandbox=SandboxSettings(writable_paths=(), protected_paths=("guard-project",)))
    with Runner(settings=settings) as runner:
        for line in (
            "echo x >.git/hooks/pre-commit",
            "echo x >>.git/config",
            "mv .git aside",
            "mv .git/hooks aside",
            "rm -r .vscode; mkdir -p .vscode && echo x >.vscode/tasks.json",
            "echo x >CLAUDE.md",
            "ln -s /etc/passwd .envrc",
        ):
            assert runner.run(line).exit_status != 0, line
        assert runner.run("mkdir src && echo x >src/main && echo x >.git/HEAD && mv src code").exit_status == 0
        runner.run("rm -rf aside")  # mv copies what it may not rename
    assert (tmp_path / ".git" / "config").read_text() == "[core]\n"
    assert sorted(os.listdir(tmp_path)) == [".git", "code"]
    assert os.listdir(tmp_path / ".git" / "hooks") == []


def test_the_input_of_a_command_is_empty(runner: Runner) -> None:
    assert runner.run("cat; echo end").stdout == "end\n"


def test_a_program_is_run_without_a_shell(runner: Runner) -> None:
    outcome = runner.run_argv(["printf", "%s|", "a b", "$HOME", "*"])
    assert (outcome.stdout, outcome.line) == ("a b|$HOME|*|", "printf '%s|' 'a b' '$HOME' '*'")


@pytest.mark.parametrize("argv", [[], "ls -l", ()])
def test_a_program_is_a_list_that_is_not_empty(runner: Runner, argv: list[str]) -> None:
    with pytest.raises(UsageError):
        runner.run_argv(argv)


def test_a_program_that_is_missing_is_an_error(runner: Runner, tmp_path: Path) -> None:
    with pytest.raises(LaunchFailed, match=r"^could not launch nonexistent: No such file or directory$"):
        runner.run_argv(["nonexistent"], env={"PATH": "/usr/bin:/bin"})  # one that this user may search
    (tmp_path / "plain").write_text("x")
    with pytest.raises(LaunchFailed, match="Permission denied"):
        runner.run_argv([str(tmp_path / "plain")])


@pytest.mark.parametrize("line", ["echo a\0b", "\0"])
def test_a_line_with_a_nul_byte_is_a_usage_error(runner: Runner, line: str, wisp_home: Path) -> None:
    with pytest.raises(UsageError):
        runner.run(line)
    assert records(wisp_home) == []


def test_bytes_that_are_not_utf8_reach_the_command_and_come_back_as_replacements(
    runner: Runner, wisp_home: Path
) -> None:
    line = "printf %s " + os.fsdecode(b"\xff\xc3") + " | od -An -tx1; printf '\\377'"
    outcome = runner.run(line)
    assert outcome.stdout == " ff c3\n\N{REPLACEMENT CHARACTER}"
    assert outcome.line == line
    assert len(records(wisp_home)) == 2


def test_text_that_no_program_can_be_given_is_an_error_and_not_a_crash(runner: Runner) -> None:
    with pytest.raises(LaunchFailed):
        runner.run("echo \ud800")
    with pytest.raises(UsageError):
        runner.run("true", env={"A": "\ud800"})
    with pytest.raises(LaunchFailed):
        runner.run("true", env={"A": "a\0b"})


def test_a_line_of_100_kib_runs(runner: Runner) -> None:
    outcome = runner.run(f"printf %s {'x' * 100_000} | wc -c")
    assert outcome.stdout.strip() == "100000"


@pytest.mark.parametrize("env", [None, {"A": "x" * 3_000_000}])
def test_more_than_the_kernel_takes_is_an_error(runner: Runner, env: dict[str, str] | None) -> None:
    with pytest.raises(LaunchFailed, match="Argument list too long"):
        runner.run("true " + ("x" * 3_000_000 if env is None else ""), env=env)
    assert runner.run("echo on").stdout == "on\n"


# Bounds.


def test_the_tail_of_each_stream_is_kept(runner: Runner) -> None:
    outcome = runner.run("seq 1000; seq 2000 >&2", max_output=10)
    assert (outcome.stdout, outcome.stderr, outcome.truncated) == ("\n999\n1000\n", "1999\n2000\n", True)
    nothing = runner.run("echo x", max_output=0)
    assert (nothing.stdout, nothing.truncated) == ("", True)
    exact = runner.run("printf 0123456789", max_output=10)
    assert (exact.stdout, exact.truncated) == ("0123456789", False)


def test_the_configured_bounds_hold_for_a_model(tmp_path: Path, wisp_home: Path) -> None:
    settings = Settings(limits=LimitSettings(command_timeout_seconds=0.2, command_max_output_bytes=5))
    with Runner(Confinement(roots=(str(tmp_path),)), settings=settings) as runner:
        outcome = runner.run(f"echo 0123456789; exec sleep {LONG}")
    assert (outcome.stdout, outcome.timed_out, outcome.exit_status) == ("6789\n", True, -15)
    assert outcome.for_model() == (
        "exit status: -15\ntimed out: the command was killed\n"
        "output truncated: only the tail of each stream is shown\nstdout:\n6789\n"
    )


def test_a_persons_command_has_no_time_limit_unless_one_is_given(tmp_path: Path, wisp_home: Path) -> None:
    settings = Settings(limits=LimitSettings(command_timeout_seconds=0.05))
    with Runner(Confinement(roots=(str(tmp_path),)), settings=settings) as runner:
        assert not runner.run("sleep 0.5", origin="person").timed_out
        assert runner.run(f"sleep {LONG}", origin="person", timeout=0.1).timed_out
        assert not runner.run("sleep 0.3", timeout=None).timed_out
        assert not runner.run("true", timeout=float("inf")).timed_out
    details = records(wisp_home)[0]["details"]
    assert isinstance(details, dict)
    assert details["origin"] == "person"


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("-inf")])
def test_a_time_limit_is_above_zero(runner: Runner, timeout: float) -> None:
    with pytest.raises(UsageError):
        runner.run("true", timeout=timeout)


def test_a_number_of_bytes_is_not_below_zero(runner: Runner) -> None:
    with pytest.raises(UsageError):
        runner.run("true", max_output=-1)


def test_stopped_is_said_to_the_model_and_audited(runner: Runner, wisp_home: Path) -> None:
    stop = Stop()
    stop.kill()
    outcome = runner.run(f"sleep {LONG}", stop=stop)
    assert outcome.for_model() == "exit status: -9\nstopped: the person stopped the command"
    details = records(wisp_home)[-1]["details"]
    assert isinstance(details, dict)
    assert details["stopped"] is True


@pytest.mark.parametrize("origin", ["model", "person"])
def test_large_output_is_not_held(origin: str, tmp_path: Path, wisp_home: Path) -> None:
    grown = script(
        f"""
        import resource
        from wisp import Confinement, Runner
        with Runner(Confinement(roots=("{tmp_path}",))) as runner:
            runner.run("head -c 1000000 /dev/zero; head -c 1000000 /dev/zero >&2")
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            outcome = runner.run("head -c 134217728 /dev/zero & head -c 134217728 /dev/zero >&2; wait", origin="{origin}")
            assert outcome.exit_status == 0 and outcome.truncated
            print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
        """,
        tmp_path,
    )
    assert int(grown) < 32 * 1024


# Read-only.


def test_read_only_leaves_a_scratch_directory_and_nothing_else(tmp_path: Path, wisp_home: Path) -> None:
    with Runner(Confinement(roots=(), scratch_tmpdir=True)) as runner:
        outcome = runner.run('echo x >"$TMPDIR/x" && cat "$TMPDIR/x" && echo "$TMPDIR"; touch ' + f"{tmp_path}/y")
        said, scratch = outcome.stdout.splitlines()
        assert said == "x"
        assert runner.confinement.roots == (scratch,)
        assert outcome.refusal is not None
        assert outcome.refusal.paths == (f"{tmp_path}/y",)
        assert Path(scratch).stat().st_mode & 0o777 == 0o700
        assert runner.run('cat "$TMPDIR/x"', env={"TMPDIR": "/tmp"}).stdout == "x\n"
    assert not Path(scratch).exists()
    assert not (tmp_path / "y").exists()


@pytest.mark.parametrize(
    ("what", "line"),
    [
        ("closed directories", "mkdir -p a/b; touch a/b/c; chmod 0 a/b a"),
        (
            "deep ones",
            shlex.join([sys.executable, "-c", "import os\nfor _ in range(2500): os.mkdir('d'); os.chdir('d')"]),
        ),
        ("links", "ln -s / root; ln -s x x; mkfifo f"),
    ],
)
def test_whatever_a_command_leaves_in_the_scratch_directory_goes(
    what: str, line: str, tmp_path: Path, wisp_home: Path
) -> None:
    with Runner(Confinement(scratch_tmpdir=True)) as runner:
        runner.run(f'cd "$TMPDIR" && {line}', timeout=BOUND)
        (scratch,) = runner.confinement.roots
        assert any(Path(scratch).iterdir()), what
    assert not Path(scratch).exists(), what


def test_a_scratch_directory_goes_with_a_runner_that_nobody_closed(tmp_path: Path, wisp_home: Path) -> None:
    runner = Runner(Confinement(scratch_tmpdir=True))
    scratch = runner.run('echo "$TMPDIR"').stdout.strip()
    assert Path(scratch).is_dir()
    del runner
    gc.collect()
    assert not Path(scratch).exists()


def test_a_runner_works_again_after_it_was_closed(tmp_path: Path, wisp_home: Path) -> None:
    runner = Runner(Confinement(scratch_tmpdir=True))
    first = runner.run('echo "$TMPDIR"').stdout
    runner.close()
    runner.close()
    second = runner.run('echo "$TMPDIR"; touch "$TMPDIR/x"')
    assert second.exit_status == 0
    assert second.stdout != first
    runner.close()


def test_no_place_for_a_scratch_directory_is_an_error(
    wisp_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    with Runner(Confinement(scratch_tmpdir=True)) as runner, pytest.raises(SandboxUnavailable, match="scratch TMPDIR"):
        runner.run("true")


# Threads, tasks, processes of the embedding program.


def test_many_threads_run_at_once(runner: Runner, tmp_path: Path) -> None:
    wrong: list[object] = []

    def work(number: int) -> None:
        for turn in range(20):
            outcome = runner.run(f"echo {number} {turn}; echo x >&2; exit {number}")
            if (outcome.stdout, outcome.exit_status, outcome.left_behind) != (f"{number} {turn}\n", number, ""):
                wrong.append(outcome)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_tasks_run_at_once_without_blocking_the_event_loop(runner: Runner) -> None:
    async def run() -> tuple[list[Outcome], int]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.005)
                ticks += 1

        ticking = asyncio.create_task(tick())
        outcomes = await asyncio.gather(*(runner.run_async(f"sleep 0.1; exit {number}") for number in range(50)))
        ticking.cancel()
        return outcomes, ticks

    outcomes, ticks = asyncio.run(run())
    assert [outcome.exit_status for outcome in outcomes] == list(range(50))
    assert ticks > 3


def test_cancelling_a_task_ends_its_command_first(
    runner: Runner, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    os.mkfifo(tmp_path / "ready")
    mark = f"{LONG}.{os.getpid()}1"

    async def run() -> None:
        task = asyncio.create_task(runner.run_async(f"echo >{tmp_path}/ready; exec sleep {mark}"))
        await asyncio.to_thread((tmp_path / "ready").read_text)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [line for line in processes() if mark in line] == []

    with caplog.at_level(logging.ERROR):
        asyncio.run(run())
    gc.collect()
    assert caplog.records == []


def test_a_task_that_waits_too_long_ends_its_command(runner: Runner) -> None:
    async def run() -> None:
        async with asyncio.timeout(0.3):
            await runner.run_async(f"sleep {LONG}", timeout=None)

    began = time.monotonic()
    with pytest.raises(TimeoutError):
        asyncio.run(run())
    assert time.monotonic() - began < BOUND


def test_an_error_comes_out_of_a_task(runner: Runner) -> None:
    with pytest.raises(PolicyDenied):
        asyncio.run(runner.run_async("sudo ls"))


def test_neither_descriptors_nor_threads_nor_children_are_left(tmp_path: Path, wisp_home: Path) -> None:
    said = script(
        f"""
        import os, threading
        from wisp import Confinement, Runner, Stop, WispError

        def held():
            return len(os.listdir("/proc/self/fd")), threading.active_count()

        def work(runner):
            for number in range(25):
                runner.run("echo x; echo y >&2; sleep 9 & exit 1", stop=Stop())
                runner.run("setsid sleep 9 & exit 1", timeout=5)
                for line, cwd in (("sudo ls", None), ("true", "/nonexistent"), ("x" * 3000000, None), ("a\\0b", None)):
                    try:
                        runner.run(line, cwd=cwd)
                    except WispError:
                        pass
            return held()

        with Runner(Confinement(roots=("{tmp_path}",))) as runner:
            work(runner)
            before = held()
            print(work(runner) == work(runner) == before)
        for _ in range(20):
            with Runner(Confinement(roots=("{tmp_path}",)), audit=False) as runner:
                runner.run("true")
            Runner(Confinement(roots=("{tmp_path}",)), audit=False).run("true")
        import gc, time
        gc.collect()
        for _ in range(500):
            if threading.active_count() == 1:
                break
            time.sleep(0.01)
        print(threading.active_count())
        try:
            print(os.waitpid(-1, os.WNOHANG))
        except ChildProcessError:
            print("no child")
        """,
        tmp_path,
    )
    assert said == "True\n1\nno child\n"


def test_a_program_without_standard_streams_can_run_commands(tmp_path: Path, wisp_home: Path) -> None:
    script(
        f"""
        import os
        from wisp import Confinement, Runner
        kept = os.dup(2)
        for number in (0, 1, 2):
            os.close(number)
        try:
            with Runner(Confinement(roots=("{tmp_path}",))) as runner:
                for _ in range(3):
                    outcome = runner.run("cat; echo out; echo err >&2; exit 3")
            with open("said", "w") as file:
                file.write(repr((outcome.stdout, outcome.stderr, outcome.exit_status)))
        finally:
            os.dup2(kept, 2)
        """,
        tmp_path,
    )
    assert (tmp_path / "said").read_text() == "('out\\n', 'err\\n', 3)"


def test_a_program_short_of_descriptors_is_told_and_works_again_later(tmp_path: Path, wisp_home: Path) -> None:
    (tmp_path / "leave").write_text("#!/bin/sh\nsetsid sleep 20 &\necho $! >>pids\nsleep 20 &\nexit 3\n")
    (tmp_path / "leave").chmod(0o755)
    said = script(
        f"""
        import os, resource
        from wisp import Confinement, Runner, Stop, LaunchFailed, SandboxUnavailable
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        answers = set()
        with Runner(Confinement(roots=("{tmp_path}",)), backend="landlock", audit=False) as runner:
            for prepare in (False, True):
                for more in range(16):
                    runner.close()
                    if prepare:
                        runner.run("true")
                    used = len(os.listdir("/proc/self/fd")) - 1
                    resource.setrlimit(resource.RLIMIT_NOFILE, (used + more, hard))
                    try:
                        outcome = runner.run("./leave", stop=Stop(), timeout=10)
                        answers.add((outcome.exit_status, outcome.left_behind == "" or "could not be looked for" in outcome.left_behind))
                    except (LaunchFailed, SandboxUnavailable) as error:
                        answers.add(type(error).__name__)
                    finally:
                        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
                    now = len(os.listdir("/proc/self/fd")) - 1
                    assert now <= used, (now, used)
                    assert runner.run("echo on").stdout == "on\\n"
        print(sorted(answers, key=str))
        try:
            print(os.waitpid(-1, os.WNOHANG))
        except ChildProcessError:
            print("no child")
        """,
        tmp_path,
    )
    for pid in (tmp_path / "pids").read_text().split():  # what could not be looked for may still run, as was said
        if any(line.startswith("sleep 20") for line in processes(pid)):
            os.kill(int(pid), signal.SIGKILL)
    answers, children = said.splitlines()
    assert set(eval(answers)) <= {(3, True), "LaunchFailed", "SandboxUnavailable"}
    assert {(3, True), "LaunchFailed"} <= set(eval(answers))
    assert children == "no child"


def test_a_user_short_of_processes_is_told_and_works_again_later(wisp_home: Path, tmp_path: Path) -> None:
    said = script(
        """
        import os, resource, tempfile
        from wisp import Confinement, Runner, LaunchFailed, SandboxUnavailable
        import wisp.sandbox.landlock, wisp.refusal.excerpt, wisp.command.policy
        os.chdir("/")
        runner = Runner(Confinement(roots=("/tmp",)), backend="landlock", audit=False, settings=wisp.config.Settings())
        if os.getuid() == 0:  # after the imports: this Python may lie in root's own home
            os.setgroups([]); os.setgid(65534); os.setuid(65534)
        soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)
        for _ in range(2):
            resource.setrlimit(resource.RLIMIT_NPROC, (1, hard))
            try:
                runner.run("true")
            except (LaunchFailed, SandboxUnavailable) as error:
                print(error)
            resource.setrlimit(resource.RLIMIT_NPROC, (soft, hard))
            print(runner.run("exit 3").exit_status)
        """,
        tmp_path,
    )
    assert said.splitlines() == [
        "the landlock sandbox cannot hold this confinement here: a thread to start commands from is refused (can't start new thread)",
        "3",
        "could not launch /bin/sh: Resource temporarily unavailable",
        "3",
    ]


def test_a_forked_child_runs_commands_of_its_own(tmp_path: Path, wisp_home: Path) -> None:
    said = script(
        """
        import asyncio, os, warnings
        warnings.simplefilter("ignore")
        from wisp import Confinement, Runner
        runner = Runner(Confinement(scratch_tmpdir=True))
        async def both():
            return [one.exit_status for one in await asyncio.gather(runner.run_async("exit 4"), runner.run_async("exit 5"))]
        scratch = runner.run('echo "$TMPDIR"').stdout.strip()
        asyncio.run(both())
        child = os.fork()
        if child == 0:
            print(runner.run("exit 3").exit_status, asyncio.run(both()), flush=True)
            runner.close()
            raise SystemExit(9)  # with the finalizers and all
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), os.path.isdir(scratch), runner.run("exit 6").exit_status)
        runner.close()
        print(os.path.isdir(scratch))
        """,
        tmp_path,
    )
    assert said == "3 [4, 5]\n9 True 6\nFalse\n"


def test_a_child_that_is_forked_while_other_threads_run_commands_is_not_held_by_their_locks(
    tmp_path: Path, wisp_home: Path
) -> None:
    said = script(
        f"""
        import os, threading, warnings
        warnings.simplefilter("ignore")
        from wisp import Confinement, Runner
        runner = Runner(Confinement(roots=("{tmp_path}",)))
        runner.run("true")  # a module that another thread is importing stays locked in a forked child, in every program
        done = threading.Event()
        def work():
            while not done.is_set():
                runner.run("true")
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        statuses = []
        for _ in range(25):
            child = os.fork()
            if child == 0:
                os._exit(runner.run("exit 3").exit_status)
            statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        done.set()
        for thread in threads:
            thread.join()
        print(set(statuses))
        """,
        tmp_path,
    )
    assert said == "{3}\n"


def test_processes_of_multiprocessing_run_commands(tmp_path: Path, wisp_home: Path) -> None:
    (tmp_path / "pool.py").write_text(
        textwrap.dedent(
            """
            import multiprocessing, sys, warnings
            warnings.simplefilter("ignore")
            from wisp import Confinement, Runner
            runner = Runner(Confinement(roots=("/tmp",)))
            def work(number):
                return runner.run(f"exit {number}").exit_status
            if __name__ == "__main__":
                runner.run("true")
                with multiprocessing.get_context("fork").Pool(3) as pool:
                    print(pool.map(work, range(12)))
            """
        )
    )
    assert script("import runpy; runpy.run_path('pool.py', run_name='__main__')", tmp_path) == f"{list(range(12))}\n"


def test_a_program_that_never_closes_its_runner_ends(tmp_path: Path, wisp_home: Path) -> None:
    said = script(
        """
        import asyncio
        from wisp import Confinement, Runner
        runner = Runner(Confinement(scratch_tmpdir=True))
        print(runner.run('echo "$TMPDIR"').stdout.strip())
        print(asyncio.run(runner.run_async("exit 3")).exit_status)
        """,
        tmp_path,
    )
    scratch, status = said.splitlines()
    assert status == "3"
    assert not Path(scratch).exists()


@pytest.mark.parametrize(
    ("what", "prepare"),
    [
        ("ignores SIGCHLD", "signal.signal(signal.SIGCHLD, signal.SIG_IGN)"),
        ("waits for any child", "threading.Thread(target=wait_for_any, daemon=True).start()"),
    ],
)
def test_a_status_that_the_program_itself_takes_is_lost_and_never_a_zero(
    what: str, prepare: str, tmp_path: Path, wisp_home: Path
) -> None:
    said = script(
        f"""
        import os, signal, subprocess, threading, time
        from wisp import Confinement, Runner, StatusLost

        def wait_for_any():
            while True:
                try:
                    os.wait()
                except ChildProcessError:
                    time.sleep(0.0001)

        {prepare}
        answers = set()
        with Runner(Confinement(roots=("{tmp_path}",)), backend="landlock") as runner:
            for _ in range(40):
                try:
                    answers.add(runner.run("exit 3").exit_status)
                except StatusLost:
                    answers.add("lost")
        print(sorted(map(str, answers)))
        """,
        tmp_path,
    )
    assert "'lost'" in said, what
    assert set(eval(said)) <= {"lost", "3"}


def test_what_a_command_left_is_gone_also_where_the_program_ignores_the_end_of_children(
    tmp_path: Path, wisp_home: Path
) -> None:
    """The leader is reaped by the kernel at once, so its number and its start are no longer there to ask."""
    (tmp_path / "daemon").write_text("#!/bin/sh\necho $$ >pid\nexec sleep 60\n")
    (tmp_path / "daemon").chmod(0o755)
    said = script(
        f"""
        import signal
        from wisp import Confinement, Runner, StatusLost
        from wisp.sandbox.leftovers import proc_stat
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        with Runner(Confinement(roots=("{tmp_path}",)), backend="landlock") as runner:
            try:
                runner.run("setsid ./daemon & until [ -s pid ]; do sleep 0.01; done; sleep 20 & echo $! >other")
            except StatusLost:
                print("lost")
        for name in ("pid", "other"):
            stat = proc_stat(int(open(name).read()))
            print("gone" if stat is None or stat.is_over else "there")
        """,
        tmp_path,
    )
    assert said == "lost\ngone\ngone\n"


def test_an_interrupt_ends_the_command_and_all_it_started_and_comes_out(tmp_path: Path, wisp_home: Path) -> None:
    os.mkfifo(tmp_path / "ready")
    mark = f"{LONG}.{os.getpid()}2"
    program = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(
            f"""
            from wisp import Confinement, Runner
            with Runner(Confinement(roots=("{tmp_path}",))) as runner:
                try:
                    runner.run("setsid sleep {mark} & echo >{tmp_path}/ready; exec sleep {mark}", timeout=None)
                except KeyboardInterrupt:
                    print("interrupted", flush=True)
                print(runner.run("exit 3").exit_status)
            """
        )],
        stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    (tmp_path / "ready").read_text()
    program.send_signal(signal.SIGINT)
    said, _ = program.communicate(timeout=BOUND)
    assert (said, program.returncode) == ("interrupted\n3\n", 0)
    assert [line for line in processes() if mark in line] == []


def test_an_interrupt_at_any_moment_leaves_no_command(tmp_path: Path, wisp_home: Path) -> None:
    """The moments are those of a timer that goes round faster than commands start."""
    mark = f"30.{os.getpid()}"
    said = script(
        f"""
        import os, random, signal
        from wisp import Confinement, Runner
        runner = Runner(Confinement(roots=("{tmp_path}",)), audit=False)
        runner.run("true")
        interrupted = 0
        for turn in range(150):
            try:
                signal.setitimer(signal.ITIMER_REAL, random.uniform(0.00005, 0.003))
                signal.signal(signal.SIGALRM, signal.default_int_handler)
                runner.run("exec sleep {mark}", timeout=0.02)
            except KeyboardInterrupt:
                interrupted += 1
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        print(interrupted > 50)
        print(runner.run("exit 3").exit_status)
        """,
        tmp_path,
        is_quiet=False,  # one that hits a finalizer is printed by Python and goes no further
    )
    assert said == "True\n3\n"
    assert [line for line in processes() if mark in line] == []


def is_gone(pid: int) -> bool:
    """Whether a process has ended, be its entry still there (nobody may have reaped an orphan yet)."""
    stat = proc_stat(pid)
    return stat is None or stat.is_over


def processes(pid: str = "") -> list[str]:
    """The command lines of all processes, or of one."""
    found = []
    for place in Path("/proc").iterdir():
        if place.name.isdigit() and pid in {"", place.name}:
            try:
                found.append((place / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue
    return found


# The public names.


def test_the_readme_names_are_there() -> None:
    assert wisp.Runner is Runner
    assert wisp.capability("none").tier is None
    assert wisp.capability("landlock").tier == "B"
    with pytest.raises(UsageError):
        wisp.capability("nonexistent")


def test_a_log_of_ones_own_is_used(tmp_path: Path, wisp_home: Path) -> None:
    with AuditLog(str(tmp_path / "logs")) as log, Runner(Confinement(roots=(str(tmp_path),)), audit=log) as runner:
        runner.run("true")
    assert len((tmp_path / "logs" / "audit.jsonl").read_text().splitlines()) == 2
    assert records(wisp_home) == []


def test_no_log_is_written_where_none_is_wanted(tmp_path: Path, wisp_home: Path) -> None:
    with Runner(Confinement(roots=(str(tmp_path),)), audit=False) as runner:
        runner.run("true")
    assert list(wisp_home.iterdir()) == []


def test_a_log_that_cannot_be_written_does_not_keep_a_command_from_running(tmp_path: Path, wisp_home: Path) -> None:
    (wisp_home / "logs").write_text("in the way")
    with Runner(Confinement(roots=(str(tmp_path),))) as runner:
        assert runner.run("exit 3").exit_status == 3


def test_a_configuration_that_is_wrong_stops_the_runner(wisp_home: Path) -> None:
    (wisp_home / "config.json").write_text('{"sandbox": {"enabled": "no"}}')
    with pytest.raises(ConfigError, match=r"config.json:1: sandbox.enabled: "):
        Runner()


def test_every_error_of_a_run_is_one_of_wisps(runner: Runner) -> None:
    for line, cwd in (("sudo ls", None), ("true", "/nonexistent"), ("a\0b", None), ("x" * 3_000_000, None)):
        with pytest.raises(WispError):
            runner.run(line, cwd=cwd)


def script(text: str, directory: Path, *, is_quiet: bool = True) -> str:
    """Run a program of its own, because what it does to itself must not happen to the tests."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not is_quiet or done.stderr == ""
    return done.stdout
