"""What the refusal check reads of an error stream: the lines around each trigger word, however long the stream.

A command may write a gigabyte, and the tail that is kept for the reader may have lost the one line that matters. So
every chunk is searched as it passes, by plain byte search, and only around a hit are lines kept.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wisp.sandbox.backend import RefusalTexts

__all__ = ["MOST_BYTES", "Watch", "reads_not_writable"]

#: The most that is held of a stream, in bytes, besides the chunk being looked at.
MOST_BYTES: Final = 65536

#: Half of it is for the first hits, which name the first cause, and half for the end of the stream, which is nearest
#: to the exit status. What a flood of hits says in between is not looked at.
_HALF: Final = MOST_BYTES // 2

#: The longest line kept whole, and how far from a hit a line may begin or end. Two paths of PATH_MAX fit.
_LINE: Final = 8192
_LINES_BEFORE: Final = 3  # cargo names the path three lines above the text
_LINES_AFTER: Final = 2

#: Stands where bytes were left out, so that no wording is matched across the gap.
_CUT: Final = "…".encode()


def reads_not_writable(texts: RefusalTexts) -> bool:
    """Return whether "not writable" tells of a refusal: only where `access(2)` itself says no, as under Seatbelt.

    Landlock does not govern `access`, so a tool that asks before it writes is told the truth of the mode bits there.
    """
    return any(text.lower() == "operation not permitted" for text in texts.write)


@lru_cache
def _needles(texts: RefusalTexts) -> tuple[bytes, ...]:
    words = {text.lower() for text in (*texts.write, *texts.link, *texts.pinned, *texts.call)}
    if reads_not_writable(texts):
        words.add(" writable")  # "is not", "isn't", "must be": one search for all
    return tuple(sorted(word.encode() for word in words if word))


class Watch:
    """The lines of one stream that the refusal check wants, kept while the stream passes.

    `feed` takes chunks of any size, split anywhere; `text` may be asked for at any time and depends only on the bytes
    fed so far, never on how they were split. Of a line longer than 8 KiB only the part around the hit is kept. At
    most `MOST_BYTES` are held. Not for several threads at once.
    """

    __slots__ = ("_base", "_buffer", "_first", "_needles", "_overlap", "_searched")

    def __init__(self, texts: RefusalTexts) -> None:
        self._needles = _needles(texts)
        self._overlap = max(map(len, self._needles), default=1) - 1
        self._first = _Kept()
        #: The end of the stream so far, `_base` bytes into it: what a later hit may want, and what is unsearched.
        self._buffer = bytearray()
        self._base = 0
        #: How much of the buffer needs no search any more.
        self._searched = 0

    def feed(self, chunk: bytes) -> None:
        """Look at the next bytes of the stream."""
        if not self._needles:
            return
        if self._first.full:
            self._append(chunk, keep=_HALF)
        elif self._is_quiet(chunk):
            self._append(chunk, keep=_LINE + self._overlap)
            self._searched = max(0, len(self._buffer) - self._overlap)
        else:
            self._buffer += chunk
            self._searched = _scan(self._buffer, self._searched, self._base, self._needles, self._first, final=False)
            if self._first.full:
                self._forget(max(self._first.stopped - self._base, len(self._buffer) - _HALF))
            else:
                self._forget(self._searched - _LINE)

    def text(self) -> str:
        """Return the kept lines, decoded with U+FFFD for what is not UTF-8, and a `…` where bytes were left out."""
        first = self._first.copy()
        if not first.full:
            _scan(self._buffer, self._searched, self._base, self._needles, first, final=True)
        if first.full:
            first.data += _CUT + b"\n" + self._the_end(first.stopped)
        return first.data.decode("utf-8", "replace")

    def _is_quiet(self, chunk: bytes) -> bool:
        """Return whether nothing in `chunk`, or across its border, is a trigger: the way of nearly all bytes."""
        waiting = bytes(self._buffer[self._searched :])
        if len(waiting) > self._overlap:
            return False
        lowered = (waiting + chunk).lower()
        # rfind: CPython's is two to four times as fast as find for a word that is not there.
        return all(lowered.rfind(needle) < 0 for needle in self._needles)

    def _the_end(self, stopped: int) -> bytearray:
        """Return the lines wanted of the last bytes of the stream, none of them from before `stopped`."""
        begin = max(stopped, self._base + len(self._buffer) - _HALF)
        rest = bytes(self._buffer[begin - self._base :])
        inside_a_line = begin > stopped
        if inside_a_line and b"\n" in rest:
            rest, inside_a_line = rest[rest.index(b"\n") + 1 :], False
        last = _Kept()
        _scan(rest, 0, int(inside_a_line), self._needles, last, final=True)
        return last.data

    def _append(self, chunk: bytes, *, keep: int) -> None:
        """Add `chunk` to the buffer and forget all but its last `keep` bytes."""
        if len(chunk) >= keep:
            self._base += len(self._buffer) + len(chunk) - keep
            self._buffer[:] = chunk[-keep:]
        else:
            self._buffer += chunk
            self._forget(len(self._buffer) - keep)

    def _forget(self, count: int) -> None:
        """Forget the first `count` bytes of the buffer."""
        if count > 0:
            del self._buffer[:count]
            self._base += count
            self._searched = max(0, self._searched - count)


@dataclass(slots=True)
class _Kept:
    """Lines kept so far: at most `_HALF` bytes, `until` in the stream. Once `full`, it `stopped` before that byte."""

    data: bytearray = field(default_factory=bytearray)
    until: int = 0
    full: bool = False
    stopped: int = 0

    def copy(self) -> _Kept:
        return _Kept(bytearray(self.data), self.until, self.full, self.stopped)

    def add(self, begin: int, piece: bytes, end: int) -> bool:
        """Keep `piece`, which stands for the stream from `begin` to `end`; return whether it found room."""
        gap = _CUT + b"\n" if begin > self.until else b""
        if len(self.data) + len(gap) + len(piece) > _HALF:
            self.full, self.stopped = True, begin
            return False
        self.data += gap + piece
        self.until = end
        return True


@dataclass(frozen=True, slots=True)
class _Region:
    """What to keep around a hit, as indexes: from `begin` to `end`, cut inside a line or not; search on at `resume`."""

    begin: int
    end: int
    resume: int
    cut_before: bool
    cut_after: bool


def _scan(data: bytes | bytearray, start: int, base: int, needles: Sequence[bytes], kept: _Kept, *, final: bool) -> int:
    """Keep the lines around each hit at or after `start`, and return the index from where to search on.

    `data` begins `base` bytes into its stream. Unless `final`, a hit is left for later until all is there that may be
    kept with it: only so does nothing depend on how the stream was split.
    """
    lowered = bytes(data[start:]).lower()
    coming = [lowered.find(needle) for needle in needles]
    while True:
        hits = [place for place in coming if place >= 0]
        if not hits:
            return max(start, len(data) - max(map(len, needles), default=1) + 1)
        at = start + min(hits)
        if not final and len(data) - at < _LINE:
            return at
        region = _around(data, at, base)
        begin = max(region.begin, kept.until - base)
        if begin < region.end:
            before = _CUT if region.cut_before and begin == region.begin else b""
            after = _CUT + b"\n" if region.cut_after else b""
            if not kept.add(base + begin, before + bytes(data[begin : region.end]) + after, base + region.end):
                return at
        resume = region.resume - start
        coming = [
            place if place < 0 or place >= resume else lowered.find(needle, resume)
            for place, needle in zip(coming, needles, strict=True)
        ]


def _around(data: bytes | bytearray, at: int, base: int) -> _Region:
    """Return what to keep around the hit at index `at`: its line and its neighbours, all within `_LINE` bytes."""
    low, high = max(0, at - _LINE), min(len(data), at + _LINE)
    ended = len(data) < at + _LINE  # the stream ends before the window does: an unfinished last line is whole
    newline = data.rfind(b"\n", low, at)
    begin, cut_before = (newline + 1, False) if newline >= 0 else (low, base + low > 0)
    newline = data.find(b"\n", at, high)
    end, cut_after = (newline + 1, False) if newline >= 0 else (high, not ended)
    if cut_before or cut_after or end - begin > _LINE:
        nearer, farther = max(begin, at - _LINE // 2), min(end, at + _LINE // 2)
        return _Region(nearer, farther, farther, cut_before or nearer > begin, cut_after or farther < end)
    resume = end
    for _ in range(_LINES_BEFORE):
        newline = data.rfind(b"\n", low, begin - 1) if begin - 1 > low else -1
        if newline < 0:
            begin = 0 if base + low == 0 else begin
            break
        begin = newline + 1
    lines = 0
    # A list of paths below the hit is kept as far as it goes: Homebrew names its directories one a line.
    while lines < _LINES_AFTER or data[end : end + 1] == b"/":
        lines += data[end : end + 1] != b"/"
        newline = data.find(b"\n", end, high)
        if newline < 0:
            end = high if ended else end
            break
        end = newline + 1
    return _Region(begin, end, resume, cut_before=False, cut_after=False)
