"""The seccomp filter: what Landlock does not govern, refused by system call number and argument.

Pure: a function from an architecture's numbers to a BPF program; `syscalls.install_filter` installs it. The filter
sees numbers and register values, never paths, so it holds only refusals that are right for every file.

Arguments are compared by their low 32 bits where the kernel itself reads an `int` or `unsigned int` from the
register: a command that sets the high half would otherwise pass the filter and still reach the same call.
"""

from __future__ import annotations

import errno
import socket
import struct
from typing import Final

from wisp.sandbox.syscalls import Numbers

__all__ = ["CLONE3", "IO_URING", "NAMESPACES", "build_filter"]

#: io_uring_setup, io_uring_enter, io_uring_register: the same on every architecture. Work queued there is done by
#: the kernel without passing this filter.
IO_URING: Final = (425, 426, 427)

#: The same on every architecture. Its flags lie in memory, which a filter cannot read.
CLONE3: Final = 435

#: CLONE_NEW* of clone(2) and unshare(2): a cgroup, host name, IPC, user, PID, network or mount namespace of one's own.
NAMESPACES: Final = 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000 | 0x00020000
#: CLONE_NEWTIME: in clone(2) that bit belongs to the number of a signal.
_NEWTIME: Final = 0x80

#: Typing into a terminal that is not one's own: TIOCSTI, and TIOCLINUX, which pastes on a virtual console. The
#: numbers are those of x86-64 and aarch64 (asm-generic/ioctls.h).
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C

#: Calls of the x32 interface carry this bit and the audit architecture of x86-64.
_X32_BIT: Final = 0x40000000
_AUDIT_ARCH_X86_64: Final = 0xC000003E

_LD_ABS, _JEQ, _JGE, _JSET, _RET = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL_PROCESS, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000

# Offsets in `struct seccomp_data`; both supported architectures are little-endian.
_NR, _ARCH = 0, 4


def _low(argument: int) -> int:
    return 16 + 8 * argument


def _high(argument: int) -> int:
    return _low(argument) + 4


class _Program:
    """A BPF program under construction, with forward jumps to named places."""

    def __init__(self) -> None:
        self._code: list[tuple[int, int, str, str]] = []
        self._places: dict[str, int] = {}

    def load(self, offset: int) -> None:
        self._code.append((_LD_ABS, offset, "", ""))

    def jump(self, test: int, value: int, *, then: str = "", otherwise: str = "") -> None:
        """Go to `then` when the test holds, else to `otherwise`; an empty name is the next instruction."""
        self._code.append((test, value, then, otherwise))

    def give(self, action: int) -> None:
        self._code.append((_RET, action, "", ""))

    def place(self, name: str) -> None:
        self._places[name] = len(self._code)

    def pack(self) -> bytes:
        packed = bytearray()
        for index, (code, value, then, otherwise) in enumerate(self._code):
            hops = [self._places[name] - index - 1 if name else 0 for name in (then, otherwise)]
            if not all(0 <= hop <= 255 for hop in hops):
                raise AssertionError(f"a jump of {hops} does not fit in one byte")
            packed += struct.pack("<HBBI", code, hops[0], hops[1], value)
        return bytes(packed)


def build_filter(table: Numbers, *, network: bool, namespaces: bool = True) -> bytes:
    """Return the filter for the architecture of `table`, packed for the kernel.

    Always: another audit architecture is killed; io_uring and x32 do not exist (ENOSYS); EPERM for typing into a
    terminal, for opening a file by handle (it needs no path that Landlock could judge the way it was reached), and for
    changing the limits of another process (a CPU limit of zero is a signal by another name). Without `network`: EPERM
    for a socket of any family but AF_UNIX. Without `namespaces`: EPERM for making or entering one, for bpf(2) and for
    perf_event_open(2); clone3 does not exist (the C library then uses clone, whose flags can be seen).
    """
    program = _Program()
    program.load(_ARCH)
    program.jump(_JEQ, table.audit_arch, otherwise="kill")
    program.load(_NR)
    if table.audit_arch == _AUDIT_ARCH_X86_64:
        program.jump(_JGE, _X32_BIT, then="absent")
    for number in IO_URING:
        program.jump(_JEQ, number, then="absent")
    program.jump(_JEQ, table.open_by_handle_at, then="refuse")
    program.jump(_JEQ, table.ioctl, then="ioctl")
    program.jump(_JEQ, table.prlimit64, then="prlimit")
    if not network:
        program.jump(_JEQ, table.socket, then="socket")
        program.jump(_JEQ, table.socketpair, then="socket")
    if not namespaces:
        program.jump(_JEQ, table.clone, then="clone")
        program.jump(_JEQ, table.unshare, then="unshare")
        program.jump(_JEQ, CLONE3, then="absent")
        for number in (table.setns, table.bpf, table.perf_event_open):
            program.jump(_JEQ, number, then="refuse")
    program.give(_ALLOW)

    program.place("ioctl")
    program.load(_low(1))
    program.jump(_JEQ, _TIOCSTI, then="refuse")
    program.jump(_JEQ, _TIOCLINUX, then="refuse", otherwise="allow")

    program.place("prlimit")
    program.load(_low(0))
    program.jump(_JEQ, 0, then="allow")
    program.load(_low(2))
    program.jump(_JEQ, 0, otherwise="refuse")
    program.load(_high(2))
    program.jump(_JEQ, 0, then="allow", otherwise="refuse")

    program.place("socket")
    program.load(_low(0))
    program.jump(_JEQ, socket.AF_UNIX, then="allow", otherwise="refuse")

    program.place("clone")
    program.load(_low(0))
    program.jump(_JSET, NAMESPACES, then="refuse", otherwise="allow")

    program.place("unshare")
    program.load(_low(0))
    program.jump(_JSET, NAMESPACES | _NEWTIME, then="refuse", otherwise="allow")

    program.place("allow")
    program.give(_ALLOW)
    program.place("refuse")
    program.give(_ERRNO | errno.EPERM)
    program.place("absent")
    program.give(_ERRNO | 38)  # ENOSYS: programs fall back to what they did before the call existed
    program.place("kill")
    program.give(_KILL_PROCESS)
    return program.pack()
