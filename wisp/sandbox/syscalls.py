"""The few system calls that Python has no name for, by number, for x86-64 and aarch64.

Each acts on the calling thread alone unless it says otherwise, and raises OSError with the kernel's errno. Numbers
and structures: the kernel's `uapi` headers (`landlock.h`, `seccomp.h`, `prctl.h`, `capability.h`).
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import sys
from dataclasses import dataclass
from typing import Final

__all__ = [
    "AUDIT_ARCH",
    "O_PATH",
    "Numbers",
    "add_path_rule",
    "create_ruleset",
    "drop_bounding",
    "get_capabilities",
    "has_bounding",
    "install_filter",
    "landlock_abi",
    "numbers",
    "pidfd_open",
    "pidfd_send_signal",
    "restrict_self",
    "set_capabilities",
    "set_no_new_privs",
    "table",
    "unshare",
]

if sys.platform == "linux":
    O_PATH: Final = os.O_PATH
    pidfd_open = os.pidfd_open
    pidfd_send_signal = signal.pidfd_send_signal
else:  # only so that a type checker can follow the callers; nothing here is called elsewhere
    O_PATH: Final = 0

    def pidfd_open(pid: int, /) -> int:
        """There is none here."""
        raise OSError(38, os.strerror(38), pid)

    def pidfd_send_signal(pidfd: int, signalnum: int, /) -> None:
        """There is none here."""
        raise OSError(38, os.strerror(38), pidfd, signalnum)


_libc: Final = ctypes.CDLL(None, use_errno=True)

# The same on every architecture since Linux 5.1.
_LANDLOCK_CREATE_RULESET, _LANDLOCK_ADD_RULE, _LANDLOCK_RESTRICT_SELF = 444, 445, 446
_CREATE_RULESET_VERSION: Final = 1
_RULE_PATH_BENEATH: Final = 1

_PR_CAPBSET_READ, _PR_CAPBSET_DROP = 23, 24
_PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 38, 47, 4
_SECCOMP_SET_MODE_FILTER: Final = 1
_CAPABILITY_VERSION_3: Final = 0x20080522


@dataclass(frozen=True, slots=True)
class Numbers:
    """The system call numbers of one architecture that wisp's filter or wisp itself needs."""

    audit_arch: int
    bpf: int
    capget: int
    capset: int
    clone: int
    ioctl: int
    open_by_handle_at: int
    perf_event_open: int
    prlimit64: int
    seccomp: int
    setns: int
    socket: int
    socketpair: int
    unshare: int


#: AUDIT_ARCH_* of `audit.h` and the numbers of each supported machine.
AUDIT_ARCH: Final = {
    "x86_64": Numbers(
        audit_arch=0xC000003E,
        bpf=321,
        capget=125,
        capset=126,
        clone=56,
        ioctl=16,
        open_by_handle_at=304,
        perf_event_open=298,
        prlimit64=302,
        seccomp=317,
        setns=308,
        socket=41,
        socketpair=53,
        unshare=272,
    ),
    "aarch64": Numbers(
        audit_arch=0xC00000B7,
        bpf=280,
        capget=90,
        capset=91,
        clone=220,
        ioctl=29,
        open_by_handle_at=265,
        perf_event_open=241,
        prlimit64=261,
        seccomp=277,
        setns=268,
        socket=198,
        socketpair=199,
        unshare=97,
    ),
}


def numbers() -> Numbers | None:
    """Return the numbers of this machine, or None where wisp has no table for it.

    A 32-bit process on a 64-bit kernel has other numbers, so it has no table either.
    """
    return AUDIT_ARCH.get(platform.machine()) if ctypes.sizeof(ctypes.c_void_p) == 8 else None


def table() -> Numbers:
    """Return the numbers of this machine, or raise OSError (ENOSYS)."""
    found = numbers()
    if found is None:
        raise OSError(38, f"no system call table for {platform.machine()}")
    return found


def _checked(result: int) -> int:
    """Return what a call gave, or raise OSError with the errno that it left."""
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def _call(number: int, *arguments: int) -> int:
    """Make one system call, every argument a full machine word."""
    result: int = _libc.syscall(ctypes.c_long(number), *(ctypes.c_long(one) for one in arguments))
    return _checked(result)


