"""The observer on the real kernel, with nothing beneath it: what it refuses is refused by it alone."""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from wisp.outcome import Denial, Operation
from wisp.sandbox import syscalls
from wisp.sandbox.confinement import Confinement
from wisp.sandbox.leader import Leader
from wisp.sandbox.notify import install_with_listener, kill, signal_descriptor
from wisp.sandbox.observed import MACHINES
from wisp.sandbox.observer import Observation, Observer
from wisp.sandbox.observer_filter import build_observer_filter
from wisp.sandbox.slot import SlotThread

pytestmark = pytest.mark.linux

BOUND = 20.0

#: Makes raw calls: a list of [number, arguments] on its command line, texts as themselves, {"fd": path} as a
#: descriptor opened for reading, {"words": […]} as memory. Prints the errno of each, 0 where it went well.
CALLER = """
import ctypes, json, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
held = []
def word(one):
    if isinstance(one, str):
        held.append(ctypes.create_string_buffer(os.fsencode(one)))
        return ctypes.c_void_p(ctypes.addressof(held[-1]))
    if isinstance(one, dict) and "fd" in one:
        return ctypes.c_long(os.open(one["fd"], os.O_RDONLY))
    if isinstance(one, dict):
        packed = struct.pack(f"<{len(one['words'])}Q", *one["words"])
        held.append(ctypes.create_string_buffer(packed, len(packed)))
        return ctypes.c_void_p(ctypes.addressof(held[-1]))
    return ctypes.c_long(one)
found = []
for number, *arguments in json.loads(sys.argv[1]):
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *map(word, arguments))
    found.append(ctypes.get_errno() if result < 0 else 0)
print(json.dumps(found))
"""

Word = int | str | dict[str, object]


@dataclass(frozen=True, slots=True)
class Ended:
    """What a command gave."""

    status: int
    output: str
    pid: int


class Watched:
    """A slot whose thread is observed, and the observer."""

    def __init__(self, confinement: Confinement, **options: object) -> None:
        listeners: list[int] = []
        threads: list[int] = []

        def restrict() -> None:
            table = syscalls.numbers()
            assert table is not None
            syscalls.set_no_new_privs()
            threads.append(threading.get_native_id())
            listeners.append(install_with_listener(build_observer_filter(table, network=confinement.network)))

        self.slot = SlotThread("landlock", restrict, new_session=True, closes=True)
        self.thread = threads[0]
        self.listener = listeners[0]
        self.observer = Observer(self.listener, confinement, **options)  # type: ignore[arg-type]

    def start(self, *words: str, cwd: str = "/", stdout: int = -1) -> subprocess.Popen[bytes]:
        null = os.open(os.devnull, os.O_RDWR)
        try:
            out = null if stdout < 0 else stdout
            process = self.slot.spawn(list(words), cwd=cwd, env=dict(os.environb), stdin=null, stdout=out, stderr=out)
        finally:
            os.close(null)
        Leader(process).claim()
        return process

    def run(self, *words: str, cwd: str = "/") -> Ended:
        reader, writer = os.pipe()
        try:
            process = self.start(*words, cwd=cwd, stdout=writer)
        finally:
            os.close(writer)
        with open(reader, encoding="utf-8", errors="surrogateescape") as stream:
            output = stream.read()
        return Ended(process.wait(BOUND), output, process.pid)

    def shell(self, line: str, cwd: str = "/") -> Ended:
        return self.run("/bin/sh", "-c", line, cwd=cwd)

    def calls(self, *calls: list[Word], cwd: str = "/") -> tuple[list[int], int]:
        """Make raw calls and return their errnos and the process that made them."""
        ended = self.run(sys.executable, "-I", "-S", "-B", "-c", CALLER, json.dumps(calls), cwd=cwd)
        return json.loads(ended.output), ended.pid

    def take(self) -> Observation:
        return self.observer.take()

    def close(self) -> None:
        self.slot.close()
        self.observer.close()


Watch = Callable[..., Watched]


@pytest.fixture
def watch() -> Iterator[Watch]:
    made: list[Watched] = []

    def watch(*roots: Path, network: bool = True, **options: object) -> Watched:
        made.append(Watched(Confinement(tuple(map(str, roots)), network=network), **options))
        return made[-1]

    yield watch
    for one in made:
        one.close()


