"""How the host decides that an action crossed: from effects it can see itself, never from an exit status.

A look is taken before the command and one after it; a sign holds when they differ in the way that it names.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TypeAlias

from wisp.probing.leftovers import carries, is_running
from wisp.probing.probe import Oracle, Probe, Sign
from wisp.probing.standins import StandIns
from wisp.probing.workspace import Workspace

__all__ = ["Before", "look", "signs_missing"]

#: What a look at one path saw; None when there was nothing, or it could not be seen.
_Seen: TypeAlias = object

#: What was seen of each sign's target before the command ran.
Before: TypeAlias = Mapping[Sign, _Seen]

_MOST_BYTES: Final = 1024 * 1024

#: How long a process that was killed may take to be gone: a kill returns before the process has ended.
_GRACE: Final = 0.15

#: How long the file with a process's number may take to appear, in seconds: a row that leaves a chain of processes
#: ends before the chain does.
_APPEARS: Final = 0.5

#: How long (in seconds), and how often, nothing may be seen of a process before it counts as gone. In the middle of
#: an exec a process shows no environment, and on a busy machine that may be all that one look after 60 ms sees.
_UNSEEN: Final = 0.06
_MISSES: Final = 6


def look(probe: Probe, workspace: Workspace) -> Before:
    """Return what each sign's target looks like now, before the command."""
    return {sign: _LOOKS[sign.oracle](workspace.expand(sign.target)) for sign in probe.crossed if sign.oracle in _LOOKS}


def signs_missing(
    probe: Probe, workspace: Workspace, standins: StandIns, before: Before, stdout: str
) -> tuple[Sign, ...]:
    """Return the signs of `probe` that did not show; empty means that the action crossed.

    To be asked when the command is over and before anything that it left is ended. `stdout` is what it printed.
    """
    return tuple(sign for sign in probe.crossed if not _shows(sign, workspace, standins, before, stdout))


def _shows(sign: Sign, workspace: Workspace, standins: StandIns, before: Before, stdout: str) -> bool:
    if sign.oracle == "token":
        return sign.target in stdout
    if sign.oracle == "received":
        return standins.received(sign.target)
    if sign.oracle == "signalled":
        return standins.signalled()
    path = workspace.expand(sign.target)
    if sign.oracle == "alive":
        return _is_alive(Path(path), workspace.mark)
    then, now = before[sign], _LOOKS[sign.oracle](path)
    if sign.oracle == "exists":
        return then is None and now is not None
    if sign.oracle == "absent":
        return then is not None and now is None
    # Something that was not there, or is gone, has not changed its mode: `exists` and `absent` are for that.
    return then is not None and now is not None and then != now


def _is_alive(path: Path, mark: str) -> bool:
    """Return whether the process whose number stands in the file `path` still runs, some time after the command.

    The file is read again each time: a chain of processes may not have written it yet, or names a link that is gone.
    """
    deadline = time.monotonic() + _APPEARS
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    started = last = time.monotonic()
    misses = 0
    while misses < _MISSES or time.monotonic() - last < _UNSEEN:
        if _runs(path, mark):
            last, misses = time.monotonic(), 0
            if last - started > _GRACE:
                return True
        else:
            misses += 1
        time.sleep(0.005)
    return False


def _runs(path: Path, mark: str) -> bool:
    try:
        pid = int(path.read_text())
    except (OSError, ValueError):
        return False
    # Without /proc a number is all there is; with it, the process has to be the row's own and not a namesake.
    return pid > 1 and is_running(pid) and (sys.platform != "linux" or carries(pid, mark))


def _status(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except OSError:
        return None


def _kind(path: str) -> _Seen:
    status = _status(path)
    return None if status is None else stat.S_IFMT(status.st_mode)


def _mode(path: str) -> _Seen:
    status = _status(path)
    return None if status is None else stat.S_IMODE(status.st_mode)


def _owner(path: str) -> _Seen:
    status = _status(path)
    return None if status is None else (status.st_uid, status.st_gid)


def _times(path: str) -> _Seen:
    status = _status(path)
    return None if status is None else status.st_mtime_ns


def _xattr(path: str) -> _Seen:
    if sys.platform != "linux":
        return None
    try:
        names = sorted(os.listxattr(path, follow_symlinks=False))
        return [(name, os.getxattr(path, name, follow_symlinks=False)) for name in names if name.startswith("user.")]
    except OSError:
        return None


def _content(path: str) -> _Seen:
    """Return what a file holds, what a link leads to, or which names a directory has."""
    status = _status(path)
    if status is None:
        return None
    try:
        if stat.S_ISLNK(status.st_mode):
            return os.readlink(path)
        if stat.S_ISDIR(status.st_mode):
            return sorted(os.listdir(path))
        if not stat.S_ISREG(status.st_mode):
            return stat.S_IFMT(status.st_mode)
        # Not blocking: a row may have put a FIFO there since the look at its kind.
        opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(opened, "rb") as stream:
            return status.st_size, hashlib.sha256(stream.read(_MOST_BYTES)).digest()
    except OSError:
        return None


_LOOKS: Final[Mapping[Oracle, Callable[[str], _Seen]]] = {
    "exists": _kind,
    "absent": _kind,
    "content": _content,
    "mode": _mode,
    "owner": _owner,
    "times": _times,
    "xattr": _xattr,
}
