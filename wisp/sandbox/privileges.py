"""Linux capabilities: what a confined command may still do as root, cut down before Landlock is applied.

Landlock does not govern what capabilities allow beyond files: under Landlock alone, root changes the hostname, sets
the clock and makes a device node that is the raw disk.
"""

from __future__ import annotations

import os
import threading
from typing import Final

from wisp.sandbox import syscalls

__all__ = ["KEPT_BY_ROOT", "KEPT_WITHOUT_MOUNT", "cut", "is_able_to_mount"]

_CHOWN, _DAC_OVERRIDE, _DAC_READ_SEARCH, _FOWNER, _FSETID, _KILL, _SETGID, _SETUID = range(8)
_SETPCAP: Final = 8
#: CLONE_NEWNS of unshare(2).
_CLONE_NEWNS: Final = 0x00020000
#: The kernel answers EINVAL beyond its last capability; 63 is the highest that the interface can name.
_HIGHEST: Final = 63

#: What work on files inside the roots needs as root: a checkout of another user's, `tar -x`, `su`-like tools.
KEPT_BY_ROOT: Final = frozenset({_CHOWN, _DAC_OVERRIDE, _FOWNER, _FSETID, _KILL, _SETGID, _SETUID})

#: Root without the right to mount (a container) is held by Landlock alone: it may not change the owner, mode or
#: attributes of what is not its own, nor pass over modes to write. Reading stays free.
KEPT_WITHOUT_MOUNT: Final = frozenset({_DAC_READ_SEARCH, _KILL, _SETGID, _SETUID})


def is_able_to_mount() -> bool:
    """Return whether this process may make a mount namespace: tried for real, in a thread that is thrown away."""
    answer: list[bool] = []

    def attempt() -> None:
        try:
            syscalls.unshare(_CLONE_NEWNS)
        except OSError:
            answer.append(False)
        else:
            answer.append(True)

    thread = threading.Thread(target=attempt, name="wisp-probe-mount")
    thread.start()
    thread.join()
    return answer == [True]


def cut(kept: frozenset[int]) -> None:
    """Leave the calling thread, and all that it starts, only the capabilities in `kept` that it has.

    For an ordinary user `kept` is of no meaning: nothing is left. Where the bounding set cannot be cut (no
    CAP_SETPCAP), no_new_privs keeps an exec from gaining beyond the permitted set that is cut here, so the caller must
    set it. Raises OSError.
    """
    _effective, permitted, _inheritable = syscalls.get_capabilities()
    wanted = sum(1 << number for number in kept) if os.geteuid() == 0 else 0
    if permitted >> _SETPCAP & 1:
        for number in range(_HIGHEST + 1):
            held = syscalls.has_bounding(number)
            if held is None:
                break
            if held and not wanted >> number & 1:
                syscalls.drop_bounding(number)
    syscalls.set_capabilities(permitted & wanted)
