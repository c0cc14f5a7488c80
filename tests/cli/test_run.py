from __future__ import annotations

import json
import os
import random
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Protocol

import pytest

from wisp.sandbox.leftovers import proc_stat

pytestmark = [pytest.mark.linux, pytest.mark.wisp_requires("landlock")]

BOUND = 30


class Wisp(Protocol):
    directory: Path

    def __call__(
        self,
        *words: str,
        input: bytes = b"",  # noqa: A002
        env: dict[str, str] | None = None,
        cwd: Path | None = None,
        pass_fds: Sequence[int] = (),
        stdout: int | IO[bytes] = subprocess.PIPE,
        stderr: int | IO[bytes] = subprocess.PIPE,
    ) -> subprocess.CompletedProcess[bytes]: ...

    def in_shell(self, line: str, *words: str) -> subprocess.CompletedProcess[bytes]: ...

    def start(
        self, *words: str, before: Sequence[str] = (), stderr: int = subprocess.PIPE
    ) -> subprocess.Popen[bytes]: ...


def line_of(stream: IO[bytes] | None) -> bytes:
    assert stream is not None
    return stream.readline()


# How it ends.


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["true"], 0),
        (["-c", "exit 7"], 7),
        (["-c", "exit 255"], 255),
        (["--", "sh", "-c", "exit 3"], 3),
        (["-c", "kill -KILL $$"], 137),
        (["-c", "kill -TERM $$"], 143),
        (["--timeout", "0.2", "sleep", "60"], 124),
        (["--timeout", "0.2", "-c", "trap 'exit 0' TERM; sleep 60 & wait"], 124),
        (["nonexistent-program"], 125),
        (["./plain"], 125),
        (["--cwd", "nonexistent", "true"], 125),
        (["--cwd", "", "true"], 125),
        (["--writable", "nonexistent", "true"], 125),
        (["--backend", "firejail", "true"], 125),
        (["sudo", "ls"], 126),
        (["-c", "true; sudo ls"], 126),
    ],
)
def test_the_exit_status_says_what_happened(wisp: Wisp, words: list[str], status: int) -> None:
    (wisp.directory / "plain").write_text("not executable")
    done = wisp("run", *words)
    assert (done.returncode, done.stdout) == (status, b"")
    assert b"Traceback" not in done.stderr
    # What is wisp's own to say is said, and nothing else.
    assert (done.stderr != b"") == (status in {124, 125, 126})


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--"],
        ["-c", "true", "more"],
        ["--bogus", "true"],
        ["--timeout", "nan", "true"],
        ["--timeout", "0", "true"],
        ["--timeout", "-1", "true"],
        ["--timeout", "inf", "true"],
        ["--timeout", "soon", "true"],
        ["--timeout"],
        ["--network", "maybe", "true"],
        ["--read-only", "--writable", ".", "true"],
        ["--tty", "true"],
        ["--status-json", "", "true"],
        ["--status-json", "99", "true"],
    ],
)
def test_misuse_is_125_because_other_statuses_are_the_commands(wisp: Wisp, words: list[str]) -> None:
    done = wisp("run", *words)
    assert (done.returncode, done.stdout) == (125, b"")
    assert done.stderr.startswith(b"wisp: ")
    assert b"Traceback" not in done.stderr


def test_a_time_out_of_months_is_no_error(wisp: Wisp) -> None:
    assert wisp("run", "--timeout", "2600000", "-c", "exit 3").returncode == 3


def test_a_time_out_is_said_after_the_end(wisp: Wisp) -> None:
    done = wisp("run", "--timeout", "0.2", "-c", "echo out; echo err >&2; exec sleep 60")
    assert (done.stdout, done.stderr) == (b"out\n", "err\n  · timed out after 0.2 s: the command was killed\n".encode())


def test_a_missing_program_is_named(wisp: Wisp) -> None:
    assert wisp("run", "nonexistent-program", env={"PATH": "/usr/bin:/bin"}).stderr == (
        b"wisp: could not launch nonexistent-program: No such file or directory\n"
    )


def test_control_characters_of_a_name_do_not_reach_the_terminal(wisp: Wisp) -> None:
    done = wisp("run", "no\x1b[31m\nwisp: fine")
    assert b"\x1b" not in done.stderr
    assert done.stderr.count(b"\n") == 1


