"""Lanes on the real kernel: what they hold, what they end, and what becomes of a command whose lane goes wrong."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from wisp.config import Settings
from wisp.errors import LaunchFailed, SandboxUnavailable, StatusLost
from wisp.runner import Runner
from wisp.sandbox import lane as lane_module
from wisp.sandbox import process
from wisp.sandbox.bubblewrap import BubblewrapBackend, BubblewrapEnforcer
from wisp.sandbox.confinement import Confinement
from wisp.sandbox.lane import Lane

pytestmark = [pytest.mark.linux, pytest.mark.wisp_requires("namespaces")]

LONG = 60
#: No test waits for this: it bounds what went wrong.
BOUND = 30.0


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


@pytest.fixture
def runner(root: Path) -> Iterator[Runner]:
    with make(root) as made:
        yield made


def make(root: Path, *, network: bool = True, protected: tuple[str, ...] = ()) -> Runner:
    made = Runner(
        Confinement((str(root),), protected, network=network),
        backend=BubblewrapBackend(),
        settings=Settings(),
        audit=False,
    )
    made.directory = str(root)
    return made


def idle_lanes(runner: Runner) -> list[Lane]:
    enforcer = runner._prepared()
    assert isinstance(enforcer, BubblewrapEnforcer)
    return [slot.lane for slot in enforcer._idle]


def processes_of(namespace: str) -> list[int]:
    """The processes of a PID namespace, as the host sees them, helpers (which hide themselves) left out for a user."""
    found = []
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            with suppress(OSError):
                if os.readlink(place / "ns" / "pid") == namespace:
                    found.append(int(place.name))
    return found


def is_gone(pid: int) -> bool:
    """Whether a process is gone, or only its entry is left."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in {"Z", "X"}
    except (FileNotFoundError, ProcessLookupError):
        return True


def wait_until(holds: object) -> None:
    assert callable(holds)
    until = time.monotonic() + BOUND
    while not holds():
        assert time.monotonic() < until, "it never came to be"
        time.sleep(0.01)


# What a lane is.


def test_commands_of_one_runner_share_a_lane_and_find_nothing_of_each_other(runner: Runner) -> None:
    first = runner.run("readlink /proc/self/ns/pid; sleep 60 & echo x >/dev/shm/left; ls /proc | grep -c '^[0-9]*$'")
    second = runner.run("readlink /proc/self/ns/pid; ls /dev/shm; ls /proc | grep -c '^[0-9]*$'")
    namespace, _processes = first.stdout.split()
    assert second.stdout.split()[0] == namespace != os.readlink("/proc/self/ns/pid")
    assert second.stdout.split()[1:] == ["4"]  # the helper, the shell, ls and grep; and nothing in /dev/shm
    assert len(idle_lanes(runner)) == 1


def test_commands_at_once_have_a_lane_each(runner: Runner, root: Path) -> None:
    """Each waits for the other, so they have to run at the same time."""
    for name in ("one", "two"):
        os.mkfifo(root / name)
    said: dict[str, str] = {}
    lines = {"a": "echo a >one & read x <two; wait; echo $x", "b": "echo b >two & read x <one; wait; echo $x"}
    threads = [
        threading.Thread(target=lambda n=name, one=line: said.update({n: runner.run(one, timeout=BOUND).stdout}))
        for name, line in lines.items()
    ]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert said == {"a": "b\n", "b": "a\n"}
    assert len(idle_lanes(runner)) == 2


def test_statuses_and_streams_are_the_commands_own(runner: Runner, root: Path) -> None:
    assert [runner.run(line).exit_status for line in ("exit 7", "kill -9 $$", "kill -TERM $$", ":")] == [7, -9, -15, 0]
    ran = runner.run("echo out; echo err >&2; pwd; umask; cat")
    assert (ran.stdout, ran.stderr) == (f"out\n{root}\n{os.umask(os.umask(0o022)):04o}\n", "err\n")


def test_a_request_of_any_length_arrives(runner: Runner) -> None:
    words = [f"{number:08}" for number in range(12_000)]
    environment = {"PATH": os.environ["PATH"], "LARGE": "x" * 120_000}
    ran = runner.run_argv(["sh", "-c", 'printf "%s " "$@" | wc -c; echo ${#LARGE}', "sh", *words], env=environment)
    assert ran.stdout.split() == [str(9 * len(words)), "120000"]


