"""What an observed call asks for, and whether the confinement refuses it.

A refusal is given only where it is certain. Whatever is allowed, would be an error without a sandbox as well, or cannot
be read goes on: the layers beneath decide, and the error stays what it would have been.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from wisp.outcome import Operation
from wisp.realpath import is_inside
from wisp.sandbox.confinement import DEVICE_TREES, DEVICES
from wisp.sandbox.observed import TERMINAL_IOCTLS, Machine, Observed, Place
from wisp.sandbox.observer_paths import (
    Looks,
    NestedNumbers,
    Resolver,
    Unreadable,
    descriptor_path,
    directory_path,
    has_own_root,
    is_directory,
    is_elsewhere,
)
from wisp.sandbox.observer_signals import refused_signal

if TYPE_CHECKING:
    from wisp.sandbox.confinement import Confinement

__all__ = ["Judge", "Memory", "Refused", "always_refused"]

_AT_FDCWD: Final = -100
_AT_SYMLINK_NOFOLLOW, _AT_REMOVEDIR, _AT_SYMLINK_FOLLOW, _AT_EMPTY_PATH = 0x100, 0x200, 0x400, 0x1000
_O_TMPFILE, _O_PATH = 0o20000000, 0o10000000
_RESOLVE_IN_ROOT: Final = 0x10
_RENAME_NOREPLACE: Final = 1
#: Calls that take a null pointer for a path: then the descriptor itself is meant.
_NULL_IS_DESCRIPTOR: Final = frozenset({"utimensat", "futimesat"})

_FAMILIES: Final = {2: "inet", 10: "inet6", 16: "netlink", 17: "packet", 40: "vsock"}
_TYPES: Final = {1: "stream", 2: "dgram", 3: "raw", 4: "rdm", 5: "seqpacket"}

#: `sun_path` in `struct sockaddr_un`, and the size of the whole.
_SUN_PATH, _MOST_ADDRESS = 2, 110


class Refused(NamedTuple):
    """What is refused, where, and with which error: one for each path of a call that the confinement does not allow."""

    operation: Operation
    target: str
    error: int = errno.EPERM


class _Found(NamedTuple):
    """Where a call names a file: its real path, whether something is there, whether the path began with `/`."""

    path: str
    exists: bool
    is_absolute: bool = False


class Memory(Protocol):
    """The parts of `Kernel` that a judgement needs."""

    def read(self, thread: int, address: int, size: int) -> bytes | None:
        """Return bytes of a thread's memory."""
        ...

    def read_text(self, thread: int, address: int) -> bytes | None:
        """Return a text of a thread's memory."""
        ...

    @property
    def look(self) -> Looks:
        """Look where a path leads, see `Kernel.look`."""
        ...


def always_refused(call: Observed, arguments: tuple[int, ...]) -> bool:
    """Return whether a call is refused whatever its memory holds: its registers, or its number, say enough."""
    if call.kind == "ioctl":
        return arguments[1] & 0xFFFFFFFF in TERMINAL_IOCTLS
    return call.kind in {"socket", "mount"}