# Whose words are whose.


@pytest.mark.parametrize(
    ("words", "out"),
    [
        (["printf", "%s|", "--network", "-c", "--json"], b"--network|-c|--json|"),
        (["--", "printf", "%s|", "--"], b"--|"),
        (["printf", "%s|", "a", "--", "b"], b"a|--|b|"),
        (["--network", "on", "printf", "%s|", "--timeout"], b"--timeout|"),
        (["printf", "%s|", "$HOME", "*", "a b"], b"$HOME|*|a b|"),
        (["-c", 'printf "%s|" a "b c"'], b"a|b c|"),
    ],
)
def test_what_follows_the_program_belongs_to_it(wisp: Wisp, words: list[str], out: bytes) -> None:
    done = wisp("run", *words)
    assert (done.stdout, done.stderr, done.returncode) == (out, b"", 0)


def test_words_that_are_not_utf8_reach_the_program(wisp: Wisp) -> None:
    assert wisp("run", "printf", "%s", os.fsdecode(b"\xff\xc3")).stdout == b"\xff\xc3"


# Streams.


def test_input_passes_through_byte_for_byte(wisp: Wisp) -> None:
    data = random.Random(1).randbytes(3_000_000)
    done = wisp("run", "cat", input=data)
    assert done.stdout == data
    assert done.stderr == b""


def test_error_output_is_passed_on_byte_for_byte(wisp: Wisp) -> None:
    data = random.Random(2).randbytes(1_000_000)
    done = wisp("run", "-c", "cat >&2", input=data)
    assert done.stderr == data
    assert done.stdout == b""


@pytest.mark.parametrize("redirect", ["", ">&2"])
def test_output_arrives_while_the_command_runs(wisp: Wisp, redirect: str) -> None:
    os.mkfifo(wisp.directory / "go")
    running = wisp.start("run", "-c", f"echo first {redirect}; read x <go; echo second {redirect}")
    stream = running.stderr if redirect else running.stdout
    assert line_of(stream) == b"first\n"
    (wisp.directory / "go").write_text("\n")
    assert line_of(stream) == b"second\n"
    assert running.wait(BOUND) == 0


def test_the_order_of_both_outputs_is_kept_where_they_are_one_pipe(wisp: Wisp) -> None:
    line = "i=0; while [ $i -lt 600 ]; do echo $i; i=$((i+1)); echo $i >&2; i=$((i+1)); done"
    done = wisp("run", "-c", line, stderr=subprocess.STDOUT)
    assert done.stdout == b"".join(b"%d\n" % number for number in range(600))


def test_the_order_of_both_outputs_is_kept_where_they_are_one_file(wisp: Wisp) -> None:
    line = "i=0; while [ $i -lt 600 ]; do echo $i; i=$((i+1)); echo $i >&2; i=$((i+1)); done"
    wisp.in_shell('echo before >all; "$@" >>all 2>&1; echo after >>all', "run", "-c", line)
    expected = ["before", *(str(number) for number in range(600)), "after"]
    assert (wisp.directory / "all").read_text().split() == expected


def test_a_slow_reader_gets_everything(wisp: Wisp) -> None:
    done = wisp.in_shell('"$@" 2>&1 | (sleep 1.5; cat) | cksum; seq 40000 | cksum', "run", "seq", "40000")
    first, second = done.stdout.splitlines()
    assert (first, done.stderr) == (second, b"")


def test_a_reader_of_both_outputs_that_goes_ends_the_command_without_a_word(wisp: Wisp) -> None:
    running = wisp.start("run", "yes", stderr=subprocess.STDOUT)
    assert line_of(running.stdout) == b"y\n"
    assert running.stdout is not None
    running.stdout.close()
    assert running.wait(BOUND) == 128 + signal.SIGPIPE


def test_a_reader_of_the_output_that_goes_ends_the_command_without_a_word(wisp: Wisp) -> None:
    done = wisp.in_shell('"$@" | head -n 1', "run", "yes")
    assert (done.stdout, done.stderr) == (b"y\n", b"")


