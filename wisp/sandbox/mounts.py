"""What a lane sees of the file system, as options for bubblewrap: values only, in the order in which they are mounted.

All is read-only but the roots. Every directory between a root and a protected path inside it is a mount of its own:
otherwise `mv parent aside; mkdir -p parent/protected` would put another one in its place, which the host then reads.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from wisp.realpath import is_inside

__all__ = ["Plan", "mount_options"]

#: Trees that a lane has of its own; a root below one of them would be another thing inside than outside.
OWN_TREES = ("/proc", "/dev")


@dataclass(frozen=True, slots=True)
class Plan:
    """What is mounted. All are real paths that exist; `roots` are the outermost ones, the next two lie inside them.

    `hidden_files` get an empty device over them and `hidden_directories` an empty read-only directory. With `sealed`
    False nothing outside is read-only: a sandbox with a hole, for proving the probes.
    """

    roots: tuple[str, ...]
    pins: tuple[str, ...] = ()
    protected: tuple[str, ...] = ()
    hidden_files: tuple[str, ...] = ()
    hidden_directories: tuple[str, ...] = ()
    sealed: bool = True


def unmountable_root(roots: Iterable[str]) -> str:
    """Return the first root that no lane can have, or an empty text: a place in a tree that lanes have of their own."""
    for root in roots:
        if is_inside(root, "/dev/shm"):  # noqa: S108 - a directory like any other
            continue
        if any(is_inside(root, tree) for tree in OWN_TREES):
            return root
    return ""


def mount_options(plan: Plan) -> list[str]:
    """Return bubblewrap's options for `plan`; later mounts lie over earlier ones."""
    if not plan.sealed:
        return ["--bind", "/", "/", "--dev-bind", "/dev", "/dev", "--proc", "/proc"]
    is_open = "/" in plan.roots
    options = ["--bind" if is_open else "--ro-bind", "/", "/"]
    options += ["--dev", "/dev", "--perms", "1777", "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]  # noqa: S108
    options += ["--proc", "/proc"]
    # A hidden directory comes first where a root lies in it, and last where it lies in a root.
    around = [path for path in plan.hidden_directories if any(is_inside(root, path) for root in plan.roots)]
    within = [path for path in plan.hidden_directories if path not in around]
    for path in around:  # writable until the roots' own places are made in it
        options += ["--perms", "0755", "--tmpfs", path]
    for path in plan.roots:
        if path != "/":
            options += ["--bind", path, path]
    for path in around:
        options += ["--remount-ro", path]
    return [*options, *_inside(plan, within)]


def _inside(plan: Plan, covers: Iterable[str]) -> list[str]:
    """Return what lies over the roots, and what is hidden elsewhere."""
    options = list[str]()
    for path in sorted(plan.pins):  # a parent before what lies in it
        options += ["--bind", path, path]
    for path in plan.protected:
        options += ["--ro-bind", path, path]
    for path in covers:
        options += _cover(path)
    for path in plan.hidden_files:
        if not any(is_inside(path, cover) for cover in plan.hidden_directories):
            options += ["--ro-bind", "/dev/null", path]
    return options


def _cover(path: str) -> list[str]:
    return ["--perms", "0755", "--tmpfs", path, "--remount-ro", path]
