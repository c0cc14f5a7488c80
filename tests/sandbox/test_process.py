from __future__ import annotations

import itertools
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from wisp.errors import StatusLost
from wisp.sandbox import leftovers, process
from wisp.sandbox.backend import Backend, Enforcer
from wisp.sandbox.bubblewrap import BubblewrapBackend
from wisp.sandbox.confinement import Confinement
from wisp.sandbox.landlock import LandlockBackend
from wisp.sandbox.leader import Leader
from wisp.sandbox.leftovers import end_leftovers, last_created, proc_stat
from wisp.sandbox.process import Finished, Sink, supervise
from wisp.sandbox.stop import Stop
from wisp.sandbox.tail import Tail
from wisp.sandbox.unconfined import UnconfinedBackend

pytestmark = pytest.mark.linux

#: Seconds that only a hang takes; what is left running sleeps for longer.
BOUND, LONG = 20.0, 60

#: `./me PID` prints what `Process.of` reads: number and start (proc(5)).
ME = '#!/bin/sh\nread -r it </proc/$1/stat; it=${it##*) }; pid=$1; set -- $it; echo "$pid ${20}"\n'


@dataclass(frozen=True, slots=True)
class Process:
    """A process, told apart by its start from another that may have its number by now."""

    pid: int
    started: int

    @classmethod
    def of(cls, line: str) -> Process:
        pid, started = line.split()
        return cls(int(pid), int(started))

    @property
    def is_gone(self) -> bool:
        stat = proc_stat(self.pid)
        return stat is None or stat.is_over or stat.started != self.started


@dataclass(frozen=True, slots=True)
class Ran:
    finished: Finished
    out: Tail
    err: Tail
    seconds: float

    @property
    def processes(self) -> list[Process]:
        """What the command told of with `./me`, one a line."""
        return [Process.of(line) for line in self.out.text().splitlines()]


class Runs:
    """Runs lines by /bin/sh in a directory, under one enforcer."""

    def __init__(self, enforcer: Enforcer, root: Path) -> None:
        self.enforcer, self.root = enforcer, root
        self.write("me", ME)

    def write(self, name: str, script: str) -> None:
        (self.root / name).write_text(script)
        (self.root / name).chmod(0o755)

    def __call__(
        self,
        line: str,
        *,
        timeout: float | None = 30,
        stop: Stop | None = None,
        limit: int = 1 << 16,
        sinks: tuple[Sink, ...] = (),
        onward: int | None = None,
    ) -> Ran:
        out, err = Tail(limit), Tail(limit)
        began = time.monotonic()
        with self.enforcer.lease() as slot, (stop or Stop()).attached() as attached:
            out_reader, out_writer = os.pipe()
            err_reader, err_writer = os.pipe()
            null = os.open(os.devnull, os.O_RDONLY)
            command = slot.spawn(
                ["/bin/sh", "-c", line],
                cwd=str(self.root),
                env=dict(os.environb),
                stdin=null,
                stdout=out_writer,
                stderr=err_writer,
            )
            for descriptor in (null, out_writer, err_writer):
                os.close(descriptor)
            take_out, take_err = sinks or (out.feed, err.feed)
            finished = supervise(
                command,
                {out_reader: take_out, err_reader: take_err},
                timeout=timeout,
                stop=attached,
                onward={} if onward is None else {out_reader: onward},
            )
        return Ran(finished, out, err, time.monotonic() - began)


def make(backend: str, root: Path) -> Iterator[Runs]:
    backends: dict[str, Backend] = {
        "bubblewrap": BubblewrapBackend(),
        "landlock": LandlockBackend(),
        "none": UnconfinedBackend(),
    }
    enforcer = backends[backend].prepare(Confinement(roots=(str(root),)))
    yield Runs(enforcer, root)
    enforcer.close()


SANDBOXES = [
    pytest.param("bubblewrap", marks=pytest.mark.wisp_requires("namespaces")),
    pytest.param("landlock", marks=pytest.mark.wisp_requires("landlock")),
]


