"""Ending what a row left running: by what a process is, never by its name, and never everything at once.

Each row's command carries a variable of its own in its environment (`WISP_PROBE`), which its children inherit. Only a
process of this user that carries it is signalled, and only through a descriptor of that very process, so that a number
that was given to another one in between is not hit.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from wisp.sandbox.process import proc_stat

__all__ = ["MARK", "carries", "end_all", "is_running"]

#: The variable that says which run, and which row of it, a process belongs to: `NAME-OF-SCRATCH/ROW`.
MARK: Final = "WISP_PROBE"


def is_running(pid: int) -> bool:
    """Return whether the process `pid` exists and has not ended (a zombie has)."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        pass
    found = proc_stat(pid)
    return sys.platform != "linux" if found is None else not found.is_over


def carries(pid: int, mark: str) -> bool:
    """Return whether the process `pid` belongs to the run or row `mark`; without `/proc` nobody can say, so False."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    said = f"{MARK}={mark}".encode()
    return any(one == said or one.startswith(said + b"/") for one in variables)


def end_all(mark: str, *, seconds: float = 2.0) -> int:
    """Kill every process of this user that belongs to `mark`; return how many it took.

    Repeats until two looks find none, at most `seconds`: a process may start another one in between, and shows no
    environment for the moment in which it changes to another program.
    """
    ended = misses = 0
    deadline = time.monotonic() + seconds
    while sys.platform == "linux" and misses < 2 and time.monotonic() < deadline:
        hit = sum(_end(pid, mark) for pid in _own_processes() if carries(pid, mark))
        ended += hit
        misses = 0 if hit else misses + 1
        time.sleep(0.003)
    return ended


def _own_processes() -> Iterator[int]:
    me = os.getpid()
    for entry in os.scandir("/proc"):
        with contextlib.suppress(OSError, ValueError):
            pid = int(entry.name)
            if pid not in {1, me} and entry.stat(follow_symlinks=False).st_uid == os.geteuid():
                yield pid


def _end(pid: int, mark: str) -> bool:
    if sys.platform != "linux":
        return False
    try:
        process = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        # Asked again now that the descriptor holds the process: before, the number might have changed hands.
        if not is_running(pid) or not carries(pid, mark):
            return False
        signal.pidfd_send_signal(process, signal.SIGKILL)
        return True
    except OSError:
        return False
    finally:
        os.close(process)
