"""A small JSON file that a person wrote, read with suspicion, and where in it each key stands.

The standard decoder answers a repeated key with the last one, accepts NaN, and forgets where a value stood. A settings
file may do none of that: what is not understood exactly is an error that names file, line and key.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import stat
from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NoReturn, TypeAlias

from wisp.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Document", "Where", "dotted", "read_document", "shown"]

#: The way to a value: keys and, inside a list, indices.
Where: TypeAlias = "tuple[str | int, ...]"

#: No settings file is near these; what passes them is a mistake or an attack on the parser.
_MOST_BYTES: Final = 1024 * 1024
_MOST_DEPTH: Final = 32
_MOST_DIGITS: Final = 18

_BYTE_ORDER_MARKS: Final = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")
_SPACE: Final = re.compile(r"[ \t\r\n]*")


@dataclass(frozen=True, slots=True)
class Document:
    """One JSON object from the file `path`, and the 1-based line of every key and list item in it."""

    path: str
    value: Mapping[str, object]
    lines: Mapping[Where, int]

    def error(self, where: Where, reason: str) -> ConfigError:
        """Return the error that names this file, the line and the key at `where`, and `reason`."""
        return ConfigError(self.path, self.lines.get(where, 0), dotted(where), reason)


def dotted(where: Where) -> str:
    """Return a way as a person writes it: `sandbox.writablePaths[1]`."""
    text = ""
    for step in where:
        text += f"[{step}]" if isinstance(step, int) else f"{'.' if text else ''}{shown(step)}"
    return text


def shown(text: str) -> str:
    """Return `text` from a file as it may be printed: at most 60 characters, nothing that acts on a terminal."""
    short = text if len(text) <= 60 else text[:57] + "..."
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in short)


def read_document(path: str) -> Document | None:
    """Return the JSON object in the file `path`, or None where there is no such file.

    The file must be a plain one, and neither it nor its directory may belong to another user or be writable by
    others: whoever can write it decides what commands may do. Raises ConfigError for that and for anything that is
    not one JSON object in UTF-8 without repeated keys.
    """
    data = _read_guarded(path)
    return None if data is None else _Reader(path, _decode(path, data)).document()


def _read_guarded(path: str) -> bytes | None:
    """Return the bytes of a file that nobody else can write; None where it does not exist."""
    directory = os.path.dirname(path) or "."
    try:
        _check_owner(directory, os.stat(directory), is_directory=True)
        # NOFOLLOW: only wisp's home is protected from commands, not what a link in it leads to. NONBLOCK: a FIFO in
        # the place of the file must not hold wisp up.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY)
    except FileNotFoundError:
        return None
    except ValueError:
        raise ConfigError(path, 0, "", "the path holds a NUL byte") from None
    except OSError as error:
        raise ConfigError(path, 0, "", _why_not_opened(error, directory)) from None
    try:
        _check_owner(path, os.fstat(fd), is_directory=False)
    except ConfigError:
        os.close(fd)
        raise
    try:
        with os.fdopen(fd, "rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(path, 0, "", f"cannot be read: {error.strerror}") from None
    if len(data) > _MOST_BYTES:
        raise ConfigError(path, 0, "", f"is longer than {_MOST_BYTES} bytes")
    return data


def _why_not_opened(error: OSError, directory: str) -> str:
    """Return a sentence for a file that could not be opened."""
    if error.errno == errno.ELOOP:
        return "is a symbolic link; put the file itself here: what a link leads to is not protected from commands"
    if error.errno == errno.ENOTDIR:
        return f"{directory} is not a directory"
    return f"cannot be read: {error.strerror}"


def _check_owner(path: str, info: os.stat_result, *, is_directory: bool) -> None:
    """Raise ConfigError unless `path` is of the wanted kind and nobody else can write it."""
    if is_directory and not stat.S_ISDIR(info.st_mode):
        raise ConfigError(path, 0, "", "is not a directory")
    if not is_directory and not stat.S_ISREG(info.st_mode):
        kind = "a directory" if stat.S_ISDIR(info.st_mode) else "no plain file"
        raise ConfigError(path, 0, "", f"is {kind}; a plain file is wanted here")
    if info.st_uid not in {os.geteuid(), 0}:
        advice = "chown it, or name a directory of your own in WISP_HOME"
        raise ConfigError(path, 0, "", f"belongs to another user (uid {info.st_uid}), who could widen it; {advice}")
    if info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigError(path, 0, "", f"others may write it; run: chmod go-w {path}")


def _decode(path: str, data: bytes) -> str:
    """Return the file's text; raise ConfigError for another encoding."""
    if data.startswith(_BYTE_ORDER_MARKS):
        raise ConfigError(path, 1, "", "starts with a byte order mark; save it as UTF-8 without one")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(path, line, "", f"byte {error.start} is not UTF-8; save the file as UTF-8") from None
    if "\0" in text:
        raise ConfigError(path, text.count("\n", 0, text.index("\0")) + 1, "", "holds a NUL byte")
    return text


