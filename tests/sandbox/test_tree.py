"""The watch of a command's tree, on real processes; nothing that it did not start is ever signalled."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import psutil
import pytest

from wisp.sandbox.tree import TreeWatch

BOUND = 20.0

#: Reads lines and starts a process for each, whose number it prints: `new` one in its session, `leave` one in another,
#: `lost` one whose parent ends at once, `fresh` one in another session with a child. `end` ends it.
_LEADER = """
import os, subprocess, sys
SLEEP = [sys.executable, "-c", "import time; time.sleep(300)"]
for line in sys.stdin:
    word = line.strip()
    if word == "end":
        break
    if word == "lost":
        code = "import subprocess, sys; print(subprocess.Popen(%r, stdout=subprocess.DEVNULL).pid)" % SLEEP
        print(subprocess.check_output([sys.executable, "-c", code], text=True).strip(), flush=True)
    elif word == "fresh":
        code = "import os, subprocess; os.setsid(); p = subprocess.Popen(%r); print(p.pid, flush=True); p.wait()" % SLEEP
        inner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        print(inner.pid, inner.stdout.readline().strip(), flush=True)
    else:
        print(subprocess.Popen(SLEEP, start_new_session=word == "leave").pid, flush=True)
"""

Start = Callable[[], "Leader"]


class Leader:
    """A command that starts processes when it is told to. It is reaped only by `close`."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _LEADER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )
        self.started: list[psutil.Process] = []

    def tell(self, word: str) -> list[psutil.Process]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()
        new = [psutil.Process(int(number)) for number in self.process.stdout.readline().split()]
        self.started += new
        return new

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("end\n")
        self.process.stdin.flush()
        leader = psutil.Process(self.process.pid)
        assert eventually(lambda: is_over(leader))

    def kill_group(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def close(self) -> None:
        for process in self.started:
            with suppress(psutil.Error):
                process.kill()
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def start() -> Iterator[Start]:
    made: list[Leader] = []

    def start() -> Leader:
        made.append(Leader())
        return made[-1]

    yield start
    for leader in made:
        leader.close()


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, start_new_session=True)
    yield process
    process.kill()
    process.communicate()


