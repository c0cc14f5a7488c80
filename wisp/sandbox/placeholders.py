"""Something to mount on where a protected path is absent: an empty directory, taken away again when it is not needed.

A command must not be able to make the path itself. What cannot be mounted on cannot be held, so the directory is made
on the host before the lane, 0700 and by descriptors from the root down, so that nobody leads it elsewhere.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final

from wisp.errors import SandboxUnavailable
from wisp.realpath import is_inside
from wisp.sandbox import syscalls

__all__ = ["Placeholders"]


#: How often a path is looked at that another wisp takes away in the same moment.
_TRIES: Final = 5


class Placeholders:
    """The directories that were made for protected paths inside `roots`, and a lock on each that is used.

    Taking a directory away on the host takes every lane's mount on it away as well. So each user of one holds a shared
    lock on it, and nobody removes it before the last is gone.
    """

    def __init__(self, roots: Sequence[str]) -> None:
        self._roots = roots
        self._made: dict[str, tuple[int, int]] = {}
        self._locks: dict[str, int] = {}
        self._owner = os.getpid()

    def make(self, paths: Iterable[str]) -> None:
        """Make each of `paths` that is absent, with its parents. Raises SandboxUnavailable where one cannot be held."""
        for path in paths:
            if not any(self._is_held(path) for _ in range(_TRIES)):
                raise SandboxUnavailable("bubblewrap", f"the protected path {path} is taken away again and again")

    def _is_held(self, path: str) -> bool:
        """Make `path` if it is absent and lock it; return whether it is still there then."""
        try:
            if not os.path.lexists(path):
                self._make(next(root for root in self._roots if is_inside(path, root)), path)
        except OSError as error:
            raise SandboxUnavailable(
                "bubblewrap",
                f"the protected path {path} is absent, and a placeholder for it cannot be made ({error.strerror})",
            ) from None
        try:
            facts = os.lstat(path)
            if not stat.S_ISDIR(facts.st_mode) or not os.access(path, os.R_OK):
                return True  # only directories are ever made, 0700
            return self._lock(path, facts)
        except FileNotFoundError:
            return False

    def _lock(self, path: str, facts: os.stat_result) -> bool:
        held = self._locks.get(path, -1)
        if held >= 0 and os.path.samestat(os.fstat(held), facts):
            return True
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise SandboxUnavailable(
                "bubblewrap", f"another process holds a lock on the protected path {path}"
            ) from None
        if held >= 0:
            os.close(held)
        self._locks[path] = descriptor
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))

    def _make(self, root: str, path: str) -> None:
        flags = syscalls.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        here = os.open(root, flags)
        try:
            done = root
            for name in os.path.relpath(path, root).split("/"):
                done = os.path.join(done, name)
                try:
                    os.mkdir(name, 0o700, dir_fd=here)
                    facts = os.stat(name, dir_fd=here, follow_symlinks=False)
                    self._made[done] = facts.st_dev, facts.st_ino
                except FileExistsError:
                    pass
                below = os.open(name, flags, dir_fd=here)
                os.close(here)
                here = below
        finally:
            os.close(here)

    def remove(self) -> None:
        """Take away those that are still empty, still the ones that were made, and used by nobody else.

        Nothing is removed in a forked child.
        """
        made, self._made = self._made, {}
        locks, self._locks = self._locks, {}
        try:
            if self._owner == os.getpid():
                for path in sorted(made, key=len, reverse=True):
                    with suppress(OSError):
                        self._remove(path, made[path], locks.get(path, -1))
        finally:
            for descriptor in locks.values():
                os.close(descriptor)

    def _remove(self, path: str, identity: tuple[int, int], lock: int) -> None:
        facts = os.lstat(path)
        if (facts.st_dev, facts.st_ino) != identity:
            return
        if lock >= 0:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.rmdir(path)
