"""Where probes act: one directory per run, outside everything a command may write, gone when the run is.

It is named by the process that made it, `.wisp-probe-PID-START`, and that process holds a lock inside it. What a
killed run leaves is removed by the next one (`sweep`): only directories of this user, whose process is gone and whose
lock is free, and never through a symbolic link.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from wisp.errors import WispError
from wisp.probing import leftovers
from wisp.realpath import is_inside, real
from wisp.sandbox.process import proc_stat

__all__ = ["Place", "abandoned", "choose_place", "open_scratch", "remove_tree", "start_time", "sweep"]

_NAME: Final = re.compile(r"\.wisp-probe-(\d{1,10})-(\d{1,20})(-\d{1,6})?")
_LOCK: Final = "lock"


@dataclass(frozen=True, slots=True)
class Place:
    """The directory that scratch directories are made in; `note` says why it is not the home directory, or is empty."""

    directory: Path
    note: str = ""


def choose_place() -> Place:
    """Return where scratch directories go: the home directory, or `/var/tmp` with the reason.

    Never the temporary directory, which a confinement usually leaves writable: what happened there would prove
    nothing about a write outside the roots.
    """
    home = real(os.path.expanduser("~"))
    temporary = {real("/tmp"), real(tempfile.gettempdir())}  # noqa: S108 - compared with, not written to
    if not Path(home).is_dir():
        why = "the home directory does not exist"
    elif any(is_inside(home, one) for one in temporary):
        why = "the home directory lies in the temporary directory"
    elif not os.access(home, os.W_OK | os.X_OK):
        why = "the home directory is not writable"
    else:
        return Place(Path(home))
    return Place(Path(real("/var/tmp")), f"{why}, so probes act in /var/tmp")  # noqa: S108 - made 0700 by mkdir


def start_time(pid: int) -> int:
    """Return when the process `pid` started, in clock ticks since boot; 0 when there is none, or no `/proc`."""
    found = proc_stat(pid)
    return 0 if found is None else found.started


@contextlib.contextmanager
def open_scratch(place: Place | None = None) -> Iterator[Path]:
    """Make a scratch directory of this process's, mode 0700, and remove it at the end, whatever happened.

    Yields its real path. Raises WispError when it cannot be made.
    """
    chosen = choose_place() if place is None else place
    stem = f".wisp-probe-{os.getpid()}-{start_time(os.getpid()) or int(time.time())}"
    try:
        scratch, lock = _claimed(chosen.directory, stem)
    except OSError as error:
        raise WispError(f"{chosen.directory}: no scratch directory for probes can be made here: {error}") from error
    try:
        yield scratch
    finally:
        leftovers.end_all(scratch.name)
        remove_tree(scratch)
        os.close(lock)


def _claimed(directory: Path, stem: str) -> tuple[Path, int]:
    """Return a fresh directory and the descriptor that holds its lock."""
    for number in range(1000):
        scratch = directory / (f"{stem}-{number}" if number else stem)
        try:
            scratch.mkdir(mode=0o700)
        except FileExistsError:
            continue
        lock = os.open(scratch / _LOCK, os.O_CREAT | os.O_RDWR | os.O_EXCL, 0o600)
        with contextlib.suppress(OSError):  # a file system without locks: the process's name alone has to do
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return scratch, lock
    raise FileExistsError(errno.EEXIST, "every name is taken", str(directory / stem))


def abandoned(place: Place | None = None) -> tuple[str, ...]:
    """Return the names of the scratch directories whose runs are gone, sorted; `sweep` removes them."""
    directory = (choose_place() if place is None else place).directory
    try:
        names = sorted(entry.name for entry in os.scandir(directory) if _NAME.fullmatch(entry.name))
    except OSError:
        return ()
    return tuple(name for name in names if _is_abandoned(directory / name))


def sweep(place: Place | None = None) -> tuple[str, ...]:
    """Remove the scratch directories of runs that are gone, and end what they left running; return their names."""
    chosen = choose_place() if place is None else place
    names = abandoned(chosen)
    for name in names:
        leftovers.end_all(name)
        remove_tree(chosen.directory / name)
    return names


def _is_abandoned(scratch: Path) -> bool:
    found = _NAME.fullmatch(scratch.name)
    try:
        status = scratch.lstat()
    except OSError:
        return False
    if found is None or not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        return False
    pid, started = int(found[1]), int(found[2])
    if start_time(pid) == started or (sys.platform != "linux" and _runs(pid)):
        return False
    # A home directory may be shared with a container, whose processes this one does not see: the lock tells.
    try:
        lock = os.open(scratch / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        # Killed between making the directory and its lock, or a row took the lock file away.
        return time.time() - status.st_mtime > 60
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    else:
        return True
    finally:
        os.close(lock)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def remove_tree(path: Path) -> None:
    """Remove `path` and what is in it, as far as this user can; never raises OSError.

    A row may have taken all modes away, so each directory is made accessible first. No symbolic link is followed (the
    tree is walked by descriptors), and what is mounted inside is left alone.
    """
    with contextlib.suppress(OSError, RecursionError):
        parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            _remove(parent, path.name, path.lstat().st_dev)
        finally:
            os.close(parent)


def _remove(parent: int, name: str, device: int) -> None:
    """Remove `name` in the directory behind the descriptor `parent`."""
    status = os.stat(name, dir_fd=parent, follow_symlinks=False)
    if status.st_dev != device:
        return
    if not stat.S_ISDIR(status.st_mode):
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=parent)
        return
    with contextlib.suppress(OSError):
        _empty(parent, name, device)
    with contextlib.suppress(OSError):
        os.rmdir(name, dir_fd=parent)


def _empty(parent: int, name: str, device: int) -> None:
    try:
        here = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    except PermissionError:
        _give_access(parent, name)
        here = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    try:
        if stat.S_IMODE(os.fstat(here).st_mode) & 0o700 != 0o700:
            os.fchmod(here, 0o700)
        for entry in os.listdir(here):
            with contextlib.suppress(OSError):
                _remove(here, entry, device)
    finally:
        os.close(here)


def _give_access(parent: int, name: str) -> None:
    """Make a directory whose mode was taken away accessible, and only a directory: the name may be a link by now."""
    if sys.platform != "linux":
        os.chmod(name, 0o700, dir_fd=parent, follow_symlinks=False)
        return
    # Linux has no chmod that does not follow links; a descriptor that only names the directory needs no mode bits.
    named = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    try:
        os.chmod(f"/proc/self/fd/{named}", 0o700)
    finally:
        os.close(named)
