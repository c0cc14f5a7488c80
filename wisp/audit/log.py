"""Appends records to the audit log: one line, one write, right with several threads and processes.

A write needs no lock: O_APPEND puts each record whole behind the last one, and a file that another process has just
rotated away still is part of the log. Only rotating holds a lock (flock) on the file itself. A lock on an open file
belongs to its open file description: a forked child must open its own, or it would share its parent's.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import stat
import threading
import time
import weakref
from itertools import count
from typing import TYPE_CHECKING, Final

from wisp.audit.names import current_path, rotated_numbers, rotated_path

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType
    from typing import Self

__all__ = ["AuditLog"]

_LOGGER: Final = logging.getLogger("wisp.audit")

_ENCODER: Final = json.JSONEncoder(sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":"))

# RDWR: the last byte is read, to see a torn line. NONBLOCK: a FIFO in the file's place must not hold a command up.
_FLAGS: Final = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY

#: Seconds to wait for the lock. A command can read the log and so can lock it, for as long as it lives: the first
#: wait that fails is the last one, until the lock is free again.
_PATIENCE: Final = 1.0
_PAUSE: Final = 0.0005

#: How often the end of a file that grows is looked at before a newline is put behind it.
_MOST_LOOKS: Final = 20
_LOOK_PAUSE: Final = 0.002

#: How often one record may find that its file was rotated away before it gives up.
_MOST_TRIES: Final = 100


class AuditLog:
    """The audit log in `directory`, which is made when it is missing, and so is wisp's home above it (both 0700).

    A file that would pass `max_file_bytes` is rotated to `audit.1.jsonl` and so on, of which `keep_files` are kept;
    with 0 it is deleted. May be used from several threads, and after a fork; several processes may share a directory,
    and a file may then pass the limit by one record of each.
    """

    def __init__(self, directory: str, *, max_file_bytes: int = 10_485_760, keep_files: int = 5) -> None:
        self.directory = os.path.abspath(directory)
        self.path = current_path(self.directory)
        self._most = max_file_bytes
        self._keep = keep_files
        self._fd = -1
        self._identity = (0, 0)
        self._end = 0
        self._patience = _PATIENCE
        self._mutex = threading.Lock()
        self._said: set[tuple[str, int]] = set()
        self._unsaid: list[str] = []
        _LOGS.add(self)

    def append(self, record: Mapping[str, object]) -> None:
        """Write `record` as one line. Never raises OSError: a failed write goes once per kind to the logger.

        Raises TypeError or ValueError for a record that JSON cannot hold, which is a mistake of the caller's.
        """
        # JSON has no other place for a lone surrogate than inside a text, where this is its escape.
        line = _ENCODER.encode(dict(record)).encode("utf-8", "backslashreplace") + b"\n"
        with self._mutex:
            try:
                self._write(line)
            except OSError as error:
                self._report("a record was lost", error)
            unsaid, self._unsaid = self._unsaid, []
        for message in unsaid:
            _LOGGER.error("%s", message)

    def close(self) -> None:
        """Give the descriptor back. A later `append` opens the file again."""
        with self._mutex:
            self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            self._release()

    def _write(self, line: bytes) -> None:
        """Append `line` to the file that has the log's name now, rotating it first when it is full."""
        for _ in range(_MOST_TRIES):
            fd, info = self._opened()
            if not self._is_named(info) or (self._is_full(info, line) and self._rotate(fd)):
                self._release()
                continue
            try:
                self._put(fd, info.st_size, line)
            except OSError:
                self._release()
                raise
            return
        raise OSError(errno.EAGAIN, "the file is rotated away again and again")

    def _is_full(self, info: os.stat_result, line: bytes) -> bool:
        return info.st_size > 0 and info.st_size + len(line) > self._most

    def _put(self, fd: int, size: int, line: bytes) -> None:
        """Write `line` in one call, on a line of its own even where the last one was torn."""
        if size and size != self._end and _is_torn(fd, size):
            line = b"\n" + line
        written = os.write(fd, line)
        self._end = size + written if written == len(line) else -1
        if written != len(line):
            raise OSError(errno.EIO, f"only {written} of {len(line)} bytes could be written")

    def _opened(self) -> tuple[int, os.stat_result]:
        """Return the descriptor of the log and its facts; opened when there is none. Raises OSError."""
        if self._fd >= 0:
            held = self._facts_if_ours(self._fd)
            if held is not None:
                return self._fd, held
            self._fd = -1
        try:
            fd = _open_above_streams(self.path)
        except FileNotFoundError:
            # Only these two: a log in a place that is not there at all is a mistake, not a wish for directories.
            for missing in (os.path.dirname(self.directory), self.directory):
                if not os.path.isdir(missing):
                    _make_directory(missing)
            fd = _open_above_streams(self.path)
        try:
            info = os.fstat(fd)
            _check_file(info)
            if stat.S_IMODE(info.st_mode) != 0o600:
                self._restrict(fd)
        except OSError:
            os.close(fd)
            raise
        self._fd, self._identity, self._end = fd, (info.st_dev, info.st_ino), -1
        return fd, info

    def _restrict(self, fd: int) -> None:
        """Take the rights of others away. A file system that cannot is reported, and written to all the same."""
        try:
            os.fchmod(fd, 0o600)
        except OSError as error:
            self._report("the file may be open to others", error)

    def _facts_if_ours(self, fd: int) -> os.stat_result | None:
        """Return the facts of `fd` while it is still the file that was opened, else None.

        A program that becomes a daemon closes every descriptor, and the number may be somebody else's by now: then
        it is neither written to nor closed.
        """
        try:
            info = os.fstat(fd)
        except OSError:
            return None
        return info if (info.st_dev, info.st_ino) == self._identity else None

    def _is_named(self, info: os.stat_result) -> bool:
        """Return whether the open file still has the log's name; not so when another process has rotated it."""
        try:
            named = os.lstat(self.path)
        except OSError:
            return False
        return (named.st_dev, named.st_ino) == (info.st_dev, info.st_ino)

    def _lock(self, fd: int) -> bool:
        """Return whether this process alone may rotate the file. Without the lock a record is written, not rotated."""
        deadline = 0.0
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                now = time.monotonic()
                deadline = deadline or now + self._patience
                if now >= deadline:
                    self._patience = 0.0
                    self._report("another process holds the lock; the file is not rotated until it is free", error)
                    return False
                time.sleep(_PAUSE)
            except OSError as error:
                self._report("the file system has no locks; the file is not rotated", error)
                return False
            else:
                self._patience = _PATIENCE
                return True

    def _rotate(self, fd: int) -> bool:
        """Give the full file its next name, unless another process has. Return False where that fails: it grows on."""
        if not self._lock(fd):
            return False
        try:
            return not self._is_named(os.fstat(fd)) or self._shift()
        finally:
            fcntl.flock(fd, fcntl.LOCK_UN)

    def _shift(self) -> bool:
        """Rename the file and the rotated ones, under the lock; say what keeps it from that."""
        try:
            numbers = rotated_numbers(self.directory)
            if self._keep == 0:
                os.unlink(self.path)
            else:
                # Up to the first gap only, so that a rotation cut short by a crash costs no file later.
                free = next(number for number in count(1) if number not in numbers)
                for number in range(min(free, self._keep) - 1, 0, -1):
                    os.rename(rotated_path(self.directory, number), rotated_path(self.directory, number + 1))
                os.rename(self.path, rotated_path(self.directory, 1))
            for number in numbers:
                if number > self._keep:
                    os.unlink(rotated_path(self.directory, number))
        except OSError as error:
            self._report("the file cannot be rotated", error)
            return False
        return True

    def _release(self) -> None:
        """Close the descriptor if it is still the log's."""
        fd, self._fd = self._fd, -1
        if fd >= 0 and self._facts_if_ours(fd) is not None:
            os.close(fd)

    def _report(self, what: str, error: OSError) -> None:
        """Keep a message for the logger, once for each kind. Logging waits until the lock is given back."""
        kind = (what, error.errno or 0)
        if kind not in self._said:
            self._said.add(kind)
            self._unsaid.append(f"audit log {self.path}: {what}: {error.strerror or error}")

    def _forget(self) -> None:
        """In a forked child: leave the parent's descriptor and lock alone, and start anew."""
        self._mutex = threading.Lock()
        self._release()


