"""The verdict in one line, for the model and for the person.

Under Seatbelt the wordings are a contract with readers of the first wisp and are kept to the letter; the error text
in brackets is the one that was seen.
"""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wisp.outcome import Refusal
    from wisp.sandbox.confinement import Confinement

__all__ = ["model_note", "person_note", "visible"]

_MOST_PATHS: Final = 3
#: How many bytes of roots are listed, each with two for its separator.
_MOST_ROOT_BYTES: Final = 240
#: A longer path is shown by its two ends; the refusal itself holds it whole.
_LONGEST_PATH: Final = 256

_UNSURE: Final = "a network connection, a process, or a file the error does not name"
_NO_RULE: Final = "no policy rule denied it"


def model_note(refusal: Refusal, confinement: Confinement) -> str:
    """Return the line that a model reads after the output, beginning with `sandbox: `."""
    paths, seen = _some(refusal.paths), refusal.phrase
    are = "is" if len(refusal.paths) == 1 else "are"
    match refusal.cause:
        case "outside":
            return f"sandbox: refused writing to {paths}; commands may write {_where(confinement.roots)}"
        case "protected":
            return f"sandbox: refused writing to {paths}; no command may write there, even under a writable root"
        case "across-roots":
            return f"sandbox: refused a link or move between two writable roots: {paths}; copy and remove instead"
        case "inside":
            return (
                f"sandbox: not the sandbox: {paths} {are} inside the writable roots, so something else refused it "
                "(file permissions, flags, or system protection)"
            )
        case "own-permissions":
            return f"sandbox: not the sandbox: this user may not write to {paths} without the sandbox either ({seen})"
        case "read":
            return (
                f"sandbox: not the sandbox: commands may read everywhere, so something else refused {paths} "
                f"(file permissions: {seen})"
            )
        case "network":
            return (
                f"sandbox: the sandbox may have refused this ({seen}, no path to check: "
                f"the network is off for commands); {_NO_RULE}"
            )
        case "no-path":
            return f"sandbox: the sandbox may have refused this ({seen}, no path to check: {_UNSURE}); {_NO_RULE}"


def person_note(refusal: Refusal, confinement: Confinement) -> str:
    """Return the line that a person reads after a command of their own, beginning with `· `."""
    del confinement  # the person is told where roots are by `wisp profile`; kept for the one signature of both notes
    paths = _some(refusal.paths)
    are = "is" if len(refusal.paths) == 1 else "are"
    match refusal.cause:
        case "outside":
            return (
                f"· the sandbox refused writing to {paths}, as it would for the model: "
                "commands write only within wisp's writable roots"
            )
        case "protected":
            return (
                f"· the sandbox refused writing to {paths}, as it would for the model: "
                "no command writes there, even within wisp's writable roots"
            )
        case "across-roots":
            return (
                f"· the sandbox refused a link or move between two of wisp's writable roots ({paths}), "
                "as it would for the model: copy and remove instead"
            )
        case "inside":
            return f"· not the sandbox: {paths} {are} inside wisp's writable roots"
        case "own-permissions":
            return f"· not the sandbox: you may not write to {paths} without it either"
        case "read":
            return f"· not the sandbox: reading is free, and something else refused {paths}"
        case "network":
            return f"· the sandbox may have refused it (the network is off), as it would the model's; {_NO_RULE}"
        case "no-path":
            return f"· the sandbox may have refused it (no path to check), as it would the model's; {_NO_RULE}"


def visible(text: str) -> str:
    """Return `text` on one line with nothing hidden: control, format and bidirectional characters are escaped.

    Zl and Zp end a line in some terminals; Cf holds the marks that reorder what is read; a lone surrogate would fail
    to encode.
    """
    if text.isascii() and text.isprintable():
        return text
    hidden = {"Cc", "Cf", "Cs", "Zl", "Zp"}
    return "".join(_escaped(one) if unicodedata.category(one) in hidden else one for one in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def _shown(path: str) -> str:
    path = visible(path)
    half = _LONGEST_PATH // 2
    return path if len(path) <= _LONGEST_PATH else f"{path[:half]}…{path[-half:]}"


def _some(paths: Sequence[str]) -> str:
    """Return at most three of `paths`, and how many more there are."""
    return _listed(paths, min(len(paths), _MOST_PATHS))


def _where(roots: Sequence[str]) -> str:
    """Return `only under` the roots, as many as fit and at least one; `nowhere` when there is none."""
    if not roots:
        return "nowhere"
    count, used = 0, 0
    for root in roots:
        used += len(_shown(root).encode("utf-8", "replace")) + 2
        if count and used > _MOST_ROOT_BYTES:
            break
        count += 1
    return f"only under {_listed(roots, count)}"


def _listed(paths: Sequence[str], count: int) -> str:
    shown = ", ".join(map(_shown, paths[:count]))
    return f"{shown} and {len(paths) - count} more" if len(paths) > count else shown