@pytest.mark.parametrize("word", ["nosuchprogram", "./nosuchprogram", "./plain", "./directory", "./empty"])
def test_a_program_that_cannot_be_started_is_told_as_without_a_sandbox(runner: Runner, root: Path, word: str) -> None:
    (root / "plain").write_text("#!/bin/sh\n")
    (root / "directory").mkdir()
    (root / "empty").touch(0o755)
    with pytest.raises(LaunchFailed) as confined:
        runner.run_argv([word])
    with pytest.raises(OSError, match=r".") as plain:
        subprocess.Popen([word], cwd=root)
    assert confined.value.reason == plain.value.strerror
    assert runner.run("echo on").stdout == "on\n"


def test_a_program_is_looked_for_in_the_path_of_the_command(runner: Runner, root: Path) -> None:
    (root / "bin").mkdir()
    (root / "bin" / "mine").write_text("#!/bin/sh\necho mine\n")
    (root / "bin" / "mine").chmod(0o755)
    assert runner.run_argv(["mine"], env={"PATH": f"/nowhere:{root}/bin:/bin:/usr/bin"}).stdout == "mine\n"
    with pytest.raises(LaunchFailed):
        runner.run_argv(["mine"], env={"PATH": "/bin:/usr/bin"})


# What it holds.


PRIVILEGED = """
import ctypes, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def attempt(name, number, *words):
    got = libc.syscall(number, *words)
    print(name, "done" if got >= 0 else os.strerror(ctypes.get_errno()))
numbers = dict(zip(("mount", "umount2", "unshare", "setns", "sethostname", "settimeofday", "bpf", "perf", "pivot", "chroot"),
    (165, 166, 272, 308, 170, 164, 321, 298, 155, 161) if os.uname().machine == "x86_64" else
    (40, 39, 97, 268, 161, 170, 280, 241, 41, 51)))
here = os.getcwd().encode()
outside = sys.argv[1].encode()
attempt("remount", numbers["mount"], b"none", b"/", None, 4096 | 32, None)  # MS_BIND | MS_REMOUNT, so writable
attempt("bind", numbers["mount"], outside, here, None, 4096, None)
attempt("unmount", numbers["umount2"], b"/proc", 2)
attempt("mount namespace", numbers["unshare"], 0x00020000)
attempt("user namespace", numbers["unshare"], 0x10000000)
attempt("the namespace of the helper", numbers["setns"], os.open("/proc/self/ns/pid", os.O_RDONLY), 0)
attempt("hostname", numbers["sethostname"], os.uname().nodename.encode(), len(os.uname().nodename))
attempt("clock", numbers["settimeofday"], None, None)  # asks for the right and sets nothing
attempt("bpf", numbers["bpf"], 0, None, 0)
attempt("perf", numbers["perf"], None, 0, -1, -1, 0)
attempt("chroot", numbers["chroot"], here)
"""


def test_nothing_in_a_lane_undoes_it(runner: Runner, tmp_path: Path) -> None:
    ran = runner.run_argv([sys.executable, "-I", "-S", "-c", PRIVILEGED, str(tmp_path)])
    lines = ran.stdout.splitlines()
    assert len(lines) == 11, ran.stderr
    assert [line for line in lines if not line.endswith(" Operation not permitted")] == []


@pytest.mark.parametrize("flags", [0x00020000, 0x10000000, 0x20000000, 0x40000000, 0x04000000, 0x08000000])
def test_no_namespace_is_made_by_clone_either(runner: Runner, flags: int) -> None:
    program = (
        "import ctypes, os, sys; libc = ctypes.CDLL(None, use_errno=True); "
        "number = 56 if os.uname().machine == 'x86_64' else 220; "
        f"got = libc.syscall(number, {flags} | 17, 0, 0, 0, 0)\n"
        "if got == 0: os._exit(0)\n"
        "print(got, os.strerror(ctypes.get_errno()))"
    )
    assert runner.run_argv([sys.executable, "-I", "-S", "-c", program]).stdout == "-1 Operation not permitted\n"
    plain = program.replace(str(flags), "0")
    assert int(runner.run_argv([sys.executable, "-I", "-S", "-c", plain]).stdout.split()[0]) > 0


