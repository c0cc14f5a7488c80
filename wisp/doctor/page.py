"""Lines of a report for people: wrapped to a width, safe to print, with a role for each piece that may be coloured."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

__all__ = ["Line", "Page", "Piece", "Role", "clean"]

#: What a piece of text is, for colour alone: every role is also told by words.
Role: TypeAlias = Literal["plain", "head", "good", "bad", "warn", "dim"]

#: A line narrower than this beside a label is put below the label instead.
_NARROWEST: Final = 30


#: What textwrap does not take for a space.
_NO_BREAK: Final = "\u00a0"


@dataclass(frozen=True, slots=True)
class Piece:
    """Some text of one role, on one line."""

    text: str
    role: Role = "plain"


Line: TypeAlias = tuple[Piece, ...]


def clean(text: str) -> str:
    """Return `text` on one line, with all that acts on a terminal or hides in it written as an escape.

    Control characters, bidirectional and other invisible marks, and bytes that were no text.
    """
    return "".join(one if one.isprintable() else _escaped(one) for one in text)


def _escaped(character: str) -> str:
    if character in "\t\n\r":
        return " "
    number = ord(character)
    if 0xDC80 <= number <= 0xDCFF:  # a byte that was not UTF-8 (PEP 383)
        number -= 0xDC00
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


class Page:
    """Builds lines that are at most `width` columns long, words that are longer excepted."""

    def __init__(self, width: int) -> None:
        self.width = max(20, width)
        self.lines: list[Line] = []

    def blank(self) -> None:
        """Add an empty line, unless there is one already or nothing yet."""
        if self.lines and self.lines[-1]:
            self.lines.append(())

    def heading(self, text: str) -> None:
        """Add an empty line and a heading."""
        self.blank()
        self.text(text, role="head")

    def text(self, text: str, *, indent: int = 0, hang: int = 0, role: Role = "plain") -> None:
        """Add a paragraph; its lines after the first are indented by `hang` more."""
        for line in self._wrapped(clean(text), indent, indent + hang):
            self.lines.append((Piece(line, role),))

    def items(self, texts: Iterable[str], *, end: str = "") -> None:
        """Add `texts` with commas between them; a line breaks between two of them, never inside one."""
        joined = ", ".join(clean(text).replace(" ", _NO_BREAK) for text in texts)
        for line in self._wrapped(joined + end, 0, 0):
            self.lines.append((Piece(line.replace(_NO_BREAK, " ")),))

    def entry(self, label: str, text: str, *, indent: int = 2, column: int = 16, role: Role = "plain") -> None:
        """Add `label`, in `role`, and `text` in its own column; below the label where that leaves too little room."""
        label = clean(label)
        start = indent + column
        if self.width - start < _NARROWEST:
            # Nothing stands beside the label, so the columns of the wide form would only waste room.
            if len(label) + indent + 2 + len(clean(text)) <= self.width:
                self.lines.append((Piece(" " * indent), Piece(label, role), Piece(f"  {clean(text)}")))
                return
            self.lines.append((Piece(" " * indent), Piece(label, role)))
            self.text(text, indent=indent + 2)
            return
        if len(label) >= column:
            self.lines.append((Piece(" " * indent), Piece(label, role)))
            self.text(text, indent=start)
            return
        first, *rest = self._wrapped(clean(text), start, start) or [""]
        padding = " " * (column - len(label))
        self.lines.append((Piece(" " * indent), Piece(label, role), Piece(padding + first.lstrip())))
        self.lines += [(Piece(line),) for line in rest]

    def below(self, texts: Iterable[str], *, indent: int = 2, column: int = 16, role: Role = "plain") -> None:
        """Add paragraphs in the column of `entry`'s text."""
        start = indent + column if self.width - indent - column >= _NARROWEST else indent + 2
        for text in texts:
            self.text(text, indent=start, role=role)

    def verbatim(self, text: str, *, indent: int) -> None:
        """Add the lines of a command or of its output, each with its own indentation kept."""
        for line in text.expandtabs(4).split("\n"):
            if not line.strip():
                continue
            own = min(len(line) - len(line.lstrip(" ")), 12)
            self.text(line.strip(" "), indent=indent + own, hang=2)

    def _wrapped(self, text: str, first: int, after: int) -> list[str]:
        return textwrap.wrap(
            text,
            self.width,
            initial_indent=" " * first,
            subsequent_indent=" " * after,
            break_long_words=False,
            break_on_hyphens=False,
        )

    def plain(self) -> str:
        """Return the page as text without any colour, each line ended by a newline."""
        return "".join("".join(piece.text for piece in line).rstrip() + "\n" for line in self.lines)
