"""Names as tools write them in messages, turned back into what they stand for."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Final

from wisp.refusal.shapes import CLOSING, OPENING

if TYPE_CHECKING:
    from wisp.refusal.shapes import Quoting

__all__ = ["unquoted"]

#: One piece of GNU's `shell-escape` style: 'plain', $'with\tescapes', \' or "with an apostrophe".
_SHELL_PIECE: Final = re.compile(r"'([^']*)'|\$'((?:[^'\\]|\\.)*)'|\\(.)|\"([^\"]*)\"", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(?:([0-7]{1,3})|x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))", re.DOTALL)
_LETTERS: Final = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v", "e": "\x1b"}


def unquoted(field: str, quoting: Quoting) -> str:
    """Return the name that `field` stands for; what is not well quoted is returned as it is, without blanks around."""
    field = field.strip()
    if quoting == "shell" and (name := _from_shell(field)) is not None:
        return name
    of_bytes = field[:2] in {"b'", 'b"'}
    if quoting == "source" and of_bytes:
        field = field[1:]
    if len(field) > 1 and field[0] in OPENING and field[-1] in CLOSING:
        field = field[1:-1]
        return _unescaped(field, of_bytes=of_bytes) if quoting == "source" else field
    return field


def _from_shell(field: str) -> str | None:
    """Return what a shell makes of `field`, or None when it is not made of quoted pieces from end to end."""
    pieces, at = list[str](), 0
    while at < len(field):
        piece = _SHELL_PIECE.match(field, at)
        if piece is None:
            return None
        plain, escaped, letter, double = piece.groups()
        pieces.append(_unescaped(escaped, of_bytes=True) if escaped is not None else plain or letter or double or "")
        at = piece.end()
    return "".join(pieces)


def _unescaped(text: str, *, of_bytes: bool) -> str:
    """Return `text` with its escapes resolved; numbers up to 255 are bytes of UTF-8 if `of_bytes`, else characters."""
    parts, at = bytearray(), 0
    for escape in _ESCAPE.finditer(text):
        parts += _encoded(text[at : escape.start()])
        octal, two, four, eight, letter = escape.groups()
        if letter:
            parts += _encoded(_LETTERS.get(letter, letter))
        else:
            number = int(octal, 8) if octal else int(two or four or eight, 16)
            as_byte = of_bytes and (octal or two)
            parts += bytes([number & 0xFF]) if as_byte else _encoded(chr(min(number, sys.maxunicode)))
        at = escape.end()
    return (parts + _encoded(text[at:])).decode("utf-8", "replace")


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