def is_over(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return True


def eventually(holds: Callable[[], bool]) -> bool:
    until = time.monotonic() + BOUND
    while time.monotonic() < until:
        if holds():
            return True
        time.sleep(0.01)
    return False


def test_a_process_that_left_the_session_is_ended_if_it_was_seen(
    start: Start, bystander: subprocess.Popen[bytes]
) -> None:
    leader = start()
    tree = TreeWatch(leader.process.pid)
    (escapee,) = leader.tell("leave")
    tree.look()
    leader.end()
    assert not is_over(escapee)

    assert tree.end(leader.kill_group) == ""

    assert is_over(escapee)
    assert bystander.poll() is None


def test_what_a_seen_process_starts_is_followed_when_its_parent_is_gone(start: Start) -> None:
    leader = start()
    tree = TreeWatch(leader.process.pid)
    parent, child = leader.tell("fresh")
    tree.look()
    parent.kill()
    assert eventually(lambda: is_over(parent))
    leader.end()

    assert tree.end(leader.kill_group) == ""

    assert is_over(child)


def test_what_stays_in_the_session_is_ended_although_it_was_never_seen(start: Start) -> None:
    leader = start()
    tree = TreeWatch(leader.process.pid)
    (lost,) = leader.tell("lost")
    leader.end()
    assert not is_over(lost)

    assert tree.end(lambda: None) == ""

    assert is_over(lost)


def test_what_left_the_session_and_was_not_seen_goes_on(start: Start) -> None:
    leader = start()
    (missed,) = leader.tell("leave")
    leader.end()
    tree = TreeWatch(leader.process.pid)

    assert tree.end(leader.kill_group) == ""

    assert not is_over(missed)  # the limit that is declared


def test_a_process_that_is_no_descendant_is_not_touched(start: Start, bystander: subprocess.Popen[bytes]) -> None:
    leader, other = start(), start()
    tree = TreeWatch(leader.process.pid)
    others = [*other.tell("new"), *other.tell("leave")]
    (own,) = leader.tell("new")
    tree.look()

    assert tree.end(leader.kill_group) == ""

    assert is_over(own)
    assert [is_over(process) for process in others] == [False, False]
    assert other.process.poll() is None
    assert bystander.poll() is None


def test_the_thread_looks_by_itself(start: Start) -> None:
    leader = start()
    tree = TreeWatch(leader.process.pid)
    tree.start()
    (escapee,) = leader.tell("leave")

    assert eventually(lambda: tree.signal(signal.SIGTERM, spared_group=leader.process.pid) == 1)

    tree.stop()
    assert eventually(lambda: is_over(escapee))


def test_the_group_is_spared_where_it_was_signalled_already(start: Start) -> None:
    leader = start()
    tree = TreeWatch(leader.process.pid)
    (inside,), (outside,) = leader.tell("new"), leader.tell("leave")
    tree.look()

    assert tree.signal(signal.SIGKILL, spared_group=leader.process.pid) == 1

    assert eventually(lambda: is_over(outside))
    assert not is_over(inside)


def test_what_is_remembered_is_bounded_and_that_is_said(start: Start) -> None:
    leader = start()
    tree = TreeWatch(leader.process.pid, most=2)
    for _ in range(4):
        leader.tell("leave")
    tree.look()
    leader.end()

    said = tree.end(leader.kill_group)

    assert said == "the command started more than 2 processes, which is more than are watched"
    assert sum(is_over(process) for process in leader.started) == 2


def test_a_leader_that_was_reaped_by_somebody_else_gives_nothing_away(
    start: Start, bystander: subprocess.Popen[bytes]
) -> None:
    leader = start()
    tree = TreeWatch(leader.process.pid)
    leader.end()
    leader.process.wait()

    assert tree.end(lambda: None) == ""

    assert bystander.poll() is None


#: In a PID namespace the next number can be chosen. The process that was seen ends, and its number becomes another's.
_REUSED = """
import os, signal, subprocess, sys, time
from wisp.sandbox.tree import TreeWatch

code = "import subprocess, sys; p = subprocess.Popen(['sleep', '300'], start_new_session=True); print(p.pid, flush=True)"
code += "; p.wait(); print(flush=True); sys.stdin.read()"
leader = subprocess.Popen(
    [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
)
number = int(leader.stdout.readline())
tree = TreeWatch(leader.pid)
tree.look()
assert tree.signal(signal.SIGCONT, spared_group=leader.pid) == 1
if sys.argv[1] == "reused":
    os.kill(number, signal.SIGKILL)
    leader.stdout.readline()
    time.sleep(0.1)  # so that the start differs by more than a clock tick
    with open("/proc/sys/kernel/ns_last_pid", "w") as last:
        last.write(str(number - 1))
    other = subprocess.Popen(["sleep", "300"], start_new_session=True)
    assert other.pid == number, (other.pid, number)
said = tree.end(lambda: None)
try:
    with open(f"/proc/{number}/stat") as stat:
        alive = stat.read().split(")")[1].split()[0] != "Z"
except FileNotFoundError:
    alive = False
print("alive" if alive else "over", said)
"""


def _in_a_pid_namespace(*words: str) -> str:
    unshare = shutil.which("unshare")
    if sys.platform != "linux" or unshare is None:
        pytest.skip("needs unshare(1) of Linux")
    wrap = [unshare, "--pid", "--fork", "--kill-child", "--mount-proc"]
    if os.geteuid() != 0:
        wrap[1:1] = ["--user", "--map-root-user"]
    if subprocess.run([*wrap, "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("no PID namespace can be made here")
    script = textwrap.dedent(_REUSED)
    done = subprocess.run(
        [*wrap, sys.executable, "-c", script, *words], check=False, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(("word", "left"), [("same", "over"), ("reused", "alive")])
def test_a_number_that_became_another_process_is_not_signalled(word: str, left: str) -> None:
    assert _in_a_pid_namespace(word) == left