def test_a_reader_that_reads_nothing_does_not_keep_the_time_from_being_up(wisp: Wisp) -> None:
    reader, writer = os.pipe()
    try:
        done = wisp("run", "--timeout", "0.5", "yes", stdout=writer, stderr=writer)
    except subprocess.TimeoutExpired:
        pytest.fail("it hangs")
    finally:
        os.close(reader)
        os.close(writer)
    assert done.returncode == 124


@pytest.mark.parametrize(
    ("line", "words", "out", "err"),
    [
        ('"$@" >&-', ["-c", "echo out; echo err >&2"], b"", b"err\n"),
        ('"$@" 2>&-', ["-c", "echo out; echo err >&2"], b"out\n", b""),
        ('"$@" <&-', ["-c", "cat; echo out"], b"out\n", b""),
        ('"$@" <&- >&- 2>&-', ["-c", "cat; echo out; echo err >&2"], b"", b""),
        ('"$@" 2>&-', ["--json", "true", "--"], None, b""),
    ],
)
def test_closed_streams_are_no_reason_to_fail(
    wisp: Wisp, line: str, words: list[str], out: bytes | None, err: bytes
) -> None:
    done = wisp.in_shell(line, "run", *words)
    assert (done.returncode, done.stderr) == (0, err)
    assert out is None or done.stdout == out


def test_what_wisp_has_to_say_never_lands_in_the_output(wisp: Wisp) -> None:
    done = wisp.in_shell('"$@" 2>&-', "run", "nonexistent-program")
    assert (done.returncode, done.stdout, done.stderr) == (125, b"", b"")


def test_a_command_holds_no_descriptor_but_its_three(wisp: Wisp) -> None:
    reader, writer = os.pipe()
    try:
        done = wisp("run", "--status-json", "s", "-c", "ls /proc/self/fd", pass_fds=[writer])
    finally:
        os.close(reader)
        os.close(writer)
    assert done.stdout.split() == [b"0", b"1", b"2", b"3"]  # the last is what ls reads the directory with


# Signals.


@pytest.mark.parametrize("name", ["INT", "TERM", "HUP", "QUIT"])
def test_a_signal_reaches_the_command(wisp: Wisp, name: str) -> None:
    line = f"trap 'echo {name}; exit 9' {name}; echo ready; while :; do sleep 0.05; done 2>/dev/null"
    running = wisp.start("run", "-c", line)
    assert line_of(running.stdout) == b"ready\n"
    running.send_signal(getattr(signal, f"SIG{name}"))
    out, err = running.communicate(timeout=BOUND)
    assert (out, err, running.returncode) == (f"{name}\n".encode(), b"", 9)


@pytest.mark.parametrize("name", ["INT", "TERM", "HUP"])
def test_a_command_that_dies_of_a_signal_says_so(wisp: Wisp, name: str) -> None:
    running = wisp.start("run", "-c", "echo ready; exec sleep 60")
    assert line_of(running.stdout) == b"ready\n"
    number = getattr(signal, f"SIG{name}")
    running.send_signal(number)
    out, err = running.communicate(timeout=BOUND)
    assert (out, err, running.returncode) == (b"", b"", 128 + number)


def test_the_third_interrupt_ends_a_command_that_will_not(wisp: Wisp) -> None:
    running = wisp.start("run", "-c", "trap 'echo no' INT; echo ready; while :; do sleep 0.05; done")
    assert line_of(running.stdout) == b"ready\n"
    for _ in range(2):
        running.send_signal(signal.SIGINT)
        assert line_of(running.stdout) == b"no\n"
    running.send_signal(signal.SIGINT)
    out, _err = running.communicate(timeout=BOUND)
    assert (out, running.returncode) == (b"", 137)


def test_a_hangup_that_was_ignored_stays_ignored(wisp: Wisp) -> None:
    """As `nohup wisp run …` wants it, for wisp and for the command."""
    os.mkfifo(wisp.directory / "go")
    running = wisp.start(
        "run",
        "-c",
        "kill -HUP $$; echo ready; read x <go; echo end",
        before=["sh", "-c", 'trap "" HUP; exec "$@"', "sh"],
    )
    assert line_of(running.stdout) == b"ready\n"
    running.send_signal(signal.SIGHUP)
    (wisp.directory / "go").write_text("\n")
    out, err = running.communicate(timeout=BOUND)
    assert (out, err, running.returncode) == (b"end\n", b"", 0)