class Judge:
    """Judges calls by one confinement. Used by one thread.

    `may_signal` says whether a command may signal a process of its own PID namespace, `is_hidden` whether a socket is
    none of a command's business; without them neither is ever refused.
    """

    def __init__(
        self,
        confinement: Confinement,
        memory: Memory,
        machine: Machine,
        *,
        may_signal: Callable[[int], bool] | None = None,
        is_hidden: Callable[[str], bool] | None = None,
    ) -> None:
        self._memory = memory
        self._machine = machine
        self._resolver = Resolver(memory.look)
        self._may_signal, self._is_hidden = may_signal, is_hidden
        self._protected = confinement.protected
        self._outermost = frozenset(confinement.outermost_roots())
        # The same as `Confinement.allows_write`, in two comparisons.
        self._roots = frozenset(confinement.roots)
        self._guarded = frozenset(confinement.protected)
        self._beneath_roots = tuple(_beneath(root) for root in confinement.roots)
        self._beneath_guarded = tuple(_beneath(path) for path in confinement.protected)

    def refusals(self, call: Observed, arguments: tuple[int, ...], thread: int) -> tuple[Refused, ...]:
        """Return what of `call` is refused, nothing where it goes on. Raises Unreadable."""
        match call.kind:
            case "path":
                return self._paths(call, arguments, thread)
            case "open":
                return self._open(call, arguments, thread)
            case "descriptor":
                return self._descriptor(call.operation, thread, _int(arguments[0]))
            case "ioctl":
                if always_refused(call, arguments):
                    return (Refused("terminal", _or_empty(thread, _int(arguments[0]))),)
                return self._descriptor("flags", thread, _int(arguments[0]))
            case "socket":
                return (Refused("socket", socket_target(arguments)),)
            case "bind" | "connect":
                return self._address(call, arguments, thread)
            case "signal" | "descriptor-signal":
                target = refused_signal(call, arguments, thread, self._may_signal)
                return () if target is None else (Refused("signal", target),)
            case "mount":
                return (Refused("mount", self._mount_target(call.places[0], arguments, thread)),)

    def allows(self, path: str) -> bool:
        """Return whether the confinement allows a write at the real path `path`."""
        if path in self._guarded or path.startswith(self._beneath_guarded):
            return False
        return path.startswith(self._beneath_roots) or path in self._roots

    def _paths(self, call: Observed, arguments: tuple[int, ...], thread: int) -> tuple[Refused, ...]:
        places: list[_Found] = []
        is_suspect = False
        for place in call.places:
            found = self._find(call.name, place, arguments, thread)
            if found is None:
                return ()
            places.append(found)
            is_suspect = is_suspect or not self.allows(found.path) or self._is_pinned(call.operation, found.path)
        if not is_suspect or _fails_anyway(call, places, arguments):
            return ()
        refused = [one for one in places if self._is_refused(thread, one, call.operation)]
        if call.operation == "link" and refused == places[:1]:
            # What every layer says to a link from outside; tools copy instead for this error and for no other.
            return (Refused("link", refused[0].path, errno.EXDEV),)
        return tuple(Refused(call.operation, one.path) for one in refused)

    def _find(
        self,
        name: str,
        place: Place,
        arguments: tuple[int, ...],
        thread: int,
        *,
        nofollow: bool = False,
        root: bool = False,
    ) -> _Found | None:
        """Return what is at `place`; None where the call goes on. `root`: an absolute path is seen from there too."""
        flags = _int(arguments[place.flags]) if place.flags >= 0 else 0
        directory = _int(arguments[place.directory]) if place.directory >= 0 else _AT_FDCWD
        if arguments[place.path] == 0 and (name in _NULL_IS_DESCRIPTOR or flags & _AT_EMPTY_PATH):
            text = ""
        else:
            read = self._memory.read_text(thread, arguments[place.path])
            if read is None:
                raise Unreadable
            if not read and not flags & _AT_EMPTY_PATH:
                return None
            text = os.fsdecode(read)
        follow = not nofollow and _follows(place, flags)
        if text.startswith("/") and not root:
            return self._resolve(thread, text, follow=follow, is_absolute=True)
        here = directory_path(thread) if directory == _AT_FDCWD else descriptor_path(thread, directory)
        if here is None:
            return None
        if not text:
            return _Found(here, exists=True)
        if root:
            return self._resolve(thread, text, follow=follow, root=here)
        return self._resolve(thread, f"{here}/{text}", follow=follow)

    def _resolve(
        self, thread: int, path: str, *, follow: bool, root: str = "", is_absolute: bool = False
    ) -> _Found | None:
        try:
            found = self._resolver.resolve(thread, path, follow=follow, root=root)
        except NestedNumbers:
            return None
        return None if found is None else _Found(*found, is_absolute)

    def _open(self, call: Observed, arguments: tuple[int, ...], thread: int) -> tuple[Refused, ...]:
        in_root = False
        if call.number >= 0:
            flags = arguments[call.number]
        elif call.name == "creat":
            flags = os.O_CREAT | os.O_WRONLY | os.O_TRUNC
        else:
            how = self._memory.read(thread, arguments[2], 24)
            if how is None or len(how) < 24:
                raise Unreadable
            flags, _mode, resolve = struct.unpack("<3Q", how)
            in_root = bool(resolve & _RESOLVE_IN_ROOT)
        unnamed = flags & _O_TMPFILE
        creates = flags & os.O_CREAT and not unnamed
        writes = flags & (os.O_ACCMODE | os.O_TRUNC) or unnamed
        if flags & _O_PATH or not (creates or writes):
            return ()
        alone = creates and flags & os.O_EXCL
        nofollow = bool(alone or flags & self._machine.flags.nofollow)
        found = self._find(call.name, call.places[0], arguments, thread, nofollow=nofollow, root=in_root)
        if found is None or self.allows(found.path):
            return ()
        if found.exists:
            facts = _lstat(found.path)
            if alone or not writes or facts is None or stat.S_ISLNK(facts.st_mode):
                return ()
            if stat.S_ISDIR(facts.st_mode) != bool(unnamed) or not _may_write(found.path):
                return ()
        elif not creates or not _may_change(os.path.dirname(found.path)):
            return ()
        operation: Operation = "write" if found.exists and not unnamed else "create"
        return (Refused(operation, found.path),) if self._is_refused(thread, found, operation) else ()

    def _descriptor(self, operation: Operation, thread: int, descriptor: int) -> tuple[Refused, ...]:
        path = descriptor_path(thread, descriptor)
        if path is None or self.allows(path) or not _may_set(operation, path):
            return ()
        return (Refused(operation, path),) if self._is_refused(thread, _Found(path, exists=True), operation) else ()

    def _address(self, call: Observed, arguments: tuple[int, ...], thread: int) -> tuple[Refused, ...]:
        """Judge the path of a Unix socket; nothing else is certain by an address."""
        size = min(_int(arguments[call.number + 1]), _MOST_ADDRESS)
        if size <= _SUN_PATH or (call.kind == "connect" and self._is_hidden is None):
            return ()
        address = self._memory.read(thread, arguments[call.number], size)
        if address is None:
            raise Unreadable
        text = os.fsdecode(address[_SUN_PATH:].split(b"\0", 1)[0])
        if int.from_bytes(address[:_SUN_PATH], "little") != socket.AF_UNIX or not text:  # or an abstract one
            return ()
        here = "" if text.startswith("/") else directory_path(thread)
        if here is None:
            return ()
        connects = call.kind == "connect"
        found = self._resolve(thread, f"{here}/{text}" if here else text, follow=connects, is_absolute=not here)
        if found is None or found.exists != connects:
            return ()
        if connects:
            return (
                (Refused("connect", found.path),) if self._is_hidden is not None and self._is_hidden(found.path) else ()
            )
        if self.allows(found.path) or not _may_change(os.path.dirname(found.path)):
            return ()
        return (Refused(call.operation, found.path),) if self._is_refused(thread, found, call.operation) else ()

    def _mount_target(self, place: Place, arguments: tuple[int, ...], thread: int) -> str:
        """Return where something was to be mounted, nothing where that cannot be read."""
        try:
            found = self._find("", place, arguments, thread)
        except Unreadable:
            return ""
        return "" if found is None else found.path

    def _is_refused(self, thread: int, found: _Found, operation: Operation) -> bool:
        """Return whether a real path that may be refused is: not a device, and not another thing over there."""
        path = found.path
        if self.allows(path) and not self._is_pinned(operation, path):
            return False
        if path in DEVICES or any(is_inside(path, tree) for tree in DEVICE_TREES):
            return False
        if (is_inside(path, "/dev") or is_inside(path, "/proc")) and is_elsewhere(thread):
            return False
        return not (found.is_absolute and has_own_root(thread))

    def _is_pinned(self, operation: Operation, path: str) -> bool:
        """Return whether a directory inside a root stays where it is: a root itself, or above a protected path."""
        if operation not in {"rename", "remove"}:
            return False
        return path in self._outermost or any(guarded.startswith(path + "/") for guarded in self._protected)