@dataclass(frozen=True, slots=True)
class Ground:
    root: Path
    outside: Path


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    """Return a root and a directory outside, with the same things in both."""
    made = Ground(tmp_path.resolve() / "root", tmp_path.resolve() / "outside")
    for place in (made.root, made.outside):
        (place / "full" / "sub").mkdir(parents=True)
        (place / "empty").mkdir()
        (place / "file").write_text("kept")
        (place / "other").touch()
        (place / "link").symlink_to("file")
    return made


def number(name: str) -> int:
    table = syscalls.numbers()
    assert table is not None
    for one, call in MACHINES[table.audit_arch].calls.items():
        if call.name == name:
            return one
    pytest.skip(f"no {name} on this machine")


def program() -> str:
    return os.path.basename(sys.executable)[:15]


CWD = -100
NOW: dict[str, object] = {"words": [1, 0, 1, 0]}

#: Each call by name: the arguments where `@` stands for the directory, what is refused and on which entry.
CALLS: list[tuple[str, list[Word], Operation, str]] = [
    ("open", ["@/file", os.O_WRONLY], "write", "file"),
    ("open", ["@/new", os.O_WRONLY | os.O_CREAT, 0o600], "create", "new"),
    ("open", ["@/file", os.O_RDONLY | os.O_TRUNC], "write", "file"),
    ("openat", [CWD, "@/link", os.O_RDWR], "write", "file"),
    ("openat", [{"fd": "@"}, "new", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600], "create", "new"),
    ("openat", [CWD, "@", 0o20000000 | os.O_DIRECTORY | os.O_RDWR, 0o600], "create", ""),
    ("openat2", [CWD, "@/file", {"words": [os.O_WRONLY, 0, 0]}, 24], "write", "file"),
    ("openat2", [{"fd": "@/full"}, "/new", {"words": [os.O_WRONLY | os.O_CREAT, 0o600, 0x10]}, 24], "create", "full/new"),
    ("creat", ["@/new", 0o600], "create", "new"),
    ("truncate", ["@/link", 0], "write", "file"),
    ("mkdir", ["@/new", 0o700], "create", "new"),
    ("mkdirat", [{"fd": "@/full"}, "../new", 0o700], "create", "new"),
    ("mknod", ["@/new", 0o010600, 0], "create", "new"),
    ("mknodat", [CWD, "@/new", 0o010600, 0], "create", "new"),
    ("symlink", ["/etc", "@/new"], "create", "new"),
    ("symlinkat", ["/etc", {"fd": "@"}, "new"], "create", "new"),
    ("rmdir", ["@/empty"], "remove", "empty"),
    ("unlink", ["@/link"], "remove", "link"),
    ("unlinkat", [CWD, "@/file", 0], "remove", "file"),
    ("unlinkat", [{"fd": "@"}, "empty", 0x200], "remove", "empty"),
    ("chmod", ["@/link", 0o640], "mode", "file"),
    ("fchmod", [{"fd": "@/file"}, 0o640], "mode", "file"),
    ("fchmodat", [CWD, "@/file", 0o640], "mode", "file"),
    ("fchmodat2", [{"fd": "@/file"}, "", 0o640, 0x1000], "mode", "file"),
    ("chown", ["@/file", os.getuid(), os.getgid()], "owner", "file"),
    ("lchown", ["@/link", os.getuid(), os.getgid()], "owner", "link"),
    ("fchown", [{"fd": "@/file"}, os.getuid(), os.getgid()], "owner", "file"),
    ("fchownat", [CWD, "@/link", os.getuid(), os.getgid(), 0x100], "owner", "link"),
    ("utime", ["@/file", 0], "times", "file"),
    ("utimes", ["@/file", 0], "times", "file"),
    ("futimesat", [{"fd": "@"}, "file", 0], "times", "file"),
    ("utimensat", [CWD, "@/link", NOW, 0x100], "times", "link"),
    ("utimensat", [{"fd": "@/file"}, 0, NOW, 0], "times", "file"),
    ("file_setattr", [CWD, "@/file", {"words": [0, 0, 0]}, 24, 0], "flags", "file"),
    ("ioctl", [{"fd": "@/file"}, 0x40086602, {"words": [0]}], "flags", "file"),
    ("ioctl", [{"fd": "@/file"}, 0x401C5820, {"words": [0] * 4}], "flags", "file"),
    ("setxattr", ["@/file", "user.a", "b", 1, 0], "attributes", "file"),
    ("lsetxattr", ["@/file", "user.a", "b", 1, 0], "attributes", "file"),
    ("fsetxattr", [{"fd": "@/file"}, "user.a", "b", 1, 0], "attributes", "file"),
    ("setxattrat", [CWD, "@/file", 0, "user.a", {"words": [0, 0]}, 16], "attributes", "file"),
    ("removexattr", ["@/file", "user.a"], "attributes", "file"),
    ("lremovexattr", ["@/file", "user.a"], "attributes", "file"),
    ("fremovexattr", [{"fd": "@/file"}, "user.a"], "attributes", "file"),
    ("removexattrat", [CWD, "@/file", 0, "user.a"], "attributes", "file"),
]  # fmt: skip