def _prctl(option: int, *arguments: int) -> int:
    padded = (*arguments, 0, 0, 0, 0)[:4]
    result: int = _libc.prctl(ctypes.c_int(option), *(ctypes.c_ulong(one) for one in padded))
    return _checked(result)


class _RulesetAttr(ctypes.Structure):
    _fields_ = (
        ("handled_access_fs", ctypes.c_uint64),
        ("handled_access_net", ctypes.c_uint64),
        ("scoped", ctypes.c_uint64),
    )


class _PathBeneathAttr(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


class _SockFprog(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


class _CapHeader(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _CapData(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


def landlock_abi() -> int:
    """Return the Landlock interface version of the kernel, 1 or more.

    Raises OSError: ENOSYS where the kernel was built without it, EOPNOTSUPP where it is off since boot, EPERM where
    an outer filter refuses the call.
    """
    return _call(_LANDLOCK_CREATE_RULESET, 0, 0, _CREATE_RULESET_VERSION)


def create_ruleset(handled_fs: int, scoped: int, *, abi: int) -> int:
    """Return a descriptor (close-on-exec) of a new ruleset, with the structure as interface version `abi` knows it."""
    size = 8 if abi < 4 else 16 if abi < 6 else 24
    attr = _RulesetAttr(handled_fs, 0, scoped)
    return _call(_LANDLOCK_CREATE_RULESET, ctypes.addressof(attr), size, 0)


def add_path_rule(ruleset: int, access: int, path_fd: int) -> None:
    """Allow `access` on the file that `path_fd` (O_PATH) holds and, for a directory, on everything beneath it."""
    attr = _PathBeneathAttr(access, path_fd)
    _call(_LANDLOCK_ADD_RULE, ruleset, _RULE_PATH_BENEATH, ctypes.addressof(attr), 0)


def restrict_self(ruleset: int, flags: int = 0) -> None:
    """Put the calling thread, and all that it starts from now on, under `ruleset`. It cannot be undone."""
    _call(_LANDLOCK_RESTRICT_SELF, ruleset, flags)


def set_no_new_privs() -> None:
    """Take from the calling thread and its children the chance to gain privileges by exec."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def install_filter(program: bytes) -> None:
    """Install a seccomp filter, given as packed `sock_filter` structures, on the calling thread."""
    numbers_here = table()
    buffer = ctypes.create_string_buffer(program, len(program))
    prog = _SockFprog(len(program) // 8, ctypes.addressof(buffer))
    _call(numbers_here.seccomp, _SECCOMP_SET_MODE_FILTER, 0, ctypes.addressof(prog))


def get_capabilities() -> tuple[int, int, int]:
    """Return the calling thread's effective, permitted and inheritable capability sets as bit masks."""
    numbers_here = table()
    header, data = _CapHeader(_CAPABILITY_VERSION_3, 0), (_CapData * 2)()
    _call(numbers_here.capget, ctypes.addressof(header), ctypes.addressof(data))
    low, high = data[0], data[1]
    return (
        low.effective | high.effective << 32,
        low.permitted | high.permitted << 32,
        low.inheritable | high.inheritable << 32,
    )


def set_capabilities(mask: int) -> None:
    """Make `mask` the calling thread's effective and permitted set; inheritable and ambient become empty."""
    numbers_here = table()
    _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    header, data = _CapHeader(_CAPABILITY_VERSION_3, 0), (_CapData * 2)()
    data[0] = _CapData(mask & 0xFFFFFFFF, mask & 0xFFFFFFFF, 0)
    data[1] = _CapData(mask >> 32, mask >> 32, 0)
    _call(numbers_here.capset, ctypes.addressof(header), ctypes.addressof(data))


def has_bounding(capability: int) -> bool | None:
    """Return whether `capability` is in the bounding set, or None where the kernel knows no such capability."""
    try:
        return _prctl(_PR_CAPBSET_READ, capability) == 1
    except OSError:
        return None


def drop_bounding(capability: int) -> None:
    """Take `capability` out of the calling thread's bounding set: no exec brings it back. Needs CAP_SETPCAP."""
    _prctl(_PR_CAPBSET_DROP, capability)


def unshare(flags: int) -> None:
    """Give the calling thread namespaces of its own (`unshare(2)`)."""
    result: int = _libc.unshare(ctypes.c_int(flags))
    _checked(result)
