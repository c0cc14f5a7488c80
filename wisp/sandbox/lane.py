"""A lane: one helper process in namespaces of its own, kept warm, that starts commands on request, one at a time.

wisp asks over a socket and gets told the end. The command's streams are descriptors that are handed over, so what it
prints passes through nobody. When a command ends, everything else in the lane is ended before wisp is told.
"""

from __future__ import annotations

import array
import errno
import marshal
import os
import select
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from wisp.errors import StatusLost
from wisp.sandbox.lane_start import LaneFailed, start_helper
from wisp.sandbox.syscalls import pidfd_open, pidfd_send_signal

if TYPE_CHECKING:
    from wisp.sandbox.lane_setup import Setup

__all__ = ["Lane", "LaneCommand"]

#: Seconds in which a helper has to be ready, and to be gone when its socket is closed.
_START: Final = 20.0
_END: Final = 5.0
#: Seconds in which an ended command's lane has to be empty.
_DEATH: Final = 10.0
#: A longer request goes through a file in memory: one message is bounded by the socket's buffer (socket(7)).
_MOST_MESSAGE: Final = 1 << 15
_MOST_REPLY: Final = 1 << 14
_MOST_SAID: Final = 4096


@dataclass(frozen=True, slots=True)
class _Reply:
    """What the helper says of a command: `kind` `e` it ended, `r` it could not be started."""

    kind: bytes
    number: int
    rest: bytes