#: What a file system or kernel may say to the same call where it is allowed: it has no such thing.
NONE_HERE = {errno.ENOTTY, errno.EOPNOTSUPP, errno.ENODATA, errno.ENOSYS, errno.EFAULT}


def placed(arguments: list[Word], directory: Path) -> list[Word]:
    text = json.dumps(arguments).replace("@", str(directory))
    found: list[Word] = json.loads(text)
    return found


@pytest.mark.parametrize(
    ("name", "arguments", "operation", "entry"), CALLS, ids=[f"{one[0]}-{i}" for i, one in enumerate(CALLS)]
)
def test_a_call_is_refused_outside_and_goes_on_inside(
    watch: Watch, ground: Ground, name: str, arguments: list[Word], operation: Operation, entry: str
) -> None:
    watched = watch(ground.root)
    before = facts(ground.outside)

    errors, pid = watched.calls([number(name), *placed(arguments, ground.outside)])

    target = str(ground.outside / entry) if entry else str(ground.outside)
    assert errors == [errno.EPERM]
    assert watched.take() == Observation((Denial(operation, target, name, pid, program()),))
    assert facts(ground.outside) == before

    errors, _pid = watched.calls([number(name), *placed(arguments, ground.root)])

    assert watched.take() == Observation()
    if operation in {"flags", "attributes"}:
        assert errors[0] in NONE_HERE | {0}
    else:
        assert errors == [0]


def facts(directory: Path) -> list[tuple[str, int, int, int, int]]:
    return sorted(
        (str(path), found.st_mode, found.st_uid, found.st_mtime_ns, found.st_size)
        for path in [directory, *directory.rglob("*")]
        for found in [path.lstat()]
    )


TWO_ENDED = [("rename", 0), ("renameat", 1), ("renameat2", 1), ("link", 0), ("linkat", 1)]


@pytest.mark.parametrize(("name", "at"), TWO_ENDED)
def test_a_call_with_two_paths_is_refused_for_each_end_outside(
    watch: Watch, ground: Ground, name: str, at: int
) -> None:
    watched = watch(ground.root)
    operation: Operation = "link" if "link" in name else "rename"
    inner, outer = str(ground.root), str(ground.outside)

    def call(old: str, new: str) -> list[Word]:
        words: list[Word] = [CWD, old, CWD, new, 0] if at else [old, new]
        return [number(name), *words]

    errors, pid = watched.calls(
        call(f"{inner}/file", f"{outer}/new"),
        call(f"{outer}/file", f"{inner}/new"),
        call(f"{outer}/file", f"{outer}/new"),
        call(f"{inner}/file", f"{inner}/new"),
    )

    across = errno.EXDEV if operation == "link" else errno.EPERM
    assert errors == [errno.EPERM, across, errno.EPERM, 0]
    assert watched.take().denials == (
        Denial(operation, f"{outer}/new", name, pid, program(), count=2),
        Denial(operation, f"{outer}/file", name, pid, program(), errno.errorcode[across], count=2),
    )
    assert not (ground.outside / "new").exists()


