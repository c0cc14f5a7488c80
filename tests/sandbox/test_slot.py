from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest

from wisp.errors import SandboxUnavailable
from wisp.sandbox import slot as slot_module
from wisp.sandbox.leader import Leader
from wisp.sandbox.leftovers import proc_stat
from wisp.sandbox.slot import SlotThread

pytestmark = pytest.mark.linux

BOUND = 20.0

Make = Callable[..., SlotThread]


def nothing() -> None:
    """A restriction that restricts nothing: what is tested here is the thread."""


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[SlotThread] = []

    def make(restrict: Callable[[], None] = nothing, *, new_session: bool = True, closes: bool = True) -> SlotThread:
        made.append(SlotThread("landlock", restrict, new_session=new_session, closes=closes))
        return made[-1]

    yield make
    for slot in made:
        slot.close()


def start(slot: SlotThread, line: str, *, watched: bool = True) -> subprocess.Popen[bytes]:
    null = os.open(os.devnull, os.O_RDWR)
    try:
        words = ["/bin/sh", "-c", line]
        process = slot.spawn(words, cwd="/", env=dict(os.environb), stdin=null, stdout=null, stderr=null)
    finally:
        os.close(null)
    if watched:
        Leader(process).claim()
    return process


def test_everything_runs_in_one_thread_that_restricted_itself_first(make: Make) -> None:
    threads: list[int] = []
    slot = make(lambda: threads.append(threading.get_native_id()))
    assert [slot.ask(threading.get_native_id) for _ in range(3)] == threads * 3
    assert threads != [threading.get_native_id()]


def test_a_restriction_that_fails_comes_out_and_leaves_no_thread(make: Make) -> None:
    def refuse() -> None:
        raise OSError(7, "refused")

    before = set(threading.enumerate())
    with pytest.raises(OSError, match="refused"):
        make(refuse)
    for thread in set(threading.enumerate()) - before:
        thread.join(BOUND)
        assert not thread.is_alive()


