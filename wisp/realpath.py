"""Real paths as each kernel sees them, and which links a path crosses on its way.

A sandbox compares what the kernel resolved, never what was typed: `/tmp` is `/private/tmp` on macOS, a root may be
reached through a link, and `..` leaves the directory that a link led to. Everything here is about names on disk; it
opens nothing and changes nothing.
"""

from __future__ import annotations

import os
import stat
import sys
from typing import Final

__all__ = ["crossed_links", "deepest_existing", "is_inside", "real", "strip_firmlink"]

#: The longest chain of links a kernel follows before ELOOP is 40 on Linux and 32 on macOS.
_MOST_LINKS: Final = 40

_DATA_VOLUME: Final = "/System/Volumes/Data"


def real(path: str | os.PathLike[str], base: str | None = None) -> str:
    """Return the absolute real path of `path`, seen from `base` (the current directory when None).

    The longest prefix that exists is resolved, the rest is kept as it is: a file about to be created has a real path
    too. Trailing slashes are dropped and `/` stays `/`. Never raises: a loop of links is left as it is written, and so
    is a text with a NUL byte, which names nothing to any kernel.
    """
    text = os.fspath(path)
    if not os.path.isabs(text):
        # Not os.path.join with getcwd alone: `..` must be applied after links are resolved, as the kernel does.
        text = os.path.join(os.getcwd() if base is None else base, text)
    resolved = os.path.normpath(text) if "\0" in text else os.path.realpath(text)
    # POSIX lets a leading "//" mean something else; no kernel that wisp runs on gives it another meaning.
    if resolved.startswith("//"):
        resolved = "/" + resolved.lstrip("/")
    return strip_firmlink(resolved) if sys.platform == "darwin" else resolved


def strip_firmlink(path: str) -> str:
    """Return the name that macOS itself uses for `path`: `/Users/x`, never `/System/Volumes/Data/Users/x`.

    Firmlinks join the data volume to the system volume; Seatbelt matches the short name. Pure, so that it is tested
    everywhere.
    """
    if path == _DATA_VOLUME:
        return path
    prefix = _DATA_VOLUME + "/"
    rest = path.removeprefix(prefix)
    return "/" + rest if path.startswith(prefix) else path


def is_inside(path: str, root: str) -> bool:
    """Return whether the real path `path` is the real path `root` or lies under it, name by name.

    `/work/project2` is not inside `/work/project`.
    """
    return path == root or path.startswith("/" if root == "/" else root + "/")


def deepest_existing(path: str) -> str:
    """Return the longest prefix of the absolute path `path` that names something (a dangling link counts)."""
    while path != "/" and not os.path.lexists(path):
        path = os.path.dirname(path)
    return path


def crossed_links(path: str | os.PathLike[str], base: str | None = None) -> tuple[str, ...]:
    """Return the real location of every symbolic link that resolving `path` passes through, in order.

    The location of a link is its parent's real path and its own name: whoever may write in that parent may point the
    link elsewhere. A component that does not exist ends the walk.
    """
    text = os.fspath(path)
    if not os.path.isabs(text):
        text = os.path.join(os.getcwd() if base is None else base, text)
    pending = [part for part in reversed(text.split("/")) if part not in {"", "."}]
    here, found = "/", list[str]()
    while pending:
        part = pending.pop()
        if part == "..":
            here = os.path.dirname(here)
            continue
        step = os.path.join(here, part)
        try:
            mode = os.lstat(step).st_mode
        except OSError:
            break
        if not stat.S_ISLNK(mode):
            here = step
            continue
        found.append(step)
        if len(found) > _MOST_LINKS:
            break
        target = os.readlink(step)
        if target.startswith("/"):
            here = "/"
        pending.extend(part for part in reversed(target.split("/")) if part not in {"", "."})
    return tuple(found)
