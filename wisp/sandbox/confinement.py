"""What a command may do: writable roots, protected paths, network on or off.

A confinement is made once, from where wisp was started and what was configured. A command's own directory never
widens it, and neither does a link that a command may have left behind.
"""

from __future__ import annotations

import os
import pwd
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from wisp.config import PRESETS, home_directory, written_home
from wisp.errors import ConfinementError, DirectoryMissing
from wisp.realpath import crossed_links, is_inside, real

if TYPE_CHECKING:
    from wisp.config import SandboxSettings

__all__ = ["BUILD_CACHES", "DEVICES", "DEVICE_TREES", "Confinement", "current_directory", "user_home"]

#: Device nodes that a command may open for writing, whatever its roots are.
DEVICES: Final = ("/dev/null", "/dev/zero", "/dev/full", "/dev/tty", "/dev/ptmx")

#: Trees under /dev that a command may write in: terminals of its own, shared memory, its own descriptors.
DEVICE_TREES: Final = ("/dev/pts", "/dev/shm", "/dev/fd")  # noqa: S108

#: The default of `sandbox.writablePaths`: those of these that exist. Builds fail without them and a person would
#: only have to add them; what they hold is fetched again when it is lost.
BUILD_CACHES: Final = (
    ("~/Library/Caches",)
    if sys.platform == "darwin"
    else ("~/.gradle/caches", "~/.m2/repository", "~/.npm", "~/go/pkg/mod")
) + ("~/.cargo/registry", "~/.cargo/git")

#: `confstr` name of the per-user cache directory on macOS (<unistd.h>), where clang keeps its module cache.
_CS_DARWIN_USER_CACHE_DIR: Final = 65538

_MISSING: Final = "does not exist"


def user_home() -> str:
    """Return the real path of the user's home directory: `HOME`, or the password database where it is not set."""
    home = os.environ.get("HOME", "")
    if not os.path.isabs(home):
        try:
            home = pwd.getpwuid(os.getuid()).pw_dir
        except KeyError:
            home = "/"
    return real(home, "/")


