"""Control sockets that this user can reach, and that the sandbox leaves within a confined command's reach.

Reachable is what connect(2) says. The connection is closed at once and nothing is sent; a service that systemd starts
on the first connection is started by it, as it would be by any client.
"""

from __future__ import annotations

import errno
import glob
import os
import pwd
import re
import socket
import stat
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import islice, product
from pathlib import Path
from typing import Final, cast

from wisp.doctor.report import Exposure
from wisp.sandbox.capability import Capability
from wisp.sandbox.confinement import user_home

__all__ = ["SocketKind", "Viewpoint", "find_exposed", "is_reachable", "named_paths", "socket_kinds"]

#: Sockets of one kind that are tried at most: a directory full of them must not hold the doctor up.
_MOST_TRIED: Final = 64
#: What `sun_path` holds (unix(7): 108 bytes with the final NUL on Linux, 104 on macOS).
_MOST_BYTES: Final = 103

_DBUS_PATH: Final = re.compile(r"unix:path=([^,;]+)")


@dataclass(frozen=True, slots=True)
class SocketKind:
    """One row of `sockets.toml`."""

    id: str
    name: str
    paths: tuple[str, ...]
    abstract: tuple[str, ...]
    variables: tuple[str, ...]
    allows: str
    closes: str


@dataclass(frozen=True, slots=True)
class Viewpoint:
    """Who looks: each way that a pattern's word may be filled in. For root a word stands for every user's."""

    homes: tuple[str, ...]
    runtimes: tuple[str, ...]
    uids: tuple[str, ...]
    users: tuple[str, ...]

    @classmethod
    def mine(cls) -> Viewpoint:
        """Return the view of this process."""
        uid = os.geteuid()
        runtime = os.environ.get("XDG_RUNTIME_DIR", "")
        home = user_home()
        everyone = uid == 0
        return cls(
            homes=_distinct([home, *(["/root", "/home/*"] if everyone else [])]),
            runtimes=_distinct(
                [
                    *([runtime] if runtime.startswith("/") else []),
                    f"/run/user/{uid}",
                    *(["/run/user/*"] if everyone else []),
                ]
            ),
            uids=("*",) if everyone else (str(uid),),
            users=("*",) if everyone else (_user_name(uid),),
        )

    def expand(self, pattern: str) -> Iterator[str]:
        """Yield `pattern` with its words filled in, every way."""
        words = {"home": self.homes, "runtime": self.runtimes, "uid": self.uids, "user": self.users}
        used = [name for name in words if f"{{{name}}}" in pattern]
        for values in product(*(words[name] for name in used)):
            filled = pattern
            for name, value in zip(used, values, strict=True):
                filled = filled.replace(f"{{{name}}}", value)
            yield filled


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _distinct(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(texts))


@lru_cache(maxsize=1)
def socket_kinds() -> tuple[SocketKind, ...]:
    """Return the table of sockets that the doctor knows."""
    table = tomllib.loads(Path(__file__).with_name("sockets.toml").read_text("utf-8"))
    rows = cast("Sequence[Mapping[str, str | list[str]]]", table["socket"])
    return tuple(
        SocketKind(
            id=str(row["id"]),
            name=str(row["name"]),
            paths=tuple(row["paths"]),
            abstract=tuple(row.get("abstract", ())),
            variables=tuple(row["variables"]),
            allows=str(row["allows"]),
            closes=str(row["closes"]),
        )
        for row in rows
    )


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
        if not capability.holds("confine.unix-sockets"):
            paths += _reachable(_candidates(kind, viewpoint, environment), seen)
        matching = (name for name in abstract if any(fnmatchcase(name, pattern) for pattern in kind.abstract))
        paths += [f"@{name}" for name in islice(matching, _MOST_TRIED) if is_reachable("\0" + name)]
        if paths:
            found.append(Exposure(kind.id, kind.name, tuple(paths), kind.allows, kind.closes))
    return tuple(found)


def _candidates(kind: SocketKind, viewpoint: Viewpoint, environment: Mapping[str, str]) -> Iterator[str]:
    runtime = viewpoint.runtimes[0] if viewpoint.runtimes else ""
    for variable in kind.variables:
        yield from named_paths(environment.get(variable, ""), runtime)
    for pattern in kind.paths:
        for filled in viewpoint.expand(pattern):
            yield from sorted(glob.iglob(filled))


def named_paths(value: str, runtime: str) -> tuple[str, ...]:
    """Return the socket paths that an environment variable's value names; a relative one is below `runtime`."""
    if found := _DBUS_PATH.findall(value):
        return tuple(found)
    path = value.removeprefix("unix://").removeprefix("unix:").partition(",")[0]
    if not path or "://" in path or "=" in path or "\0" in path:
        return ()
    if path.startswith("/"):
        return (path,)
    return (f"{runtime}/{path}",) if runtime and "/" not in path else ()


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
    return _distinct(os.fsdecode(name[1:]) for name in names if name.startswith(b"@"))