def _fails_anyway(call: Observed, places: list[_Found], arguments: tuple[int, ...]) -> bool:
    """Return whether a call is an error without a sandbox too: nothing there, something there, no permission."""
    for place, found in zip(call.places, places, strict=True):
        if (place.presence == "must" and not found.exists) or (place.presence == "must-not" and found.exists):
            return True
        if place.presence == "any" and found.exists and _keeps(call, arguments):
            return True
        if not _may(call.operation, found, is_source=call.operation == "link" and place is call.places[0]):
            return True
    if call.operation == "remove":
        of_directory = call.name == "rmdir" or (call.name == "unlinkat" and arguments[2] & _AT_REMOVEDIR)
        return is_directory(places[0].path) != bool(of_directory)
    return False


def _keeps(call: Observed, arguments: tuple[int, ...]) -> bool:
    """Return whether a rename leaves what is at its target."""
    return call.name == "renameat2" and bool(arguments[4] & _RENAME_NOREPLACE)


def _may(operation: Operation, found: _Found, *, is_source: bool) -> bool:
    """Return whether this user may do `operation` there without a sandbox; `is_source`: something is linked to it."""
    if is_source:
        return not is_directory(found.path)
    if operation in {"create", "remove", "rename", "link"}:
        return _may_change(os.path.dirname(found.path), found.path if found.exists else "")
    if operation == "write":
        return not is_directory(found.path) and _may_write(found.path)
    return _may_set(operation, found.path)


