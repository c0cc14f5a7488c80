"""What a row may ask of the machine before it is run, each found out by doing it, never from a platform's name.

An ability that is missing makes the row `skipped`, with the reason given here. Every attempt acts in the scratch
directory, on a descriptor of its own, or in a child process that ends at once.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

__all__ = ["ABILITIES", "is_ability", "missing", "python"]

_TOOL: Final = re.compile(r"tool\.[a-z0-9][a-z0-9_.+-]*")

_lock: Final = threading.Lock()
_found: Final = dict[tuple[str, int], str]()


def is_ability(name: str) -> bool:
    """Return whether `name` is something that a row may require (`symlinks`, `tool.git`)."""
    return name in ABILITIES or _TOOL.fullmatch(name) is not None


def missing(name: str, scratch: Path) -> str:
    """Return why this machine cannot do `name`, in words; empty when it can.

    `scratch` is a directory on the file system that the rows will use. Asked once per process and file system. Raises
    KeyError for a name that is no ability.
    """
    if _TOOL.fullmatch(name):
        tool = name.removeprefix("tool.")
        return "" if shutil.which(tool) else f"{tool} is not installed, or not on PATH"
    attempt = ABILITIES[name]
    key = name, scratch.stat().st_dev
    with _lock:
        if key not in _found:
            _found[key] = _tried(attempt, scratch)
        return _found[key]


def python() -> str:
    """Return the Python that rows run as `$PYTHON`: the one that runs wisp."""
    return sys.executable or shutil.which("python3") or "python3"


def _tried(attempt: Callable[[Path], str], scratch: Path) -> str:
    # A name of its own: two processes may share a scratch directory, and one attempt may leave what it made.
    place = scratch / f"can-{uuid.uuid4().hex[:12]}"
    place.mkdir(mode=0o700)
    try:
        return attempt(place)
    except (OSError, AttributeError, ValueError, subprocess.SubprocessError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return f"the machine refuses it ({reason})"
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _symlinks(place: Path) -> str:
    (place / "link").symlink_to("target")
    return ""


def _hard_links(place: Path) -> str:
    (place / "one").touch()
    (place / "two").hardlink_to(place / "one")
    return ""


def _xattr(place: Path) -> str:
    if sys.platform != "linux":
        return "only tried on Linux"
    (place / "file").touch()
    os.setxattr(place / "file", "user.wisp", b"1")
    return ""


def _o_tmpfile(place: Path) -> str:
    if sys.platform != "linux":
        return "only Linux has it"
    os.close(os.open(place, os.O_TMPFILE | os.O_WRONLY, 0o600))
    return ""


def _proc(_place: Path) -> str:
    return "" if Path(f"/proc/{os.getpid()}/environ").exists() else "there is no /proc"


def _pty(_place: Path) -> str:
    ours, theirs = os.openpty()
    os.close(ours)
    os.close(theirs)
    return ""


def _shm(_place: Path) -> str:
    return _child(
        "import multiprocessing.synchronize as s; s.Semaphore(ctx=__import__('multiprocessing').get_context())"
    )


def _unix_sockets(place: Path) -> str:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(place / "socket"))
    return ""


def _abstract_sockets(_place: Path) -> str:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(f"\0wisp-{uuid.uuid4().hex}")
    return ""


def _ipv6(_place: Path) -> str:
    with socket.socket(socket.AF_INET6) as one:
        one.bind(("::1", 0))
    return ""


def _mknod(place: Path) -> str:
    # The numbers of /dev/null, so that a node that stays behind is harmless.
    os.mknod(place / "node", 0o020600, os.makedev(1, 3))
    return ""


def _chown(place: Path) -> str:
    (place / "file").touch()
    os.chown(place / "file", 65534, 65534)
    return ""


def _controlling_terminal(_place: Path) -> str:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return "wisp itself has no controlling terminal here"
    return ""


def _module(name: str) -> Callable[[Path], str]:
    def attempt(_place: Path) -> str:
        return "" if importlib.util.find_spec(name) else f"this Python comes without {name}"

    return attempt


def _socket(family: int, kind: int, protocol: int = 0, *, listed_as: str = "") -> Callable[[Path], str]:
    def attempt(_place: Path) -> str:
        # Asking for a family loads its module into the kernel; a machine that does without it must stay so.
        if listed_as and listed_as not in Path("/proc/net/protocols").read_text().split():
            return "the kernel has not loaded it"
        socket.socket(family, kind, protocol).close()
        return ""

    return attempt


def _fast_open(_place: Path) -> str:
    if sys.platform != "linux":
        return "only tried on Linux"
    with socket.socket() as server, socket.socket() as client:
        server.bind(("127.0.0.1", 0))
        server.listen()
        client.sendto(b"x", socket.MSG_FASTOPEN, server.getsockname())
    return ""


def _pidfd(_place: Path) -> str:
    if sys.platform != "linux":
        return "only Linux has it"
    os.close(os.pidfd_open(os.getpid()))
    return ""


def _seatbelt(_place: Path) -> str:
    program = "/usr/bin/sandbox-exec"
    if not Path(program).exists():
        return "this system has no Seatbelt"
    return _command(program, "-p", "(version 1)(allow default)", "/usr/bin/true")(Path("/"))


def _command(*argv: str) -> Callable[[Path], str]:
    def attempt(place: Path) -> str:
        ran = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=10, check=False, cwd=place)
        if ran.returncode == 0:
            return ""
        said = ran.stderr.decode("utf-8", "replace").strip().splitlines()
        return f"the machine refuses it ({said[-1] if said else f'exit status {ran.returncode}'})"

    return attempt


def _child(program: str) -> str:
    return _command(python(), "-IBS", "-c", program)(Path("/"))


def _program(program: str) -> Callable[[Path], str]:
    def attempt(place: Path) -> str:
        return _command(python(), "-IBS", "-c", _PRELUDE + program)(place)

    return attempt


_PRELUDE: Final = """
import ctypes, fcntl, mmap, os, platform, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(*words):
    if (got := libc.syscall(*words)) < 0:
        sys.exit(os.strerror(ctypes.get_errno()))
    return got
