"""Control sockets that this user can reach, and that the sandbox leaves within a confined command's reach.

Reachable is what connect(2) says. The connection is closed at once and nothing is sent; a service that systemd starts
on the first connection is started by it, as it would be by any client.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import sys
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import Final

from wisp.doctor.report import Exposure
from wisp.sandbox.capability import Capability
from wisp.sandbox.sockets import SocketKind, Viewpoint, candidates, socket_kinds

__all__ = ["find_exposed", "is_reachable"]

#: Sockets of one kind that are tried at most: a directory full of them must not hold the doctor up.
_MOST_TRIED: Final = 64
#: What `sun_path` holds (unix(7): 108 bytes with the final NUL on Linux, 104 on macOS).
_MOST_BYTES: Final = 103


def find_exposed(
    capability: Capability,
    *,
    kinds: Iterable[SocketKind] | None = None,
    viewpoint: Viewpoint | None = None,
    environment: Mapping[str, str] | None = None,
) -> tuple[Exposure, ...]:
    """Return the kinds of sockets that can be reached from here and that `capability` does not hold, in table order.

    A socket is counted once, however many names lead to it.
    """
    kinds = socket_kinds() if kinds is None else kinds
    viewpoint = Viewpoint.mine() if viewpoint is None else viewpoint
    environment = os.environ if environment is None else environment
    abstract = () if capability.holds("confine.abstract-sockets") else _abstract_names()
    seen = set[tuple[int, int]]()
    found = list[Exposure]()
    for kind in kinds:
        paths = list[str]()
        is_hidden = kind.hide == "always" and capability.holds("confine.control-sockets")
        if not is_hidden and not capability.holds("confine.unix-sockets"):
            paths += _reachable(candidates(kind, viewpoint, environment), seen)
        matching = (name for name in abstract if any(fnmatchcase(name, pattern) for pattern in kind.abstract))
        paths += [f"@{name}" for name in islice(matching, _MOST_TRIED) if is_reachable("\0" + name)]
        if paths:
            found.append(Exposure(kind.id, kind.name, tuple(paths), kind.allows, kind.closes))
    return tuple(found)


def _reachable(candidates: Iterable[str], seen: set[tuple[int, int]]) -> list[str]:
    """Return the real paths among `candidates` that are sockets and accept a connection; `seen` is added to."""
    found = list[str]()
    sockets = 0
    for candidate in candidates:
        try:
            facts = os.stat(candidate)
        except (OSError, ValueError):
            continue
        identity = (facts.st_dev, facts.st_ino)
        if not stat.S_ISSOCK(facts.st_mode) or identity in seen:
            continue
        seen.add(identity)
        sockets += 1
        if sockets > _MOST_TRIED:
            break
        if is_reachable(candidate):
            found.append(os.path.realpath(candidate))
    return found


def is_reachable(address: str) -> bool:
    """Return whether a Unix socket (a path, or a NUL and an abstract name) accepts a connection from this process.

    Never waits, sends nothing, and closes at once.
    """
    raw = os.fsencode(address)
    if len(raw) > _MOST_BYTES and not address.startswith("\0"):
        return _is_reachable_from_its_directory(address)
    for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET, socket.SOCK_DGRAM):
        try:
            client = socket.socket(socket.AF_UNIX, kind)
        except OSError:
            continue
        with client:
            client.setblocking(False)
            try:
                client.connect(raw)
            except BlockingIOError:
                return True  # its queue is full, which only a listener's can be
            except OSError as error:
                if error.errno != errno.EPROTOTYPE:
                    return False
            else:
                return True
    return False


def _is_reachable_from_its_directory(path: str) -> bool:
    """Reach a path that is too long for an address by a descriptor of its directory, as a command could by chdir."""
    if sys.platform != "linux":
        return False
    directory, name = os.path.split(path)
    try:
        descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        short = f"/proc/self/fd/{descriptor}/{name}"
        return len(os.fsencode(short)) <= _MOST_BYTES and is_reachable(short)
    finally:
        os.close(descriptor)


def _abstract_names() -> tuple[str, ...]:
    """Return the names of abstract sockets in this network namespace; empty where the kernel has none."""
    try:
        lines = Path("/proc/net/unix").read_bytes().splitlines()[1:]
    except OSError:
        return ()
    names = (line.split(None, 7)[7] for line in lines if len(line.split(None, 7)) == 8)
    return tuple(dict.fromkeys(os.fsdecode(name[1:]) for name in names if name.startswith(b"@")))