def test_killing_wisp_itself_leaves_the_command_running_which_tier_b_cannot_help(wisp: Wisp) -> None:
    running = wisp.start("run", "--backend", "landlock", "-c", "echo $$; exec sleep 60")
    pid = int(line_of(running.stdout))
    began = proc_stat(pid)
    assert began is not None
    running.kill()
    running.wait(BOUND)
    try:
        now = proc_stat(pid)
        assert now is not None
        assert (now.started, now.is_over) == (began.started, False)
    finally:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.wisp_requires("namespaces")
def test_killing_wisp_itself_leaves_nothing_on_tier_a(wisp: Wisp) -> None:
    mark = f"60.{os.getpid()}"
    running = wisp.start("run", "--backend", "bubblewrap", "-c", f"setsid sleep {mark} & echo ready; exec sleep {mark}")
    assert line_of(running.stdout) == b"ready\n"
    assert len(bearing(mark)) >= 2
    running.kill()
    running.wait(BOUND)
    until = time.monotonic() + BOUND
    while bearing(f"sleep\0{mark}") and time.monotonic() < until:
        time.sleep(0.01)
    assert bearing(f"sleep\0{mark}") == []


def bearing(mark: str) -> list[bytes]:
    """The command lines of all processes in which `mark` stands."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = place.read_bytes()
            if mark.encode() in words:
                found.append(words)
    return found


# What wisp says.


def test_a_refusal_is_explained_after_the_end_and_on_the_error_output_only(wisp: Wisp, outside: Path) -> None:
    done = wisp("run", "-c", f"echo out; touch {outside}/x")
    assert done.stdout == b"out\n"
    first, second = done.stderr.decode().splitlines()
    assert "Permission denied" in first or "Read-only file system" in first
    assert second == (
        f"  · the sandbox refused writing to {outside}/x, as it would for the model: "
        "commands write only within wisp's writable roots"
    )


def test_without_a_sandbox_it_says_so_loudly(wisp: Wisp, outside: Path, wisp_home: Path) -> None:
    done = wisp("run", "--backend", "none", "-c", f"touch {outside}/x; exit 4")
    assert (done.returncode, done.stderr) == (
        4,
        b"wisp: no sandbox: this command can do whatever you can do (backend `none`)\n",
    )
    assert (outside / "x").exists()
    (wisp_home / "config.json").write_text('{"sandbox": {"enabled": false}}')
    assert wisp("run", "true").stderr == done.stderr


def test_started_in_the_home_directory_it_says_how_to_write_there(wisp: Wisp, outside: Path) -> None:
    done = wisp("run", "-c", "touch x", env={"HOME": str(outside)}, cwd=outside)
    assert done.returncode != 0
    assert done.stderr.decode().splitlines()[-1] == (
        f"  · {outside} is the home directory, so it is not a writable root; to make it one: --writable ."
    )
    assert wisp("run", "--writable", ".", "-c", "touch x", env={"HOME": str(outside)}, cwd=outside).returncode == 0
    assert (outside / "x").exists()


def test_a_configuration_that_is_wrong_stops_it_and_is_named(wisp: Wisp, wisp_home: Path) -> None:
    (wisp_home / "config.json").write_text('{\n  "sandbox": {"backend": "strong"}\n}\n')
    done = wisp("run", "-c", "touch ran")
    assert done.returncode == 125
    assert done.stderr.startswith(f"wisp: {wisp_home}/config.json:2: sandbox.backend: ".encode())
    assert not (wisp.directory / "ran").exists()


def test_wisps_own_home_inside_a_root_is_refused_with_what_to_do(wisp: Wisp) -> None:
    home = wisp.directory / "home"
    home.mkdir()
    done = wisp("run", "--backend", "landlock", "true", env={"WISP_HOME": str(home)})
    assert done.returncode == 125
    assert f"the protected path {home} lies inside the writable root".encode() in done.stderr


# As JSON.


def parsed(done: subprocess.CompletedProcess[bytes]) -> dict[str, object]:
    """One object, one line, nothing else."""
    assert done.stdout.count(b"\n") == 1
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    assert (found["schema"], found["wispExitStatus"]) == (1, done.returncode)
    return found


def test_json_is_one_object_with_all_of_the_outcome(wisp: Wisp) -> None:
    done = wisp("run", "--json", "-c", "cat; echo err >&2; exit 3", input=b"in")
    found = parsed(done)
    expected: dict[str, object] = {
        "schema": 1,
        "ran": True,
        "command": "cat; echo err >&2; exit 3",
        "directory": str(wisp.directory),
        "exitStatus": 3,
        "timedOut": False,
        "stopped": False,
        "truncated": False,
        "stdout": "in",
        "stderr": "err\n",
        "seconds": found["seconds"],
        "backend": found["backend"],
        "sandbox": True,
        "layers": found["layers"],
        "refusal": None,
        "denials": [],
        "denialsLost": 0,
        "note": "",
        "leftBehind": "",
        "wispExitStatus": 3,
    }
    assert found == expected
    assert done.stderr == b""


@pytest.mark.parametrize(
    ("words", "error", "status"),
    [
        (["sudo", "ls"], "PolicyDenied", 126),
        (["nonexistent-program"], "LaunchFailed", 125),
        (["--cwd", "nonexistent", "true"], "DirectoryMissing", 125),
        (["--writable", "nonexistent", "true"], "ConfinementError", 125),
        (["--backend", "firejail", "true"], "UsageError", 125),
        ([], "UsageError", 125),
        (["-c", "true", "more"], "UsageError", 125),
        (["--timeout", "0", "true"], "UsageError", 125),
        (["--timeout", "soon", "true"], "UsageError", 125),
        (["--bogus", "true"], "UsageError", 125),
        (["--status-json", "99", "true"], "UsageError", 125),
        (["--tty", "true"], "UsageError", 125),
    ],
)
def test_json_is_one_object_on_every_way_that_runs_nothing(
    wisp: Wisp, words: list[str], error: str, status: int
) -> None:
    done = wisp("run", "--json", *words)
    found = parsed(done)
    assert found == {
        "schema": 1,
        "ran": False,
        "error": error,
        "reason": found["reason"],
        "wispExitStatus": status,
    }
    assert found["reason"]
    assert done.stderr == b""


def test_json_is_one_object_when_the_configuration_or_the_sandbox_is_in_the_way(wisp: Wisp, wisp_home: Path) -> None:
    home = wisp.directory / "home"
    home.mkdir()
    assert (
        parsed(wisp("run", "--backend", "landlock", "--json", "true", env={"WISP_HOME": str(home)}))["error"]
        == "SandboxUnavailable"
    )
    assert parsed(wisp("run", "--json", "true", env={"WISP_HOME": "relative"}))["error"] == "ConfigError"
    (wisp_home / "config.json").write_text("{")
    assert parsed(wisp("run", "--json", "true"))["error"] == "ConfigError"


def test_json_that_belongs_to_the_command_is_none_of_wisps(wisp: Wisp) -> None:
    assert wisp("run", "--bogus", "echo", "--json").stdout == b""
    assert wisp("run", "echo", "--json").stdout == b"--json\n"
    assert wisp("run", "--timeout", "soon", "-c", "--json").stdout == b""


def test_json_says_how_a_time_out_ended(wisp: Wisp) -> None:
    found = parsed(wisp("run", "--json", "--timeout", "0.2", "sleep", "60"))
    assert (found["timedOut"], found["exitStatus"], found["wispExitStatus"]) == (True, -15, 124)


def test_json_that_cannot_be_written_is_an_error_and_no_traceback(wisp: Wisp) -> None:
    with Path("/dev/full").open("wb") as full:
        done = wisp("run", "--json", "true", stdout=full)
    assert (done.returncode, done.stderr) == (125, b"wisp: the output could not be written: No space left on device\n")


# The status file.


def test_the_outcome_is_written_to_a_file_for_this_user_only(wisp: Wisp) -> None:
    done = wisp("run", "--status-json", "status", "-c", "echo out; exit 3")
    assert (done.returncode, done.stdout) == (3, b"out\n")
    written = wisp.directory / "status"
    found = json.loads(written.read_text())
    assert (found["ran"], found["exitStatus"], found["wispExitStatus"], found["stdout"]) == (True, 3, 3, "")
    assert stat.S_IMODE(written.stat().st_mode) == 0o600


def test_what_was_not_run_is_written_too(wisp: Wisp) -> None:
    assert wisp("run", "--status-json", "status", "sudo", "ls").returncode == 126
    found = json.loads((wisp.directory / "status").read_text())
    assert (found["ran"], found["error"], found["wispExitStatus"]) == (False, "PolicyDenied", 126)


@pytest.mark.parametrize("name", ["{}", "/dev/fd/{}", "/proc/self/fd/{}"])
def test_the_outcome_is_written_to_a_descriptor_by_number_or_name(wisp: Wisp, name: str) -> None:
    reader, writer = os.pipe()
    try:
        done = wisp("run", "--status-json", name.format(writer), "true", pass_fds=[writer])
    finally:
        os.close(writer)
    with open(reader, "rb") as pipe:
        assert json.loads(pipe.read())["exitStatus"] == 0
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_the_outcome_is_written_to_a_standard_stream_by_name(wisp: Wisp) -> None:
    assert json.loads(wisp("run", "--status-json", "/dev/stderr", "true").stderr)["exitStatus"] == 0


def test_a_link_that_a_command_could_have_made_is_not_followed(wisp: Wisp, outside: Path) -> None:
    (wisp.directory / "status").symlink_to(outside / "target")
    (wisp.directory / "sub").symlink_to(outside)
    for name in ("status", "sub/target"):
        done = wisp("run", "--status-json", name, "true")
        assert done.returncode == 125
        assert b"which a command could have made" in done.stderr
    assert list(outside.iterdir()) == []


def test_a_link_outside_every_root_is_a_persons_own(wisp: Wisp, outside: Path) -> None:
    (outside / "link").symlink_to("target")
    assert wisp("run", "--status-json", str(outside / "link"), "true").returncode == 0
    assert json.loads((outside / "target").read_text())["exitStatus"] == 0


def test_a_command_cannot_redirect_the_file_while_it_runs(wisp: Wisp, outside: Path) -> None:
    line = f"mv status aside; ln -s {outside}/target status"
    assert wisp("run", "--status-json", "status", "-c", line).returncode == 0
    assert list(outside.iterdir()) == []
    assert json.loads((wisp.directory / "aside").read_text())["exitStatus"] == 0


@pytest.mark.parametrize(
    ("prepare", "why"),
    [
        (lambda place: place.mkdir(), b"Is a directory"),
        (lambda place: os.mkfifo(place), b"No such device or address"),  # noqa: PLW0108 - a link would be another test
        (lambda place: (place.parent / "file").write_text(""), b"Not a directory"),
        (lambda place: None, b"No such file or directory"),
    ],
)
def test_a_file_that_cannot_be_written_runs_nothing(wisp: Wisp, prepare: Callable[[Path], object], why: bytes) -> None:
    place = wisp.directory / "status"
    prepare(place)
    name = "status" if place.exists() else "file/status"
    done = wisp("run", "--status-json", name, "-c", "touch ran")
    assert (done.returncode, done.stderr) == (125, b"wisp: `--status-json`: %s: %s\n" % (name.encode(), why))
    assert not (wisp.directory / "ran").exists()


def test_a_full_disk_is_said_and_is_not_the_commands_failure(wisp: Wisp) -> None:
    done = wisp("run", "--status-json", "/dev/full", "-c", "exit 3")
    assert (done.returncode, done.stderr) == (3, b"wisp: --status-json could not be written: No space left on device\n")


# As the model's.


def test_as_model_prints_what_a_model_reads(wisp: Wisp, outside: Path) -> None:
    done = wisp("run", "--as-model", "-c", f"cat; echo out; touch {outside}/x; exit 3", input=b"not for a model")
    assert done.returncode == 3
    assert done.stderr == b""
    lines = done.stdout.decode().splitlines()
    assert lines[:4] == ["exit status: 3", "stdout:", "out", ""]
    assert lines[-1].startswith(f"sandbox: refused writing to {outside}/x; commands may write only under ")


def test_as_model_a_command_that_is_not_run_is_an_error_text(wisp: Wisp) -> None:
    done = wisp("run", "--as-model", "sudo", "ls")
    assert (done.returncode, done.stderr) == (126, b"")
    assert done.stdout.startswith(b"error: command denied by policy: ")


def test_as_model_the_configured_time_holds(wisp: Wisp, wisp_home: Path) -> None:
    (wisp_home / "config.json").write_text('{"limits": {"commandTimeoutSeconds": 0.3}}')
    done = wisp("run", "--as-model", "sleep", "60")
    assert done.stdout == b"exit status: -15\ntimed out: the command was killed\n"
    assert done.returncode == 124
    assert wisp("run", "-c", "sleep 0.6; exit 3").returncode == 3


# What it may do.


def test_read_only_writes_nowhere_but_in_a_scratch_directory(wisp: Wisp) -> None:
    done = wisp("run", "--read-only", "-c", 'echo x >"$TMPDIR/x" && echo "$TMPDIR"; touch here')
    assert done.returncode == 1
    assert not Path(done.stdout.decode().strip()).exists()
    assert not (wisp.directory / "here").exists()
    assert wisp("run", "touch", "here").returncode == 0


def test_a_person_may_add_a_root(wisp: Wisp, outside: Path) -> None:
    assert wisp("run", "touch", f"{outside}/x").returncode == 1
    assert wisp("run", "--writable", str(outside), "touch", f"{outside}/x").returncode == 0
    assert (outside / "x").exists()


def test_the_directory_to_start_in_does_not_become_a_root(wisp: Wisp, outside: Path) -> None:
    done = wisp("run", "--cwd", str(outside), "-c", "pwd; touch x")
    assert (done.returncode, done.stdout) == (1, f"{outside}\n".encode())
    assert list(outside.iterdir()) == []


def test_without_a_network_there_are_no_internet_sockets(wisp: Wisp, wisp_home: Path) -> None:
    words = [sys.executable, "-Ic", "import socket; socket.socket().close()"]
    assert wisp("run", "--network", "on", *words).returncode == 0
    assert b"PermissionError" in wisp("run", "--network", "off", *words).stderr
    (wisp_home / "config.json").write_text('{"sandbox": {"allowNetwork": false}}')
    assert wisp("run", *words).returncode == 1
    assert wisp("run", "--network", "on", *words).returncode == 0


def test_what_the_command_leaves_running_is_gone_when_wisp_is(wisp: Wisp) -> None:
    mark = f"60.{os.getpid()}"
    done = wisp("run", "-c", f"sleep {mark} & setsid sleep {mark} & sleep 0.1")
    assert bearing(mark) == []
    assert (done.returncode, done.stderr) == (0, b"")


def test_wisps_own_home_inside_a_root_is_held_by_tier_a(wisp: Wisp) -> None:
    home = wisp.directory / "home"
    done = wisp("run", "--backend", "auto", "-c", "echo forged >home/config.json", env={"WISP_HOME": str(home)})
    assert done.returncode in {1, 2, 125}  # 125: only tier B works here, which refuses to run
    assert not (home / "config.json").exists()


def test_what_a_command_was_refused_is_explained_also_where_it_hid_that(wisp: Wisp, outside: Path) -> None:
    (outside / "old").touch()
    line = f"touch {outside}/new 2>/dev/null; chmod 700 {outside}/old 2>/dev/null; touch inside; exit 0"
    done = wisp("run", "--explain", "-c", line)
    assert done.returncode == 0
    said = done.stderr.decode().splitlines()
    assert [line.split(": ", 1)[1] for line in said] == [
        f"create {outside}/new (openat: EPERM)",
        f"mode {outside}/old (fchmodat: EPERM)",
    ]
    found = parsed(wisp("run", "--explain", "--json", "-c", line))
    denials = found["denials"]
    assert isinstance(denials, list)
    assert [(one["operation"], one["target"], one["program"]) for one in denials] == [
        ("create", f"{outside}/new", "touch"),
        ("mode", f"{outside}/old", "chmod"),
    ]
    assert parsed(wisp("run", "--json", "-c", line))["denials"] == []
    assert (wisp.directory / "inside").exists()


def test_a_run_is_audited_as_a_persons(wisp: Wisp, wisp_home: Path) -> None:
    wisp("run", "-c", "exit 3")
    records = [json.loads(line) for line in (wisp_home / "logs" / "audit.jsonl").read_text().splitlines()]
    assert [(one["kind"], one["details"]["origin"]) for one in records] == [
        ("policy.decision", "person"),
        ("command.outcome", "person"),
    ]