def test_chattr_and_a_mode_through_a_descriptor_need_no_right_to_write(watch: Watch, ground: Ground) -> None:
    watched = watch(ground.root)
    os.chmod(ground.outside / "file", 0o400)
    errors, _pid = watched.calls([number("fchmod"), {"fd": str(ground.outside / "file")}, 0o777])
    assert errors == [errno.EPERM]
    assert (ground.outside / "file").stat().st_mode & 0o777 == 0o400


PATHS = [
    ("plain", "echo x > $OUT/new", "new"),
    ("relative", "cd $OUT && echo x > new", "new"),
    ("dots", "echo x > ../outside/./full/../new", "new"),
    ("link", "ln -s $OUT way && echo x > way/new", "new"),
    ("dots after a link", "ln -s $OUT/full/sub way && echo x > way/../new", "full/new"),
    ("link to a file", "ln -s $OUT/file way && echo x > way", "file"),
    ("chain", "ln -s $OUT one && ln -s one two && ln -s two/full three && echo x > three/new", "full/new"),
    ("dangling link", "ln -s $OUT/new way && echo x > way", "new"),
    ("own descriptor", "exec 3< $OUT/file; echo x > /proc/self/fd/3", "file"),
    ("own descriptor by its short name", "exec 3< $OUT/file; echo x > /dev/fd/3", "file"),
    ("own directory", "cd $OUT && echo x > /proc/self/cwd/new", "new"),
    ("through a link to one's own directory", "ln -s /proc/self/cwd here && W=$PWD && cd $OUT && echo x > $W/here/new", "new"),
    ("removed directory", "mkdir d && cd d && rmdir ../d && echo x > $OUT/new", "new"),
    ("a name that is no text", "echo x > $OUT/$(printf 'n\\377\\ne')", "n\udcff\ne"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "entry"), [one[1:] for one in PATHS], ids=[one[0] for one in PATHS])
def test_the_target_is_the_real_path(watch: Watch, ground: Ground, line: str, entry: str) -> None:
    watched = watch(ground.root)

    refused = watched.shell(f"OUT={ground.outside}; {line}", cwd=str(ground.root))
    denials = watched.take().denials

    operation: Operation = "write" if entry == "file" else "create"
    assert [(one.operation, one.target) for one in denials] == [(operation, f"{ground.outside}/{entry}")]
    assert denials[0].pid == refused.pid
    assert "Operation not permitted" in refused.output
    assert (ground.outside / "file").read_text() == "kept"

    # The same with the other directory as the root.
    assert (
        watch(ground.root, ground.outside)
        .shell(f"OUT={ground.outside}; cd {ground.root}; rm -f way one two three here; {line}")
        .status
        == 0
    )


GO_ON = [
    ("a missing file", "echo x 2>&1 > /nowhere/x", "nonexistent|No such|Directory"),
    ("removing what is not there", "rm $OUT/none", "No such file"),
    ("making what is there", "mkdir $OUT/full", "File exists"),
    ("a directory that is there, with its parents", "mkdir -p $OUT/full && echo fine", "fine"),
    ("opening a directory for writing", "echo x > $OUT/full", "directory"),
    ("removing a directory as a file", "unlink $OUT/full", "directory"),
    ("linking onto what is there", "ln $OUT/file $OUT/other", "File exists"),
    ("a mode of what is not there", "chmod 600 $OUT/none", "No such file"),
    ("an empty path", "python=1; mv '' x", "No such file"),
    ("a file as a directory", "echo x > $OUT/file/x", "Not a directory|Directory nonexistent|cannot create"),
    ("devices", "echo x > /dev/null && echo x > /dev/zero && echo fine", "fine"),
    ("shared memory", "T=$(mktemp -p /dev/shm) && rm $T && echo fine", "fine"),
    ("a pipe by its name", "echo x | { echo fine > /dev/stdout; }", "fine"),
    ("reading", "cat $OUT/file && ls $OUT && test -w $OUT/file && echo fine", "fine"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "text"), [one[1:] for one in GO_ON], ids=[one[0] for one in GO_ON])
def test_what_fails_or_works_anyway_is_no_denial(watch: Watch, ground: Ground, line: str, text: str) -> None:
    watched = watch(ground.root)
    ended = watched.shell(f"OUT={ground.outside}; {line}")
    assert any(one in ended.output for one in text.split("|")), ended.output
    assert "not permitted" not in ended.output
    assert watched.take() == Observation()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may do all of it")
