"""Roots as the directories that they are: opened, and told from whatever lies at their path later."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable

from wisp.errors import SandboxUnavailable
from wisp.sandbox import syscalls

__all__ = ["identities_of", "open_root"]

#: Errors that say that this program is short of something, and nothing of the path.
_SHORT_OF = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


def open_root(path: str, backend: str) -> int:
    """Return an O_PATH descriptor of the directory whose real path is `path`.

    The path was resolved when the confinement was made. If any part of it leads elsewhere now, somebody replaced it:
    following that would hand a command whatever it points at. Raises SandboxUnavailable (of `backend`) then, and
    OSError where no descriptor is left.
    """
    try:
        descriptor = os.open(path, syscalls.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in _SHORT_OF:
            raise
        raise SandboxUnavailable(
            backend, f"the writable root {path} is no longer the directory it was ({error.strerror})"
        ) from None
    opened = os.readlink(f"/proc/self/fd/{descriptor}")
    if opened != path:
        os.close(descriptor)
        raise SandboxUnavailable(
            backend, f"the writable root {path} now leads to {opened}; start wisp again to confine to that"
        )
    return descriptor


def identities_of(paths: Iterable[str]) -> tuple[tuple[int, int], ...] | None:
    """Return device and inode of what lies at each path, or None when one is gone."""
    found: list[tuple[int, int]] = []
    for path in paths:
        try:
            facts = os.lstat(path)
        except OSError:
            return None
        found.append((facts.st_dev, facts.st_ino))
    return tuple(found)