def test_a_command_cannot_reach_the_helper_that_runs_it(runner: Runner) -> None:
    lines = [
        "kill -9 1; kill -STOP 1; kill -INT 1; kill -TERM 1; kill -CHLD 1; echo on",
        "cat /proc/1/environ /proc/1/maps; readlink /proc/1/fd/0 /proc/1/exe; echo x >/proc/1/mem; echo on",
        f"{sys.executable} -I -S -c 'import ctypes; print(ctypes.CDLL(None).ptrace(16, 1, None, None))'",
    ]
    before = runner.run("readlink /proc/self/ns/pid").stdout
    said = [runner.run(line) for line in lines]
    assert [one.stdout for one in said] == ["on\n", "on\n", "-1\n"]
    assert said[1].stderr.count("Permission denied") + said[1].stderr.count("not permitted") == 3
    assert runner.run("readlink /proc/self/ns/pid").stdout == before


def test_metadata_outside_is_held_and_inside_is_free(runner: Runner, root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    for place in (outside, root):
        (place / "file").touch()
        os.utime(place / "file", (1, 1))
    for place, works in ((root, True), (outside, False)):
        for line in (
            "chmod 600 file",
            "chown $(id -u) file",
            "touch -d @5 file",
            "ln -s file link",
            "mkdir d && rmdir d",
        ):
            assert (runner.run(f"cd {place} && {line}").exit_status == 0) is works, (line, works)
    assert (outside / "file").stat().st_mtime == 1


def test_the_network_is_off_and_on_as_asked(root: Path) -> None:
    program = "import socket; s = socket.socket(); s.bind(('127.0.0.1', 0)); print(len(socket.if_nameindex()))"
    words = [sys.executable, "-I", "-S", "-c", program]
    with make(root, network=True) as on, make(root, network=False) as off:
        assert on.run_argv(words).exit_status == 0
        refused = off.run_argv(words)
        assert "Operation not permitted" in refused.stderr
        assert refused.refusal is not None
        assert refused.refusal.cause == "network"
        assert off.run("grep -c : /proc/net/dev").stdout == "1\n"  # the loopback of the lane's own
        assert on.run("readlink /proc/self/ns/net").stdout.strip() == os.readlink("/proc/self/ns/net")


# What it ends.


DAEMONS = [
    ("in the background", "sleep {} &"),
    ("a session of its own", "setsid sleep {} &"),
    ("a second fork", "(setsid sh -c 'sleep {} & sleep {} & exit' &)"),
    ("closed descriptors", "setsid sh -c 'exec 0<&- 1>&- 2>&-; sleep {}; :' &"),
    ("ignored signals", "setsid sh -c 'trap \"\" TERM INT HUP QUIT; while :; do sleep {}; done' &"),
    ("no environment", "setsid env -i sleep {} &"),
    ("a directory elsewhere", "cd /; setsid nohup sleep {} >/dev/null 2>&1 &"),
    ("a stopped one", "setsid sh -c 'kill -STOP $$; sleep {}' &"),
    ("one that holds the output open", "setsid sleep {} & echo held"),
]


@pytest.mark.parametrize(("what", "line"), DAEMONS, ids=[what for what, _line in DAEMONS])
def test_nothing_outlives_a_command(runner: Runner, what: str, line: str) -> None:
    ran = runner.run(f"readlink /proc/self/ns/pid; {line.replace('{}', str(LONG))}\nsleep 0.05; exit 3")
    assert (ran.exit_status, ran.left_behind) == (3, "")
    helper = idle_lanes(runner)[0].helper_pid
    assert set(processes_of(ran.stdout.split()[0])) <= {helper}
    assert ran.seconds < BOUND


def test_a_time_out_ends_everything_too(runner: Runner) -> None:
    ran = runner.run(
        f"trap '' TERM; setsid sh -c 'trap \"\" TERM; sleep {LONG}; :' & readlink /proc/self/ns/pid; sleep {LONG}; :",
        timeout=0.3,
    )
    assert (ran.timed_out, ran.exit_status, ran.left_behind) == (True, -9, "")
    assert set(processes_of(ran.stdout.strip())) <= {idle_lanes(runner)[0].helper_pid}


def test_what_left_the_group_is_asked_before_it_is_killed(runner: Runner, root: Path) -> None:
    (root / "daemon").write_text("trap 'echo asked >>asked; exit' TERM; echo >ready; sleep 60 & wait")
    line = f"setsid sh daemon & until [ -e ready ]; do sleep 0.01; done; trap '' TERM; sleep {LONG}"
    runner.run(line, timeout=2)
    assert (root / "asked").read_text() == "asked\n"


def test_processes_of_this_program_and_of_other_lanes_are_never_touched(runner: Runner, root: Path) -> None:
    mine = subprocess.Popen(["sleep", str(LONG)])
    os.mkfifo(root / "go")
    other: list[int] = []
    beside = threading.Thread(target=lambda: other.append(runner.run("read x <go; exit 5", timeout=BOUND).exit_status))
    beside.start()
    try:
        for _ in range(20):
            assert runner.run(f"setsid sleep {LONG} & kill -9 -1").left_behind == ""
        assert mine.poll() is None
        with open(root / "go", "w") as stream:
            stream.write("go\n")
        beside.join(BOUND)
        assert other == [5]
    finally:
        mine.kill()
        mine.wait()


STORM = """
import sys
from wisp.config import Settings
from wisp.runner import Runner
from wisp.sandbox.bubblewrap import BubblewrapBackend
from wisp.sandbox.confinement import Confinement
import os, glob
root = sys.argv[1]
hop = open(root + "/hop", "w")
hop.write('#!/bin/sh\\n[ "$1" = 0 ] && exec sleep 60\\nsetsid ./hop $(($1 - 1)) >/dev/null 2>&1 &\\n')
hop.close()
os.chmod(root + "/hop", 0o755)
with Runner(Confinement((root,)), backend=BubblewrapBackend(), settings=Settings(), audit=False) as runner:
    for line in ("for i in $(seq 150); do sleep 60 & done; exit 4", "for i in $(seq 8); do setsid ./hop 20 & done; exit 4",
                 "for i in $(seq 100); do (setsid sleep 60 &) ; done; kill -9 $$"):
        ran = runner.run(line, cwd=root, timeout=30)
        ours = [p for p in glob.glob("/proc/[0-9]*/comm") if open(p).read().strip() in ("sleep", "hop", "sh")]
        print(ran.exit_status, repr(ran.left_behind), len(ours))
"""


def test_a_storm_of_forks_and_chains_of_forks_are_over_with_the_command(root: Path) -> None:
    """Counted (at most 200 at once), in a PID namespace that ends with the test."""
    wrap = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if os.geteuid() != 0:
        wrap.insert(1, "--map-current-user")
    done = subprocess.run(
        [*wrap, "timeout", "60", sys.executable, "-c", STORM, str(root)],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    if "unshare:" in done.stderr:
        pytest.skip(f"no namespace to keep the storm in: {done.stderr.strip()}")
    if "SandboxUnavailable" in done.stderr and os.geteuid() != 0:
        pytest.skip(f"no lane in a namespace of its own: {done.stderr.strip().splitlines()[-1]}")
    assert done.stdout == "4 '' 0\n4 '' 0\n-9 '' 0\n", done.stderr


# When a lane goes wrong.


def test_a_lane_that_was_killed_while_idle_is_remade_and_the_command_runs_once(runner: Runner, root: Path) -> None:
    runner.run("echo x >>count")
    os.kill(idle_lanes(runner)[0].helper_pid, signal.SIGKILL)
    wait_until(lambda: is_gone(idle_lanes(runner)[0].helper_pid))
    assert runner.run("echo x >>count").exit_status == 0
    assert (root / "count").read_text() == "x\nx\n"


def test_a_lane_that_is_killed_under_a_command_tells_its_fate_and_runs_nothing_twice(
    runner: Runner, root: Path
) -> None:
    runner.run(":")
    helper = idle_lanes(runner)[0].helper_pid

    def kill() -> None:
        wait_until((root / "count").exists)
        os.kill(helper, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(StatusLost, match="the sandbox that it ran in has ended"):
        runner.run(f"echo x >>count; sleep {LONG}")
    killer.join()
    assert (root / "count").read_text() == "x\n"
    assert runner.run("echo on").stdout == "on\n"


def test_a_lane_that_hangs_is_ended_with_its_command(
    runner: Runner, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_module, "_DEATH", 0.3)
    monkeypatch.setattr(process, "_DEATH", 0.3)
    monkeypatch.setattr(process, "_GRACE", 0.1)
    runner.run(":")
    lane = idle_lanes(runner)[0]
    os.kill(lane.helper_pid, signal.SIGSTOP)
    ran = runner.run("echo x >>count", timeout=0.2)
    assert (ran.exit_status, ran.timed_out, ran.left_behind) == (-9, True, "")
    assert is_gone(lane.helper_pid)
    assert runner.run("echo on").stdout == "on\n"
    assert not (root / "count").exists()


def test_a_helper_that_is_out_of_descriptors_starts_nothing_and_is_remade(runner: Runner, root: Path) -> None:
    runner.run(":")
    helper = idle_lanes(runner)[0].helper_pid
    resource.prlimit(helper, resource.RLIMIT_NOFILE, (5, 5))
    with pytest.raises(LaunchFailed, match="Too many open files"):
        runner.run("echo x >>count")
    assert not (root / "count").exists()
    assert runner.run("echo on").stdout == "on\n"
    assert is_gone(helper)


def test_a_root_that_was_replaced_is_confined_to_anew(runner: Runner, root: Path) -> None:
    runner.run(":")
    root.rename(root.with_name("aside"))
    root.mkdir()
    assert runner.run("touch here", cwd=root).exit_status == 0
    assert (root / "here").exists()
    refused = runner.run(f"touch {root.with_name('aside')}/there")
    assert refused.refusal is not None
    assert refused.refusal.verdict == "refused"


def test_a_root_that_became_a_link_is_refused(runner: Runner, root: Path, tmp_path: Path) -> None:
    runner.run(":")
    (tmp_path / "outside").mkdir()
    root.rename(root.with_name("aside"))
    root.symlink_to(tmp_path / "outside")
    with pytest.raises(SandboxUnavailable):
        runner.run("touch here", cwd="/")
    assert not list((tmp_path / "outside").iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_what_the_host_mounts_later_is_in_the_next_command(root: Path) -> None:
    program = f"""
import subprocess, sys
from tests.linux.test_lanes import make
from pathlib import Path
root = Path({str(root)!r})
(root / "place").mkdir()
with make(root) as runner:
    runner.run(":")
    subprocess.run(["mount", "-t", "tmpfs", "none", root / "place"], check=True)
    print(runner.run("touch place/file; stat -f -c %T place").stdout.strip(), (root / "place" / "file").exists())
"""
    wrap = ["unshare", "--mount", "--propagation", "private"]
    done = subprocess.run(
        [*wrap, sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        timeout=60,
    )
    if done.stderr.startswith(("unshare:", "mount:")):
        pytest.skip(done.stderr)
    assert done.stdout == "tmpfs True\n", done.stderr


EMBEDDED = """
import os, sys, time
from wisp.config import Settings
from wisp.runner import Runner
from wisp.sandbox.bubblewrap import BubblewrapBackend
from wisp.sandbox.confinement import Confinement
runner = Runner(Confinement((sys.argv[1],)), backend=BubblewrapBackend(), settings=Settings(), audit=False)
runner.run(":")
print(runner._prepared()._idle[0].lane.helper_pid, flush=True)
{}
runner.run("setsid sleep 60 & echo >running; sleep 60", cwd=sys.argv[1])
"""


@pytest.mark.parametrize(
    "meanwhile", ["", "if os.fork() == 0: time.sleep(20); os._exit(0)"], ids=["alone", "with a fork of its own"]
)
def test_wisp_killed_by_kill_leaves_nothing_behind(root: Path, meanwhile: str) -> None:
    program = EMBEDDED.format(meanwhile)
    wisp = subprocess.Popen([sys.executable, "-c", program, str(root)], stdout=subprocess.PIPE, start_new_session=True)
    assert wisp.stdout is not None
    helper = int(wisp.stdout.readline())
    wait_until((root / "running").exists)
    inside = [pid for pid in children_of(helper) if not is_gone(pid)]
    assert inside
    wisp.kill()
    wisp.wait()
    try:
        wait_until(lambda: is_gone(helper) and all(map(is_gone, inside)))
    finally:
        with suppress(ProcessLookupError):
            os.killpg(wisp.pid, signal.SIGKILL)
        wisp.stdout.close()


def children_of(pid: int) -> list[int]:
    found = []
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            with suppress(OSError):
                if int((place / "stat").read_text().rpartition(")")[2].split()[1]) == pid:
                    found.append(int(place.name))
    return found


def test_closing_a_runner_leaves_no_process_and_no_descriptor(root: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with make(root) as runner:
            runner.run("setsid sleep 60 &")
            lanes = idle_lanes(runner)
        assert all(is_gone(one.helper_pid) and is_gone(one.pid) for one in lanes)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_lane_whose_command_was_given_up_by_its_caller_is_ended(runner: Runner, root: Path) -> None:
    """An error in the middle of a run: the command is ended before the error is raised."""
    enforcer = runner._prepared()
    null = os.open(os.devnull, os.O_RDWR)
    try:
        with enforcer.lease() as slot:
            slot.spawn(["/bin/sleep", str(LONG)], cwd=str(root), env={}, stdin=null, stdout=null, stderr=null)
            helper = slot.lane.helper_pid  # type: ignore[attr-defined]
    finally:
        os.close(null)
    assert is_gone(helper)
    assert idle_lanes(runner) == []


CHILDREN = {
    "ignores the ends of its children": "signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
    "waits for any child": "threading.Thread(target=wait_for_any, daemon=True).start()",
}


@pytest.mark.parametrize("prepare", CHILDREN.values(), ids=list(CHILDREN))
def test_a_program_that_sees_to_its_children_in_its_own_way_gets_each_status(root: Path, prepare: str) -> None:
    program = f"""
import os, signal, threading, time
from wisp.config import Settings
from wisp.runner import Runner
from wisp.sandbox.bubblewrap import BubblewrapBackend
from wisp.sandbox.confinement import Confinement

def wait_for_any():
    while True:
        try:
            os.wait()
        except ChildProcessError:
            time.sleep(0.0001)

{prepare}
for _ in range(3):
    with Runner(Confinement(({str(root)!r},)), backend=BubblewrapBackend(), settings=Settings(), audit=False) as runner:
        print([runner.run("setsid sleep 60 & exit 3").exit_status for _ in range(5)])
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=BOUND, check=False
    )
    assert (done.stdout, done.stderr) == ("[3, 3, 3, 3, 3]\n" * 3, "")


# Protected paths inside a root.


ATTACKS = [
    ("write", "echo forged >a/b/safe/file"),
    ("create", "echo forged >a/b/safe/new"),
    ("remove", "rm -rf a/b/safe"),
    ("move the path", "mv a/b/safe a/b/x && mkdir a/b/safe && echo forged >a/b/safe/file"),
    ("move the parent", "mv a/b a/x; mkdir -p a/b/safe && echo forged >a/b/safe/file"),
    ("move the grandparent", "mv a x; mkdir -p a/b/safe && echo forged >a/b/safe/file"),
    ("exchange the grandparent", f"mkdir -p y/b/safe; {sys.executable} -c 'import ctypes; ctypes.CDLL(None).renameat2(-100, b\"a\", -100, b\"y\", 2)'; echo forged >a/b/safe/file"),
    ("replace by a link", "mkdir -p z/safe; rm -rf a/b; ln -s ../z a/b; echo forged >a/b/safe/file"),
    ("through a link", "ln -s a/b/safe l; echo forged >l/file"),
    ("through a hard link", "ln a/b/safe/file hard && echo forged >hard"),
    ("mode", "chmod 777 a/b/safe; echo forged >a/b/safe/file"),
    ("mount over it", "mount --bind . a/b/safe"),
]  # fmt: skip


@pytest.mark.parametrize("existing", [True, False], ids=["existing", "absent"])
@pytest.mark.parametrize(("what", "line"), ATTACKS, ids=[what for what, _line in ATTACKS])
def test_a_protected_path_inside_a_root_is_not_forged(root: Path, what: str, line: str, existing: bool) -> None:
    safe = root / "a" / "b" / "safe"
    if existing:
        safe.mkdir(parents=True)
        (safe / "file").write_text("mine\n")
    with make(root, protected=(str(safe),)) as runner:
        runner.run(line)
        # What lies beside it stays free, or the attack proved nothing.
        assert (
            runner.run(
                "mkdir -p a/b/free && echo x >a/b/free/file && mv a/b/free a/b/moved && rm -r a/b/moved"
            ).exit_status
            == 0
        )
    if existing:
        assert {one.name: one.read_text() for one in safe.iterdir()} == {"file": "mine\n"}
    else:
        assert not safe.exists()  # the placeholder is taken away again


def test_without_the_protection_each_attack_works_or_is_a_try_at_another(root: Path) -> None:
    """The control: a plain root, in which the same lines do forge."""
    forged = set()
    for what, line in ATTACKS:
        shutil.rmtree(root / "a", ignore_errors=True)
        (root / "a" / "b" / "safe").mkdir(parents=True)
        (root / "a" / "b" / "safe" / "file").write_text("mine\n")
        with make(root) as runner:
            runner.run(line)
        file = root / "a" / "b" / "safe" / "file"
        if not file.exists() or file.read_text() != "mine\n" or len(list(file.parent.iterdir())) > 1:
            forged.add(what)
        for left in ("x", "y", "z", "l", "hard"):
            shutil.rmtree(root / left, ignore_errors=True)
            (root / left).unlink(missing_ok=True)
    assert forged == {what for what, _line in ATTACKS} - {"mount over it"}


def test_a_protected_path_that_was_replaced_on_the_host_is_held_again(root: Path) -> None:
    """An editor on the host saves by rename, which takes the mount away in every lane."""
    (root / "settings").write_text("one\n")
    with make(root, protected=(str(root / "settings"),)) as runner:
        assert runner.run("echo forged >settings").exit_status != 0
        (root / "new").write_text("two\n")
        (root / "new").rename(root / "settings")
        assert runner.run("echo forged >settings").exit_status != 0
    assert (root / "settings").read_text() == "two\n"


def test_a_poll_of_the_mount_table_is_quiet(runner: Runner) -> None:
    """Making lanes does not look like a change of the host's mounts, or each would be thrown away by the next."""
    runner.run(":")
    lane = idle_lanes(runner)[0]
    for _ in range(5):
        runner.run(":")
    assert idle_lanes(runner) == [lane]
    watch = select.poll()
    watch.register(lane.descriptor, select.POLLIN)
    assert watch.poll(0) == []


# Control sockets.


CONNECT = """
import socket, sys
for path in sys.argv[1:]:
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(path)
            print("reached")
        except OSError as error:
            print(type(error).__name__)
"""


def listen(stack: contextlib.ExitStack, path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    server = stack.enter_context(socket.socket(socket.AF_UNIX))
    server.bind(str(path))
    server.listen(8)
    return str(path)


def test_control_sockets_are_hidden_and_others_are_as_ever(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as place, contextlib.ExitStack() as stack:
        runtime = Path(place)
        monkeypatch.setenv("XDG_RUNTIME_DIR", place)
        monkeypatch.setenv("DOCKER_HOST", f"unix://{place}/elsewhere/engine.sock")
        monkeypatch.setenv("TMUX", f"{root}/tmux,1,0")
        hidden = [runtime / "bus", runtime / "systemd/private", runtime / "elsewhere/engine.sock", root / "tmux"]
        paths = [listen(stack, path) for path in hidden]
        ordinary = listen(stack, runtime / "own-daemon")
        words = [sys.executable, "-I", "-S", "-c", CONNECT, *paths, ordinary]
        plain = subprocess.run(words, capture_output=True, text=True, check=True)
        assert plain.stdout.split() == ["reached"] * 5
        with make(root) as runner:
            said = runner.run_argv(words).stdout.split()
            assert "reached" not in said[:4]
            assert said[4] == "reached"
            # One that is made later is hidden from the next command.
            later = listen(stack, runtime / "docker.sock")
            assert runner.run_argv([*words[:5], later]).stdout.split() != ["reached"]


def test_the_agent_of_ssh_is_hidden_without_a_network_only(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as place, contextlib.ExitStack() as stack:
        agent = listen(stack, Path(place) / "agent.1")
        monkeypatch.setenv("SSH_AUTH_SOCK", agent)
        words = [sys.executable, "-I", "-S", "-c", CONNECT, agent]
        with make(root) as on, make(root, network=False) as off:
            assert on.run_argv(words).stdout == "reached\n"
            assert off.run_argv(words).stdout != "reached\n"


def test_a_root_in_a_hidden_directory_stays_a_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as place:
        monkeypatch.setenv("XDG_RUNTIME_DIR", place)
        root = Path(place) / "systemd" / "work"
        root.mkdir(parents=True)
        with make(root) as runner:
            assert runner.run("touch inside").exit_status == 0
        assert (root / "inside").exists()
