"""Signals: whether the process that a call means is one that the command may reach.

A command in a PID namespace of its own cannot name a process outside; that it tried is certain only for a number that
cannot have been one inside.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from wisp.sandbox.observed import Observed
from wisp.sandbox.observer_paths import Unreadable, is_nested

__all__ = ["refused_signal"]

#: How many processes may have come and gone since the newest one that is still there.
_NEAR: Final = 256


def refused_signal(
    call: Observed, arguments: tuple[int, ...], thread: int, may_signal: Callable[[int], bool] | None
) -> str | None:
    """Return the number that a refused signal was for, as the command wrote it; None where the call goes on.

    `may_signal` judges a number of this process's own PID namespace. Raises Unreadable.
    """
    if call.kind == "descriptor-signal":
        return _behind_descriptor(arguments[0] & 0xFFFFFFFF, thread, may_signal)
    number = _signed(arguments[0])
    if call.name == "tgkill" and number <= 0:
        return None
    if number in {0, -1}:  # its own group; all that it may reach
        return None
    pid = abs(number)
    if is_nested(thread):
        refused = _can_reach(pid) and _was_never_inside(pid, thread)
    else:
        refused = may_signal is not None and _can_reach(pid) and not may_signal(pid)
    return str(number) if refused else None


def _signed(value: int) -> int:
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def _behind_descriptor(descriptor: int, thread: int, may_signal: Callable[[int], bool] | None) -> str | None:
    """Judge the process that a pidfd holds; inside a namespace of its own there are only its own."""
    if may_signal is None or is_nested(thread):
        return None
    try:
        with open(f"/proc/{thread}/fdinfo/{descriptor}", "rb") as facts:
            pid = next((int(line[4:]) for line in facts if line.startswith(b"Pid:")), 0)
    except FileNotFoundError:
        return None
    except OSError:
        raise Unreadable from None
    return str(pid) if pid > 0 and _can_reach(pid) and not may_signal(pid) else None


def _was_never_inside(pid: int, thread: int) -> bool:
    """Return whether no process in the thread's PID namespace can have had the number `pid`.

    Numbers are given in turn. One near the highest in use, or below it, may be a process that has just ended, and then
    the kernel's ESRCH is the right answer.
    """
    inside = f"/proc/{thread}/root/proc"
    try:
        # Its own /proc, if this process has no number in it.
        os.readlink(f"{inside}/self")
    except FileNotFoundError:
        pass
    except OSError:
        raise Unreadable from None
    else:
        return False
    try:
        numbers = [int(name) for name in os.listdir(inside) if name.isdigit()]
    except OSError:
        raise Unreadable from None
    if not numbers or os.path.exists(f"{inside}/{pid}"):
        return False
    return pid > max(numbers) + _NEAR


def _can_reach(pid: int) -> bool:
    """Return whether this process itself could signal `pid`."""
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True