def test_what_this_user_may_not_do_anyway_keeps_its_error(watch: Watch, ground: Ground) -> None:
    watched = watch(ground.root)
    lines = ["echo x > /etc/new", "echo x > /etc/hostname", "chmod 777 /etc", "rm /etc/hostname", "mkdir /etc/new"]
    outputs = [watched.shell(line).output for line in lines]
    assert [line for line, output in zip(lines, outputs, strict=True) if "denied" in output] == [
        line for line in lines if "chmod" not in line
    ]
    assert watched.take() == Observation()


def test_a_root_and_what_lies_above_a_protected_path_stay_in_place(watch: Watch, ground: Ground) -> None:
    guarded = ground.root / "full" / "sub"
    watched = Watched(Confinement((str(ground.root),), protected=(str(guarded),)))
    try:
        watched.shell("mv full aside; touch full/sub/x; mv empty e; mv $PWD ../elsewhere", cwd=str(ground.root))
        found = [(one.operation, one.target) for one in watched.take().denials]
    finally:
        watched.close()
    assert found == [
        ("rename", f"{ground.root}/full"),
        ("create", f"{guarded}/x"),
        ("rename", str(ground.root)),
        ("rename", f"{ground.root.parent}/elsewhere"),
    ]
    assert (ground.root / "e").is_dir()
    assert guarded.is_dir()


@pytest.mark.parametrize(
    ("family", "kind", "target"),
    [
        (socket.AF_INET, socket.SOCK_STREAM, "inet/stream"),
        (socket.AF_INET6, socket.SOCK_DGRAM | 0o2000000, "inet6/dgram"),
        (16, socket.SOCK_RAW, "netlink/raw"),
        (99, 77, "99/13"),
    ],
)
def test_without_a_network_a_socket_is_refused(
    watch: Watch, ground: Ground, family: int, kind: int, target: str
) -> None:
    off, on = watch(ground.root, network=False), watch(ground.root)
    for name in ("socket", "socketpair"):
        call: list[Word] = [number(name), family, kind, 0, {"words": [0]}]
        errors, pid = off.calls(call)
        assert errors == [errno.EPERM]
        assert off.take().denials == (Denial("socket", target, name, pid, program()),)
        errors, _pid = on.calls(call)
        assert errors != [errno.EPERM] or os.geteuid() != 0
        assert on.take() == Observation()
    errors, _pid = off.calls([number("socket"), socket.AF_UNIX, socket.SOCK_STREAM, 0])
    assert errors == [0]


BIND = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1])"
CONNECT = "import socket, sys; s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); s.connect(sys.argv[1])"
SEND = "import socket, sys; s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); s.sendto(b'x', sys.argv[1])"


def test_a_socket_is_bound_only_inside(watch: Watch, ground: Ground) -> None:
    watched = watch(ground.root)
    outer = watched.run(sys.executable, "-c", BIND, f"{ground.outside}/s")
    assert watched.take().denials == (Denial("create", f"{ground.outside}/s", "bind", outer.pid, program()),)
    assert "Operation not permitted" in outer.output
    assert watched.run(sys.executable, "-c", BIND, "s", cwd=str(ground.root)).status == 0
    assert watched.run(sys.executable, "-c", BIND.replace("sys.argv[1]", "''"), "").status == 0, "an abstract one"
    assert watched.take() == Observation()
    assert (ground.root / "s").is_socket()


@pytest.mark.parametrize(("code", "call"), [(CONNECT, "connect"), (SEND, "sendto")])
def test_a_hidden_socket_is_not_reached(watch: Watch, tmp_path: Path, ground: Ground, code: str, call: str) -> None:
    watched = watch(ground.root, is_hidden=lambda path: path.endswith("/hidden"))
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as hidden,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as open_,
    ):
        os.chdir(ground.outside)  # a short name: the whole may be longer than an address
        hidden.bind("hidden")
        open_.bind("open")
        os.chdir("/")
        refused = watched.run(sys.executable, "-c", code, "hidden", cwd=str(ground.outside))
        taken = watched.take()
        assert watched.run(sys.executable, "-c", code, "open", cwd=str(ground.outside)).status == 0
    assert taken.denials == (Denial("connect", f"{ground.outside}/hidden", call, refused.pid, program()),)
    assert watched.take() == Observation()


