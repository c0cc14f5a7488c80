"""A person's handle on a command that runs."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

__all__ = ["Attached", "Stop"]


class Stop:
    """A person's handle on a command that runs: ask it to end, then end it.

    The first `request` sends TERM to everything the command started, and KILL two seconds later; the second, or
    `kill`, sends KILL at once. A request before the start acts as the command starts; one after the end does nothing.
    Safe from any thread and from a signal handler. One handle may serve several commands, also at once: all of them
    are asked. With `by_signals`, for a command that the main thread runs, a signal is heard also in the moment in
    which the wait begins: Python's handlers run when the wait is over, and here each signal ends it
    (`signal.set_wakeup_fd`, which is put back after the command).
    """

    def __init__(self, *, by_signals: bool = False) -> None:
        self._by_signals = by_signals
        # Appending is one step; `+= 1` is three, and a signal handler between them would lose a request.
        self._requests: deque[None] = deque()
        self._forwards: deque[int] = deque(maxlen=64)
        self._wakes: list[int] = []
        # Without it another thread could write into a descriptor whose number was closed here, and is already
        # somebody else's file. Re-entrant: a signal handler may come while its own thread is inside.
        self._lock = threading.RLock()

    def request(self) -> None:
        """Ask the command to end; asked again, end it at once."""
        self._requests.append(None)
        self._wake()

    def kill(self) -> None:
        """End the command and all that it started at once."""
        self._requests.extend((None, None))
        self._wake()

    def forward(self, signum: int) -> None:
        """Pass `signum` on to the command's process group, and do nothing else."""
        self._forwards.append(signum)
        self._wake()

    @property
    def requests(self) -> int:
        """How often the command was asked to end; `kill` counts twice."""
        return len(self._requests)

    def take_forwards(self) -> list[int]:
        """Return the signals to pass on, once."""
        taken: list[int] = []
        with suppress(IndexError):
            while True:
                taken.append(self._forwards.popleft())
        return taken

    def _wake(self) -> None:
        with self._lock:
            for descriptor in self._wakes:
                with suppress(BlockingIOError):  # full: a wake is on its way already
                    os.write(descriptor, b"!")

    @contextmanager
    def attached(self) -> Iterator[Attached]:
        """Listen to this handle for as long as one command runs. Raises OSError where no descriptor is left."""
        reader, writer = _open_pipe()
        with self._lock:
            self._wakes.append(writer)
        before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False) if self._by_signals else None
        try:
            yield Attached(self, reader)
        finally:
            if before is not None:
                signal.set_wakeup_fd(before, warn_on_full_buffer=False)
            with self._lock:
                self._wakes.remove(writer)
                os.close(writer)
            os.close(reader)


@dataclass(frozen=True, slots=True)
class Attached:
    """A stop handle and the descriptor that becomes readable with each request."""

    stop: Stop
    descriptor: int

    def clear(self) -> None:
        """Make the descriptor wait for the next request."""
        with suppress(BlockingIOError):
            while os.read(self.descriptor, 4096):
                pass


def _open_pipe() -> tuple[int, int]:
    """Return the ends of a pipe that neither blocks nor is inherited."""
    if sys.platform == "linux":
        return os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    return reader, writer