def _open_above_streams(path: str) -> int:
    """Return a descriptor of the log above 2: where stdout is closed, whatever is printed must not land in the log."""
    fd = os.open(path, _FLAGS, 0o600)
    if fd > 2:
        return fd
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(fd)


def _is_torn(fd: int, size: int) -> bool:
    """Return whether the file ends in the middle of a line that nobody is writing.

    The size grows page by page while another process writes a record, and that process may have to wait for its turn,
    so an unfinished end is looked at for 40 ms before it is called torn.
    """
    for _ in range(_MOST_LOOKS):
        if os.pread(fd, 1, size - 1) == b"\n":
            return False
        time.sleep(_LOOK_PAUSE)
        size = os.fstat(fd).st_size
    return True


def _check_file(info: os.stat_result) -> None:
    """Raise OSError unless the open file is a plain one of this user's."""
    if not stat.S_ISREG(info.st_mode):
        raise OSError(errno.EINVAL, "it is not a plain file")
    if info.st_uid != os.geteuid():
        raise OSError(errno.EPERM, f"it belongs to another user (uid {info.st_uid})")


def _make_directory(path: str) -> None:
    """Make one directory for this user only; another process may have been faster."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        if not os.path.isdir(path):
            raise


_LOGS: Final[weakref.WeakSet[AuditLog]] = weakref.WeakSet()


def _after_fork() -> None:
    for log in list(_LOGS):
        log._forget()  # noqa: SLF001 - one mechanism in two halves


os.register_at_fork(after_in_child=_after_fork)