def test_what_the_work_raises_comes_out_and_the_slot_serves_on(make: Make) -> None:
    slot = make()
    with pytest.raises(ZeroDivisionError):
        slot.ask(lambda: 1 // 0)
    with pytest.raises(SystemExit):
        slot.ask(sys.exit)
    assert slot.ask(lambda: 5) == 5


def test_a_program_that_cannot_be_started_is_the_callers_error_and_the_slot_serves_on(make: Make) -> None:
    slot = make()
    with pytest.raises(FileNotFoundError):
        slot.spawn(["/nonexistent"], cwd="/", env={}, stdin=0, stdout=1, stderr=2)
    assert start(slot, "exit 3").wait(BOUND) == 3


@pytest.mark.parametrize("new_session", [True, False])
def test_a_command_leads_a_session_of_its_own(make: Make, new_session: bool) -> None:
    process = start(make(new_session=new_session), "exec sleep 30")
    try:
        assert (os.getsid(process.pid) == process.pid) == new_session
    finally:
        process.kill()
        process.wait()


def test_a_closed_slot_is_an_error_and_never_a_wait(make: Make) -> None:
    slot = make()
    slot.close()
    slot.close()
    wait_until(lambda: not slot.is_usable)
    with pytest.raises(SandboxUnavailable, match="has ended"):
        slot.ask(lambda: 5)


def test_what_is_asked_while_the_slot_is_closed_is_answered_one_way_or_the_other(make: Make) -> None:
    for _ in range(100):
        slot = make()
        answers: SimpleQueue[object] = SimpleQueue()

        def ask(slot: SlotThread = slot, answers: SimpleQueue[object] = answers) -> None:
            try:
                answers.put(slot.ask(lambda: 5))
            except SandboxUnavailable:
                answers.put("ended")

        asking = [threading.Thread(target=ask, daemon=True) for _ in range(3)]
        for thread in asking[:2]:
            thread.start()
        slot.close()
        asking[2].start()
        assert {answers.get(timeout=BOUND) for _ in asking} <= {5, "ended"}


def test_a_caller_that_is_interrupted_leaves_no_command_behind(make: Make, tmp_path: Path) -> None:
    """The command is started in the moment in which its caller stops waiting for it."""
    slot = make()
    held, interrupted, release = threading.Event(), threading.Event(), threading.Event()
    started: list[subprocess.Popen[bytes]] = []

    def spawn() -> subprocess.Popen[bytes]:
        held.set()
        release.wait(BOUND)
        started.append(subprocess.Popen(["sleep", "60"], start_new_session=True))
        return started[-1]

    def interrupt(_signum: int, _frame: object) -> None:
        if not interrupted.is_set():
            interrupted.set()
            raise KeyboardInterrupt

    def send() -> None:
        held.wait(BOUND)
        while not interrupted.wait(0.05):  # one that comes just before the wait begins is noticed after it
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
        release.set()

    previous = signal.signal(signal.SIGUSR1, interrupt)
    sending = threading.Thread(target=send)
    sending.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            slot.ask(spawn, end_and_reap)
    finally:
        signal.signal(signal.SIGUSR1, previous)
        sending.join()
    # It waited for the start: the command was given descriptors of the caller's, who may close them now.
    assert [process.returncode for process in started] == [-9]


def test_a_command_that_nobody_comes_to_watch_is_ended(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its caller was interrupted after it was started and before it was watched."""
    monkeypatch.setattr(slot_module, "_UNWATCHED", 0.1)
    assert start(make(), "exec sleep 60", watched=False).wait(BOUND) == -9


def test_a_command_that_nobody_came_to_watch_is_ended_before_the_next_and_by_closing(make: Make) -> None:
    slot = make()
    first = start(slot, "exec sleep 60", watched=False)
    second = start(slot, "exec sleep 60", watched=False)
    assert first.returncode == -9
    slot.close()
    assert second.wait(BOUND) == -9


def test_a_command_that_is_watched_is_left_alone(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_module, "_UNWATCHED", 0.05)
    slot = make()
    process = start(slot, "exec sleep 0.5")
    assert process.wait(BOUND) == 0
    slot.close()


def test_a_slot_that_nobody_holds_any_more_ends_its_thread() -> None:
    slot = SlotThread("landlock", nothing, new_session=True, closes=True)
    thread = slot._thread
    del slot
    thread.join(BOUND)
    assert not thread.is_alive()


def end_and_reap(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def test_a_signal_goes_to_what_started_since_and_to_nothing_else(make: Make) -> None:
    slot = make()
    older, newer = start(slot, "exec sleep 30"), None
    try:
        began = proc_stat(older.pid)
        assert began is not None
        wait_until(lambda: ticks() > began.started)
        newer = start(slot, "exec sleep 30")
        since = proc_stat(newer.pid)
        assert since is not None
        pids = [older.pid, newer.pid, os.getpid(), 2**22 + 1]
        assert slot.signal(pids, signal.SIGTERM, since=since.started) == (newer.pid,)
        assert newer.wait(BOUND) == -15
        assert older.poll() is None
    finally:
        for process in (older, newer):
            if process is not None and process.poll() is None:
                end_and_reap(process)


def test_a_signal_goes_by_default_to_what_started_with_the_last_command(make: Make) -> None:
    slot = make()
    older = start(slot, "exec sleep 30")
    began = proc_stat(older.pid)
    assert began is not None
    wait_until(lambda: ticks() > began.started)
    newer = start(slot, "exec sleep 30")
    try:
        assert slot.signal([older.pid, newer.pid], signal.SIGKILL) == (newer.pid,)
    finally:
        end_and_reap(older)
        end_and_reap(newer)


def ticks() -> int:
    """The start of a process that is started now, in clock ticks."""
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    stat = proc_stat(process.pid)
    process.wait()
    assert stat is not None
    return stat.started


def test_a_process_that_is_over_counts_as_gone(make: Make) -> None:
    slot = make()
    process = start(slot, "exit 0")
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert slot.signal([process.pid], signal.SIGTERM, since=0) == ()
    process.wait()


def test_without_a_free_descriptor_a_search_fails_and_does_not_find_nothing(make: Make, tmp_path: Path) -> None:
    done = run_script(
        """
        import os, resource, signal, subprocess
        from wisp.sandbox.slot import SlotThread

        slot = SlotThread("landlock", lambda: None, new_session=True, closes=True)
        other = subprocess.Popen(["sleep", "60"])
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            slot.signal([other.pid], signal.SIGKILL, since=0)
        except OSError as error:
            print(error.errno == 24)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        print(slot.signal([other.pid], signal.SIGKILL, since=0) == (other.pid,))
        other.wait()
        """,
        tmp_path,
    )
    assert done == "True\nTrue\n"


def test_a_forked_child_has_no_slot_and_is_told(tmp_path: Path) -> None:
    done = run_script(
        """
        import os, warnings
        warnings.simplefilter("ignore")
        from wisp.errors import SandboxUnavailable
        from wisp.sandbox.slot import SlotThread

        slot = SlotThread("landlock", lambda: None, new_session=True, closes=True)
        if os.fork() == 0:
            try:
                slot.ask(lambda: 5)
            except SandboxUnavailable as error:
                print(error, flush=True)
            os._exit(0)
        os.wait()
        print(slot.ask(lambda: 5))
        """,
        tmp_path,
    )
    assert done == (
        "the landlock sandbox cannot hold this confinement here: the thread that starts commands has ended\n5\n"
    )


def test_a_program_that_forgets_its_slots_ends(tmp_path: Path) -> None:
    done = run_script(
        """
        from wisp.sandbox.slot import SlotThread

        slots = [SlotThread("landlock", lambda: None, new_session=True, closes=True) for _ in range(5)]
        print("end")
        """,
        tmp_path,
    )
    assert done == "end\n"


def run_script(script: str, directory: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=BOUND,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def wait_until(holds: Callable[[], bool]) -> None:
    """Wait for what has no event to wait for; only a hang takes all of the time."""
    pause = threading.Event()
    for _ in range(2000):
        if holds():
            return
        pause.wait(0.01)
    pytest.fail("it never came")
