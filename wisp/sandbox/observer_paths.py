"""Where the paths of an observed call lead: resolved from here as the kernel resolves them for who made the call.

The caller may live in a mount namespace where the same names lie at the same places (a lane), but `/proc` and `/dev`
are its own. What cannot be followed from here, and what would be an error anyway, is `None`: the layers beneath decide.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import Final, Protocol

__all__ = [
    "Looks",
    "NestedNumbers",
    "Resolver",
    "Unreadable",
    "descriptor_path",
    "directory_path",
    "has_own_root",
    "is_directory",
    "is_elsewhere",
    "is_nested",
    "status_of",
]

#: The longest chain of links that Linux follows.
_MOST_LINKS: Final = 40

_DELETED: Final = " (deleted)"


class Unreadable(Exception):
    """Something of the caller could not be read: it hides (PR_SET_DUMPABLE), or it is gone."""


class NestedNumbers(Exception):
    """A number under /proc that was written inside another PID namespace: it says nothing here."""


class Looks(Protocol):
    """`Kernel.look`: 0, or an errno, ELOOP for a path with a symbolic link."""

    def __call__(self, path: str, *, follow: bool) -> int:
        """Return what the kernel says of `path`."""
        ...


class Resolver:
    """Resolves paths; `look` is the quick way, right for paths without a link."""

    def __init__(self, look: Looks) -> None:
        self._look: Final = look

    def resolve(self, thread: int, path: str, *, follow: bool, root: str = "") -> tuple[str, bool] | None:
        """Return the real path of `path` for the thread `thread`, and whether something is there.

        `path` is absolute, or seen from `root`, where absolute links and `..` end (RESOLVE_IN_ROOT). `follow`:
        through a link at its end. None where the call is an error anyway: a directory on the way is missing.
        """
        flat = os.path.normpath(path)
        if flat.startswith("//"):
            flat = flat[1:]
        if not root and not _is_special(flat):
            code = self._look(path, follow=follow)
            if code == 0:
                return flat, True
            if code == errno.ENOENT:
                return self._new(thread, path, flat, follow=follow)
            if code in {errno.ENOTDIR, errno.EACCES, errno.ENAMETOOLONG}:
                return None
        return _walk(thread, path, follow=follow, root=root)

    def _new(self, thread: int, path: str, flat: str, *, follow: bool) -> tuple[str, bool] | None:
        """Return where something new would be, or None where its directory is missing as well."""
        parent, _slash, name = path.rstrip("/").rpartition("/")
        if name in {"", ".", ".."}:
            return None
        code = self._look(parent or "/", follow=True)
        if code == 0:
            return flat, False
        return _walk(thread, path, follow=follow, root="") if code == errno.ELOOP else None


def _is_special(flat: str) -> bool:
    return flat.startswith(("/proc", "/dev")) and flat.split("/", 2)[1] in {"proc", "dev"}


def _walk(thread: int, path: str, *, follow: bool, root: str) -> tuple[str, bool] | None:
    """Resolve `path` name by name; `/proc/self` is the caller's."""
    pending = _names(path.rstrip("/"))
    follow = follow or path.endswith("/")
    here, links = root, 0
    while pending:
        name = pending.pop()
        if name in {".", ".."}:
            if not os.path.isdir(here or "/"):
                return None
            here = here if name == "." or here == root else os.path.dirname(here).rstrip("/")
            continue
        step = f"{here}/{name}" if here != "/proc" else _in_proc(thread, name)
        if not pending and not follow:
            return step, os.path.lexists(step)
        try:
            target = os.readlink(step)
        except OSError as error:
            if error.errno == errno.EINVAL:  # no link
                here = step
                continue
            return (step, False) if error.errno == errno.ENOENT and not pending else None
        links += 1
        # What /proc gives for something that has no name: `pipe:[7]`, `/x (deleted)`.
        if links > _MOST_LINKS or not target or (here.startswith("/proc/") and _is_nameless(target)):
            return None
        pending += _names(target)
        if target.startswith("/"):
            here = root
    return None if path.endswith("/") and not os.path.isdir(here or "/") else (here or "/", True)


def _in_proc(thread: int, name: str) -> str:
    """Return where `name` in the caller's /proc is in this one; raises NestedNumbers."""
    if name == "self":
        return f"/proc/{thread}"
    if name == "thread-self":
        return f"/proc/{thread}/task/{thread}"
    if name.isdigit() and is_nested(thread):
        raise NestedNumbers
    return f"/proc/{name}"


def _names(path: str) -> list[str]:
    """Return the names in `path`, the last one first; what ends with a slash is a directory, so `.` follows it."""
    names = [name for name in reversed(path.split("/")) if name]
    return [".", *names] if path.endswith("/") else names


def _is_nameless(target: str) -> bool:
    if not target.startswith("/") or target.startswith("/memfd:"):
        # A relative one is a link that /proc has of its own: `self/mounts`.
        return ":" in target
    return target.endswith(_DELETED) and not os.path.lexists(target)


def descriptor_path(thread: int, descriptor: int) -> str | None:
    """Return what a thread's descriptor leads to, None where that has no name or there is none; raises Unreadable."""
    return _proc_path(f"/proc/{thread}/fd/{descriptor}")


def directory_path(thread: int) -> str | None:
    """Return a thread's working directory, None where it was removed; raises Unreadable."""
    return _proc_path(f"/proc/{thread}/cwd")


def _proc_path(link: str) -> str | None:
    try:
        found = os.readlink(link)
    except FileNotFoundError:
        return None
    except OSError:
        raise Unreadable from None
    return None if not found.startswith("/") or _is_nameless(found) else found


def is_nested(thread: int) -> bool:
    """Return whether a thread has a number of its own in a PID namespace below this one; raises Unreadable."""
    return len(status_of(thread, "NSpid")) > 1


def status_of(thread: int, name: str) -> tuple[int, ...]:
    """Return the numbers that `/proc/PID/status` gives under `name`; raises Unreadable."""
    try:
        with open(f"/proc/{thread}/status", "rb") as status:
            for line in status:
                if line.startswith(name.encode() + b":"):
                    return tuple(map(int, line.split()[1:]))
    except OSError:
        raise Unreadable from None
    return ()


def is_elsewhere(thread: int) -> bool:
    """Return whether a thread has a mount namespace of its own; raises Unreadable."""
    try:
        return os.readlink(f"/proc/{thread}/ns/mnt") != os.readlink("/proc/self/ns/mnt")
    except OSError:
        raise Unreadable from None


def has_own_root(thread: int) -> bool:
    """Return whether absolute paths mean something else to a thread (chroot); raises Unreadable."""
    try:
        return os.readlink(f"/proc/{thread}/root") != "/"
    except OSError:
        raise Unreadable from None


def is_directory(path: str) -> bool:
    """Return whether there is a directory, or a link to none, at the real path `path`."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False
