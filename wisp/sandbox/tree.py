"""A bounded watch of what a command starts, where the kernel does not tell whose a process is.

A process that leaves the command's session is found again only if it was seen while its parent still ran. So the tree
is looked at now and then as long as the command runs. A process is known by its number and the moment of its start:
a number that was given to another process is never signalled.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import psutil

__all__ = ["MOST_SEEN", "TreeWatch"]

#: How many living processes are remembered; beyond that, what is new is not followed.
MOST_SEEN: Final = 4096
#: Seconds until the first look, and between two at most: they get rarer, as most commands are short.
_FIRST: Final = 0.005
_LONGEST: Final = 0.25
#: Seconds in which all that was seen has to be gone after KILL.
_DEATH: Final = 2.0


class TreeWatch:
    """What the process `leader` started, as far as it was seen: `leader` is a session leader that is not reaped yet.

    `most` bounds what is remembered. Safe to use from several threads.
    """

    def __init__(self, leader: int, *, most: int = MOST_SEEN) -> None:
        self._leader_pid: Final = leader
        self._leader = _process(leader)
        self._most = most
        self._lock = threading.Lock()
        self._seen: dict[int, psutil.Process] = {}
        #: Numbers of processes that are not the command's, while they are in use: not looked at again.
        self._foreign: set[int] = {os.getpid(), leader}
        self._over = threading.Event()
        #: Why processes may have been missed beyond what a watch always misses, or nothing.
        self.missed = ""

    def start(self) -> None:
        """Look at the tree from now on, in a thread, until `stop` or the leader's end."""
        try:
            threading.Thread(target=self._watch, name=f"wisp-tree-{self._leader_pid}", daemon=True).start()
        except RuntimeError:
            self.missed = "no thread could be started to watch what the command starts"

    def stop(self) -> None:
        """Look no more."""
        self._over.set()

    def _watch(self) -> None:
        pause = _FIRST
        while not self._over.wait(pause) and self._is_led():
            self.look()
            pause = min(pause * 2, _LONGEST)

    def _is_led(self) -> bool:
        """Return whether the leader's number, which is its session's too, is still its own."""
        return self._leader is not None and self._leader.is_running()

    def look(self) -> None:
        """Remember what the command has started since the last look. Raises nothing."""
        import psutil  # noqa: PLC0415

        with self._lock, suppress(psutil.Error, OSError):
            self._forget_the_dead()
            listed = set(psutil.pids())
            self._foreign &= listed
            new = dict(self._candidates(listed - self._foreign - self._seen.keys()))
            while self._adopt(new):
                pass
            self._foreign.update(new)

    def _forget_the_dead(self) -> None:
        for pid in [pid for pid, process in self._seen.items() if not _is_alive(process)]:
            del self._seen[pid]

    def _candidates(self, pids: set[int]) -> Iterator[tuple[int, tuple[psutil.Process, int]]]:
        """Yield each process of `pids` by its number, with its parent's; the leader's where it is in its session."""
        import psutil  # noqa: PLC0415

        for pid in pids - {0, 1}:
            process = _process(pid)
            if process is None:
                continue
            try:
                parent = self._leader_pid if os.getsid(pid) == self._leader_pid else process.ppid()
            except (psutil.Error, OSError):
                continue
            if _is_alive(process):  # else what was said may be another's
                yield pid, (process, parent)

    def _adopt(self, new: dict[int, tuple[psutil.Process, int]]) -> bool:
        """Take over from `new` what the leader, or a process that was seen, started; return whether there was any."""
        found = [pid for pid, (_process, parent) in new.items() if self._is_ours(parent)]
        for pid in found:
            process, _parent = new.pop(pid)
            if len(self._seen) < self._most:
                self._seen[pid] = process
            else:
                self.missed = f"the command started more than {self._most} processes, which is more than are watched"
        return bool(found)

    def _is_ours(self, parent: int) -> bool:
        """Return whether the number `parent` belonged to the command when it was read.

        It did, if the process that is known by it still runs.
        """
        if parent == self._leader_pid:
            return self._is_led()
        known = self._seen.get(parent)
        return known is not None and known.is_running()

    def signal(self, signum: int, *, spared_group: int = 0) -> int:
        """Signal each process that was seen and still runs, but for those in `spared_group`; return how many."""
        import psutil  # noqa: PLC0415

        reached = 0
        with self._lock:
            for pid, process in list(self._seen.items()):
                with suppress(psutil.Error, OSError):
                    if not _is_alive(process) or (spared_group and os.getpgid(pid) == spared_group):
                        continue
                    process.send_signal(signum)  # psutil compares the start once more
                    reached += 1
        return reached

    def end(self, kill_group: Callable[[], None]) -> str:
        """End all that was seen, and return once it is gone: nothing, or what could not be ended, in words.

        `kill_group` kills the command's process group.
        """
        self.stop()
        until, pause = time.monotonic() + _DEATH, 0.0005
        while True:
            kill_group()
            self.look()
            if not self.signal(signal.SIGKILL):
                return self.missed
            if time.monotonic() > until:
                return "processes that the command started could not be ended in two seconds"
            time.sleep(pause)
            pause = min(pause * 2, 0.01)


def _process(pid: int) -> psutil.Process | None:
    """Return process `pid` as it is now, or None when there is none."""
    import psutil  # noqa: PLC0415

    try:
        return psutil.Process(pid)
    except (psutil.Error, OSError):
        return None


def _is_alive(process: psutil.Process) -> bool:
    """Return whether it is still that process, and more of it than its entry is left."""
    import psutil  # noqa: PLC0415

    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, OSError):
        return False
