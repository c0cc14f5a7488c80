"""Was it the sandbox? The paths that a failed command's errors name, compared with what the confinement allows.

The error text is written by the command and can be forged, so the verdict only ever changes what is said. What it
rests on is checked all the same: a path is made absolute and real as the kernel sees it before it is compared.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, cast

from wisp import realpath
from wisp.outcome import Cause, Refusal
from wisp.realpath import is_inside
from wisp.refusal.read import DENIED, Error, errors
from wisp.sandbox.confinement import DEVICE_TREES, DEVICES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wisp.sandbox.backend import RefusalTexts
    from wisp.sandbox.confinement import Confinement

__all__ = ["MOST_PATHS", "can_write", "check"]

#: The most paths that a verdict carries, and the most that are looked at to reach it.
MOST_PATHS: Final = 8
_MOST_LOOKED_AT: Final = 64

_READ_ONLY: Final = "read-only file system"  # EROFS, which a mount of the machine's own says as well

#: Descriptors of the command, not of wisp: what they lead to cannot be asked here.
_OWN_DESCRIPTOR: Final = re.compile(
    r"/dev/(?:std(?:in|out|err)$|fd/)|/proc/(?:self|thread-self|\d+)/fd/|/dev/(?:tcp|udp)/"
)

_NETWORK: Final = re.compile(r"socket|connect|network|\bbind\b|\blisten\b|\bdial\b|/dev/(?:tcp|udp)/", re.IGNORECASE)

#: What one named path says: a cause of a verdict, `unknown` for what decides nothing, `nothing` for what is no denial.
_Finding = Cause | Literal["unknown", "nothing"]


def can_write(path: str) -> bool:
    """Return whether this process, unconfined, may write at the real path `path` by its permissions alone.

    What does not exist yet is judged by the directory it would be made in. What exists may be written if it, or the
    directory that holds it, may: removing an entry is a write to its directory.
    """
    there = realpath.deepest_existing(path)
    places = (there, os.path.dirname(there)) if there == path else (there,)
    effective = os.access in os.supports_effective_ids
    return any(os.access(place, os.W_OK, effective_ids=effective) for place in places)


def check(
    *,
    exit_status: int,
    stderr: str,
    confinement: Confinement,
    texts: RefusalTexts,
    directory: str,
    home: str,
    resolve: Callable[[str, str], str] = realpath.real,
    may_write: Callable[[str], bool] = can_write,
) -> Refusal | None:
    """Return the verdict on a confined command that ended with `exit_status`, or None when there is nothing to say.

    `stderr` is its error output, or the excerpt that a `Watch` kept; `texts` are those of the layers in force.
    Relative names are seen from `directory`, where the command was started, and `~/` is `home`, both real paths.
    `resolve(path, base)` gives a real path and `may_write(path)` says whether wisp itself could write there: the only
    ways in which files are asked. Never raises for any `stderr`.
    """
    if exit_status == 0:
        return None
    judge = _Judge(exit_status, confinement, texts, directory, home, resolve, may_write)
    findings, pathless = list[tuple[_Named, _Finding]](), list[Error]()
    for error in errors(stderr, texts):
        named = judge.named(error)
        if not named:
            pathless.append(error)
        findings += ((one, judge.finding(one, named)) for one in named)
        if len({one.path for one, _ in findings}) >= _MOST_LOOKED_AT:
            break
    return _verdict(findings) or _guess(pathless, findings, network=confinement.network)


@dataclass(frozen=True, slots=True)
class _Named:
    """A path that an error names: real, and as it was written."""

    path: str
    written: str
    error: Error


@dataclass(frozen=True, slots=True)
class _Judge:
    """The facts that one verdict is reached from."""

    exit_status: int
    confinement: Confinement
    texts: RefusalTexts
    directory: str
    home: str
    resolve: Callable[[str, str], str]
    may_write: Callable[[str], bool]

    def named(self, error: Error) -> list[_Named]:
        """Return the paths of `error` that can be resolved, each once."""
        found = dict[str, _Named]()
        for written in error.written:
            path = self._real(written)
            if path:
                found.setdefault(path, _Named(path, written, error))
        return list(found.values())

    def _real(self, written: str) -> str:
        if not written or "\0" in written or _OWN_DESCRIPTOR.match(written):
            return ""
        text = self.home + written[1:] if written == "~" or written.startswith("~/") else written
        try:
            return self.resolve(text, self.directory)
        except (OSError, ValueError):  # a name that no kernel takes, such as one with lone surrogates
            return ""

    def finding(self, one: _Named, together: Sequence[_Named]) -> _Finding:
        """Return what the path `one` says; `together` are all the paths that the same error names."""
        error, phrase = one.error, one.error.phrase.lower()
        if not error.kinds & {"write", "link"}:
            return self._finding_of_a_call(one)
        if self._allows(one.path):
            if "link" in error.kinds and self._across_roots(together):
                return "across-roots"
            return "unknown" if self._is_elsewhere(one) else "inside"
        if self._is_read(error):
            return "read"
        # The same error for the same path without a sandbox: EPERM is not given for want of a mode bit.
        if phrase in {DENIED, _READ_ONLY} and not self.may_write(one.path):
            return "own-permissions"
        return "protected" if any(is_inside(one.path, root) for root in self.confinement.roots) else "outside"

    def _finding_of_a_call(self, one: _Named) -> _Finding:
        """Return what a path says next to a text that this sandbox never gives for a write."""
        if "pinned" in one.error.kinds:
            pinned = any(is_inside(guarded, one.path) for guarded in self.confinement.protected)
            return "protected" if pinned else "nothing"
        return "unknown" if self._allows(one.path) or self.may_write(one.path) else "own-permissions"

    def _allows(self, path: str) -> bool:
        device = path in DEVICES or any(is_inside(path, tree) for tree in DEVICE_TREES)
        return device or self.confinement.allows_write(path)

    def _is_read(self, error: Error) -> bool:
        # A shell that cannot run a file ends with 126 and words it as it words a redirection.
        ran = self.exit_status == 126 and error.shape is not None and error.shape.name in {"shell-line", "zsh", "field"}
        return error.is_read or (ran and error.phrase.lower() == DENIED)

    def _is_elsewhere(self, one: _Named) -> bool:
        """Return whether a relative name cannot be what it seems: the command had changed its directory.

        Where nothing inside the roots is refused and wisp could write as well, EACCES for that path has no reason.
        """
        relative = not one.written.startswith(("/", "~/"))
        shared = one.error.phrase.lower() in {DENIED, _READ_ONLY}
        return relative and shared and not self._is_read(one.error) and self.may_write(one.path)

    def _across_roots(self, together: Sequence[_Named]) -> bool:
        """Return whether the ends lie in different roots that are mounts of their own, as pinned texts tell."""
        if not self.texts.pinned or not all(self._allows(one.path) for one in together):
            return False
        homes = {
            max((root for root in self.confinement.roots if is_inside(one.path, root)), key=len, default="")
            for one in together
        }
        return len(homes) > 1


def _verdict(findings: Sequence[tuple[_Named, _Finding]]) -> Refusal | None:
    """Return the verdict that rests on paths, or None when no path decides anything."""
    for verdict, causes in _CAUSES:
        deciding = [(one, cause) for one, cause in findings if cause in causes]
        if deciding:
            cause = min((cause for _, cause in deciding), key=causes.index)
            if verdict == "not-the-sandbox":
                deciding = [(one, other) for one, other in deciding if other == cause]
            error = next(one.error for one, other in deciding if other == cause)
            paths = tuple(dict.fromkeys(one.path for one, _ in deciding))[:MOST_PATHS]
            shape = error.shape.name if error.shape else ""
            return Refusal(verdict, cast("Cause", cause), "path", paths, error.phrase, shape)
    return None


#: The causes that a path gives, strongest first: one path outside is enough to refuse.
_CAUSES: Final[tuple[tuple[Literal["refused", "not-the-sandbox"], tuple[_Finding, ...]], ...]] = (
    ("refused", ("outside", "protected", "across-roots")),
    ("not-the-sandbox", ("inside", "own-permissions", "read")),
)


def _guess(pathless: Sequence[Error], findings: Sequence[tuple[_Named, _Finding]], *, network: bool) -> Refusal | None:
    """Return the guess that an error text alone allows, or None when nothing hints at the sandbox."""
    unknown = [one.error for one, finding in findings if finding == "unknown"]
    # EBUSY is an everyday error, and a read is free: without a path neither says anything.
    hints = unknown + [error for error in pathless if error.kinds - {"pinned"} and not error.is_read]
    if not hints:
        return None
    if not network:
        for error in hints:
            if "call" in error.kinds and _NETWORK.search(error.near):
                return Refusal("guess", "network", "text", (), error.phrase)
    return Refusal("guess", "no-path", "text", (), hints[0].phrase)
