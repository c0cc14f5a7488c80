"""A slot: one long-lived thread that has restricted itself and starts commands, one at a time.

Landlock, seccomp, no_new_privs and capability sets belong to a *thread* on Linux; what a thread starts inherits them,
and its process stays free. So a slot restricts itself once and then starts each command by plain `subprocess`, which
uses vfork: no helper process, no `preexec_fn`, and nothing of the embedding program is confined.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Final, Generic, TypeVar

from wisp.errors import SandboxUnavailable
from wisp.sandbox import notify, syscalls
from wisp.sandbox.leader import Command
from wisp.sandbox.leftovers import proc_stat

__all__ = ["SlotThread"]

_Result = TypeVar("_Result")

#: Seconds after which a command that nobody has come to watch is ended. The way there takes microseconds.
_UNWATCHED: Final = 5.0


class _Job(Generic[_Result]):
    """One thing to do in the slot's thread, and where its result goes.

    A caller may be interrupted (Ctrl-C) while it waits. It still waits then until the work is done, because the work
    uses the caller's descriptors: once they are closed, their numbers may be other files, and a command would write
    into those. The result has no owner any more, so `discard` takes care of it.
    """

    def __init__(self, work: Callable[[], _Result], discard: Callable[[_Result], None] | None) -> None:
        self._work, self._discard = work, discard
        self._finished = threading.Lock()
        self._finished.acquire()
        self._is_done = False
        self.result: _Result | None = None
        self._error: BaseException | None = None

    def do(self) -> bool:
        """Run the work and return whether it succeeded; called in the slot's thread."""
        try:
            self.result = self._work()
        except BaseException as error:  # noqa: BLE001 - it is raised again in the thread that waits
            self._error = error
        self._finish()
        return self._error is None

    def fail(self, error: BaseException) -> None:
        """Let the thread that waits raise `error`."""
        self._error = error
        self._finish()

    def _finish(self) -> None:
        self._is_done = True
        self._finished.release()

    def ask(self, worker: _Worker) -> _Result:
        """Have `worker` do it, and return its result or raise what it raised; called in the thread that asks."""
        try:
            worker.jobs.put(self)  # type: ignore[arg-type]  # a job of any result fits the queue
            # The thread may be ending. It says so before it looks for late jobs: one of the two sees the other.
            if worker.is_closed and not self._is_done:
                raise worker.ended()  # noqa: TRY301 - what follows it is for every way out
            self._finished.acquire()
            if self._error is None:
                return self.result  # type: ignore[return-value]  # None is a result of work that returns None
        except BaseException:
            if not worker.is_closed:
                self._abandon()
            raise
        raise self._error

    def _abandon(self) -> None:
        """Wait for the end of the work, whatever else interrupts, and throw its result away."""
        until = time.monotonic() + _UNWATCHED
        while not self._is_done and (left := until - time.monotonic()) > 0:
            with suppress(BaseException):
                self._finished.acquire(timeout=left)
        if self.result is not None and self._discard is not None:
            with suppress(OSError):
                self._discard(self.result)


class _Worker:
    """What runs in the slot's thread. It does not know the slot, so that a slot nobody holds any more can end."""

    def __init__(self, backend: str) -> None:
        self.jobs: SimpleQueue[_Job[object] | None] = SimpleQueue()
        self.is_closed = False
        #: The last command that was started, until somebody watches it, and when it started in clock ticks.
        self.started: Command | None = None
        self.since = 0
        self._backend = backend

    def serve(self) -> None:
        """Do what is asked for, in order, until the slot is closed or the first of it, its restriction, fails."""
        job = self.jobs.get()
        is_sound = job is not None and job.do()
        while is_sound and (job := self._next()) is not None:
            job.do()
            del job  # what it gave must not live on until the next one
        self.is_closed = True
        with suppress(Empty):
            while (late := self.jobs.get_nowait()) is not None:
                late.fail(self.ended())

    def _next(self) -> _Job[object] | None:
        """Return the next thing to do. A command that nobody comes to watch is ended before that."""
        try:
            job = self.jobs.get(timeout=None if self.started is None else _UNWATCHED)
        except Empty:
            self.end_unwatched()
            job = self.jobs.get()
        if job is None:
            self.end_unwatched()
        return job

    def end_unwatched(self) -> None:
        """End the last command if its caller was interrupted before it could watch it."""
        command, self.started = self.started, None
        if command is not None and not command.is_watched and command.returncode is None:
            _end(command)

    def ended(self) -> SandboxUnavailable:
        return SandboxUnavailable(self._backend, "the thread that starts commands has ended")