SIGNALS: list[tuple[str, list[Word]]] = [
    ("kill", [0, 10]),
    ("tkill", [0, 10]),
    ("tgkill", [0, 0, 10]),
    ("rt_sigqueueinfo", [0, 10, {"words": [10, 0xFFFFFFFF, 0, 0] + [0] * 12}]),
    ("rt_tgsigqueueinfo", [0, 0, 10, {"words": [10, 0xFFFFFFFF, 0, 0] + [0] * 12}]),
]


@pytest.mark.parametrize(("name", "arguments"), SIGNALS, ids=[one[0] for one in SIGNALS])
def test_a_signal_is_refused_where_it_is_none_of_the_command_s_business(
    watch: Watch, ground: Ground, name: str, arguments: list[Word]
) -> None:
    victims = [subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, start_new_session=True) for _ in range(2)]
    watched = watch(ground.root, may_signal=lambda pid: pid != victims[0].pid)
    try:
        calls = [[number(name), *(victim.pid if word == 0 else word for word in arguments)] for victim in victims]
        errors, pid = watched.calls(*calls)
        assert errors == [errno.EPERM, 0]
        assert watched.take().denials == (Denial("signal", str(victims[0].pid), name, pid, program()),)
        assert victims[1].wait(BOUND) == -signal.SIGUSR1
        assert victims[0].poll() is None
    finally:
        for victim in victims:
            victim.kill()
            assert victim.stdin is not None
            victim.stdin.close()
            victim.wait()


def test_a_signal_by_descriptor_is_judged_by_the_process_behind_it(watch: Watch, ground: Ground) -> None:
    code = "import os, signal, sys\nsignal.pidfd_send_signal(os.pidfd_open(int(sys.argv[1])), 10)"
    victim = subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE)
    watched = watch(ground.root, may_signal=lambda pid: pid != victim.pid)
    try:
        refused = watched.run(sys.executable, "-c", code, str(victim.pid))
        expected = Denial("signal", str(victim.pid), "pidfd_send_signal", refused.pid, program())
        assert watched.take().denials == (expected,)
        assert victim.poll() is None
    finally:
        victim.communicate()


def test_a_thread_that_is_observed_can_signal_although_the_answer_comes_from_its_own_process(
    watch: Watch, ground: Ground
) -> None:
    watched = watch(ground.root)
    running = watched.start("/bin/sleep", "60")
    watched.slot.ask(lambda: kill(-running.pid, signal.SIGUSR1))
    assert running.wait(BOUND) == -signal.SIGUSR1
    running = watched.start("/bin/sleep", "60")
    descriptor = syscalls.pidfd_open(running.pid)
    watched.slot.ask(lambda: signal_descriptor(descriptor, signal.SIGUSR2))
    os.close(descriptor)
    assert running.wait(BOUND) == -signal.SIGUSR2
    with pytest.raises(ProcessLookupError):
        watched.slot.ask(lambda: kill(2**22 + 1, signal.SIGUSR1))


def test_its_own_processes_are_a_command_s_to_signal(watch: Watch, ground: Ground) -> None:
    watched = watch(ground.root)
    ended = watched.shell("sleep 60 & kill $!; wait $!; echo $?; kill -0 $$ && kill $$")
    assert ended.output.split()[-1] == "143"
    assert ended.status == -signal.SIGTERM
    assert watched.take() == Observation()


