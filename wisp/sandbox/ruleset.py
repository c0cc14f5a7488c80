"""The Landlock rights that wisp handles and the rules that it makes: values only, for threads and lanes alike.

Numbers: the kernel's `uapi/linux/landlock.h`. A right is handled only where the interface version knows it.
"""

from __future__ import annotations

import struct
from typing import Final

from wisp.sandbox.confinement import DEVICES

__all__ = [
    "KNOWN_ABI",
    "LOG_SAME_EXEC_OFF",
    "OLDEST_ABI",
    "attributes",
    "device_rules",
    "file_rights",
    "handled_rights",
    "root_rights",
    "scopes",
]

#: Below this a command could truncate any file, so nothing runs.
OLDEST_ABI: Final = 3
#: The newest interface whose rights wisp knows; a newer kernel is used as this one, never switched on by accident.
KNOWN_ABI: Final = 7

_WRITE_FILE, _REMOVE_DIR, _REMOVE_FILE, _MAKE_CHAR, _MAKE_DIR = 1 << 1, 1 << 4, 1 << 5, 1 << 6, 1 << 7
_MAKE_REG, _MAKE_SOCK, _MAKE_FIFO, _MAKE_BLOCK, _MAKE_SYM = 1 << 8, 1 << 9, 1 << 10, 1 << 11, 1 << 12
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_SCOPE_ABSTRACT_UNIX_SOCKET, _SCOPE_SIGNAL = 1 << 0, 1 << 1

#: Every right that changes something. Reading and running are not handled, so they stay free.
_WRITE_RIGHTS: Final = (
    _WRITE_FILE | _REMOVE_DIR | _REMOVE_FILE | _MAKE_CHAR | _MAKE_DIR | _MAKE_REG | _MAKE_SOCK | _MAKE_FIFO
    | _MAKE_BLOCK | _MAKE_SYM | _REFER | _TRUNCATE
)  # fmt: skip
#: What a device file takes: the rights of directories are EINVAL on it.
_FILE_RIGHTS: Final = _WRITE_FILE | _TRUNCATE | _IOCTL_DEV
#: Withheld everywhere: as root, a device node made inside a root reaches the raw disk.
_NODES: Final = _MAKE_CHAR | _MAKE_BLOCK

#: LANDLOCK_RESTRICT_SELF_LOG_SAME_EXEC_OFF: what wisp itself is refused is wisp asking, not a finding.
LOG_SAME_EXEC_OFF: Final = 1


def handled_rights(abi: int) -> int:
    """Return every right that interface version `abi` can refuse."""
    return _WRITE_RIGHTS | (_IOCTL_DEV if abi >= 5 else 0)


def root_rights(abi: int) -> int:
    """Return what is allowed below a writable root: everything but device nodes and what devices take."""
    return handled_rights(abi) & ~_NODES & ~_IOCTL_DEV


def device_rules(abi: int) -> tuple[tuple[int, str], ...]:
    """Return rights and path of each device node and tree of /dev that every command may write to.

    /dev/fd is not among them: it is the descriptors' own targets that decide.
    """
    handled = handled_rights(abi)
    files = tuple((handled & _FILE_RIGHTS, path) for path in (*DEVICES, "/dev/pts"))
    return (*files, (handled & ~_NODES, "/dev/shm"))  # noqa: S108


def scopes() -> int:
    """Return the scopes that keep signals and abstract sockets within the domain (interface version 6)."""
    return _SCOPE_ABSTRACT_UNIX_SOCKET | _SCOPE_SIGNAL


def file_rights(rights: int) -> int:
    """Return those of `rights` that a rule on a file may hold."""
    return rights & _FILE_RIGHTS


def attributes(handled: int, scoped: int, *, abi: int) -> bytes:
    """Return `struct landlock_ruleset_attr` packed, as long as interface version `abi` knows it."""
    return struct.pack("<QQQ", handled, 0, scoped)[: 8 if abi < 4 else 16 if abi < 6 else 24]