class SlotThread:
    """A thread that ran `restrict` first and refuses to work when that failed.

    Raises what `restrict` raises, and SandboxUnavailable where no thread can be started. Give it back with `close`.
    """

    def __init__(self, backend: str, restrict: Callable[[], None], *, new_session: bool, closes: bool) -> None:
        self._new_session: Final = new_session
        self._closes: Final = closes
        self._owner: Final = os.getpid()
        self._worker: Final = _Worker(backend)
        # Daemonic: a program that forgets to close a runner must still be able to end.
        self._thread: Final = threading.Thread(target=self._worker.serve, name="wisp-slot", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # the limit of processes or of memory, or the interpreter is ending
            raise SandboxUnavailable(backend, f"a thread to start commands from is refused ({error})") from None
        _Job(restrict, None).ask(self._worker)

    def __del__(self) -> None:
        if hasattr(self, "_worker"):
            self.close()

    @property
    def native_id(self) -> int:
        """The number that the kernel gives the thread."""
        return self._thread.native_id or 0

    @property
    def is_usable(self) -> bool:
        """Whether the thread still serves: not after `close`, and not in a child that a fork made."""
        return self._thread.is_alive() and not self._worker.is_closed and self._owner == os.getpid()

    def close(self) -> None:
        """Let the thread end after what it is doing."""
        self._worker.jobs.put(None)

    def ask(self, work: Callable[[], _Result], discard: Callable[[_Result], None] | None = None) -> _Result:
        """Run `work` in the slot's thread and return what it returns.

        `discard` takes the result when the caller was interrupted while it waited. Raises what `work` raises, and
        SandboxUnavailable when the thread has ended.
        """
        if not self.is_usable:
            raise self._worker.ended()
        return _Job(work, discard).ask(self._worker)

    def spawn(
        self, argv: Sequence[str], *, cwd: str, env: Mapping[bytes, bytes], stdin: int, stdout: int, stderr: int
    ) -> subprocess.Popen[bytes]:
        """Start `argv` under the slot's restriction; see `wisp.sandbox.backend.Slot`."""
        worker = self._worker

        def start() -> Command:
            worker.end_unwatched()
            worker.since = _ticks_now()
            worker.started = Command(
                list(argv),
                cwd=cwd,
                env=env,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                close_fds=self._closes,
                start_new_session=self._new_session,
            )
            return worker.started

        if not self.is_usable:
            raise worker.ended()
        job = _Job(start, None)
        try:
            return job.ask(worker)
        except BaseException as error:
            command = job.result
            if command is None:
                raise
            # It has started, and maybe started more: whoever comes to watch it ends all that, and raises this then.
            command.interruption = error
            return command

    def signal(self, pids: Iterable[int], signum: int, *, since: int | None = None) -> tuple[int, ...]:
        """Send `signum` to those of `pids` that the kernel lets this thread signal, and return them.

        Only processes that started at `since` (clock ticks after boot, `/proc/PID/stat`) or later, by default since
        the last command was started, never this one, and never by a number that another process may have taken over:
        by a descriptor that holds the process. `pids` is iterated in the slot's thread. Raises OSError where no
        descriptor is left to do so.
        """
        earliest = self._worker.since if since is None else since
        return self.ask(lambda: tuple(pid for pid in pids if _signal_one(pid, signum, earliest)))


def _ticks_now() -> int:
    """Return what `/proc/PID/stat` would say of the start of a process that starts now."""
    if sys.platform != "linux":
        return 0
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK") // 1_000_000_000


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a command whose caller is gone, with its process group; it is not reaped yet."""
    try:
        notify.kill(-process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        notify.kill(process.pid, signal.SIGKILL)
    process.wait()


def _signal_one(pid: int, signum: int, since: int) -> bool:
    """Signal one process if the kernel allows it from this thread; return whether it did.

    Raises OSError where no descriptor is left to hold the process by: not to have looked is not to have found none.
    """
    if pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
        descriptor = syscalls.pidfd_open(pid)
    except OSError as error:
        if error.errno in {errno.EMFILE, errno.ENFILE, errno.ENOMEM}:
            raise
        return False
    try:
        stat = proc_stat(pid)
        if stat is None:  # hidden (`hidepid`): then the descriptor tells whether it is over
            watch = select.poll()
            watch.register(descriptor, select.POLLIN)
            if watch.poll(0):
                return False
        elif stat.is_over or stat.started < since:
            return False
        notify.signal_descriptor(descriptor, signum)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True
