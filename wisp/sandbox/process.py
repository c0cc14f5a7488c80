"""The life of one started command: its output, its time, its end, and the end of all that it started.

One poll loop watches the streams, the command's end and the stop handle. There are no reader threads and no timed
waits of `Popen`: both cost more than the sandbox does.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from wisp.sandbox.leftovers import ProcStat, proc_stat
from wisp.sandbox.stop import Attached, Stop
from wisp.sandbox.tail import Tail

if TYPE_CHECKING:
    from wisp.sandbox.backend import Running
    from wisp.sandbox.observation import Observation

__all__ = ["Finished", "ProcStat", "Sink", "Stop", "Tail", "end_now", "proc_stat", "supervise"]

#: Seconds between asking a command to end (TERM) and ending it (KILL).
_GRACE: Final = 2.0
#: Seconds that a stream may stay open after its command and all that it started have ended.
_DRAIN: Final = 1.0
#: Bytes read in that time at most, so that a survivor which writes forever does not hold the call: as many as a pipe
#: may hold (`fs.pipe-max-size`).
_MOST_DRAINED: Final = 1 << 20
#: Seconds after KILL in which the kernel has to report the end; a process in an uninterruptible wait may not.
_DEATH: Final = 10.0
_CHUNK: Final = 1 << 18
#: The longest that poll(2) can be told to wait is 2**31 - 1 ms, less than a time-out of 25 days.
_LONGEST_WAIT: Final = 3600.0

#: What takes a stream's bytes as they pass.
Sink = Callable[[bytes], object]


@dataclass(frozen=True, slots=True)
class Finished:
    """How a command ended: `exit_status` is 0 to 255 or the negative number of a signal."""

    exit_status: int
    timed_out: bool
    stopped: bool
    left_behind: str
    #: What the observer saw, where there was one.
    observation: Observation | None = None


def supervise(
    command: Running,
    streams: Mapping[int, Sink],
    *,
    timeout: float | None,
    stop: Attached | None,
    onward: Mapping[int, int] | None = None,
    borrowed: Collection[int] = (),
) -> Finished:
    """Wait for `command`, pass its streams to their sinks, and end all that it started before returning.

    `streams` maps descriptors to what takes the bytes that come out of them. They are closed here, and waited for at
    the end, but for those in `borrowed`, which are other people's. `onward` maps some of them to a descriptor that
    their bytes are written to as well: nothing more is read while its reader is slow, nothing is lost, and only a
    time-out or a stop makes wisp leave before that reader has taken all. `timeout` is in seconds. Whatever interrupts
    this (Ctrl-C) ends the command first.

    Raises StatusLost when the exit status cannot be known, OSError when the program could not be started, or when no
    descriptor is left to watch the command with; it is ended then.
    """
    watch = _Watch(command, streams, stop, timeout, onward or {}, borrowed)
    try:
        return watch.run()
    except BaseException:
        watch.abort()
        raise
    finally:
        watch.close()


def end_now(command: Running) -> None:
    """End a command that nobody watches any more, and all that it started, if that is not done."""
    with suppress(OSError):
        command.open()
    try:
        _end_now(command)
    finally:
        command.close()


def _end_now(command: Running) -> None:
    with suppress(BaseException):
        command.claim()  # what interrupted its start is being raised already
    if command.is_reaped:
        return
    command.signal_all(signal.SIGKILL)
    # First what it left, while its number is still its own.
    command.end_leftovers()
    if command.descriptor >= 0 and not command.is_over(_DEATH):
        command.give_up()
        return
    with suppress(Exception):
        command.reap()


class _Channel:
    """One stream: where its bytes come from, what takes them, and what is not written onward yet."""

    __slots__ = ("is_borrowed", "onward", "pending", "source", "take")

    def __init__(self, source: int, take: Sink, onward: int | None, *, is_borrowed: bool) -> None:
        self.source, self.take, self.onward, self.is_borrowed = source, take, onward, is_borrowed
        self.pending = memoryview(b"")


class _Watch:
    """The poll loop and its state."""

    def __init__(
        self,
        command: Running,
        streams: Mapping[int, Sink],
        stop: Attached | None,
        timeout: float | None,
        onward: Mapping[int, int],
        borrowed: Collection[int],
    ) -> None:
        self._command, self._stop = command, stop
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._kill_at: float | None = None
        self._killed_at: float | None = None
        self._timed_out = self._stopped = self._gave_up = False
        self._seen_requests = 0
        self._poll = select.poll()
        self._channels = {
            source: _Channel(source, take, onward.get(source), is_borrowed=source in borrowed)
            for source, take in streams.items()
        }
        #: Channels that wait for the reader of what they write to, by that descriptor.
        self._writing: dict[int, _Channel] = {}

    def run(self) -> Finished:
        """Serve events until the command has ended."""
        self._command.claim()
        for channel in self._channels.values():
            if not channel.is_borrowed:  # else the flag would be its owner's too
                os.set_blocking(channel.source, False)
            self._poll.register(channel.source, select.POLLIN)
        if self._stop is not None:
            self._poll.register(self._stop.descriptor, select.POLLIN)
        if not self._command.open():
            return self._finish()
        self._poll.register(self._command.descriptor, select.POLLIN)
        if self._stop is not None:
            self._heed(self._stop)
        while True:
            for descriptor, _event in self._poll.poll(self._patience()):
                if descriptor == self._command.descriptor:
                    self._poll.unregister(descriptor)
                    return self._finish()
                self._serve(descriptor)
            self._check_clock()
            if self._killed_at is not None and time.monotonic() - self._killed_at > _DEATH:
                return self._give_up()

    def _patience(self) -> int | None:
        """Return how long to wait for an event, in milliseconds rounded up, or None for as long as it takes."""
        waits = [at for at in (self._deadline, self._kill_at) if at is not None]
        if self._killed_at is not None:
            waits.append(self._killed_at + _DEATH)
        return _milliseconds(min(waits) - time.monotonic()) if waits else None

    def _serve(self, descriptor: int) -> None:
        """Do what an event on a stream or on the stop handle asks for."""
        if self._stop is not None and descriptor == self._stop.descriptor:
            self._stop.clear()
            self._heed(self._stop)
        elif descriptor in self._writing:
            self._write(descriptor, self._writing[descriptor])
        elif descriptor in self._channels:
            self._read(self._channels[descriptor])

    def _check_clock(self) -> None:
        now = time.monotonic()
        if self._deadline is not None and now >= self._deadline:
            self._deadline = None
            if not self._stopped:
                self._timed_out = True
                self._terminate(now)
        if self._kill_at is not None and now >= self._kill_at:
            self._kill(now)

    def _heed(self, handle: Attached) -> None:
        """Do what was asked through the stop handle since the last look."""
        for signum in handle.stop.take_forwards():
            self._command.signal_group(signum)
        requests = handle.stop.requests
        if requests == self._seen_requests:
            return
        now = time.monotonic()
        if not self._timed_out:
            self._stopped = True
        if requests >= 2:
            self._kill(now)
        elif self._kill_at is None and self._killed_at is None:
            self._terminate(now)
        self._seen_requests = requests

    def _terminate(self, now: float) -> None:
        self._command.signal_all(signal.SIGTERM)
        # A stopped process takes TERM only when it goes on.
        self._command.signal_all(signal.SIGCONT)
        self._kill_at = now + _GRACE

    def _kill(self, now: float) -> None:
        self._kill_at = None
        self._killed_at = self._killed_at or now
        self._command.signal_all(signal.SIGKILL)

    def _read(self, channel: _Channel) -> int:
        """Pass on what is there; return how many bytes that was."""
        try:
            chunk = os.read(channel.source, _CHUNK)
        except BlockingIOError:
            return 0
        except OSError:  # EIO: the other side of a pty is gone
            chunk = b""
        if not chunk:
            self._retire(channel)
            return 0
        channel.take(chunk)
        if channel.onward is not None:
            channel.pending = memoryview(chunk)
            self._poll.unregister(channel.source)
            self._poll.register(channel.onward, select.POLLOUT)
            self._writing[channel.onward] = channel
        return len(chunk)

    def _write(self, onward: int, channel: _Channel) -> None:
        """Write to `onward` what its reader can take now.

        The descriptor may be shared with other programs, so it is not made non-blocking. What poll(2) calls writable
        takes PIPE_BUF bytes without blocking.
        """
        try:
            written = os.write(onward, channel.pending[: select.PIPE_BUF])
        except BlockingIOError:  # somebody else made it non-blocking
            return
        except OSError as error:
            if error.errno not in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
                # Its reader is gone, and the command is to learn that: by its pipe, or as from a closed terminal.
                if not channel.is_borrowed and os.isatty(channel.source):
                    self._command.signal_group(signal.SIGHUP)
                self._retire(channel)
                return
            written = len(channel.pending)  # a full disk loses output, as it would without wisp; the command goes on
        channel.pending = channel.pending[written:]
        if not channel.pending:
            self._stop_writing(channel)
            self._poll.register(channel.source, select.POLLIN)

    def _stop_writing(self, channel: _Channel) -> bool:
        """Return whether the channel was waiting for its reader; it no longer is."""
        if channel.onward is None or self._writing.get(channel.onward) is not channel:
            return False
        del self._writing[channel.onward]
        self._poll.unregister(channel.onward)
        channel.pending = memoryview(b"")
        return True

    def _retire(self, channel: _Channel) -> None:
        """Nothing more comes out of it, or nobody wants it."""
        if not self._stop_writing(channel):
            self._poll.unregister(channel.source)
        del self._channels[channel.source]
        if not channel.is_borrowed:
            os.close(channel.source)

    def _finish(self) -> Finished:
        """The leader has ended: end what it left, read what is still in the pipes, and take its status."""
        for channel in [one for one in self._channels.values() if one.is_borrowed]:
            self._retire(channel)  # what a person types from now on is for whatever comes after the command
        left_behind = self._command.end_leftovers()
        self._drain()
        return Finished(self._command.reap(), self._timed_out, self._stopped, left_behind)

    def _give_up(self) -> Finished:
        self._gave_up = True
        return Finished(-signal.SIGKILL, self._timed_out, self._stopped, self._command.give_up())

    def _drain(self) -> None:
        """Read the streams to their end: all writers are gone, or what is left of them gets a second.

        A reader further on that is slow gets all the time it takes, unless the command's time was up or a person wants
        an end.
        """
        is_patient = not (self._timed_out or self._stopped)
        until, read = time.monotonic() + _DRAIN, 0
        while self._channels:
            now = time.monotonic()
            waits_for_reader = is_patient and bool(self._writing)
            if not waits_for_reader and (now >= until or read >= _MOST_DRAINED):
                break
            for descriptor, _event in self._poll.poll(None if waits_for_reader else _milliseconds(until - now)):
                if descriptor in self._writing:
                    self._write(descriptor, self._writing[descriptor])
                elif descriptor in self._channels:
                    read += self._read(self._channels[descriptor])
                elif self._stop is not None and descriptor == self._stop.descriptor:
                    self._stop.clear()
                    is_patient = is_patient and self._stop.stop.requests == self._seen_requests
            if waits_for_reader:
                until += time.monotonic() - now

    def abort(self) -> None:
        """End the command because the caller is being interrupted."""
        if not self._gave_up:
            _end_now(self._command)

    def close(self) -> None:
        """Close what is still open."""
        while self._channels:
            _source, channel = self._channels.popitem()
            if not channel.is_borrowed:
                os.close(channel.source)
        self._command.close()


def _milliseconds(seconds: float) -> int:
    """Return `seconds` for poll(2): rounded up, not below zero, and no more than it can wait."""
    return int(max(0.0, min(seconds, _LONGEST_WAIT)) * 1000) + 1
