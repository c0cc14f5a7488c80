"""The end of a stream, kept while the stream passes."""

from __future__ import annotations

__all__ = ["Tail"]


class Tail:
    """The last `limit` bytes of a stream, however long it is and however it was split; at most twice that is held."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = bytearray()
        self.total = 0

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes."""
        self.total += len(chunk)
        if len(chunk) >= self._limit:
            self._held[:] = chunk[len(chunk) - self._limit :]
            return
        self._held += chunk
        if len(self._held) > 2 * self._limit:  # not at every byte: each cut moves what is kept
            del self._held[: -self._limit]

    @property
    def truncated(self) -> bool:
        """Whether bytes were lost."""
        return self.total > self._limit

    def data(self) -> bytes:
        """Return the tail."""
        return bytes(self._held[-self._limit :]) if self._limit else b""

    def text(self) -> str:
        """Return the tail as text; what is not UTF-8, a character cut in two included, becomes U+FFFD."""
        return self.data().decode("utf-8", "replace")