@pytest.fixture(params=[*SANDBOXES, "none"])
def either(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Runs]:
    """Runs lines in a lane, under Landlock, and without a sandbox: supervision is the same."""
    yield from make(request.param, tmp_path)


@pytest.fixture
def confined(tmp_path: Path) -> Iterator[Runs]:
    yield from make("landlock", tmp_path)


@pytest.fixture
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kill half a second after asking, where the two seconds are not what is tested."""
    monkeypatch.setattr(process, "_GRACE", 0.5)


@pytest.fixture
def unconfined(tmp_path: Path) -> Iterator[Runs]:
    yield from make("none", tmp_path)


@pytest.mark.parametrize(
    ("line", "status"),
    [(":", 0), ("exit 3", 3), ("exit 255", 255), ("kill -KILL $$", -9), ("kill -TERM $$", -15), ("kill -SEGV $$", -11)],
)
def test_the_exit_status_is_the_commands_own_or_the_negative_number_of_its_signal(
    either: Runs, line: str, status: int
) -> None:
    assert either(line).finished.exit_status == status


def test_both_streams_are_kept_apart(either: Runs) -> None:
    ran = either("echo out; echo err >&2")
    assert (ran.out.text(), ran.err.text()) == ("out\n", "err\n")


def test_a_command_leads_a_session_and_a_group_of_its_own_and_has_no_terminal(either: Runs) -> None:
    ran = either("read -r it </proc/$$/stat; set -- $it; echo $1 $5 $6; (: </dev/tty) 2>/dev/null || echo no terminal")
    numbers, terminal = ran.out.text().splitlines()
    assert len(set(numbers.split())) == 1
    assert terminal == "no terminal"


def test_a_line_that_is_never_ended_is_kept(either: Runs) -> None:
    assert either("printf abc").out.text() == "abc"


def test_a_command_that_closes_its_streams_is_waited_for(either: Runs) -> None:
    ran = either("echo before; exec >&- 2>&-; sleep 0.3; exit 3")
    assert (ran.finished.exit_status, ran.out.text()) == (3, "before\n")


def test_both_streams_flooded_at_once_do_not_block_each_other(either: Runs) -> None:
    ran = either("head -c 8000000 /dev/zero & head -c 8000000 /dev/zero >&2; wait; echo end; echo end >&2", limit=1000)
    assert ran.finished.exit_status == 0
    assert (ran.out.total, ran.err.total) == (8_000_004, 8_000_004)
    assert ran.out.data() == ran.err.data() == b"\0" * 996 + b"end\n"


def test_the_last_bytes_of_a_command_that_ends_at_once_are_all_there(either: Runs) -> None:
    for _ in range(10):
        ran = either("head -c 60000 /dev/zero; head -c 60000 /dev/zero >&2")
        assert (ran.out.total, ran.err.total) == (60_000, 60_000)


def test_a_command_that_writes_forever_is_ended_at_its_time(either: Runs) -> None:
    ran = either("yes", timeout=0.2, limit=10)
    assert (ran.finished.exit_status, ran.finished.timed_out, ran.finished.stopped) == (-15, True, False)
    assert ran.out.data() in {b"y\n" * 5, b"\ny" * 5}
    assert ran.seconds < BOUND


def test_a_command_that_ignores_the_polite_signal_is_killed_two_seconds_later(unconfined: Runs) -> None:
    ran = unconfined(f"trap '' TERM; sleep {LONG}; sleep {LONG}", timeout=0.1)
    assert (ran.finished.exit_status, ran.finished.timed_out) == (-9, True)
    assert 2.0 <= ran.seconds < BOUND


def test_a_command_is_asked_once_and_may_use_the_grace_to_end_in_its_own_way(either: Runs) -> None:
    """A second TERM means `at once` to many programs, so a process gets one, whatever ways lead to it."""
    ran = either(f"trap 'echo term' TERM; sleep {LONG} & wait; sleep 0.2; exit 4", timeout=0.3)
    assert (ran.finished.exit_status, ran.finished.timed_out) == (4, True)
    assert ran.out.text() == "term\n"


def test_a_stopped_command_is_ended_at_its_time(either: Runs) -> None:
    ran = either("kill -STOP $$", timeout=0.2)
    assert (ran.finished.exit_status, ran.finished.timed_out) == (-15, True)
    assert ran.seconds < BOUND


@pytest.mark.parametrize("timeout", [25 * 86400.0, 365 * 86400.0, 1e12])
def test_a_time_out_longer_than_poll_can_wait_is_no_error(unconfined: Runs, timeout: float) -> None:
    assert unconfined("exit 3", timeout=timeout).finished.exit_status == 3


def test_a_time_out_of_next_to_nothing_ends_the_command(either: Runs) -> None:
    assert either(f"sleep {LONG}", timeout=1e-9).finished.timed_out


# What a command leaves running.


@pytest.mark.parametrize(
    ("what", "line"),
    [
        ("a background job", f"sleep {LONG} & ./me $!"),
        ("one that ignores TERM", f"sh -c 'trap \"\" TERM INT HUP; ./me $$; sleep {LONG}; :' & sleep 0.2"),
        ("a stopped one", "sh -c './me $$; kill -STOP $$' & sleep 0.2"),
        ("one that holds the output open", f"sleep {LONG} & ./me $!; exec >&- 2>&-"),
        ("a tree of them", f"for i in 1 2 3; do (sleep {LONG} & ./me $!; wait) & done; sleep 0.2"),
    ],
)
def test_what_stays_in_the_process_group_is_gone_when_the_command_is(either: Runs, what: str, line: str) -> None:
    ran = either(line)
    assert ran.processes, what
    assert all(one.is_gone for one in ran.processes)
    assert ran.seconds < BOUND


@pytest.mark.wisp_requires("landlock-scope")
@pytest.mark.parametrize(
    ("what", "daemon"),
    [
        ("a session of its own", f"./me $$ >pid; exec sleep {LONG}"),
        ("a second fork", f"(./me $$ >/dev/null; sleep {LONG} & ./me $! >pid) & exit"),
        ("closed descriptors", f"./me $$ >new; exec 0<&- 1>&- 2>&-; mv new pid; sleep {LONG}"),
        ("ignored signals", f'trap "" TERM INT HUP QUIT; ./me $$ >pid; while :; do sleep {LONG}; done'),
        ("no environment", f"./me $$ >pid; exec env -i sleep {LONG}"),
        ("a stopped one", "./me $$ >pid; kill -STOP $$"),
        ("a directory elsewhere", f"./me $$ >pid; cd /; exec nohup sleep {LONG}"),
    ],
)
def test_what_left_the_process_group_is_gone_when_the_command_is(confined: Runs, what: str, daemon: str) -> None:
    confined.write("daemon", f"#!/bin/sh\n{daemon}\n")
    ran = confined("setsid ./daemon & until [ -s pid ]; do sleep 0.01; done; cat pid")
    assert ran.finished.left_behind == ""
    assert ran.processes, what
    assert all(one.is_gone for one in ran.processes)
    assert ran.seconds < BOUND


@pytest.mark.wisp_requires("landlock-scope")
def test_a_time_out_ends_what_left_the_process_group_too(confined: Runs, short_grace: None) -> None:
    confined.write("daemon", f"#!/bin/sh\ntrap '' TERM\n./me $$ >pid\nsleep {LONG}\nsleep {LONG}\n")
    ran = confined(f"setsid ./daemon & until [ -s pid ]; do sleep 0.01; done; cat pid; sleep {LONG}", timeout=0.5)
    assert (ran.finished.timed_out, ran.finished.left_behind) == (True, "")
    assert [one.is_gone for one in ran.processes] == [True]


@pytest.mark.wisp_requires("landlock-scope")
def test_what_left_the_process_group_is_asked_too_before_it_is_killed(confined: Runs, short_grace: None) -> None:
    confined.write("daemon", f"#!/bin/sh\ntrap 'echo asked >>asked; exit' TERM\n./me $$ >pid\nsleep {LONG} & wait\n")
    confined(f"setsid ./daemon & until [ -s pid ]; do sleep 0.01; done; trap '' TERM; sleep {LONG}", timeout=0.5)
    assert (confined.root / "asked").read_text() == "asked\n"


def test_without_a_sandbox_what_left_the_process_group_is_said_and_does_not_hold_the_call(unconfined: Runs) -> None:
    unconfined.write("daemon", f"#!/bin/sh\n./me $$ >pid\nexec sleep {LONG}\n")
    ran = unconfined("setsid ./daemon & until [ -s pid ]; do sleep 0.01; done; cat pid")
    (daemon,) = ran.processes
    try:
        assert not daemon.is_gone
        assert ran.finished.left_behind == (
            "only the command's own process group is ended: a process that left it may still run"
        )
        assert ran.seconds < BOUND
    finally:
        os.kill(daemon.pid, signal.SIGKILL)


def test_without_a_sandbox_a_daemon_that_writes_forever_does_not_hold_the_call(unconfined: Runs) -> None:
    unconfined.write("daemon", "#!/bin/sh\n./me $$ >&2\nexec timeout 30 yes\n")
    ran = unconfined("setsid ./daemon & sleep 0.3")
    (daemon,) = [Process.of(line) for line in ran.err.text().splitlines()]
    try:
        assert ran.seconds < BOUND
    finally:
        with suppress(ProcessLookupError):  # it may have had the pipe closed under it
            os.kill(daemon.pid, signal.SIGKILL)


@pytest.mark.wisp_requires("landlock-scope")
@pytest.mark.parametrize("chains", [1, 5])
def test_a_chain_of_forks_is_caught(confined: Runs, chains: int) -> None:
    """Each process is gone before it could be listed; a faster one may get away (confine.fork-chains), not these."""
    confined.write("hop", '#!/bin/sh\n[ "$1" = 0 ] && exit\nsetsid ./hop $(($1 - 1)) >/dev/null 2>&1 &\n')
    ran = confined(f"for i in $(seq {chains}); do setsid ./hop 400 & done; sleep 0.05")
    assert (ran.finished.exit_status, ran.finished.left_behind) == (0, "")
    assert ran.seconds < BOUND
    assert processes_in(confined.root) == []


def processes_in(directory: Path) -> list[int]:
    """The processes that are in a directory; a zombie is nowhere."""
    found = []
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            with suppress(OSError):
                if (place / "cwd").readlink() == directory:
                    found.append(int(place.name))
    return found


@pytest.mark.wisp_requires("landlock-scope")
def test_processes_of_this_program_are_never_touched(confined: Runs) -> None:
    """Neither those that ran before, nor those that are started in the same moment, in the same session or another."""
    done = threading.Event()
    mine: list[subprocess.Popen[bytes]] = []

    def start(*, new_session: bool = False) -> None:
        mine.append(
            subprocess.Popen(["sh", "-c", "read x; exit 7"], stdin=subprocess.PIPE, start_new_session=new_session)
        )

    def keep_starting() -> None:
        while not done.is_set() and len(mine) < 60:
            start(new_session=len(mine) % 2 == 0)

    start()
    starting = threading.Thread(target=keep_starting)
    starting.start()
    try:
        for _ in range(15):
            ran = confined(f"sleep {LONG} & setsid sleep {LONG} & ./me $!")
            assert [one.is_gone for one in ran.processes] == [True]
    finally:
        done.set()
        starting.join()
        for one in mine:
            one.communicate(b"\n", timeout=BOUND)
        statuses = [one.returncode for one in mine]
    assert statuses == [7] * len(mine)


def test_a_command_that_runs_is_not_touched_by_the_end_of_another(either: Runs) -> None:
    """Two slots of one confinement are two domains."""
    ran: list[Ran] = []
    os.mkfifo(either.root / "ready")
    os.mkfifo(either.root / "go")
    waiting = threading.Thread(target=lambda: ran.append(either("echo >ready; read x <go; exit 5")))
    waiting.start()
    (either.root / "ready").read_text()
    for _ in range(5):
        either(f"sleep {LONG} & setsid sleep 0.5 &")
    (either.root / "go").write_text("\n")
    waiting.join(BOUND)
    assert [one.finished.exit_status for one in ran] == [5]


def test_a_process_that_does_not_end_is_given_up_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process in an uninterruptible wait outlives KILL; here it is one that is not in the group that is signalled."""
    monkeypatch.setattr(process, "_DEATH", 0.2)
    command = subprocess.Popen(["sleep", str(LONG)])  # no session of its own, so no group with its number
    stop = Stop()
    stop.kill()
    try:
        with UnconfinedBackend().prepare(Confinement()).lease() as slot, stop.attached() as attached:
            finished = supervise(Leader(command, slot), {}, timeout=None, stop=attached)
        assert finished == Finished(
            -9,
            timed_out=False,
            stopped=True,
            left_behind=f"process {command.pid} was killed but does not end (it waits in the kernel)",
        )
        assert command.poll() is None
    finally:
        command.kill()
        command.wait()


