"""Reads the audit log back, oldest record first, whatever has become of its files."""

from __future__ import annotations

import json
import os
import stat
from contextlib import ExitStack
from typing import IO, TYPE_CHECKING, Final

from wisp.audit.names import current_path, rotated_numbers, rotated_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wisp.audit.event import Record

__all__ = ["read"]

#: No record is as long: two streams of at most 1 MiB each, escaped. A longer line is damage, and is passed over
#: without being held in memory.
_LONGEST: Final = 32 * 1024 * 1024


def read(path: str | os.PathLike[str]) -> Iterator[Record]:
    """Yield the records in `path`: of one file, or of a log's directory the rotated files first, oldest first.

    A line that is no record (torn, not UTF-8, not JSON, without a `kind`) is passed over; a record of an unknown kind
    is kept. What is written while this reads may be missing; nothing is yielded twice. A log that does not exist has
    no records. Raises OSError where a file exists and cannot be read.
    """
    where = os.fspath(path)
    with ExitStack() as stack:
        for file in reversed(list(_opened(where, stack))):
            yield from _records(file)


def _opened(path: str, stack: ExitStack) -> Iterator[IO[bytes]]:
    """Yield the files of a log, youngest first; all are opened before any is read, and closed by `stack`.

    In this order a rotation that happens meanwhile can show a file twice, which is seen, and can hide none.
    """
    if not os.path.isdir(path):
        if (one := _open(path)) is not None:
            yield stack.enter_context(one)
        return
    seen: set[tuple[int, int]] = set()
    numbers = rotated_numbers(path)
    last = numbers[-1] if numbers else 0
    number = 0
    while True:
        file = _open(rotated_path(path, number) if number else current_path(path))
        if file is None and number > last:
            return
        if file is not None:
            stack.enter_context(file)
            info = os.fstat(file.fileno())
            if (info.st_dev, info.st_ino) not in seen:
                seen.add((info.st_dev, info.st_ino))
                yield file
        number = next((one for one in numbers if one > number), number + 1)


def _open(path: str) -> IO[bytes] | None:
    """Return the file, opened, or None where there is no plain file."""
    try:
        # NONBLOCK: a FIFO with this name would wait for a writer.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        return None
    return os.fdopen(fd, "rb")


def _records(file: IO[bytes]) -> Iterator[Record]:
    """Yield what of `file` is a record."""
    while line := file.readline(_LONGEST):
        if len(line) == _LONGEST and not line.endswith(b"\n"):
            while (rest := file.readline(_LONGEST)) and not rest.endswith(b"\n"):
                pass
            continue
        record = _record(line)
        if record is not None:
            yield record


def _record(line: bytes) -> Record | None:
    """Return the record on a line, or None."""
    try:
        # Decoded here: the decoder would take bytes for UTF-16 or UTF-32 where they look like it.
        value: object = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    if isinstance(value, dict) and isinstance(value.get("kind"), str):
        return value
    return None
