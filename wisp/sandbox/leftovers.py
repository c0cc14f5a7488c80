"""What a command leaves running: found among the processes of the machine, and ended.

The kernel decides whose a process is: a slot may signal what its own command started and nothing else.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from wisp.sandbox.backend import Signaller

__all__ = ["ProcStat", "end_leftovers", "last_created", "proc_stat", "signal_all"]

#: Seconds in which all that a command left behind has to be gone.
_SECONDS: Final = 2.0
#: How often in a row new numbers are looked at, where other programs start processes all the time.
_CHASE: Final = 400
#: How many numbers are looked at one by one.
_MOST_NUMBERS: Final = 4096
#: Errors that say that this program is short of something, and nothing of the process that was asked about.
_SHORT_OF: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


class _Group(Protocol):
    """The process group of a command, whose leader is not reaped yet."""

    @property
    def pid(self) -> int: ...

    def signal_group(self, signum: int) -> None: ...


@dataclass(frozen=True, slots=True)
class ProcStat:
    """What `/proc/PID/stat` says of a process: state letter, and start in clock ticks since boot."""

    state: str
    started: int

    @property
    def is_over(self) -> bool:
        """Whether only its entry is left (a zombie)."""
        return self.state in {"Z", "X", "x"}


def proc_stat(pid: int) -> ProcStat | None:
    """Return the state and start of process `pid` (proc(5)), or None when there is no such process.

    Raises OSError where no descriptor or memory is left to ask.
    """
    text = _read_small(f"/proc/{pid}/stat")
    # The name stands in parentheses and may hold any byte, so count from the last one.
    fields = text[text.rfind(b")") + 2 :].split()
    return ProcStat(fields[0].decode(), int(fields[19])) if len(fields) > 19 else None


def end_leftovers(slot: Signaller, leader: _Group, guarantee: str) -> str:
    """End everything that the command of `leader`, which is not reaped yet, has started, and return once it is gone.

    Returns what may still run, in words: `guarantee` at best, which is empty where the kernel tells whose a process
    is. Raises nothing: where this program is short of descriptors, that is said in words too.
    """
    if not slot.ends_leftovers:
        return guarantee
    try:
        if last_created() == leader.pid:
            return ""
        leader.signal_group(signal.SIGKILL)
        return _end_all(slot, leader, guarantee)
    except OSError as error:
        leader.signal_group(signal.SIGKILL)
        return f"what the command left running could not be looked for ({error.strerror}); it may still run"


def _end_all(slot: Signaller, leader: _Group, guarantee: str) -> str:
    until, pause = time.monotonic() + _SECONDS, 0.0005
    while True:
        newest = last_created()
        # The numbers since the start as well: a process may be hidden from the list (`hidepid`).
        pids = sorted({*_other_pids(), *_given_out(leader.pid, newest)})
        if slot.signal(pids, signal.SIGKILL) or _group_members(pids, leader.pid):
            if time.monotonic() > until:
                return "processes that the command started could not be ended in two seconds"
            time.sleep(pause)
            pause = min(pause * 2, 0.02)
            leader.signal_group(signal.SIGKILL)
        elif not slot.signal(_newer_than(newest), signal.SIGKILL):
            return guarantee or _why_not_all_are_seen()


def _newer_than(number: int | None) -> Iterator[int]:
    """Yield each number given out after `number`, until there is none; called in the slot's thread, as it signals.

    Nothing with an older number was found. What was started meanwhile is another program's, or a fork that was not
    listed yet: a process that forks and ends, again and again, is older than its successor and younger than any list.
    From number to number it takes microseconds, which such a process needs as well.
    """
    for _ in range(_CHASE):
        newest = last_created()
        if number is None or newest is None or newest == number:
            return
        yield from _given_out(number, newest)
        number = newest


def _given_out(after: int, newest: int | None) -> range:
    """Return the numbers given out since `after`, the last of them where they are many or began again at the first."""
    if newest is None or newest == after:
        return range(0)
    return range(max(after if after < newest else 1, newest - _MOST_NUMBERS) + 1, newest + 1)


def signal_all(slot: Signaller, leader: _Group, signum: int) -> None:
    """Signal the command's process group, and each process that has left it, once each. Raises nothing."""
    leader.signal_group(signum)
    # Without a descriptor to list them with, the leader and its group have to do for now.
    with suppress(OSError):
        slot.signal([pid for pid in _other_pids() if _group_of(pid) != leader.pid], signum)


def last_created() -> int | None:
    """Return the number of the process or thread that was made last on this machine, or None where it is not known.

    It is the last field of `/proc/loadavg`, the last number given out in this PID namespace (proc(5)); a number is not
    given out again before its process is reaped. A stand-in for the file (lxcfs) is not believed.
    """
    if not _is_kernels_own():
        return None
    newest = _read_small("/proc/loadavg").rsplit(None, 1)[-1:]
    return int(newest[0]) if newest and newest[0].isdigit() else None


@lru_cache(maxsize=1)
def _is_kernels_own() -> bool:
    """Return whether `/proc/loadavg` is the kernel's, and not another file system's mounted over it."""
    if sys.platform != "linux":
        return False
    try:
        return os.stat("/proc/loadavg").st_dev == os.stat("/proc/self").st_dev
    except OSError:
        return False


def _why_not_all_are_seen() -> str:
    """Return why processes may have been missed, or nothing."""
    if sys.platform != "linux":
        return ""
    try:
        shown = os.readlink("/proc/self")
    except OSError:
        shown = ""
    if shown == str(os.getpid()):
        return ""
    return "/proc does not show the processes of this PID namespace, so what left the process group may still run"


def _other_pids() -> list[int]:
    """Return the number of every process that can be seen, where the kernel lists them."""
    if sys.platform != "linux":
        return []
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except FileNotFoundError:  # a container without /proc
        return []


def _group_members(pids: Iterable[int], group: int) -> list[int]:
    """Return those of `pids` that are in the process group `group` and not over."""
    members = [pid for pid in pids if _group_of(pid) == group]
    return [pid for pid in members if (stat := proc_stat(pid)) is not None and not stat.is_over]


def _group_of(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except OSError:
        return -1


def _read_small(path: str) -> bytes:
    """Return the start of a file of /proc, or nothing where it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in _SHORT_OF:
            raise
        return b""
    try:
        return os.read(descriptor, 4096)
    except OSError:
        return b""
    finally:
        os.close(descriptor)
