"""Running a command as any program would, without wisp: the control that every row needs.

Not the backend `none`: wisp gives every command a session of its own, closes descriptors and ends what it left, also
unconfined, so the rows about those would have no control that crosses.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from wisp.probing.interrupt import Interrupt
from wisp.sandbox.process import Tail

__all__ = ["Ran", "run_bare"]

_CHUNK: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Ran:
    """What one plain run did: a status as Popen gives it, and the last bytes of each stream as text."""

    exit_status: int
    stdout: str
    stderr: str
    truncated: bool
    timed_out: bool


@contextlib.contextmanager
def run_bare(
    argv: Sequence[str],
    *,
    cwd: str,
    env: Mapping[str, str],
    seconds: float,
    most: int,
    keep: Sequence[int] = (),
    interrupt: Interrupt,
) -> Iterator[Ran]:
    """Run `argv` in this session, in a process group of its own, and give what it did once it has ended.

    What it left in its group still runs inside the context, to be looked at, and is killed at its end. `most` bytes
    of each stream are kept, `keep` are descriptors that it inherits. Raises OSError when it cannot be started.
    """
    with subprocess.Popen(  # noqa: SIM117 - the process must exist before it can be interrupted
        argv,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=tuple(keep),
        process_group=0,
    ) as process:
        with interrupt.calling(lambda: _kill_group(process)):
            try:
                yield _read(process, time.monotonic() + seconds, most)
            finally:
                _kill_group(process)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    # Before the leader is reaped, its number cannot belong to anybody else.
    if process.returncode is None:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)


def _read(process: subprocess.Popen[bytes], deadline: float, most: int) -> Ran:
    """Read both streams until the leader has ended, not until they close: a child may hold them open."""
    if process.stdout is None or process.stderr is None:
        raise AssertionError("both streams are pipes")
    tails = {process.stdout.fileno(): Tail(most), process.stderr.fileno(): Tail(most)}
    poller = select.poll()
    for descriptor in tails:
        os.set_blocking(descriptor, False)
        poller.register(descriptor, select.POLLIN)
    ended = False
    timed_out = False
    with _watched(process, poller) as watch:
        while not ended:
            if time.monotonic() > deadline and not timed_out:
                timed_out = True
                _kill_group(process)
            events = poller.poll(10 if watch is None else 100)
            ended = _has_ended(process) if watch is None else any(found == watch for found, _ in events)
            for descriptor, _ in events:
                if descriptor != watch and not _drain(descriptor, tails[descriptor]):
                    poller.unregister(descriptor)
        for descriptor, tail in tails.items():
            _drain(descriptor, tail)
    out, err = tails.values()
    return Ran(_status(process), out.text(), err.text(), out.truncated or err.truncated, timed_out)


@contextlib.contextmanager
def _watched(process: subprocess.Popen[bytes], poller: select.poll) -> Iterator[int | None]:
    """Give a descriptor that is readable once the process has ended, registered with `poller`; None without one."""
    if sys.platform != "linux":
        yield None
        return
    watch = os.pidfd_open(process.pid)
    try:
        poller.register(watch, select.POLLIN)
        yield watch
    finally:
        os.close(watch)


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    return process.poll() is not None


def _status(process: subprocess.Popen[bytes]) -> int:
    """Return the exit status without taking it: its group is killed after this, and needs its number till then."""
    if sys.platform != "linux":
        return process.wait()
    ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    if ended is None:
        return process.wait()
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


def _drain(descriptor: int, tail: Tail) -> bool:
    """Read what is there now; False once the stream is closed."""
    for _ in range(64):  # a command that never stops printing must not keep the loop from its deadline
        try:
            chunk = os.read(descriptor, _CHUNK)
        except BlockingIOError:
            return True
        if not chunk:
            return False
        tail.feed(chunk)
    return True