def _beneath(path: str) -> str:
    return path if path == "/" else path + "/"


def _int(value: int) -> int:
    """Return the `int` that the kernel reads from a register."""
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def _follows(place: Place, flags: int) -> bool:
    match place.follow:
        case "always":
            return True
        case "never":
            return False
        case "unless":
            return not flags & _AT_SYMLINK_NOFOLLOW
        case "if":
            return bool(flags & _AT_SYMLINK_FOLLOW)


def _lstat(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except OSError:
        return None


def _may_write(path: str) -> bool:
    return os.access(path, os.W_OK, effective_ids=True)


def _may_change(directory: str, entry: str = "") -> bool:
    """Return whether this user may change the entries of `directory`, and take `entry` away, without a sandbox."""
    if not os.access(directory, os.W_OK | os.X_OK, effective_ids=True):
        return False
    user = os.geteuid()
    facts = _lstat(directory)
    if not entry or user == 0 or facts is None or not facts.st_mode & stat.S_ISVTX or facts.st_uid == user:
        return True
    own = _lstat(entry)
    return own is None or own.st_uid == user


def _may_set(operation: Operation, path: str) -> bool:
    """Return whether this user may change what describes `path`, without a sandbox."""
    user = os.geteuid()
    facts = _lstat(path)
    if user == 0 or facts is None or facts.st_uid == user:
        return True
    return operation in {"times", "attributes"} and _may_write(path)


def _or_empty(thread: int, descriptor: int) -> str:
    try:
        return descriptor_path(thread, descriptor) or ""
    except Unreadable:
        return ""


def socket_target(arguments: tuple[int, ...]) -> str:
    """Return `family/type` of the arguments of socket(2)."""
    family, kind = _int(arguments[0]), arguments[1] & 0xF
    return f"{_FAMILIES.get(family, family)}/{_TYPES.get(kind, kind)}"
