"""What a lane's helper does before it starts anything: it proves where it is and puts itself under every layer.

Imported by the helper alone, in an interpreter of its own; see `lane_helper`.
"""

from __future__ import annotations

import ctypes
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` itself costs more than this whole program
    from collections.abc import Iterable
    from typing import TypedDict

    class Setup(TypedDict):
        """The first message; see `_restrict`."""

        pid_namespace: tuple[int, int] | None
        places: list[tuple[bytes, int, int, str]]
        sealed: bool
        kept: int | None
        landlock: tuple[bytes, list[tuple[int, bytes]], int] | None
        filters: list[bytes]
        observer: tuple[bytes, int] | None
        seccomp: int
        capget: int
        capset: int
        new_session: bool
        ends_leftovers: bool
        clears_shm: bool


assert sys.platform == "linux"  # noqa: S101 - for the type checker; nothing else starts this

__all__ = ["Failed", "restrict"]

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAPBSET_READ, _PR_CAPBSET_DROP = 1, 4, 23, 24
_PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 38, 47, 4
_LANDLOCK_CREATE_RULESET, _LANDLOCK_ADD_RULE, _LANDLOCK_RESTRICT_SELF = 444, 445, 446
_CAPABILITY_VERSION_3 = 0x20080522
_SETPCAP = 8

_libc = ctypes.CDLL(None, use_errno=True)


class Failed(Exception):
    """A step of the setup was refused: what it was, and the errno."""


def _checked(result: int, what: str) -> int:
    if result < 0:
        raise Failed(what, ctypes.get_errno())
    return result


def _call(what: str, number: int, *words: int) -> int:
    return _checked(_libc.syscall(ctypes.c_long(number), *(ctypes.c_long(one) for one in words)), what)


def _prctl(what: str, option: int, *words: int) -> int:
    padded = (*words, 0, 0, 0, 0)[:4]
    return _checked(_libc.prctl(ctypes.c_int(option), *(ctypes.c_ulong(one) for one in padded)), what)


def restrict(setup: Setup) -> int | None:
    """Prove where this process is, then put it under every layer; raises Failed, and then nothing is started.

    `pid_namespace`: device and inode of the namespace of wisp, which must not be this one (None: shared on purpose).
    `places`: (path, device, inode, kind), what must lie at each path: a "root", what is "read-only", a "pin".
    `sealed`: whether all else must be read-only. `kept`: capabilities that stay, as a mask, None for all.
    `landlock`: (attributes, rules as (rights, path), flags). `filters`: seccomp programs, the last of them observed.
    """
    # A command has the same user: without this it could trace this process and speak for it.
    _prctl("hiding from the commands", _PR_SET_DUMPABLE, 0)
    _prctl("ending with its parent", _PR_SET_PDEATHSIG, 9)
    if setup["pid_namespace"] is not None:
        facts = os.stat("/proc/self/ns/pid")
        if os.getpid() != 1 or (facts.st_dev, facts.st_ino) == setup["pid_namespace"]:
            raise Failed("a PID namespace of its own", 0)
    _verify_mounts(setup["places"], setup["sealed"])
    if setup["kept"] is not None:
        _cut_capabilities(setup["kept"], setup["capget"], setup["capset"])
    _prctl("no new privileges", _PR_SET_NO_NEW_PRIVS, 1)
    if setup["landlock"] is not None:
        _apply_landlock(*setup["landlock"])
        _prove_landlock(setup["landlock"][1])
    for program in setup["filters"]:
        _install_filter(program, setup["seccomp"], 0)
    if setup["observer"] is None:
        return None
    program, flags = setup["observer"]
    return _install_filter(program, setup["seccomp"], flags)


def _verify_mounts(places: Iterable[tuple[bytes, int, int, str]], sealed: bool) -> None:
    """Check that the mounts are the ones that were asked for, whatever was done to their paths in between."""
    mounts = _mounts()
    writable = set()
    for path, device, inode, kind in places:
        try:
            facts = os.stat(path)
        except OSError as error:
            raise Failed(f"the {kind} {os.fsdecode(path)}", error.errno) from None
        if (facts.st_dev, facts.st_ino) != (device, inode):
            raise Failed(f"the {kind} {os.fsdecode(path)} as it was when the lane was asked for", 0)
        is_read_only = bool(os.statvfs(path).f_flag & os.ST_RDONLY)
        if kind == "read-only" and not is_read_only:
            raise Failed(f"the protected path {os.fsdecode(path)} read-only", 0)
        if kind != "root" and path not in mounts:
            raise Failed(f"a mount of its own at {os.fsdecode(path)}", 0)
        if kind != "read-only":
            writable.add(path)
    if not sealed:
        return
    for path, is_read_only in mounts.items():
        if not is_read_only and not _is_own(path) and not any(_is_inside(path, root) for root in writable):
            raise Failed(f"{os.fsdecode(path)} read-only", 0)


def _is_own(path: bytes) -> bool:
    """Return whether what is mounted there is the lane's alone: its /proc, terminals, devices and shared memory."""
    return path == b"/proc" or _is_inside(path, b"/dev")


def _is_inside(path: bytes, root: bytes) -> bool:
    return path == root or path.startswith(root if root == b"/" else root + b"/")


def _mounts() -> dict[bytes, bool]:
    """Return each mount point that can be seen, and whether the mount on top of it is read-only."""
    found = {}
    with open("/proc/self/mountinfo", "rb") as table:
        for line in table:
            words = line.split()
            path = words[4]
            for code, byte in ((b"\\040", b" "), (b"\\011", b"\t"), (b"\\012", b"\n"), (b"\\134", b"\\")):
                path = path.replace(code, byte)
            found[path] = b"ro" in words[5].split(b",")
    return found


class _CapHeader(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


def _cut_capabilities(kept: int, capget: int, capset: int) -> None:
    """Leave only the capabilities in the mask `kept`, also to what is started with more."""
    header, data = _CapHeader(_CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)()
    _call("capabilities", capget, ctypes.addressof(header), ctypes.addressof(data))
    permitted = data[1] | data[4] << 32
    if permitted >> _SETPCAP & 1:
        for number in range(64):
            held = _libc.prctl(_PR_CAPBSET_READ, number, 0, 0, 0)
            if held < 0:  # beyond the kernel's last one
                break
            if held and not kept >> number & 1:
                _prctl("capabilities", _PR_CAPBSET_DROP, number)
    _prctl("capabilities", _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    left = permitted & kept
    data[0] = data[1] = left & 0xFFFFFFFF
    data[3] = data[4] = left >> 32
    data[2] = data[5] = 0
    _call("capabilities", capset, ctypes.addressof(header), ctypes.addressof(data))


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("access", ctypes.c_uint64), ("parent", ctypes.c_int32))


def _apply_landlock(attributes: bytes, rules: Iterable[tuple[int, bytes]], flags: int) -> None:
    held = ctypes.create_string_buffer(attributes, len(attributes))
    ruleset = _call("Landlock", _LANDLOCK_CREATE_RULESET, ctypes.addressof(held), len(attributes), 0)
    for rights, path in rules:
        try:
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        rule = _PathBeneath(rights, descriptor)
        _call(f"Landlock below {os.fsdecode(path)}", _LANDLOCK_ADD_RULE, ruleset, 1, ctypes.addressof(rule), 0)
        os.close(descriptor)
    _call("Landlock", _LANDLOCK_RESTRICT_SELF, ruleset, flags)
    os.close(ruleset)


def _prove_landlock(rules: Iterable[tuple[int, bytes]]) -> None:
    """Check that what no rule allows is refused: this device is open to everyone, and opening it changes nothing."""
    if not any(path == b"/dev/null" for _rights, path in rules):
        return  # only scopes were asked for
    try:
        os.close(os.open("/dev/urandom", os.O_WRONLY | os.O_CLOEXEC))
    except OSError:
        return
    raise Failed("Landlock in force", 0)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def _install_filter(program: bytes, seccomp: int, flags: int) -> int:
    held = ctypes.create_string_buffer(program, len(program))
    packed = _Program(len(program) // 8, ctypes.addressof(held))
    return _call("the system call filter", seccomp, 1, flags, ctypes.addressof(packed))