def current_directory() -> str:
    """Return the directory this process is in; raises DirectoryMissing where it was removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        # A shell says in PWD what it was called; a program that went elsewhere by itself does not.
        named = os.environ.get("PWD", "")
        raise DirectoryMissing(f"{'.' if os.path.exists(named) else named} (it was removed)") from None


@dataclass(frozen=True, slots=True)
class Confinement:
    """Where a command may write, what it may never write, and whether it has a network.

    `roots` and `protected` may be given as any iterable of paths; they are kept as real paths, in order and without
    repeats. wisp's own home is always protected. `notes` are lines that a person has to know (a default root that
    could not be trusted, a launch directory too wide to be one), `left_out` the default roots that are not there.
    With `scratch_tmpdir` a runner adds one root, a directory of its own that it makes, names in `TMPDIR` and
    removes again. `protected_links` is where the links lie that protected paths led through as they were written:
    whoever may replace one of those leads the path elsewhere. Raises ConfinementError for a root that is missing, no
    directory, or inside a protected path.
    """

    roots: tuple[str, ...] = ()
    protected: tuple[str, ...] = ()
    network: bool = True
    notes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    scratch_tmpdir: bool = False
    protected_links: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        written = (written_home(), *_paths(self.protected, "protected"))
        for preset in PRESETS:
            if preset in written:
                raise ConfinementError("protected", preset, "a preset belongs into the settings; here paths are wanted")
        protected = _distinct(real(path) for path in written)
        links = _distinct((*self.protected_links, *(link for path in written for link in crossed_links(path))))
        roots = _distinct(real(path) for path in _paths(self.roots, "roots"))
        for root in roots:
            reason = _why_no_root(root, protected)
            if reason:
                raise ConfinementError("roots", root, reason)
        object.__setattr__(self, "roots", roots)
        object.__setattr__(self, "protected", protected)
        object.__setattr__(self, "protected_links", links)

    @classmethod
    def default(
        cls,
        *,
        directory: str | os.PathLike[str] | None = None,
        settings: SandboxSettings | None = None,
        writable: Sequence[str | os.PathLike[str]] = (),
        network: bool | None = None,
        read_only: bool = False,
    ) -> Confinement:
        """Return the confinement for commands started from `directory` (the current one when None).

        The roots, in order: the launch directory; `TMPDIR`; the system's temporary directory; the per-user cache;
        `sandbox.writablePaths` or the build caches that exist; then `writable`, a person's own additions. With
        `read_only` none of these but a scratch `TMPDIR`. A preset in `sandbox.protectedPaths` stands for what it
        protects in `directory` now. Raises ConfinementError naming the key for a configured root
        that is missing or cannot be trusted; default ones are left out and noted.
        """
        from wisp.config import SandboxSettings as Defaults  # noqa: PLC0415

        settings = settings or Defaults()
        home = user_home()
        written = tuple(_expand(path, home) for path in settings.protected_paths if path not in PRESETS)
        wants_network = settings.allow_network if network is None else network
        if read_only:
            return cls(protected=written, network=wants_network, scratch_tmpdir=True)
        launch = _launch_directory(directory)
        guarded = _guarded(settings.protected_paths, launch)
        protected = _distinct((home_directory(), *(real(path) for path in (*written, *guarded))))
        wanted = _default_roots(launch, home)
        if settings.writable_paths is None:
            caches = (_Wanted("build cache", _expand(path, home), default=True) for path in BUILD_CACHES)
            wanted += [cache for cache in caches if os.path.isdir(cache.path)]
        else:
            key = "sandbox.writablePaths"
            wanted += [_Wanted(key, _expand(path, home), default=False) for path in settings.writable_paths]
        wanted += [_Wanted("--writable", _absolute(path, launch, home), default=False) for path in writable]
        roots, notes, left_out = _accept(wanted, home, protected)
        guarded = tuple(path for path in guarded if _is_in_reach(path, roots))
        loose = [path for path in guarded if sys.platform != "darwin" and _is_loose(path, roots)]
        notes += tuple(
            f"guard-project: {path} is a link, which a command could replace; what it leads to is protected"
            for path in loose
        )
        guarded = tuple(real(path) if path in loose else path for path in guarded)
        return cls(roots, (*written, *guarded), wants_network, notes, left_out)

    def allows_write(self, path: str) -> bool:
        """Return whether a command may write at the real path `path`; device nodes are a matter apart."""
        if any(is_inside(path, guarded) for guarded in self.protected):
            return False
        return any(is_inside(path, root) for root in self.roots)

    def protected_inside(self) -> tuple[str, ...]:
        """Return the protected paths that lie inside a root, but for those that lie in another of them; sorted."""
        inside = sorted(path for path in self.protected if any(is_inside(path, root) for root in self.roots))
        return tuple(path for path in inside if not any(path != other and is_inside(path, other) for other in inside))

    def pinned(self) -> tuple[str, ...]:
        """Return each directory between an outermost root and a protected path inside it, both left out; sorted.

        Whoever may rename one of them takes the protected path away and may put another one in its place.
        """
        found = set[str]()
        roots = self.outermost_roots()
        for path in self.protected_inside():
            above = os.path.dirname(path)
            while above not in roots:
                found.add(above)
                above = os.path.dirname(above)
        return tuple(sorted(found))

    def unheld_links(self) -> tuple[str, ...]:
        """Return the links on the way to a protected path that a command could replace: those inside a root."""
        return tuple(link for link in self.protected_links if any(is_inside(link, root) for root in self.roots))

    def outermost_roots(self) -> tuple[str, ...]:
        """Return the roots that lie in no other root: what a backend has to open. The order is kept."""
        outermost = set[str]()
        last = ""
        for root in sorted(self.roots, key=lambda path: path.split("/")):  # what holds a root comes before it
            if not last or not is_inside(root, last):
                last = root
                outermost.add(root)
        return tuple(root for root in self.roots if root in outermost)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A root asked for: where the wish came from, the path as given, and whether it may silently be left out."""

    key: str
    path: str
    default: bool


def _paths(given: Iterable[str | os.PathLike[str]], name: str) -> tuple[str, ...]:
    """Return `given` as a tuple of path texts; a single text is a mistake that would confine to `/`."""
    if isinstance(given, str | bytes | os.PathLike):
        raise ConfinementError(name, os.fsdecode(given), "a list of paths is wanted, not one path")
    texts = tuple(os.fspath(path) for path in given)
    for text in texts:
        if not text or "\0" in text:
            raise ConfinementError(name, repr(text), "an empty path or one with a NUL byte names nothing")
    return texts


def _distinct(paths: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(paths))


def _expand(path: str, home: str) -> str:
    """Return `path` with a leading `~` replaced by `home`."""
    return home + path[1:] if path == "~" or path.startswith("~/") else path


def _absolute(path: str | os.PathLike[str], base: str, home: str) -> str:
    text = _expand(os.fspath(path), home)
    if not text or "\0" in text:
        raise ConfinementError("--writable", repr(text), "an empty path or one with a NUL byte names nothing")
    return text if os.path.isabs(text) else os.path.join(base, text)


def _launch_directory(directory: str | os.PathLike[str] | None) -> str:
    return current_directory() if directory is None else real(directory)


