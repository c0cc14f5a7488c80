"""The control's way of running a command: as any program would, bounded, and nothing left."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from wisp.probing.bare import Ran, run_bare
from wisp.probing.interrupt import Interrupt
from wisp.probing.leftovers import is_running

ENV = {"PATH": os.environ["PATH"]}


def run(line: str, *, seconds: float = 10.0, most: int = 1000, interrupt: Interrupt | None = None) -> Ran:
    argv = ["/bin/sh", "-c", line]
    with run_bare(argv, cwd="/", env=ENV, seconds=seconds, most=most, interrupt=interrupt or Interrupt()) as ran:
        return ran


def test_both_streams_and_the_status_are_given() -> None:
    assert run("echo out; echo err >&2; exit 7") == Ran(7, "out\n", "err\n", truncated=False, timed_out=False)


def test_a_signal_is_a_negative_status() -> None:
    assert run("kill -TERM $$").exit_status == -15


def test_what_is_not_text_is_replaced() -> None:
    assert run(r"printf 'a\377b'").stdout == "a\ufffdb"


def test_only_the_end_of_much_output_is_kept() -> None:
    ran = run("head -c 1000000 /dev/zero | tr '\\000' x; echo; echo end", most=10)

    assert (ran.stdout, ran.truncated) == ("xxxxx\nend\n", True)


def test_input_is_empty() -> None:
    assert run("cat; echo ended").stdout == "ended\n"


def test_a_command_that_does_not_end_is_ended() -> None:
    started = time.monotonic()
    ran = run("echo started; trap '' TERM; sleep 20", seconds=0.2)

    assert ran == Ran(-9, "started\n", "", truncated=False, timed_out=True)
    assert time.monotonic() - started < 10


def test_a_command_that_never_stops_printing_is_ended() -> None:
    ran = run("yes", seconds=0.2, most=4)

    assert (ran.stdout, ran.timed_out) == ("y\ny\n", True)


def test_what_the_command_left_runs_inside_the_context_and_not_after_it() -> None:
    argv = ["/bin/sh", "-c", "sleep 20 & echo $!"]
    with run_bare(argv, cwd="/", env=ENV, seconds=10, most=100, interrupt=Interrupt()) as ran:
        assert is_running(int(ran.stdout))

    for _ in range(200):
        if not is_running(int(ran.stdout)):
            break
        time.sleep(0.01)
    else:
        pytest.fail("the background job runs on")


def test_a_child_that_holds_the_output_open_is_not_waited_for() -> None:
    started = time.monotonic()
    ran = run("sleep 20 & echo done")

    assert ran.stdout == "done\n"
    assert time.monotonic() - started < 10


def test_a_command_is_in_this_session_and_a_group_of_its_own() -> None:
    program = f"{sys.executable} -IS -c 'import os; print(os.getsid(0), os.getpgid(0) == os.getppid(), os.getpgid(0))'"
    session, _, group = run(program + " ; :").stdout.split()

    assert int(session) == os.getsid(0)
    assert int(group) != os.getpgid(0)


def test_a_descriptor_reaches_a_command_only_when_it_is_named(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path / "file", os.O_CREAT | os.O_RDWR)
    os.set_inheritable(descriptor, True)
    argv = ["/bin/sh", "-c", f"[ -e /proc/self/fd/{descriptor} ] || [ -e /dev/fd/{descriptor} ] && echo open; :"]
    try:
        with run_bare(argv, cwd="/", env=ENV, seconds=10, most=100, interrupt=Interrupt()) as ran:
            assert ran.stdout == ""
        with run_bare(argv, cwd="/", env=ENV, seconds=10, most=100, keep=(descriptor,), interrupt=Interrupt()) as ran:
            assert ran.stdout == "open\n"
    finally:
        os.close(descriptor)


def test_a_program_that_cannot_be_started_is_the_systems_error() -> None:
    with (
        pytest.raises(FileNotFoundError),
        run_bare(["/nowhere"], cwd="/", env=ENV, seconds=1, most=1, interrupt=Interrupt()),
    ):
        pass


def test_an_interrupt_ends_a_command_that_runs() -> None:
    interrupt = Interrupt()
    threading.Timer(0.2, interrupt.request).start()
    started = time.monotonic()

    ran = run("sleep 20", interrupt=interrupt)

    assert (ran.exit_status, ran.timed_out) == (-9, False)
    assert time.monotonic() - started < 10


def test_an_interrupt_that_came_before_ends_a_command_at_once() -> None:
    interrupt = Interrupt()
    interrupt.request()

    assert run("sleep 20", interrupt=interrupt).exit_status == -9


def test_an_interrupt_calls_what_is_open_and_no_more() -> None:
    interrupt = Interrupt()
    called = list[str]()
    with interrupt.calling(lambda: called.append("over")):
        pass
    with interrupt.calling(lambda: called.append("open")):
        interrupt.request()
        with interrupt.calling(lambda: called.append("late")):
            assert called == ["open", "late"]
    assert interrupt.requested


@pytest.mark.skipif(sys.platform != "linux", reason="known by /proc")
def test_the_children_of_this_process_are_left_alone() -> None:
    with subprocess.Popen(["sleep", "20"]) as own:
        run("true")

        assert is_running(own.pid)
        own.kill()