def _whole(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"a number of at most {_MOST_DIGITS} digits is wanted")
    return int(digits)


def _decimal(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError("the number is too large")
    return number


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number in JSON")


_SCALARS: Final = json.JSONDecoder(parse_int=_whole, parse_float=_decimal, parse_constant=_constant)


class _Reader:
    """Reads objects and lists itself, noting lines; strings and numbers go through the standard decoder."""

    def __init__(self, path: str, text: str) -> None:
        self._path = path
        self._text = text
        self._newlines = [found.start() for found in re.finditer("\n", text)]
        self._lines: dict[Where, int] = {}

    def document(self) -> Document:
        start = self._skip(0)
        if not self._text[start : start + 1]:
            raise ConfigError(self._path, 0, "", "is empty; write {} in it, or remove it")
        if self._text[start] != "{":
            self._fail(start, (), "one object in braces is wanted, like {}")
        value, end = self._object(start, ())
        end = self._skip(end)
        if end != len(self._text):
            self._fail(end, (), f"the file ends after its closing brace, not with {self._seen(end)}")
        return Document(self._path, value, self._lines)

    def _value(self, at: int, where: Where) -> tuple[object, int]:
        """Return the value that starts at `at` and the offset behind it."""
        if len(where) > _MOST_DEPTH:
            self._fail(at, where[:2], f"nested deeper than {_MOST_DEPTH} levels")
        start = self._text[at : at + 1]
        if start == "{":
            return self._object(at, where)
        if start == "[":
            return self._list(at, where)
        return self._scalar(at, where)

    def _object(self, at: int, where: Where) -> tuple[dict[str, object], int]:
        found: dict[str, object] = {}
        at = self._skip(at + 1)
        while not self._is(at, "}"):
            if not self._is(at, '"'):
                self._fail(at, where, f"a key in double quotes is wanted here, not {self._seen(at)}")
            scalar, end = self._scalar(at, where)
            key = str(scalar)
            way = (*where, key)
            if key in found:
                self._fail(at, way, f"the key is there twice; the first is in line {self._lines[way]}")
            self._lines[way] = self._line(at)
            end = self._skip(end)
            if not self._is(end, ":"):
                self._fail(end, way, f"a colon is wanted after the key, not {self._seen(end)}")
            found[key], end = self._value(self._skip(end + 1), way)
            at = self._next(end, where, "}")
        return found, at + 1

    def _list(self, at: int, where: Where) -> tuple[list[object], int]:
        found: list[object] = []
        at = self._skip(at + 1)
        while not self._is(at, "]"):
            way = (*where, len(found))
            self._lines[way] = self._line(at)
            value, end = self._value(at, way)
            found.append(value)
            at = self._next(end, where, "]")
        return found, at + 1

    def _next(self, at: int, where: Where, closing: str) -> int:
        """Return where the next member starts, or where `closing` stands."""
        at = self._skip(at)
        if self._is(at, closing):
            return at
        if not self._is(at, ","):
            self._fail(at, where, f"a comma or {closing} is wanted here, not {self._seen(at)}")
        after = self._skip(at + 1)
        if self._is(after, closing):
            self._fail(at, where, f"no comma may stand before {closing}")
        return after

    def _scalar(self, at: int, where: Where) -> tuple[object, int]:
        try:
            value: object
            value, end = _SCALARS.raw_decode(self._text, at)
        except json.JSONDecodeError as error:
            wanted = f"a value is wanted here, not {self._seen(at)}"
            broken = error.msg.removesuffix(" at").removesuffix(" starting").lower()
            self._fail(error.pos, where, wanted if error.msg == "Expecting value" else broken)
        except ValueError as error:
            self._fail(at, where, str(error))
        if isinstance(value, str) and any("\ud800" <= one <= "\udfff" for one in value):
            self._fail(at, where, "the text holds half of a surrogate pair, which is no character")
        return value, end

    def _seen(self, at: int) -> str:
        if at >= len(self._text):
            return "the end of the file"
        if self._text[at] in "/#":
            return "a comment: JSON has none"
        return repr(self._text[at])

    def _is(self, at: int, character: str) -> bool:
        return self._text.startswith(character, at)

    def _skip(self, at: int) -> int:
        found = _SPACE.match(self._text, at)
        return at if found is None else found.end()

    def _line(self, at: int) -> int:
        return bisect_left(self._newlines, at) + 1

    def _fail(self, at: int, where: Where, reason: str) -> NoReturn:
        raise ConfigError(self._path, self._line(at), dotted(where), reason)
