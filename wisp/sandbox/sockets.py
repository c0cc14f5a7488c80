"""Sockets through which another program can be asked to act, and what a lane hides of them.

The table says what each allows. A lane mounts something empty over those that are there; the doctor reports those that
a sandbox leaves within reach.
"""

from __future__ import annotations

import glob
import os
import pwd
import re
import stat
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice, product
from pathlib import Path
from typing import Final, Literal, TypeAlias, cast

from wisp.sandbox.confinement import user_home

__all__ = ["Hidden", "SocketKind", "Viewpoint", "candidates", "hidden_places", "named_paths", "socket_kinds"]

_DBUS_PATH: Final = re.compile(r"unix:path=([^,;]+)")
#: Sockets of one kind that are hidden one by one at most: a directory full of them must not hold a command up.
_MOST_HIDDEN: Final = 64

#: When a lane hides a kind of socket.
Hiding: TypeAlias = Literal["always", "network-off", "never"]


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
    hide: Hiding = "always"
    covers: tuple[str, ...] = ()


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
    """Return the table of sockets, in its order."""
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
            hide=cast("Hiding", row.get("hide", "always")),
            covers=tuple(row.get("covers", ())),
        )
        for row in rows
    )


def candidates(kind: SocketKind, viewpoint: Viewpoint, environment: Mapping[str, str]) -> Iterator[str]:
    """Yield the paths at which sockets of `kind` may lie, by name only; some may be no sockets."""
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


@dataclass(frozen=True, slots=True)
class Hidden:
    """Real paths of what is there now and is to be hidden: socket files, and directories that are covered whole.

    `watched` are directories in which another such socket may appear: their times tell.
    """

    files: tuple[str, ...]
    directories: tuple[str, ...]
    watched: tuple[str, ...]


def hidden_places(
    *,
    network: bool,
    kinds: Iterable[SocketKind] | None = None,
    viewpoint: Viewpoint | None = None,
    environment: Mapping[str, str] | None = None,
) -> Hidden:
    """Return what a lane hides. Never raises for what lies on the disk.

    A mount over a path inside a writable root is fine; one over a directory that holds a root would hide the root, so
    roots are mounted again above it.
    """
    viewpoint = Viewpoint.mine() if viewpoint is None else viewpoint
    environment = os.environ if environment is None else environment
    files, directories = dict[str, None](), dict[str, None]()
    for kind in socket_kinds() if kinds is None else kinds:
        if kind.hide == "never" or (kind.hide == "network-off" and network):
            continue
        for pattern in kind.covers:
            for filled in viewpoint.expand(pattern):
                directories.update((os.path.realpath(path), None) for path in glob.iglob(filled) if os.path.isdir(path))
        sockets = filter(_is_socket, candidates(kind, viewpoint, environment))
        files.update((os.path.realpath(path), None) for path in islice(sockets, _MOST_HIDDEN))
    watched = dict.fromkeys(path for path in ("/run", *viewpoint.runtimes) if os.path.isdir(path))
    return Hidden(tuple(files), tuple(directories), tuple(map(os.path.realpath, watched)))


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False
