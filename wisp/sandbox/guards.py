"""The presets of `sandbox.protectedPaths`: names that stand for what in a project acts without being asked for.

The rows are in `guards.toml`, each with its reason. Here is where they lie for one project: git's part of them is
wherever its git directory is, which for a linked work tree or a submodule is elsewhere.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final, Literal

from wisp.config import PRESETS

__all__ = ["GuardRow", "guard_rows", "guarded_paths"]

#: A `.git` file or a `commondir` holds one path; what is longer is none.
_MOST_BYTES: Final = 64 * 1024
_LEADS_TO: Final = b"gitdir: "


@dataclass(frozen=True, slots=True)
class GuardRow:
    """One row of `guards.toml`: `path` in `place`, its kind, and whether its name is held where it is absent."""

    place: Literal["project", "git", "common"]
    path: str
    kind: Literal["directory", "file"]
    held_absent: bool
    why: str


@lru_cache(maxsize=1)
def guard_rows() -> tuple[GuardRow, ...]:
    """Return the rows of the preset `guard-project`."""
    import tomllib  # noqa: PLC0415

    table = tomllib.loads(Path(__file__).with_name("guards.toml").read_text(encoding="utf-8"))
    return tuple(
        GuardRow(row["in"], row["path"], row["kind"], held_absent=row["absent"] == "held", why=row["why"])
        for row in table["row"]
    )


def guarded_paths(preset: str, directory: str) -> tuple[str, ...]:
    """Return what `preset` protects for a project in `directory`, an absolute path.

    The paths are not resolved: whoever protects them has to see the links on their way. Nothing of git's is among
    them where there is no `.git`, so that `git init` works.
    """
    if preset not in PRESETS:
        raise ValueError(f"there is no preset {preset!r}")
    places: dict[str, str] = {"project": directory}
    found = list[str]()
    marker = os.path.join(directory, ".git")
    if os.path.lexists(marker):
        git = marker
        if not os.path.isdir(marker):  # it leads to the git directory, so whoever may write it leads elsewhere
            found.append(marker)
            git = _led_to(marker, _LEADS_TO, directory)
        if git:
            places |= {"git": git, "common": _led_to(os.path.join(git, "commondir"), b"", git) or git}
    found += _paths_in(places)
    return tuple(dict.fromkeys(found))


def _paths_in(places: dict[str, str]) -> Iterator[str]:
    for row in guard_rows():
        if row.place in places:
            path = os.path.join(places[row.place], row.path)
            if row.held_absent or os.path.lexists(path):
                yield path


def _led_to(path: str, prefix: bytes, base: str) -> str:
    """Return the path that the file `path` holds behind `prefix`, seen from `base`; empty where it holds none.

    Read byte for byte as git does: a command may have written it so that two readers differ.
    """
    try:
        # NONBLOCK: a command may have left a FIFO there.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return ""
        text = os.read(descriptor, _MOST_BYTES)
    except OSError:
        return ""
    finally:
        os.close(descriptor)
    if not text.startswith(prefix):
        return ""
    target, _, _ = text[len(prefix) :].rstrip(b"\r\n").partition(b"\0")
    return os.path.join(base, os.fsdecode(target)) if target else ""