def _guarded(protected_paths: Iterable[str], launch: str) -> tuple[str, ...]:
    """Return what the presets among `protected_paths` stand for in the launch directory."""
    presets = [path for path in protected_paths if path in PRESETS]
    if not presets:
        return ()
    from wisp.sandbox.guards import guarded_paths  # noqa: PLC0415

    return tuple(path for preset in presets for path in guarded_paths(preset, launch))


def _is_in_reach(path: str, roots: Sequence[str]) -> bool:
    """Return whether a command could write at `path`, or lead it elsewhere by a link on its way."""
    return any(is_inside(place, root) for place in (real(path), *crossed_links(path)) for root in roots)


def _is_loose(path: str, roots: Sequence[str]) -> bool:
    """Return whether `path` is an instruction file that is itself a link in a root, as CLAUDE.md often is to AGENTS.md.

    Only Seatbelt can hold such a link. It is common, and what it leads to is read by a model, not run; every other link
    on the way to what is guarded stays a reason to make no lane.
    """
    if not path.endswith(".md") or not os.path.isfile(path):
        return False
    links = [link for link in crossed_links(path) if any(is_inside(link, root) for root in roots)]
    return links == [os.path.join(real(os.path.dirname(path)), os.path.basename(path))]


def _default_roots(launch: str, home: str) -> list[_Wanted]:
    """Return the default roots in the documented order, whether they exist or not."""
    wanted = [_Wanted("launch directory", launch, default=True)]
    if os.environ.get("TMPDIR"):
        wanted.append(_Wanted("TMPDIR", os.environ["TMPDIR"], default=True))
    if sys.platform == "darwin":
        wanted.append(_Wanted("temporary directory", "/private/tmp", default=True))
        cache = os.confstr(_CS_DARWIN_USER_CACHE_DIR)
        if cache:
            wanted.append(_Wanted("DARWIN_USER_CACHE_DIR", cache, default=True))
        return wanted
    wanted.append(_Wanted("temporary directory", "/tmp", default=True))  # noqa: S108
    cache = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(cache):
        wanted.append(_Wanted("XDG_CACHE_HOME", cache, default=True))
    else:  # the base directory specification: a relative value is to be ignored
        wanted.append(_Wanted("user cache", os.path.join(home, ".cache"), default=True))
    return wanted


def _why_no_root(path: str, protected: Iterable[str]) -> str:
    """Return why the real path `path` cannot be a root, or nothing."""
    if not os.path.lexists(path):
        return _MISSING
    if not os.path.isdir(path):
        return "is not a directory"
    for guarded in protected:
        if is_inside(path, guarded):
            return f"lies inside the protected path {guarded}"
    return ""


def _why_too_wide(path: str, home: str) -> str:
    """Return why `path` is too wide to become a root unasked: everything the user owns would be writable."""
    if path == home:
        return "is the home directory"
    return "holds the home directory" if is_inside(home, path) else ""


def _accept(wanted: Sequence[_Wanted], home: str, protected: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Return the roots as real paths, notes on those that were refused, and those that are not there.

    A root that is reached through a link which itself lies in a root is not followed: a confined command may have
    made that link (`mv "$TMPDIR" aside; ln -s ~ "$TMPDIR"`), and the next start would hand it the target.
    """
    links = {one: crossed_links(one.path) if os.path.isabs(one.path) else () for one in wanted}
    open_ground = _distinct(
        path
        for one in wanted
        if os.path.isabs(one.path)
        for path in (real(one.path),)
        if not (one.default and _why_too_wide(path, home))
    )
    roots, notes, left_out = list[str](), list[str](), list[str]()
    for one in wanted:
        path = real(one.path) if os.path.isabs(one.path) else one.path
        planted = next((link for link in links[one] if any(_strictly_inside(link, root) for root in open_ground)), None)
        if not os.path.isabs(one.path):
            reason = "is not an absolute path"
        elif planted is not None:
            reason = (
                f"leads through the link {planted}, which a command could have made; name its target {path} instead"
            )
        else:
            reason = _why_no_root(path, protected) or (one.default and _why_too_wide(path, home)) or ""
        if not reason:
            roots.append(path)
        elif not one.default:
            raise ConfinementError(one.key, one.path, reason)
        elif one.key == "launch directory":
            if not any(real(other.path) == path for other in wanted if not other.default):
                notes.append(f"{path} {reason}, so it is not a writable root; to make it one: --writable .")
        else:
            kind = left_out if reason == _MISSING else notes
            kind.append(f"{one.key} {one.path} {reason}, so it is not a writable root")
    return _distinct(roots), tuple(notes), tuple(left_out)


def _strictly_inside(path: str, root: str) -> bool:
    return path != root and is_inside(path, root)