# Where the list of processes cannot be believed.


@pytest.mark.wisp_requires("landlock-scope")
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting /proc needs root")
def test_a_process_that_proc_hides_is_ended(tmp_path: Path, shared_python: str) -> None:
    """With `hidepid` a user sees nothing of a process that made itself undumpable, as ssh-agent does."""
    place = Path(tempfile.mkdtemp(dir="/var/tmp"))
    place.chmod(0o777)
    daemon = (
        "import ctypes, os, time; os.setsid(); ctypes.CDLL(None).prctl(4, 0, 0, 0, 0); "
        "open('pid', 'w').write(str(os.getpid())); time.sleep(60)"
    )
    program = f"""
import os, wisp.sandbox.landlock, wisp.refusal.excerpt
from wisp import Confinement, Runner
from wisp.config import Settings
os.setgroups([]); os.setgid(65534); os.setuid(65534)
with Runner(Confinement(roots=({str(place)!r},)), backend='landlock', audit=False, settings=Settings()) as runner:
    outcome = runner.run({f'{shared_python} -c "{daemon}" & until [ -s pid ]; do sleep 0.01; done'!r}, cwd={str(place)!r})
    print(os.path.exists("/proc/1"), outcome.exit_status, repr(outcome.left_behind))
"""
    try:
        done = subprocess.run(
            ["unshare", "-m", "sh", "-c", 'mount --make-rprivate / && mount -t proc -o hidepid=2 proc /proc && exec "$@"', "sh",
             sys.executable, "-c", program],
            capture_output=True, text=True, cwd=tmp_path, check=False, timeout=BOUND,
        )  # fmt: skip
        if "mount:" in done.stderr or "unshare:" in done.stderr:
            pytest.skip(f"no mounts here: {done.stderr}")
        assert (done.stdout, done.stderr) == ("False 0 ''\n", "")
        stat = proc_stat(int((place / "pid").read_text()))
        assert stat is None or stat.is_over
    finally:
        shutil.rmtree(place)


