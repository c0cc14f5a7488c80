"""The kernel's side of the observer: a filter with a listener, its questions and answers, and a caller's memory.

Numbers and structures: the kernel's `uapi` headers (`seccomp.h`, `openat2.h`). Everything that is called for each
question has its buffers made once.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import struct
from typing import Final, NamedTuple

from wisp.sandbox import syscalls
from wisp.sandbox.observed import MACHINES

__all__ = ["Kernel", "Listener", "Question", "install_with_listener", "kill", "listener_flags", "signal_descriptor"]

_SET_MODE_FILTER: Final = 1
#: SECCOMP_FILTER_FLAG_NEW_LISTENER, and WAIT_KILLABLE_RECV (Linux 5.19): once asked, only death interrupts a call.
_NEW_LISTENER, _WAIT_KILLABLE = 1 << 3, 1 << 5

# SECCOMP_IOCTL_NOTIF_*: RECV, SEND, ID_VALID and SET_FLAGS (Linux 6.6).
_RECV, _SEND, _ID_VALID, _SET_FLAGS = 0xC0502100, 0xC0182101, 0x40082102, 0x40082104
#: SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP: who asks and who answers run on one processor; halves the time of a question.
_SYNC_WAKE_UP: Final = 1
_CONTINUE: Final = 1

_PIDFD_SEND_SIGNAL, _OPENAT2 = 424, 437
_AT_FDCWD: Final = -100
_NO_SYMLINKS: Final = 0x04
#: PATH_MAX, with its NUL byte.
_MOST_PATH: Final = 4096

#: `struct seccomp_notif` with the `struct seccomp_data` inside it, and `struct seccomp_notif_resp`.
_NOTIF: Final = struct.Struct("<QIIiIQ6Q")
_RESPONSE: Final = struct.Struct("<QqiI")


def listener_flags() -> int:
    """Return the flags of seccomp(2) that make a listener, as far as this kernel knows them.

    Raises OSError where it knows none, or another filter refuses the call.
    """
    for flags in (_NEW_LISTENER | _WAIT_KILLABLE, _NEW_LISTENER):
        try:
            _seccomp(flags, 0)
        except OSError as error:
            if error.errno == errno.EFAULT:  # the flags were accepted, no filter was given
                return flags
            if error.errno != errno.EINVAL:
                raise
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


def install_with_listener(program: bytes) -> int:
    """Install a filter on the calling thread and return the descriptor (close-on-exec) that its questions come to.

    The thread must have given up new privileges. From now on an observed call of this thread, and of all that it
    starts, waits for an answer: one that holds the interpreter's lock meanwhile (`os.kill`, `os.killpg`,
    `signal.pidfd_send_signal`) waits for ever where the answer has to come from the same process. `kill` and
    `signal_descriptor` here do not hold it.

    Raises OSError: EBUSY where a listener lies around this thread already (the kernel allows one).
    """
    held = ctypes.create_string_buffer(program, len(program))
    packed = struct.pack("@HP", len(program) // 8, ctypes.addressof(held))
    pointer = ctypes.create_string_buffer(packed, len(packed))
    return _seccomp(listener_flags(), ctypes.addressof(pointer))


def kill(pid: int, signum: int) -> None:
    """Signal a process, or a group by its negative number, from a thread that is observed."""
    _checked(ctypes.CDLL(None, use_errno=True).kill(ctypes.c_int(pid), ctypes.c_int(signum)))


def signal_descriptor(descriptor: int, signum: int) -> None:
    """Send a signal to the process that a pidfd holds, from a thread that is observed."""
    _call(_PIDFD_SEND_SIGNAL, descriptor, signum, 0, 0)


def _seccomp(flags: int, program: int) -> int:
    table = syscalls.numbers()
    if table is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    return _call(table.seccomp, _SET_MODE_FILTER, flags, program)


def _call(*words: int) -> int:
    return _checked(ctypes.CDLL(None, use_errno=True).syscall(*(ctypes.c_long(word) for word in words)))


def _checked(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


class Question(NamedTuple):
    """A call that waits: the question's number, the thread that asks (as seen from here), the call, its arguments."""

    number: int
    thread: int
    call: int
    arguments: tuple[int, ...]


