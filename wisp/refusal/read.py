"""The lines of an error output that say what a layer may have refused, and the paths that they name, as written."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Literal

from wisp.refusal.excerpt import reads_not_writable
from wisp.refusal.quoting import unquoted
from wisp.refusal.shapes import CLOSING, NOT_WRITABLE, OPENING, SHAPES, TEXT, Shape

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wisp.sandbox.backend import RefusalTexts

__all__ = ["DENIED", "Error", "Kind", "errors"]

#: EACCES in words, in lower case: the one text that a read gives as well.
DENIED: Final = "permission denied"

#: What a text is given for: the fields of `RefusalTexts`.
Kind = Literal["write", "link", "pinned", "call"]

_NOT_WRITABLE: Final = "not writable"
_WRITABLE: Final = re.compile(r"(?:not|isn't|must be) writable", re.IGNORECASE)

#: Lines of a flood that are read: the first ones and the last ones.
_MOST_LINES: Final = 256
#: How much of a line is read on either side of the error text: two paths of PATH_MAX.
_MOST_OF_A_LINE: Final = 8192
_MOST_LISTED: Final = 64

_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
#: What touches an error text that is named rather than said: in a pattern, in source code, in a longer word.
_TOUCHES: Final = re.compile(r"[\w/\\%]")

#: Lines that hold an error text of the kernel without being an error of the kernel: a server's answer to a login,
#: and a commit's subject quoted by git.
_NOT_THE_KERNELS: Final = re.compile(
    r"permission denied(?: \((?:publickey|password|keyboard-interactive|gssapi|hostbased)|, please try again)"
    r"|could not apply [0-9a-f]{7,40}\.\.\.|^hint: ",
    re.IGNORECASE,
)

#: Words of a read, of running a program or of entering a directory: none of them is confined.
_READING: Final = re.compile(
    r"for reading|cannot access|can't read|cannot read|could not read|failed to read|error reading|read error"
    r"|cannot stat|failed to stat|(?:open|opendir|reading) directory|scandir|\blstat\b|\bcd: |getcwd|current directory"
    r"|cannot execute|can't execute|failed to run|fork/exec|(?<![\w/])(?:exec(?:v|ve|vp|vpe)?|spawn)\b(?!/)"
    rf"|^find: [{OPENING}]|^make(?:\[\d+\])?: "
    r"|^(?:\S{0,200}/)?(?:cat|head|tail|less|more|wc|grep|egrep|fgrep|rg|ls|du|stat|file|diff|cmp|od|xxd|hexdump|nl"
    r"|strings|md5sum|sha1sum|sha256sum|sha512sum|cksum|readlink|realpath|tree|env|xargs): ",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Error:
    """One line with an error text: the text as the layers word it, and the paths that it names, as written."""

    line: str
    phrase: str
    kinds: frozenset[Kind]
    shape: Shape | None
    written: tuple[str, ...]
    near: str

    @property
    def is_read(self) -> bool:
        """Whether its words say that nothing was to be written. Only EACCES is ever given for a read."""
        return self.phrase.lower() == DENIED and (
            (self.shape is not None and self.shape.opens) or _READING.search(self.line) is not None
        )


@lru_cache(maxsize=16)
def _wordings(texts: RefusalTexts) -> tuple[re.Pattern[str], dict[str, tuple[str, frozenset[Kind]]]]:
    """Return a pattern for every error text, and for each in lower case its spelling and what it is given for."""
    kinds = dict[str, tuple[str, set[Kind]]]()
    given: tuple[tuple[Kind, tuple[str, ...]], ...] = (
        ("write", texts.write),
        ("link", texts.link),
        ("pinned", texts.pinned),
        ("call", texts.call),
    )
    for kind, words in given:
        for word in filter(None, words):
            kinds.setdefault(word.lower(), (word, set()))[1].add(kind)
    pattern = re.compile("|".join(map(re.escape, kinds)) or r"(?!)", re.IGNORECASE)
    return pattern, {lower: (word, frozenset(found)) for lower, (word, found) in kinds.items()}


def errors(stderr: str, texts: RefusalTexts) -> Iterator[Error]:
    """Yield each line of `stderr` that is an error one of the layers may have caused, in order."""
    pattern, wordings = _wordings(texts)
    lines = _COLOUR.sub("", stderr).replace("\r\n", "\n").replace("\r", "\n").replace(TEXT, "\ufffd").split("\n")
    asked_first = reads_not_writable(texts)
    wanted = [at for at, line in enumerate(lines) if pattern.search(line) or (asked_first and _WRITABLE.search(line))]
    if len(wanted) > _MOST_LINES:
        wanted = wanted[: _MOST_LINES // 2] + wanted[-_MOST_LINES // 2 :]
    for at in wanted:
        line = lines[at]
        found = next(
            (match for match in pattern.finditer(line) if _is_a_message(line, match.start(), match.end())), None
        )
        if found is not None and not _NOT_THE_KERNELS.search(line):
            phrase, kinds = wordings[found[0].lower()]
            shape, written = _read(lines, at, found.start(), found.end(), SHAPES)
            near = "\n".join(lines[max(0, at - 2) : at + 1])[-_MOST_OF_A_LINE:]
            yield Error(line[:_MOST_OF_A_LINE], phrase, kinds, shape, written, near)
        elif asked_first and (told := _WRITABLE.search(line)):
            shape, written = _read(lines, at, told.start(), told.end(), NOT_WRITABLE)
            if written:
                yield Error(line[:_MOST_OF_A_LINE], _NOT_WRITABLE, frozenset({"write"}), shape, written, "")


def _is_a_message(line: str, start: int, end: int) -> bool:
    """Return whether the error text at `start` to `end` is said by the line, not quoted or named in it."""
    before, after = line[max(0, start - 1) : start], line[end : end + 1]
    if after and after in CLOSING:
        return bool(before) and before in OPENING
    return not _TOUCHES.match(after) and not _TOUCHES.match(before)


def _read(
    lines: Sequence[str], at: int, start: int, end: int, shapes: Sequence[Shape]
) -> tuple[Shape | None, tuple[str, ...]]:
    """Return the shape of the error whose text stands in line `at` from `start` to `end`, and the paths as written."""
    line = lines[at]
    line = line[max(0, start - _MOST_OF_A_LINE) : start] + TEXT + line[end : end + _MOST_OF_A_LINE]
    for shape in shapes:
        subject = line
        if shape.before or shape.after:
            above, below = lines[max(0, at - shape.before) : at], lines[at + 1 : at + 1 + shape.after]
            subject = "\n".join(one[-_MOST_OF_A_LINE:] for one in (*above, line, *below))
        match = shape.pattern.search(subject)
        if match is None:
            continue
        if shape.listed:
            written = tuple(_listed(lines, at + 1))
        else:
            fields = (unquoted(match[group], shape.quoting) for group in shape.pattern.groupindex)
            written = tuple(field for field in fields if field and (shape.bare or _is_rooted(field)))
        if written:
            return shape, written
    return None, ()


def _listed(lines: Sequence[str], start: int) -> Iterator[str]:
    for line in lines[start : start + _MOST_LISTED]:
        if not line.startswith("/"):
            return
        yield line.rstrip()


def _is_rooted(field: str) -> bool:
    return field.startswith(("/", "~/", "./", "../"))
