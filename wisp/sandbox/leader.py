"""The process that was started for a command: its end, its group, its exit status."""

from __future__ import annotations

import errno
import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from wisp.errors import StatusLost
from wisp.sandbox.leftovers import end_leftovers, signal_all

if TYPE_CHECKING:
    from wisp.sandbox.backend import Signaller

__all__ = ["Command", "Leader"]

#: PIDFD_SIGNAL_PROCESS_GROUP of pidfd_send_signal(2), Linux 6.9.
_TO_ITS_GROUP: Final = 1 << 2


class Command(subprocess.Popen[bytes]):
    """A started command. Until `is_watched`, whoever started it has to see to its end.

    `interruption` is what interrupted its caller during the start: to be raised when it is watched.
    """

    is_watched = False
    interruption: BaseException | None = None


class Leader:
    """The first process of a command, a session and group leader, from its start until it is reaped.

    Until then its number, and its group's, cannot become another's. Where this program takes the statuses of all its
    children (`SIGCHLD` ignored, `os.wait`), that does not hold, and what is done by number is not done.

    `slot` can signal what has left the group; without one, the group is all there is. `guarantee` is what may be left
    behind at best, in words (empty: nothing).
    """

    def __init__(self, process: subprocess.Popen[bytes], slot: Signaller | None = None, guarantee: str = "") -> None:
        self._pid: Final = process.pid
        self._process = process
        self._slot, self._guarantee = slot, guarantee
        #: Becomes readable when the process ends; -1 before `open`, and where it was reaped by somebody else.
        self.descriptor = -1
        self._stolen = False

    @property
    def pid(self) -> int:
        """Its number; its group has the same."""
        return self._pid

    def claim(self) -> None:
        """See to its end from now on. Raises what interrupted the start, once."""
        if isinstance(self._process, Command):
            self._process.is_watched = True
            interruption, self._process.interruption = self._process.interruption, None
            if interruption is not None:
                raise interruption

    def open(self) -> bool:
        """Start to watch for the end; return False where it is over and somebody else has reaped it.

        Raises OSError where no descriptor is left.
        """
        try:
            self.descriptor = _open_exit(self.pid)
        except ProcessLookupError:
            self._stolen = True
            return False
        return True

    def close(self) -> None:
        """Give the descriptor back."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    @property
    def is_reaped(self) -> bool:
        """Whether its exit status was taken, by `reap` or by somebody else who was noticed."""
        return self._process.returncode is not None

    def signal_group(self, signum: int) -> None:
        """Signal everything in its process group; nothing when there is nothing left."""
        if self._stolen:
            return
        with suppress(ProcessLookupError, PermissionError):
            if sys.platform == "linux" and self.descriptor >= 0:
                _signal_group_of(self.descriptor, self.pid, signum)
            else:
                os.killpg(self.pid, signum)

    def signal_all(self, signum: int) -> None:
        """Signal its process group, and each process of the command that has left it, once each. Raises nothing."""
        if self._slot is None:
            self.signal_group(signum)
        else:
            signal_all(self._slot, self, signum)

    def end_leftovers(self) -> str:
        """End everything that the command has started; return what may still run, in words. Raises nothing."""
        if self._slot is None:
            self.signal_group(signal.SIGKILL)
            return self._guarantee
        return end_leftovers(self._slot, self, self._guarantee)

    def give_up(self) -> str:
        """Leave a process that was killed and does not end; return that, in words."""
        return f"process {self.pid} was killed but does not end (it waits in the kernel)"

    def is_over(self, seconds: float) -> bool:
        """Return whether it ends within `seconds`."""
        if self.descriptor < 0:
            return self._stolen
        watch = select.poll()
        watch.register(self.descriptor, select.POLLIN)
        return bool(watch.poll(int(seconds * 1000) + 1))

    def reap(self) -> int:
        """Return the exit status of a leader that has ended (negative: a signal), by its own number only.

        Raises StatusLost when somebody else took it.
        """
        try:
            _pid, status = os.waitpid(self.pid, 0)
        except ChildProcessError:
            self._process.returncode = 0  # so that Popen looks for it no more
            raise StatusLost(self.pid) from None
        self._process.returncode = os.waitstatus_to_exitcode(status)
        return self._process.returncode


def _signal_group_of(descriptor: int, pid: int, signum: int) -> None:
    """Signal the group that the process behind `descriptor` leads; the number alone is not trusted."""
    if sys.platform != "linux":
        return
    try:
        signal.pidfd_send_signal(descriptor, signum, None, _TO_ITS_GROUP)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        signal.pidfd_send_signal(descriptor, 0)  # before Linux 6.9: raises when it was reaped
        os.killpg(pid, signum)


def _open_exit(pid: int) -> int:
    """Return a descriptor that becomes readable when process `pid` ends: a pidfd, or a kqueue where there is none."""
    if sys.platform == "linux":
        return os.pidfd_open(pid)
    queue = select.kqueue()
    event = select.kevent(pid, select.KQ_FILTER_PROC, select.KQ_EV_ADD, select.KQ_NOTE_EXIT)
    try:
        queue.control([event], 0)
    except ProcessLookupError:  # it has ended already: make the queue readable by a timer of no length
        queue.control([select.kevent(1, select.KQ_FILTER_TIMER, select.KQ_EV_ADD, 0, 0)], 0)
    descriptor = os.dup(queue.fileno())
    queue.close()
    return descriptor