class Listed:
    """A slot that finds what it is told to find."""

    ends_leftovers = True

    def __init__(self, *found: tuple[int, ...]) -> None:
        self.found = list(found)
        self.asked: list[list[int]] = []

    def spawn(self, *_: object, **__: object) -> subprocess.Popen[bytes]:
        raise AssertionError

    def signal(self, pids: Iterable[int], signum: int) -> tuple[int, ...]:
        self.asked.append(list(pids))
        return self.found.pop(0) if self.found else ()


@pytest.fixture
def over() -> Iterator[Leader]:
    """A leader that has ended, not reaped, with another process started since."""
    command = subprocess.Popen([":"], executable="/bin/true", start_new_session=True)
    leader = Leader(command)
    leader.open()
    assert leader.is_over(BOUND)
    subprocess.run(["true"], check=True)
    yield leader
    leader.reap()
    leader.close()


def test_a_command_that_started_nothing_is_not_searched_for(tmp_path: Path) -> None:
    slot = Listed()
    for _ in range(200):  # until no other program of the machine starts something in between
        command = subprocess.Popen(["true"], executable="/bin/true", start_new_session=True)
        leader = Leader(command)
        leader.open()
        assert leader.is_over(BOUND)
        is_last = last_created() == leader.pid
        assert end_leftovers(slot, leader, "some may be left") in {"", "some may be left"}
        leader.reap()
        leader.close()
        if is_last and not slot.asked:
            return
        slot.asked.clear()
    pytest.skip("this machine starts processes without a pause")


