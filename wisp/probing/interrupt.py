"""Ending what several threads are waiting for, at once, when a person presses Ctrl-C."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

__all__ = ["Interrupt"]


class Interrupt:
    """A request to stop that also ends what is running now. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls = dict[object, Callable[[], object]]()
        self._requested = False

    @property
    def requested(self) -> bool:
        """Whether somebody asked to stop."""
        return self._requested

    def request(self) -> None:
        """Ask to stop: every call registered now is made, and every later one as it is registered."""
        with self._lock:
            self._requested = True
            calls = tuple(self._calls.values())
        for call in calls:
            call()

    @contextlib.contextmanager
    def calling(self, call: Callable[[], object]) -> Iterator[None]:
        """Have `call` made when a stop is requested while this context is open, also if it was requested before."""
        key = object()
        with self._lock:
            self._calls[key] = call
            late = self._requested
        try:
            if late:
                call()
            yield
        finally:
            with self._lock:
                del self._calls[key]