def test_mounting_and_typing_are_refused_whatever_they_name(watch: Watch, ground: Ground) -> None:
    watched = watch(ground.root)
    errors, _pid = watched.calls(
        [number("mount"), "none", str(ground.root), "tmpfs", 0, 0],
        [number("umount2"), str(ground.root), 0],
        [number("mount_setattr"), CWD, str(ground.root), 0, {"words": [0] * 4}, 32],
        [number("move_mount"), CWD, "/", CWD, str(ground.root), 0],
        [number("pivot_root"), str(ground.root), str(ground.root)],
        [number("umount2"), 1, 0],
        [number("ioctl"), {"fd": "/dev/null"}, 0x5412, "x"],
        [number("ioctl"), {"fd": "/dev/null"}, 1 << 32 | 0x541C, "x"],
    )
    assert errors == [errno.EPERM] * 8
    calls = ["mount", "umount2", "mount_setattr", "move_mount", "pivot_root"]
    found = [(one.operation, one.target, one.count) for one in watched.take().denials]
    assert found == [("mount", str(ground.root), len(calls)), ("mount", "", 1), ("terminal", "/dev/null", 2)]


def test_a_command_cannot_ask_a_listener_of_its_own(watch: Watch, ground: Ground) -> None:
    table = syscalls.numbers()
    assert table is not None
    watched = watch(ground.root)
    allow: dict[str, object] = {"words": [0x7FFF000000000006]}
    errors, _pid = watched.calls([38], [table.seccomp, 1, 8, allow])
    assert errors[1] == errno.EBUSY


def test_the_whole_tree_is_observed_behind_an_exit_status_of_0(watch: Watch, ground: Ground) -> None:
    watched = watch(ground.root)
    inner = f"touch {ground.outside}/grandchild"
    line = f"""
        sh -c 'sh -c "{inner}" 2>/dev/null; true'
        setsid -f sh -c 'touch {ground.outside}/daemon; touch {ground.root}/done' 2>/dev/null
        env -i /bin/sh -c 'touch {ground.outside}/cleared' 2>/dev/null
        exit 0"""
    assert watched.shell(line).status == 0
    until = time.monotonic() + BOUND
    while not (ground.root / "done").exists() and time.monotonic() < until:
        time.sleep(0.005)
    denials = watched.take().denials
    assert {(one.operation, one.target, one.program) for one in denials} == {
        ("create", f"{ground.outside}/{name}", "touch") for name in ("grandchild", "daemon", "cleared")
    }
    assert len({one.pid for one in denials}) == 3


def test_a_thread_is_named_by_its_process(watch: Watch, ground: Ground) -> None:
    code = f"""
import os, threading
print(os.getpid())
def try_it():
    try:
        os.mkdir({str(ground.outside / "new")!r})
    except PermissionError:
        print("refused")
thread = threading.Thread(target=try_it)
thread.start()
thread.join()"""
    watched = watch(ground.root)
    ended = watched.run(sys.executable, "-c", code)
    pid, said = ended.output.split()
    assert said == "refused"
    name = "mkdir" if os.uname().machine == "x86_64" else "mkdirat"
    assert watched.take().denials == (Denial("create", f"{ground.outside}/new", name, int(pid), program()),)


def test_the_same_again_is_counted_and_too_many_are_lost(watch: Watch, ground: Ground) -> None:
    watched = watch(ground.root, most=3)
    watched.shell(f"for i in 1 2 3 4 5 1 1 5; do command : > {ground.outside}/$i; done")
    taken = watched.take()
    assert [(one.target.rsplit("/", 1)[1], one.count) for one in taken.denials] == [("1", 3), ("2", 1), ("3", 1)]
    assert taken.lost == 3
    assert watched.take() == Observation()


def test_each_command_has_a_record_of_its_own(watch: Watch, ground: Ground) -> None:
    watched = watch(ground.root)
    watched.shell(f"touch {ground.outside}/one")
    watched.observer.begin()
    watched.shell(f"touch {ground.outside}/two")
    assert [one.target for one in watched.take().denials] == [f"{ground.outside}/two"]


def test_what_cannot_be_read_goes_on_and_is_counted(watch: Watch, ground: Ground) -> None:
    watched = watch(ground.root)
    errors, _pid = watched.calls([number("truncate"), 1, 0], [number("openat"), CWD, 8, os.O_WRONLY])
    assert errors == [errno.EFAULT] * 2
    assert watched.take() == Observation((), 2)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every process")
def test_a_process_that_hides_is_counted(watch: Watch, ground: Ground) -> None:
    code = "import ctypes, os, sys; ctypes.CDLL(None).prctl(4, 0, 0, 0, 0); os.mkdir(sys.argv[1])"
    watched = watch(ground.root)
    assert watched.run(sys.executable, "-c", code, str(ground.outside / "new")).status == 0
    assert watched.take() == Observation((), 1)


