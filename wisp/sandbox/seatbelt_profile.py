"""A confinement in Seatbelt's profile language: ASCII text, and the paths beside it as parameters.

No path is ever part of the text. `sandbox-exec -D NAME=VALUE` hands it over as it is, and a filter asks for it by
`(param "NAME")`: nothing has to be quoted, and no file name can be read as a rule.

Written from published facts, and so that it means the same under each published reading of how rules win: the rule of
an operation without a filter comes before those with one, and what must hold comes last. Pure: it looks at no file.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from wisp.errors import SandboxUnavailable
from wisp.realpath import is_inside
from wisp.sandbox.confinement import DEVICES

if TYPE_CHECKING:
    from wisp.sandbox.confinement import Confinement

__all__ = ["RULE_BYTES", "Profile", "profile_of"]

#: The filters of one rule compile to one data object of at most 65,535 bytes, else `sandbox-exec` ends with 65. A path
#: takes more room compiled than written, so a new rule is begun long before.
RULE_BYTES: Final = 1 << 14

#: What one filter may take beside its path.
_FILTER_BYTES: Final = 32

#: Every terminal by its name, and a command's own descriptors. As text: no user chooses these paths.
_DEVICE_PATTERN: Final = '(regex #"^/dev/(tty|fd/)")'


@dataclass(frozen=True, slots=True)
class Profile:
    """What `sandbox-exec` is given: the text for its file, and `NAME`, path pairs for `-D`."""

    text: str
    parameters: tuple[tuple[str, str], ...]

    def options(self) -> list[str]:
        """Return the parameters as words of a command line."""
        return [word for name, path in self.parameters for word in ("-D", f"{name}={path}")]


@dataclass(frozen=True, slots=True)
class _Named:
    """A path and the parameter that holds it."""

    name: str
    path: str

    def filter(self, kind: str) -> str:
        return f'({kind} (param "{self.name}"))'


def profile_of(confinement: Confinement) -> Profile:
    """Return the profile that holds `confinement`.

    Raises SandboxUnavailable for a path that Seatbelt may read as another one.
    """
    roots = _named("ROOT", confinement.roots)
    guarded = _named("PROTECTED", confinement.protected)
    links = _named("LINK", (path for path in confinement.protected_links if path not in confinement.protected))
    held = (*guarded, *links)
    above = _named("ABOVE", _between(confinement.outermost_roots(), [one.path for one in held]))
    lines = ["(version 1)", "(allow default)", *_writes(roots), *_terminal_operations(roots)]
    inside = [one for one in held if any(is_inside(one.path, root.path) for root in roots)]
    if inside:
        lines.append(f"; note: {', '.join(one.name for one in inside)} lie inside a root, and stay closed")
    lines += _denials(held, above)
    if not confinement.network:
        lines += _no_network()
    parameters = tuple((one.name, one.path) for one in (*roots, *held, *above))
    return Profile("\n".join(lines) + "\n", parameters)


def _writes(roots: Iterable[_Named]) -> list[str]:
    devices = " ".join(f'(literal "{path}")' for path in DEVICES)
    return [
        # First, so that the allowances win whether a rule without a filter is a default or one rule among others.
        "(deny file-write*)",
        *_rules("allow file-write*", roots, ("subpath",)),
        f"(allow file-write* {devices} {_DEVICE_PATTERN})",
    ]


def _terminal_operations(roots: Iterable[_Named]) -> list[str]:
    """Return the rules for what `file-write*` does not include, and what is allowed where no rule names it."""
    return [
        # Else a command could link a file from outside into a root, and write to it by its new name. Seatbelt asks
        # about the file that is linked.
        "(deny file-link)",
        *_rules("allow file-link", roots, ("subpath",)),
        # A clone shares no later write with what it was cloned from, and making it asks for file-write-create. The
        # filter would see its source, which a command may read: so named, and allowed.
        "(allow file-clone)",
        # A program that runs as its owner outlives the confinement.
        "(deny file-write-setugid)",
    ]


def _denials(held: Iterable[_Named], above: Iterable[_Named]) -> list[str]:
    """Return what takes the protected paths out of the roots again."""
    return [
        # `literal` as well: whether `subpath` holds a plain file is told in two ways. A link of one's own to a
        # protected file would open it as any file of the root.
        *_rules("deny file-write* file-link", held, ("literal", "subpath")),
        # Renaming a directory asks about that directory and not about what lies in it. Who may take away one that leads
        # to a protected path, or make one that is missing, puts what he likes at that path.
        *_rules("deny file-write-create file-write-unlink", above, ("literal",)),
    ]


def _no_network() -> list[str]:
    return [
        "; Unix sockets are part of it: one that has a path can be neither bound nor connected to, in a root or not;",
        "; pairs (socketpair) and pipes are not.",
        "(deny network*)",
    ]


def _rules(head: str, paths: Iterable[_Named], kinds: tuple[str, ...]) -> Iterator[str]:
    """Yield `(HEAD FILTER...)` for all of `paths`, in as many rules as their size asks for."""
    filters, size = list[str](), 0
    for one in paths:
        cost = len(kinds) * (len(os.fsencode(one.path)) + _FILTER_BYTES)
        if filters and size + cost > RULE_BYTES:
            yield f"({head} {' '.join(filters)})"
            filters, size = [], 0
        filters += [one.filter(kind) for kind in kinds]
        size += cost
    if filters:
        yield f"({head} {' '.join(filters)})"


def _named(prefix: str, paths: Iterable[str]) -> tuple[_Named, ...]:
    return tuple(_Named(f"{prefix}_{number}", _plain(path)) for number, path in enumerate(paths))


def _plain(path: str) -> str:
    """Return `path` if Seatbelt can only read it as what it is.

    A variable of Seatbelt's own begins with `${`. How far a control character reaches is not known: such a path is
    refused, not tried.
    """
    if path.startswith("${") or not path.startswith("/"):
        raise SandboxUnavailable("seatbelt", f"{path!r} is no absolute path")
    if any(unicodedata.category(character) == "Cc" for character in path):
        raise SandboxUnavailable(
            "seatbelt", f"the path {path!r} holds a control character, and no rule is made of such a one; rename it"
        )
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        raise SandboxUnavailable("seatbelt", f"the path {path!r} cannot be encoded: no file has that name") from None
    return path


def _between(roots: Iterable[str], paths: Iterable[str]) -> list[str]:
    """Return each directory from an outermost root down to one of `paths` inside it, the root too; sorted.

    The root too: where two roots lie on one volume, it could be moved into the other one with all that it holds.
    """
    found, roots = set[str](), tuple(roots)
    for path in paths:
        root = next((root for root in roots if path != root and is_inside(path, root)), None)
        above = path
        while root is not None and above not in {root, "/"}:
            above = os.path.dirname(above)
            found.add(above)
    return sorted(found - {"/"})