def test_finding_goes_on_until_nothing_is_found(over: Leader) -> None:
    slot = Listed((1,), (2,), (1, 2))
    assert end_leftovers(slot, over, "") == ""
    assert len(slot.asked) == 5  # the last is for what was started meanwhile


def test_what_is_found_among_the_newest_is_reason_to_look_at_all_again(over: Leader) -> None:
    slot = Listed((), (3,))
    assert end_leftovers(slot, over, "") == ""
    assert len(slot.asked) == 4


def test_the_numbers_since_the_start_are_looked_at_also_where_they_are_not_listed(over: Leader) -> None:
    hidden = subprocess.Popen(["true"])
    hidden.wait()
    slot = Listed()
    end_leftovers(slot, over, "")
    assert hidden.pid in slot.asked[0]


@pytest.mark.parametrize(
    ("newest", "numbers"),
    [
        ([9], []),
        ([12, 12], [10, 11, 12]),
        ([12, 13, 13], [10, 11, 12, 13]),
        ([None], []),
        ([12, None], [10, 11, 12]),
        ([4, 4], [2, 3, 4]),  # they began again at the first
        ([10_000, 10_000], list(range(10_000 - 4095, 10_001))),  # too many: the living are among the last
    ],
)
def test_new_numbers_are_looked_at_until_there_are_none(
    newest: list[int | None], numbers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    coming = iter(newest)
    monkeypatch.setattr(leftovers, "last_created", lambda: next(coming))
    assert list(leftovers._newer_than(9)) == numbers
    assert list(coming) == []


def test_a_machine_that_starts_processes_all_the_time_does_not_hold_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = itertools.count(10)
    monkeypatch.setattr(leftovers, "last_created", lambda: next(numbers))
    assert list(leftovers._newer_than(9)) == list(range(10, 410))


def test_what_does_not_end_in_time_is_said(over: Leader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "_SECONDS", 0.05)
    slot = Listed(*[(1,)] * 10_000)
    assert end_leftovers(slot, over, "") == "processes that the command started could not be ended in two seconds"


def test_processes_that_cannot_be_listed_are_said(over: Leader, monkeypatch: pytest.MonkeyPatch) -> None:
    def short(_path: str) -> list[str]:
        raise OSError(24, os.strerror(24))

    monkeypatch.setattr(os, "listdir", short)
    assert end_leftovers(Listed(), over, "") == (
        "what the command left running could not be looked for (Too many open files); it may still run"
    )


def test_a_proc_of_another_namespace_is_said(over: Leader, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.readlink
    monkeypatch.setattr(os, "readlink", lambda path, **kw: "1" if path == "/proc/self" else real(path, **kw))
    assert end_leftovers(Listed(), over, "") == (
        "/proc does not show the processes of this PID namespace, so what left the process group may still run"
    )


# Stopping by hand.


def ask_when_ready(root: Path, ask: Callable[[], object]) -> threading.Thread:
    """Start a thread that asks once the command has written to the FIFO `ready`."""
    os.mkfifo(root / "ready")

    def wait() -> None:
        (root / "ready").read_text()
        ask()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def test_the_first_request_asks_and_the_command_may_end_in_its_own_way(either: Runs) -> None:
    stop = Stop()
    asking = ask_when_ready(either.root, stop.request)
    ran = either(f"trap 'echo asked; exit 6' TERM; sleep {LONG} & echo >ready; wait", stop=stop)
    asking.join()
    assert (ran.finished.exit_status, ran.finished.stopped, ran.finished.timed_out) == (6, True, False)
    assert ran.out.text() == "asked\n"


@pytest.mark.wisp_requires("landlock")
def test_two_seconds_after_the_first_request_the_command_is_killed(confined: Runs) -> None:
    stop = Stop()
    asking = ask_when_ready(confined.root, stop.request)
    ran = confined(f"trap '' TERM; echo >ready; sleep {LONG}; sleep {LONG}", stop=stop)
    asking.join()
    assert (ran.finished.exit_status, ran.finished.stopped) == (-9, True)
    assert 2.0 <= ran.seconds < BOUND


@pytest.mark.parametrize("ask", [lambda stop: (stop.request(), stop.request()), lambda stop: stop.kill()])
def test_the_second_request_or_kill_ends_the_command_at_once(either: Runs, ask: Callable[[Stop], object]) -> None:
    stop = Stop()
    asking = ask_when_ready(either.root, lambda: ask(stop))
    ran = either(f"trap 'echo asked' TERM; sleep {LONG} & echo >ready; while :; do wait; done", stop=stop, timeout=None)
    asking.join()
    assert (ran.finished.exit_status, ran.finished.stopped) == (-9, True)
    assert ran.seconds < BOUND


@pytest.mark.parametrize(("requests", "status"), [(1, -15), (2, -9), (5, -9)])
def test_a_request_before_the_start_acts_as_the_command_starts(either: Runs, requests: int, status: int) -> None:
    stop = Stop()
    for _ in range(requests):
        stop.request()
    ran = either(f"sleep {LONG}", stop=stop)
    assert (ran.finished.exit_status, ran.finished.stopped) == (status, True)


def test_a_request_after_the_end_does_nothing(either: Runs) -> None:
    stop = Stop()
    ran = either("exit 3", stop=stop)
    stop.request()
    assert (ran.finished.exit_status, ran.finished.stopped) == (3, False)


def test_a_request_from_a_signal_handler_is_heard(either: Runs) -> None:
    stop = Stop()
    previous = signal.signal(signal.SIGUSR1, lambda *_: stop.request())
    try:
        asking = ask_when_ready(either.root, lambda: os.kill(os.getpid(), signal.SIGUSR1))
        ran = either(f"echo >ready; exec sleep {LONG}", stop=stop)
        asking.join()
    finally:
        signal.signal(signal.SIGUSR1, previous)
    assert (ran.finished.exit_status, ran.finished.stopped) == (-15, True)


def test_stopped_first_is_stopped_though_its_time_runs_out_in_the_grace(either: Runs) -> None:
    stop = Stop()
    asking = ask_when_ready(either.root, stop.request)
    line = f"trap 'sleep 0.8; exit 6' TERM; sleep {LONG} & echo >ready; wait"
    finished = either(line, stop=stop, timeout=0.5).finished
    asking.join()
    assert (finished.exit_status, finished.stopped, finished.timed_out) == (6, True, False)


def test_timed_out_first_is_timed_out_though_a_person_asks_in_the_grace(either: Runs) -> None:
    stop = Stop()
    asking = ask_when_ready(either.root, stop.kill)
    line = f"trap 'echo >ready; sleep {LONG}' TERM; sleep {LONG} & wait"
    finished = either(line, stop=stop, timeout=0.3).finished
    asking.join()
    assert (finished.exit_status, finished.stopped, finished.timed_out) == (-9, False, True)


def test_a_signal_is_passed_on_to_the_group_and_changes_nothing_else(either: Runs) -> None:
    stop = Stop()
    asking = ask_when_ready(either.root, lambda: stop.forward(signal.SIGUSR1))
    ran = either(f"trap 'echo told; exit 8' USR1; sleep {LONG} & echo >ready; wait", stop=stop)
    asking.join()
    assert (ran.finished.exit_status, ran.finished.stopped, ran.out.text()) == (8, False, "told\n")


def test_one_handle_stops_several_commands(either: Runs) -> None:
    stop, ran = Stop(), list[Ran]()
    threads = [
        threading.Thread(target=lambda: ran.append(either(f"sleep {LONG}", stop=stop, timeout=None))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    stop.request()
    for thread in threads:
        thread.join(BOUND)
    assert [one.finished.exit_status for one in ran] == [-15] * 4


# Bytes that go on to somebody else.


def test_bytes_go_on_whole_and_in_order_to_a_reader_that_is_slow(either: Runs) -> None:
    """The command has long ended when the reader begins; nothing of its last output may be lost."""
    reader, writer = os.pipe()
    taken = bytearray()

    def read_late() -> None:
        assert select.select([reader], [], [], BOUND)[0]
        time.sleep(1.3)  # longer than a stream is waited for that only holds open
        while chunk := os.read(reader, 1 << 16):
            taken.extend(chunk)

    reading = threading.Thread(target=read_late)
    reading.start()
    ran = either("seq 30000", onward=writer)
    os.close(writer)
    reading.join(BOUND)
    os.close(reader)
    assert bytes(taken) == b"".join(b"%d\n" % number for number in range(1, 30001))
    assert (ran.finished.exit_status, ran.out.total) == (0, len(taken))


def test_a_reader_that_reads_nothing_does_not_keep_the_time_from_being_up(either: Runs) -> None:
    reader, writer = os.pipe()
    try:
        ran = either("yes", onward=writer, timeout=0.3)
        assert (ran.finished.exit_status, ran.finished.timed_out) == (-15, True)
        assert ran.seconds < BOUND
    finally:
        os.close(reader)
        os.close(writer)


def test_a_reader_that_reads_nothing_does_not_keep_a_person_from_stopping(unconfined: Runs) -> None:
    """Neither while the command runs, nor when it has ended and only its output waits."""
    reader, writer = os.pipe()
    try:
        for line in ("yes", "seq 100000 | head -c 130000"):
            stop = Stop()
            asking = threading.Timer(0.4, stop.kill)
            asking.start()
            ran = unconfined(line, onward=writer, timeout=None, stop=stop)
            asking.join()
            assert ran.seconds < BOUND
    finally:
        os.close(reader)
        os.close(writer)


def test_a_reader_that_is_gone_is_the_commands_own_broken_pipe(either: Runs) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    ran = either("exec yes", onward=writer)
    os.close(writer)
    assert ran.finished.exit_status == -signal.SIGPIPE


def test_a_full_disk_loses_output_and_the_command_goes_on(either: Runs) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    ran = either("seq 20000; exit 9", onward=full)
    os.close(full)
    assert ran.finished.exit_status == 9
    assert ran.out.total == len(b"".join(b"%d\n" % number for number in range(1, 20001)))


def test_a_descriptor_that_others_share_stays_blocking(either: Runs) -> None:
    reader, writer = os.pipe()
    either("echo x", onward=writer)
    assert os.get_blocking(writer)
    assert os.read(reader, 10) == b"x\n"
    os.close(reader)
    os.close(writer)


def test_an_error_in_a_sink_ends_the_command_and_comes_out(either: Runs) -> None:
    def fail(_chunk: bytes) -> None:
        raise ZeroDivisionError

    began = time.monotonic()
    with pytest.raises(ZeroDivisionError):
        either(f"./me $$ >pid; echo; exec sleep {LONG}", sinks=(fail, fail), timeout=None)
    assert Process.of((either.root / "pid").read_text()).is_gone
    assert time.monotonic() - began < BOUND


@pytest.mark.wisp_requires("landlock-scope")
def test_an_error_in_a_sink_ends_what_left_the_process_group_too(confined: Runs) -> None:
    def fail(_chunk: bytes) -> None:
        raise ZeroDivisionError

    confined.write("daemon", f"#!/bin/sh\ntrap '' TERM HUP\n./me $$ >pid\nsleep {LONG}\nsleep {LONG}\n")
    with pytest.raises(ZeroDivisionError):
        confined(f"setsid ./daemon & until [ -s pid ]; do sleep 0.01; done; echo; sleep {LONG}", sinks=(fail, fail))
    assert Process.of((confined.root / "pid").read_text()).is_gone


def test_a_status_that_somebody_else_took_is_said_and_never_a_zero() -> None:
    command = subprocess.Popen(["sh", "-c", "exit 3"], start_new_session=True)
    os.waitid(os.P_PID, command.pid, os.WEXITED | os.WNOWAIT)
    os.waitpid(command.pid, 0)
    with pytest.raises(StatusLost) as caught:
        supervise(Leader(command), {}, timeout=None, stop=None)
    assert caught.value.pid == command.pid
