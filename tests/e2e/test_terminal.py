"""`wisp run` on a real pseudo-terminal, as a person sees it."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import termios
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pexpect
import pyte
import pytest

pytestmark = [pytest.mark.linux, pytest.mark.wisp_requires("landlock")]

BOUND = 20


class Screen:
    """wisp on a terminal of 24 lines and 80 columns; what it draws is kept as a person would see it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.seen = bytearray()
        self._started: list[pexpect.spawn[bytes]] = []

    def start(self, *words: str) -> pexpect.spawn[bytes]:
        child: pexpect.spawn[bytes] = pexpect.spawn(
            sys.executable,
            ["-m", "wisp", *words],
            cwd=str(self.directory),
            dimensions=(24, 80),
            timeout=BOUND,
            echo=True,
        )
        child.logfile_read = self
        child.delaybeforesend = None
        self._started.append(child)
        return child

    def write(self, data: bytes) -> None:
        self.seen += data

    def flush(self) -> None:
        """Nothing is held back."""

    def lines(self) -> list[str]:
        screen = pyte.Screen(80, 24)
        pyte.ByteStream(screen).feed(bytes(self.seen))
        return [line.rstrip() for line in screen.display if line.strip()]

    def end(self) -> None:
        for child in self._started:
            child.close(force=True)


@pytest.fixture
def screen(tmp_path: Path, wisp_home: Path) -> Iterator[Screen]:
    screen = Screen(tmp_path)
    yield screen
    screen.end()


def finish(child: pexpect.spawn[bytes]) -> int | None:
    """Wait for the end; returns the exit status."""
    child.expect(pexpect.EOF)
    child.wait()
    return child.exitstatus


def flags(child: pexpect.spawn[bytes]) -> list[object]:
    return termios.tcgetattr(child.child_fd)


def test_a_command_writes_to_the_persons_terminal(screen: Screen) -> None:
    child = screen.start("run", "-c", "test -t 0 && test -t 1 && echo on a terminal; exit 3")
    assert finish(child) == 3
    assert screen.lines() == ["on a terminal"]


def test_without_a_terminal_of_its_own_a_command_cannot_reach_the_persons(screen: Screen) -> None:
    child = screen.start("run", "-c", "(: </dev/tty) 2>/dev/null || echo no terminal")
    assert finish(child) == 0
    assert screen.lines() == ["no terminal"]


def test_all_three_streams_are_the_terminal_of_the_command(screen: Screen) -> None:
    child = screen.start(
        "run", "--tty", "-c", "for n in 0 1 2; do test -t $n && echo $n; done; tty; (: </dev/tty) && echo own"
    )
    assert finish(child) == 0
    *numbers, name, own = screen.lines()
    assert numbers == ["0", "1", "2"]
    assert re.fullmatch(r"/dev/pts/\d+|not a tty", name)  # a lane's own /dev/pts does not list it
    assert own == "own"


@pytest.mark.parametrize(("line", "status"), [("exit 7", 7), ("kill -TERM $$", 143)])
def test_the_exit_status_comes_through(screen: Screen, line: str, status: int) -> None:
    assert finish(screen.start("run", "--tty", "-c", line)) == status


def test_a_missing_program_is_125_there_too(screen: Screen) -> None:
    assert finish(screen.start("run", "--tty", "nonexistent-program")) == 125
    assert screen.lines() == ["wisp: could not launch nonexistent-program: No such file or directory"]
    (screen.directory / "plain").write_text("")
    assert finish(screen.start("run", "--tty", "./plain")) == 125


def test_the_end_of_the_output_is_seen_at_once(screen: Screen, wisp_home: Path) -> None:
    """While wisp held the command's side open, nobody could see that end, and a second went by."""
    assert finish(screen.start("run", "--tty", "true")) == 0
    record = json.loads((wisp_home / "logs" / "audit.jsonl").read_text().splitlines()[-1])
    assert record["details"]["seconds"] < 0.9


def test_the_window_has_the_persons_size_and_follows_it(screen: Screen) -> None:
    child = screen.start("run", "--tty", "-c", "trap 'stty size; exit' WINCH; stty size; while :; do sleep 0.05; done")
    child.expect_exact(b"24 80\r\n")
    child.setwinsize(40, 100)
    child.expect_exact(b"40 100\r\n")
    assert finish(child) == 0


def test_what_is_typed_reaches_the_command_and_is_echoed_once(screen: Screen) -> None:
    child = screen.start("run", "--tty", "-c", 'echo ready; read -r line; echo "got $line"')
    child.expect_exact(b"ready\r\n")
    child.send(b"hello\r")
    assert finish(child) == 0
    assert screen.lines() == ["ready", "hello", "got hello"]


def test_what_was_typed_before_the_start_is_not_lost(screen: Screen) -> None:
    child = screen.start("run", "--tty", "-c", 'read -r line; echo "got $line"')
    child.send(b"early\n")
    child.expect_exact(b"got early")
    assert finish(child) == 0


def test_the_end_of_input_reaches_the_command(screen: Screen) -> None:
    child = screen.start("run", "--tty", "-c", "echo ready; cat; echo end")
    child.expect_exact(b"ready\r\n")
    child.send(b"\x04")
    child.expect_exact(b"end\r\n")
    assert finish(child) == 0


def test_an_interrupt_key_reaches_the_command_and_not_wisp(screen: Screen) -> None:
    child = screen.start("run", "--tty", "-c", "trap 'echo told; exit 9' INT; echo ready; while :; do sleep 0.05; done")
    child.expect_exact(b"ready\r\n")
    child.send(b"\x03")
    child.expect_exact(b"told\r\n")
    assert finish(child) == 9


