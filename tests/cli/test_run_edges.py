"""`wisp run` where it is started oddly: by whom, from where, with options that contradict, into what cannot hold it."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import pytest

pytestmark = [pytest.mark.linux, pytest.mark.wisp_requires("landlock"), pytest.mark.timeout(30)]

BOUND = 20


class Wisp(Protocol):
    directory: Path
    words: tuple[str, ...]

    def __call__(
        self,
        *words: str,
        env: dict[str, str] | None = None,
        cwd: Path | None = None,
        pass_fds: Sequence[int] = (),
    ) -> subprocess.CompletedProcess[bytes]: ...

    def in_shell(self, line: str, *words: str) -> subprocess.CompletedProcess[bytes]: ...

    def start(self, *words: str, before: Sequence[str] = ()) -> subprocess.Popen[bytes]: ...


def ignoring(number: signal.Signals) -> tuple[str, ...]:
    """Return the words that start a program with a signal ignored: not every shell can."""
    code = f"import os, signal, sys; signal.signal({int(number)}, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    return (sys.executable, "-Ic", code)


# How it is started.


def test_a_starter_that_ignores_the_end_of_children_does_not_cost_the_status(wisp: Wisp) -> None:
    running = wisp.start("run", "-c", "exit 4", before=ignoring(signal.SIGCHLD))
    out, err = running.communicate(timeout=BOUND)
    assert (running.returncode, out, err) == (4, b"", b"")


def test_an_interrupt_that_was_ignored_stays_ignored(wisp: Wisp) -> None:
    os.mkfifo(wisp.directory / "go")
    line = "kill -INT $$; echo ready; read x <go; exit 6"
    running = wisp.start("run", "-c", line, before=ignoring(signal.SIGINT))
    assert running.stdout is not None
    assert running.stdout.readline() == b"ready\n"
    running.send_signal(signal.SIGINT)
    (wisp.directory / "go").write_text("\n")
    out, err = running.communicate(timeout=BOUND)
    assert (running.returncode, out, err) == (6, b"", b"")


def test_a_launch_directory_that_was_removed_runs_nothing(wisp: Wisp) -> None:
    done = wisp.in_shell('mkdir gone && cd gone && rmdir ../gone && exec "$@"', "run", "true")
    assert (done.returncode, done.stdout) == (125, b"")
    assert b"was removed" in done.stderr
    assert b"Traceback" not in done.stderr


def test_in_the_top_directory_one_line_says_that_it_is_no_root(wisp: Wisp) -> None:
    done = wisp("run", "true", cwd=Path("/"))
    assert (done.returncode, done.stdout) == (0, b"")
    assert re.fullmatch(r"  · / holds the home directory, .*--writable \.\n", done.stderr.decode())


@pytest.mark.parametrize("form", [(), ("--json",), ("--as-model",)])
def test_in_the_home_directory_exactly_one_line_says_so_whatever_the_form(
    wisp: Wisp, outside: Path, form: tuple[str, ...]
) -> None:
    env = {"HOME": str(outside)}
    done = wisp("run", *form, "true", cwd=outside, env=env)
    assert done.returncode == 0
    assert done.stderr.decode().splitlines() == [
        f"  · {outside} is the home directory, so it is not a writable root; to make it one: --writable ."
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), b"nothing to run"),
        (("-c", "true", "word"), b"words after it would be lost"),
        (("--read-only", "--writable", ".", "true"), b"contradict each other"),
        (("--tty", "true"), b"`--tty` needs a terminal"),
        (
            ("--backend", "bogus", "true"),
            b"there is no backend 'bogus'; choose one of auto, bubblewrap, landlock, seatbelt, none",
        ),
        (("--cwd", "/dev/null", "true"), b"working directory does not exist: /dev/null"),
        (("--writable", "/dev/null", "true"), b"--writable: /dev/null: is not a directory"),
        (("--writable", "", "true"), b"--writable: "),
        (("",), b"could not launch"),
        (("/",), b"could not launch /: "),
        (("--", "--json"), b"could not launch --json: "),
    ],
)
def test_misuse_says_what_it_was(wisp: Wisp, words: tuple[str, ...], said: bytes) -> None:
    done = wisp("run", *words)
    assert (done.returncode, done.stdout) == (125, b"")
    assert said in done.stderr


@pytest.mark.parametrize("other", ["--as-model", "--tty"])
def test_what_contradicts_json_is_said_in_json(wisp: Wisp, other: str) -> None:
    done = wisp("run", "--json", other, "-c", "touch ran")
    assert (done.returncode, json.loads(done.stdout)["error"]) == (125, "UsageError")
    assert not (wisp.directory / "ran").exists()


def test_a_configured_root_that_is_missing_is_named_with_its_key(wisp: Wisp, wisp_home: Path) -> None:
    (wisp_home / "config.json").write_text('{"sandbox": {"writablePaths": ["/no/such/dir"]}}')
    done = wisp("run", "true")
    assert (done.returncode, done.stderr) == (125, b"wisp: sandbox.writablePaths: /no/such/dir: does not exist\n")


# What cannot be written.


@pytest.mark.parametrize("full", [">/dev/full", "2>/dev/full"])
def test_a_full_disk_leaves_the_status_to_the_command(wisp: Wisp, full: str) -> None:
    assert wisp.in_shell(f'"$@" {full}', "run", "-c", "echo o; echo e >&2; exit 3").returncode == 3


@pytest.mark.parametrize("form", ["--json", "--as-model"])
def test_an_output_that_cannot_be_written_is_a_failure_of_wisps_own(wisp: Wisp, form: str) -> None:
    done = wisp.in_shell('"$@" >/dev/full', "run", form, "true")
    assert (done.returncode, done.stderr) == (125, b"wisp: the output could not be written: No space left on device\n")


def test_a_closed_stream_gives_its_number_to_no_other_file(wisp: Wisp) -> None:
    line = "echo o; echo e >&2; cat"
    done = wisp.in_shell('"$@" <&- >&- 2>&-', "run", "--status-json", "status", "-c", line)
    assert done.returncode == 0
    assert json.loads((wisp.directory / "status").read_text())["exitStatus"] == 0  # and nothing but the one object


def test_all_error_output_into_a_reader_that_leaves_ends_the_command(wisp: Wisp) -> None:
    done = wisp.in_shell('{ "$@" 2>&1; echo $? >status; } | head -n 1', "run", "-c", "yes >&2")
    assert (done.stdout, done.stderr) == (b"y\n", b"")
    assert (wisp.directory / "status").read_text() == "141\n"


# What it may do.


def test_the_network_reaches_a_listener_or_does_not(wisp: Wisp, listening: tuple[int, list[bytes]]) -> None:
    port, heard = listening
    code = f"import socket; s = socket.create_connection(('127.0.0.1', {port}), 5); s.sendall(b'hello'); s.recv(1)"
    assert wisp("run", "--network", "off", sys.executable, "-Ic", code).returncode == 1
    assert heard == []
    assert wisp("run", "--network", "on", sys.executable, "-Ic", code).returncode == 0
    assert heard == [b"hello"]


def test_a_scratch_directory_is_gone_after_a_signal_too(wisp: Wisp) -> None:
    running = wisp.start("run", "--read-only", "-c", 'echo "$TMPDIR"; exec sleep 20')
    assert running.stdout is not None
    scratch = Path(running.stdout.readline().decode().strip())
    assert scratch.is_dir()
    running.terminate()
    running.communicate(timeout=BOUND)
    assert running.returncode == 143
    assert not scratch.exists()


# A terminal that goes away.


def test_a_terminal_that_is_closed_is_a_hangup_and_no_traceback(wisp: Wisp) -> None:
    """The mode of a terminal that is gone cannot be restored, which is no failure."""
    mark = f"20.{os.getpid()}"
    outer, inner = pty.openpty()
    with subprocess.Popen(
        [*wisp.words, "run", "--tty", "-c", f"echo ready; exec sleep {mark}"],
        cwd=wisp.directory,
        stdin=inner,
        stdout=inner,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - one call, and no thread of ours
    ) as running:
        os.close(inner)
        seen = b""
        while b"ready" not in seen:
            seen += os.read(outer, 1024)
        os.close(outer)
        _out, err = running.communicate(timeout=BOUND)
        assert (running.returncode, err) == (128 + signal.SIGHUP, b"")
        assert bearing(f"sleep\0{mark}") == []


def has_ended(pidfd: int) -> bool:
    watch = select.poll()
    watch.register(pidfd, select.POLLIN)
    return bool(watch.poll(BOUND * 1000))


@pytest.fixture
def listening() -> Iterator[tuple[int, list[bytes]]]:
    """Return the port of a listener on the loopback interface, and what it heard."""
    heard: list[bytes] = []

    def answer(listener: socket.socket) -> None:
        while True:
            connection, _address = listener.accept()
            with connection:
                data = connection.recv(64)
                if not data:
                    return
                heard.append(data)
                connection.sendall(b"!")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        thread = threading.Thread(target=answer, args=(listener,))
        thread.start()
        yield port, heard
        socket.create_connection(("127.0.0.1", port), 5).close()
        thread.join(10)
    assert not thread.is_alive()


def bearing(mark: str) -> list[bytes]:
    """The command lines of all processes in which `mark` stands."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = place.read_bytes()
            if mark.encode() in words:
                found.append(words)
    return found