"""

# PTRACE_SEIZE does not stop the process that it attaches to; leaving it detaches.
_TRACE: Final = """
cat = subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE)
got = libc.ptrace(0x4206, cat.pid, None, None)
why = os.strerror(ctypes.get_errno())
cat.stdin.close(); cat.wait()
sys.exit(why if got < 0 else 0)
"""

_TYPE: Final = """
import termios
ours, theirs = os.openpty()
if (child := os.fork()) == 0:
    os.setsid()
    fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)
    try:
        fcntl.ioctl(theirs, termios.TIOCSTI, b"x")
    except OSError as error:
        print(error.strerror, file=sys.stderr); os._exit(1)
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""

_INT80: Final = """
if platform.machine() != "x86_64": sys.exit("another processor")
code = mmap.mmap(-1, 4096, prot=7)
code.write(bytes.fromhex("53b81400000031db31c931d2cd805bc3"))
run = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
sys.exit(0 if run() == os.getpid() else "the kernel has no 32-bit calls")
"""

_X32: Final = """
if platform.machine() != "x86_64": sys.exit("another processor")
call(0x40000000 | 39)
"""

_HANDLE: Final = """
class Handle(ctypes.Structure):
    _fields_ = [("size", ctypes.c_uint), ("kind", ctypes.c_int), ("data", ctypes.c_ubyte * 128)]
handle, mount = Handle(128), ctypes.c_int()
open("file", "w").close()
if libc.name_to_handle_at(-100, b"file", ctypes.byref(handle), ctypes.byref(mount), 0) < 0:
    sys.exit(os.strerror(ctypes.get_errno()))
if libc.open_by_handle_at(os.open(".", os.O_RDONLY), ctypes.byref(handle), os.O_RDONLY) < 0:
    sys.exit(os.strerror(ctypes.get_errno()))
"""

_FLAGS: Final = """
with open("file", "w") as file:
    flags = fcntl.ioctl(file, 0x80086601, bytes(8))
    fcntl.ioctl(file, 0x40086602, flags)
"""

_EXCHANGE: Final = """
for name in ("one", "two"): open(name, "w").close()
if libc.renameat2(-100, b"one", -100, b"two", 2) < 0:
    sys.exit(os.strerror(ctypes.get_errno()))
"""

# In namespaces of its own, which are gone with the process; nobody else sees the mount.
_MOUNT: Final = """
os.mkdir("on")
if libc.unshare(0x10020000) < 0 or libc.mount(b".", b"on", None, 4096, None) < 0:
    sys.exit(os.strerror(ctypes.get_errno()))
"""

#: Every ability but the tools (`tool.git`), which are looked up on PATH.
ABILITIES: Final[Mapping[str, Callable[[Path], str]]] = {
    "symlinks": _symlinks,
    "hard-links": _hard_links,
    "xattr": _xattr,
    "file-flags": _program(_FLAGS),
    "o-tmpfile": _o_tmpfile,
    "proc": _proc,
    "pty": _pty,
    "shm": _shm,
    "unix-sockets": _unix_sockets,
    "abstract-sockets": _abstract_sockets,
    "ipv6": _ipv6,
    "terminal": _controlling_terminal,
    "user-namespaces": _command("unshare", "-Ur", "true"),
    "seatbelt": _seatbelt,
    "landlock": _program("call(444, None, 0, 1)"),
    "io-uring": _program("call(425, 8, ctypes.create_string_buffer(120))"),
    "abi.int80": _program(_INT80),
    "abi.x32": _program(_X32),
    "can.mknod": _mknod,
    "can.chown": _chown,
    "can.exchange": _program(_EXCHANGE),
    "can.chroot": _program('os.chroot(".")'),
    "can.pidfd": _pidfd,
    "can.ptrace": _program(_TRACE),
    "can.type-into-terminal": _program(_TYPE),
    "can.open-by-handle": _program(_HANDLE),
    "can.mount-in-namespace": _program(_MOUNT),
    "python.ensurepip": _module("ensurepip"),
    "python.sqlite3": _module("_sqlite3"),
    # Numbers where Python names a family only on some platforms.
    "socket.raw": _socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP),
    "socket.packet": _socket(17, socket.SOCK_RAW, listed_as="PACKET"),
    "socket.netlink": _socket(16, socket.SOCK_RAW),
    "socket.vsock": _socket(40, socket.SOCK_STREAM, listed_as="AF_VSOCK"),
    "socket.mptcp": _socket(socket.AF_INET, socket.SOCK_STREAM, 262, listed_as="MPTCP"),
    "socket.fast-open": _fast_open,
}