def test_an_interrupt_key_is_forwarded_without_a_terminal_of_its_own_too(screen: Screen) -> None:
    child = screen.start("run", "-c", "trap 'echo told; exit 9' INT; echo ready; while :; do sleep 0.05; done")
    child.expect_exact(b"ready\r\n")
    child.send(b"\x03")
    child.expect_exact(b"told\r\n")
    assert finish(child) == 9


def test_the_terminal_is_raw_meanwhile_and_restored_at_the_end(screen: Screen) -> None:
    child = screen.start("run", "--tty", "-c", "echo ready; read -r line")
    before = screen.start("run", "-c", "echo other; read -r line")
    before.expect_exact(b"other\r\n")
    child.expect_exact(b"ready\r\n")
    assert flags(child)[:4] != flags(before)[:4]
    assert not int(str(flags(child)[3])) & termios.ICANON
    child.send(b"\r")
    child.expect(pexpect.EOF)
    assert flags(child)[:4] == flags(before)[:4]
    before.send(b"\r")
    assert finish(before) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_terminal_is_restored_when_wisp_is_asked_to_end(screen: Screen, number: signal.Signals) -> None:
    child = screen.start("run", "--tty", "-c", "echo ready; exec sleep 60")
    child.expect_exact(b"ready\r\n")
    child.kill(number)
    assert finish(child) == 128 + number
    assert int(str(flags(child)[3])) & termios.ICANON


def test_a_time_out_is_said_on_a_restored_terminal(screen: Screen) -> None:
    child = screen.start("run", "--tty", "--timeout", "0.5", "-c", "echo ready; exec sleep 60")
    assert finish(child) == 124
    assert screen.lines() == ["ready", "  · timed out after 0.5 s: the command was killed"]


def test_a_refusal_is_said_on_a_restored_terminal(screen: Screen, wisp_home: Path) -> None:
    child = screen.start("run", "--tty", "touch", f"{wisp_home}/x")
    assert finish(child) == 1
    text = "".join(screen.lines())
    assert "the sandbox refused writing to" in text


def test_much_output_comes_through_whole(screen: Screen) -> None:
    child = screen.start("run", "--tty", "-c", "seq 20000")
    assert finish(child) == 0
    assert bytes(screen.seen) == b"".join(b"%d\r\n" % number for number in range(1, 20001))


def test_much_input_to_a_command_that_does_not_read_does_not_hold_wisp(screen: Screen) -> None:
    child = screen.start("run", "--tty", "-c", "stty raw -echo; echo ready; sleep 1; exit 5")
    child.expect_exact(b"ready")
    sent, data = 0, b"x" * 2000
    os.set_blocking(child.child_fd, False)
    for _ in range(200):
        try:
            sent += os.write(child.child_fd, data)
        except BlockingIOError:
            break
    assert sent > 4096
    assert finish(child) == 5


def test_much_input_reaches_a_command_that_reads_slowly(screen: Screen) -> None:
    child = screen.start("run", "--tty", "-c", "stty raw -echo; echo ready; sleep 0.5; head -c 100000 | cksum")
    child.expect_exact(b"ready")
    for _ in range(100):
        child.send(b"x" * 1000)
    assert finish(child) == 0
    assert screen.lines()[-1].split()[1] == "100000"


def test_what_a_command_leaves_running_is_gone_and_does_not_keep_the_terminal(screen: Screen) -> None:
    mark = f"60.{os.getpid()}"
    child = screen.start("run", "--tty", "-c", f"sleep {mark} & setsid sleep {mark} & sleep 0.2")
    assert finish(child) == 0
    assert bearing(mark) == []


def test_a_command_that_let_go_of_its_terminal_is_not_hung_up_by_a_key(screen: Screen) -> None:
    line = "trap 'touch hup' HUP; echo ready; exec </dev/null >/dev/null 2>&1; sleep 0.7; exit 6"
    child = screen.start("run", "--tty", "-c", line)
    child.expect_exact(b"ready\r\n")
    for _ in range(20):
        child.send(b"x")
    assert finish(child) == 6
    assert not (screen.directory / "hup").exists()


def test_the_end_of_the_persons_terminal_is_a_hangup_for_the_command(screen: Screen) -> None:
    line = "trap 'touch hup; exit' HUP; echo ready; while :; do echo x; sleep 0.05; done"
    child = screen.start("run", "--tty", "-c", line)
    child.expect_exact(b"ready\r\n")
    child.ptyproc.fileobj.close()  # type: ignore[attr-defined] # the stubs leave it out
    child.wait()
    assert (screen.directory / "hup").exists()


def test_job_control_works_in_a_terminal_of_its_own(screen: Screen) -> None:
    child = screen.start("run", "--tty", "sh", "-ic", "set -m; sleep 60 & kill -KILL %1; wait; echo done")
    child.expect_exact(b"done\r\n")
    assert b"job control" not in bytes(screen.seen)
    assert finish(child) == 0


def test_a_command_cannot_type_into_the_persons_terminal(screen: Screen) -> None:
    """TIOCSTI on the terminal that asks: what it types would run in the person's shell."""
    program = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSTI, b'x')"
    child = screen.start("run", "--tty", sys.executable, "-Ic", program)
    assert finish(child) == 1
    assert b"PermissionError" in bytes(screen.seen) or b"Operation not permitted" in bytes(screen.seen)


def bearing(mark: str) -> list[bytes]:
    """The command lines of all processes in which `mark` stands."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = place.read_bytes()
            if mark.encode() in words:
                found.append(words)
    return found