class Lane:
    """A helper that was started by `wrap` (bubblewrap and its options) and is ready to run commands.

    Raises LaneFailed when it does not become ready. Used by one caller at a time.
    """

    def __init__(self, wrap: Sequence[str], setup: Setup, *, closes: bool = True) -> None:
        self.listener = -1
        self.helper_pid = 0
        self._owner = os.getpid()
        self._command: LaneCommand | None = None
        #: Of the last request; a reply to another one is never taken for its.
        self._number = 0
        self._env: Mapping[bytes, bytes] | None = None
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket = ours
        try:
            self._process, self._said = start_helper(
                wrap, theirs.fileno(), closes=closes, new_session=setup["new_session"]
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._pidfds: list[int] = []
        try:
            self._hold(self._process.pid)
            self._set_up(setup)
            self._hold(self.helper_pid)
        except BaseException:
            self.close()
            raise
        _LANES.add(self)

    def _set_up(self, setup: Setup) -> None:
        """Tell the helper what to hold and wait until it does."""
        try:
            with suppress(OSError):  # it is gone already; what it said tells why
                self._socket.setsockopt(socket.SOL_SOCKET, _PASSCRED, 1)
                self._socket.send(marshal.dumps(dict(setup)))
            self._socket.settimeout(_START)
            try:
                data, ancillary, _flags, _address = self._socket.recvmsg(
                    _MOST_REPLY, socket.CMSG_SPACE(4) + socket.CMSG_SPACE(12), _CLOEXEC
                )
            except TimeoutError:
                raise LaneFailed(f"the lane was not ready after {_START:g} seconds") from None
            except OSError:
                data, ancillary = b"", []
            for _level, kind, held in ancillary:
                numbers = array.array("i", held[: len(held) // 4 * 4])
                if kind == socket.SCM_RIGHTS:
                    self.listener = numbers[0]
                elif kind == _SCM_CREDENTIALS:
                    self.helper_pid = numbers[0]
            self._socket.setsockopt(socket.SOL_SOCKET, _PASSCRED, 0)
            self._socket.settimeout(None)
            if data == b"k":
                return
            if data[:1] == b"f":
                raise LaneFailed(os.fsdecode(data[5:]), _number(data))
            raise LaneFailed("the lane ended before it was ready", 0, self._what_it_said())
        finally:
            os.close(self._said)

    def _what_it_said(self) -> str:
        """Return the last line of what bubblewrap or the interpreter printed."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END)
        os.set_blocking(self._said, False)
        try:
            said = os.read(self._said, _MOST_SAID)
        except BlockingIOError:
            return ""
        lines = said.decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else ""

    @property
    def is_usable(self) -> bool:
        """Whether the next command may be sent to it: it is there, idle, and this process's own."""
        return self._socket.fileno() >= 0 and self._owner == os.getpid() and self._command is None

    @property
    def descriptor(self) -> int:
        """Becomes readable when the helper has something to say, or is gone."""
        return self._socket.fileno()

    def take_listener(self) -> int:
        """Return the descriptor that the helper's observed calls are asked through, once; -1 where there is none."""
        listener, self.listener = self.listener, -1
        return listener

    def run(
        self, argv: Sequence[str], cwd: str, env: Mapping[bytes, bytes], streams: tuple[int, int, int]
    ) -> LaneCommand | None:
        """Ask for a command; return None where the helper was gone already, so that nothing was asked.

        Raises OSError where the request cannot be made.
        """
        is_known = env == self._env  # most commands of a lane have the environment of the one before
        words = list(map(os.fsencode, argv))
        request = marshal.dumps((words, os.fsencode(cwd), None if is_known else dict(env)))
        large = -1
        if len(request) > _MOST_MESSAGE:
            large = _in_memory(request)
            request = b""
        descriptors = array.array("i", streams if large < 0 else (*streams, large))
        self._number = (self._number + 1) & 0xFFFFFFFF
        # Before it is asked for: whatever interrupts this, a lane that may have been asked is not taken as idle.
        self._command = command = LaneCommand(self)
        try:
            head = b"c" + self._number.to_bytes(4, "little")
            self._socket.sendmsg([head, request], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
        except (BrokenPipeError, ConnectionResetError):
            return None
        finally:
            if large >= 0:
                os.close(large)
        self._env = env
        # The helper often waits for this very processor: let it start the command while wisp does the rest.
        os.sched_yield()
        return command

    def signal(self, signum: int, *, to_all: bool) -> None:
        """Have the running command's group, or everything in the lane, signalled."""
        with suppress(OSError):
            self._socket.send(bytes((ord("s"), to_all, signum)), socket.MSG_DONTWAIT)

    def reply(self, seconds: float) -> _Reply | None:
        """Return what the helper says of the command, None when it said nothing in time; raises EOFError."""
        try:
            data = self._socket.recv(_MOST_REPLY, socket.MSG_DONTWAIT)
        except BlockingIOError:
            watch = select.poll()
            watch.register(self._socket, select.POLLIN)
            if not watch.poll(int(seconds * 1000)):
                return None
            return self.reply(0)
        except OSError:
            data = b""
        if len(data) < 9 or data[5:9] != self._number.to_bytes(4, "little"):
            raise EOFError
        self._command = None
        return _Reply(data[:1], _number(data), data[9:])

    def _hold(self, pid: int) -> None:
        """Hold a process by a descriptor: bubblewrap's own first, then the helper."""
        if pid > 0:
            with suppress(ProcessLookupError):
                self._pidfds.append(pidfd_open(pid))

    def kill(self) -> bool:
        """End the lane and everything in it at once; return whether it is gone."""
        self._shut()
        # The helper first: bubblewrap ends after everything in the namespace has.
        for descriptor in reversed(self._pidfds):
            with suppress(OSError):
                pidfd_send_signal(descriptor, signal.SIGKILL)
                break
        return self._is_over(_END)

    def close(self) -> None:
        """End the lane. What runs in it ends with it."""
        self._shut()
        if self._owner == os.getpid() and not self._is_over(_END):
            self.kill()
        while self._pidfds:
            os.close(self._pidfds.pop())

    def _shut(self) -> None:
        if self.listener >= 0:
            listener, self.listener = self.listener, -1
            os.close(listener)
        self._socket.close()

    def forget(self) -> None:
        """Give up what a fork copied: the lane is its parent's, and ends when nobody else holds its socket."""
        self._shut()
        while self._pidfds:
            os.close(self._pidfds.pop())

    def _is_over(self, seconds: float) -> bool:
        """Return whether bubblewrap, which ends last, is gone within `seconds`; reaps it."""
        if self._pidfds:
            watch = select.poll()
            watch.register(self._pidfds[0], select.POLLIN)
            if not watch.poll(int(seconds * 1000)):
                return False
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(0.5)
        return True

    @property
    def pid(self) -> int:
        """The number of bubblewrap's own process."""
        return self._process.pid


class LaneCommand:
    """A command in a lane; see `wisp.sandbox.backend.Running`."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._reply: _Reply | None = None
        self._is_lost = False

    @property
    def pid(self) -> int:
        """The lane's number: the command's own is one in the lane's PID namespace."""
        return self._lane.pid

    @property
    def descriptor(self) -> int:
        """The lane's socket, on which only the end is told."""
        return self._lane.descriptor

    @property
    def is_reaped(self) -> bool:
        """Whether its end was told, or can no longer be."""
        return self._reply is not None or self._is_lost

    def claim(self) -> None:
        """Nothing interrupts a start: it is one message."""

    def open(self) -> bool:
        """Nothing is opened to watch it."""
        return True

    def close(self) -> None:
        """Nothing was opened to watch it."""

    def is_over(self, seconds: float) -> bool:
        """Return whether its end is told within `seconds`."""
        if not self.is_reaped:
            try:
                self._reply = self._lane.reply(seconds)
            except EOFError:
                self._is_lost = True
        return self.is_reaped

    def signal_group(self, signum: int) -> None:
        """Signal everything in its process group."""
        if not self.is_reaped:
            self._lane.signal(signum, to_all=False)

    def signal_all(self, signum: int) -> None:
        """Signal everything that it has started."""
        if not self.is_reaped:
            self._lane.signal(signum, to_all=True)

    def end_leftovers(self) -> str:
        """Return once everything that it has started is gone, or what may still run, in words."""
        if not self.is_over(_DEATH):
            return self.give_up()
        if self._reply is not None and self._reply.kind == b"e" and self._reply.rest != b"y":
            return self.give_up()
        return ""

    def give_up(self) -> str:
        """End the whole lane with it."""
        self._is_lost = self._is_lost or self._reply is None
        if self._lane.kill():
            return ""
        return f"the lane (process {self._lane.pid}) was killed but does not end (it waits in the kernel)"

    def reap(self) -> int:
        """Return the exit status, negative for a signal.

        Raises OSError when the program could not be started, StatusLost when the lane has ended under the command.
        """
        if not self.is_over(_DEATH) or self._reply is None:
            self._is_lost = True
            raise StatusLost(self.pid, _LOST)
        if self._reply.kind == b"e":
            return os.waitstatus_to_exitcode(self._reply.number)
        code = self._reply.number or errno.EIO
        if code in _SHORT_OF:  # the helper's own want; the next one may have enough
            self._lane.kill()
        raise OSError(code, os.strerror(code), os.fsdecode(self._reply.rest) or None)


_LOST: Final = "the sandbox that it ran in has ended, and everything in it (killed, or no memory was left)"

#: Errors that say that a process is short of something, and nothing of the program.
_SHORT_OF: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})

#: Ancillary data of unix(7) that Python has no name for: pid, uid and gid of who sent it, the pid as seen from here.
_SCM_CREDENTIALS: Final = 2
_CLOEXEC: Final = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
#: SO_PASSCRED of socket(7).
_PASSCRED: Final = 16


def _number(data: bytes) -> int:
    return int.from_bytes(data[1:5], "little", signed=True)


def _in_memory(data: bytes) -> int:
    """Return a descriptor of a file in memory that holds `data`."""
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    descriptor = os.memfd_create("wisp-command", os.MFD_CLOEXEC)
    try:
        with open(descriptor, "wb", closefd=False) as stream:
            stream.write(data)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


#: The lanes of this process, for a fork: its copy of a socket would keep a lane alive after its owner was killed.
_LANES: Final[weakref.WeakSet[Lane]] = weakref.WeakSet()


def _after_fork() -> None:
    for lane in list(_LANES):
        lane.forget()


os.register_at_fork(after_in_child=_after_fork)