def test_an_exempt_thread_is_let_go_on(watch: Watch, ground: Ground) -> None:
    confinement = Confinement((str(ground.root),))
    table = syscalls.numbers()
    assert table is not None
    listeners: list[int] = []
    slot = SlotThread("landlock", lambda: None, new_session=True, closes=True)

    def restrict() -> None:
        syscalls.set_no_new_privs()
        listeners.append(install_with_listener(build_observer_filter(table, network=True)))

    thread = slot.ask(threading.get_native_id)
    slot.ask(restrict)
    observer = Observer(listeners[0], confinement, exempt=frozenset({thread}))
    try:
        slot.ask((ground.outside / "mine").mkdir)
        assert (ground.outside / "mine").is_dir()
        assert observer.take() == Observation()
    finally:
        slot.close()
        observer.close()


def test_it_ends_when_nothing_is_observed_any_more(watch: Watch, ground: Ground) -> None:
    watched = watch(ground.root)
    running = watched.start("/bin/sleep", "60")
    watched.slot.close()
    watched.slot._thread.join(BOUND)
    assert watched.observer.is_serving
    running.kill()
    running.wait(BOUND)
    watched.observer._thread.join(BOUND)
    assert not watched.observer.is_serving


def test_when_it_is_closed_nothing_hangs(watch: Watch, ground: Ground) -> None:
    watched = watch(ground.root)
    line = f"while :; do touch {ground.root}/x || echo failed; done"
    reader, writer = os.pipe()
    running = watched.start("/bin/sh", "-c", line, stdout=writer)
    os.close(writer)
    watched.observer.close()
    watched.observer.close()
    assert not watched.observer.is_serving
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    said = b""
    while b"failed" not in said:
        assert poll.poll(BOUND * 1000)
        said += os.read(reader, 4096)
    os.killpg(running.pid, signal.SIGKILL)
    running.wait(BOUND)
    os.close(reader)
    assert b"not implemented" in said


def test_an_observer_that_nobody_holds_ends(ground: Ground) -> None:
    watched = Watched(Confinement((str(ground.root),)))
    thread = watched.observer._thread
    running = watched.start("/bin/sleep", "60")
    del watched.observer
    thread.join(BOUND)
    assert not thread.is_alive()
    running.kill()
    running.wait(BOUND)
    watched.slot.close()


def test_a_fork_holds_no_listener(watch: Watch, ground: Ground) -> None:
    """A copy of the listener would keep calls waiting for ever after its owner was killed."""
    watched = watch(ground.root)
    pid = os.fork()
    if pid == 0:
        try:
            os.fstat(watched.listener)
        except OSError:
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert watched.shell(f"touch {ground.root}/x").status == 0


def test_processes_that_die_while_they_are_served_do_no_harm(watch: Watch, ground: Ground) -> None:
    watched = watch(ground.root)
    code = f"""
import os
for name in {[str(ground.outside / "x"), str(ground.root / "x")] * 40!r}:
    pid = os.fork()
    if pid == 0:
        while True:
            try:
                os.close(os.open(name, os.O_CREAT | os.O_WRONLY))
            except PermissionError:
                pass
    os.sched_yield()
    os.kill(pid, 9)
    os.waitpid(pid, 0)"""
    assert watched.run(sys.executable, "-c", code).status == 0
    assert watched.observer.is_serving
    assert {one.target for one in watched.take().denials} <= {str(ground.outside / "x")}


def test_a_second_listener_is_refused_by_the_kernel(watch: Watch, ground: Ground) -> None:
    watched = watch(ground.root)
    table = syscalls.numbers()
    assert table is not None

    def again() -> int:
        return install_with_listener(build_observer_filter(table, network=True))

    with pytest.raises(OSError, match="busy"):
        watched.slot.ask(again)


def test_a_descriptor_that_is_no_listener_is_refused_and_given_back(ground: Ground) -> None:
    reader, writer = os.pipe()
    os.close(writer)
    observer = Observer(reader, Confinement((str(ground.root),)))
    observer._thread.join(BOUND)
    assert not observer.is_serving
    observer.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(reader)