class Listener:
    """The descriptor that questions come to. Used by one thread."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor: Final = descriptor
        self._asked = bytearray(_NOTIF.size)
        self._empty = bytes(_NOTIF.size)
        self._answer = bytearray(_RESPONSE.size)
        try:
            fcntl.ioctl(descriptor, _SET_FLAGS, _SYNC_WAKE_UP)
        except OSError as error:  # an older kernel: slower
            if error.errno == errno.EBADF:
                raise

    def receive(self) -> Question | None:
        """Return the next question, or None where who asked is gone already."""
        self._asked[:] = self._empty  # the kernel insists
        try:
            fcntl.ioctl(self.descriptor, _RECV, self._asked)
        except OSError:
            return None
        found = _NOTIF.unpack(self._asked)
        return Question(found[0], found[1], found[3], found[6:])

    def answer(self, number: int, error: int) -> None:
        """Have the call fail with `error`, or go on where that is 0; nothing where who asked is gone."""
        _RESPONSE.pack_into(self._answer, 0, number, 0, -error, 0 if error else _CONTINUE)
        try:
            fcntl.ioctl(self.descriptor, _SEND, self._answer)
        except OSError:
            return

    def is_valid(self, number: int) -> bool:
        """Return whether who asked still waits: until then its number is no other's, and what was read is its own."""
        try:
            fcntl.ioctl(self.descriptor, _ID_VALID, struct.pack("<Q", number))
        except OSError:
            return False
        return True


class Kernel:
    """Two calls that Python has no name for, with their buffers. Used by one thread."""

    def __init__(self, audit_arch: int) -> None:
        library = ctypes.CDLL(None, use_errno=True)
        words = (ctypes.c_long,) * 6
        self._read = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_long, *words, use_errno=True)(("syscall", library))
        self._open = ctypes.CFUNCTYPE(
            ctypes.c_long, ctypes.c_long, ctypes.c_long, ctypes.c_char_p, ctypes.c_long, ctypes.c_long, use_errno=True
        )(("syscall", library))
        self._process_vm_readv = MACHINES[audit_arch].process_vm_readv
        self._memory = bytearray(_MOST_PATH)
        self._target = (ctypes.c_char * _MOST_PATH).from_buffer(self._memory)
        self._local = (ctypes.c_uint64 * 2)(ctypes.addressof(self._target), _MOST_PATH)
        self._remote = (ctypes.c_uint64 * 4)()
        self._local_at, self._remote_at = ctypes.addressof(self._local), ctypes.addressof(self._remote)
        self._follow, self._nofollow = (
            (ctypes.c_uint64 * 3)(syscalls.O_PATH | os.O_CLOEXEC | more, 0, _NO_SYMLINKS) for more in (0, os.O_NOFOLLOW)
        )
        self._follow_at, self._nofollow_at = ctypes.addressof(self._follow), ctypes.addressof(self._nofollow)

    def read(self, thread: int, address: int, size: int) -> bytes | None:
        """Return up to `size` (at most 4096) bytes of a thread's memory, None where none can be read.

        Two pages are asked for apart: one that is not there must not take the other with it.
        """
        first = min(size, mmap.PAGESIZE - address % mmap.PAGESIZE)
        remote = self._remote
        remote[0], remote[1], remote[2], remote[3] = address, first, address + first, size - first
        got: int = self._read(
            self._process_vm_readv, thread, self._local_at, 1, self._remote_at, 2 if size > first else 1, 0
        )
        return bytes(self._memory[:got]) if got > 0 else None

    def read_text(self, thread: int, address: int) -> bytes | None:
        """Return the text at `address` up to its NUL byte, None where it cannot be read or does not end."""
        found = self.read(thread, address, _MOST_PATH)
        end = -1 if found is None else found.find(0)
        return None if found is None or end < 0 else found[:end]

    def look(self, path: str, *, follow: bool) -> int:
        """Return 0 where `path` leads to something without one symbolic link, else an errno: ELOOP where it has one.

        Without `follow` the last name may be a link itself.
        """
        how = self._follow_at if follow else self._nofollow_at
        descriptor: int = self._open(_OPENAT2, _AT_FDCWD, os.fsencode(path), how, 24)
        if descriptor < 0:
            return ctypes.get_errno()
        os.close(descriptor)
        return 0
