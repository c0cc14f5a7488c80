"""The observer: learns what a command and all that it starts is refused, exactly, and answers EPERM to it.

A mode for explaining, never the barrier: a call that it lets go on may still change its arguments, so the layers
beneath hold what they always hold. What the observer's own filter asks for by registers alone (sockets without a
network, mounts, typing into a terminal) never goes on.

Where the layers beneath answer a call by its number with an error, the kernel does not ask. So what is to be listed has
to be left to the observer: `seccomp.build_filter` of an observed command is built with the network on.

When the observer is closed, or its process ends, observed calls fail with ENOSYS, those that wait included: close it
after the commands.
"""

from __future__ import annotations

import errno
import os
import platform
import select
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from wisp.outcome import Denial
from wisp.sandbox import syscalls
from wisp.sandbox.notify import Kernel, Listener, Question
from wisp.sandbox.observation import Observation
from wisp.sandbox.observed import MACHINES, Machine, Observed
from wisp.sandbox.observer_judge import Judge, Refused, always_refused
from wisp.sandbox.observer_paths import Unreadable, status_of

if TYPE_CHECKING:
    from wisp.outcome import Operation
    from wisp.sandbox.confinement import Confinement

__all__ = ["Observation", "Observer"]

#: Seconds in which the thread has to end when the observer is closed; it may wait for a file system.
_END: Final = 2.0


class _Record:
    """The denials of one command so far, bounded; shared by the observer and its thread."""

    def __init__(self, most: int) -> None:
        self._most: Final = most
        self._lock: Final = threading.Lock()
        self._counts: dict[tuple[Operation, str, int], int] = {}
        self._first: dict[tuple[Operation, str, int], Denial] = {}
        self._lost = 0

    def add(self, refused: Refused, call: str, thread: int) -> None:
        operation, target, error = refused
        process = _process_of(thread)
        key = operation, target, process
        with self._lock:
            if key in self._counts:
                self._counts[key] += 1
            elif len(self._counts) < self._most:
                self._counts[key] = 1
                self._first[key] = Denial(
                    operation, target, call, process, _program_of(process), errno.errorcode.get(error, str(error))
                )
            else:
                self._lost += 1

    def lose(self) -> None:
        with self._lock:
            self._lost += 1

    def take(self) -> Observation:
        """Return what there is and start anew."""
        with self._lock:
            denials = tuple(replace(self._first[key], count=count) for key, count in self._counts.items())
            lost, self._lost = self._lost, 0
            self._counts, self._first = {}, {}
        return Observation(denials, lost)


class _Server:
    """What runs in the observer's thread. It does not know the observer, so that one nobody holds can end."""

    #: Whether the listener was closed, and its number may be another's.
    is_over = False

    def __init__(
        self,
        listener: int,
        stop: int,
        judge: Judge,
        calls: dict[int, Observed],
        exempt: frozenset[int],
        record: _Record,
    ) -> None:
        self.descriptor = listener
        self._listener = Listener(listener)
        self.stop = stop
        self._judge = judge
        self._calls = calls
        self._exempt = exempt
        self._record = record

    def serve(self) -> None:
        """Answer until no filtered process is left, or the observer is closed."""
        try:
            poll = select.poll()
            poll.register(self.stop, select.POLLIN)
            poll.register(self.descriptor, select.POLLIN)
            while True:
                events = dict(poll.poll())
                if self.stop in events:
                    return
                if events.get(self.descriptor, 0) & select.POLLIN:
                    question = self._listener.receive()
                    if question is not None:
                        self._serve_one(question)
                elif self.descriptor in events:
                    return
        finally:
            self.is_over = True
            os.close(self.descriptor)
            os.close(self.stop)

    def _serve_one(self, question: Question) -> None:
        call = self._calls.get(question.call)
        error = 0
        if call is not None and question.thread not in self._exempt:
            error = errno.EPERM if always_refused(call, question.arguments) else 0
            try:
                refused = self._judge.refusals(call, question.arguments, question.thread) if question.thread else ()
                if not question.thread:  # in a PID namespace that is not below this one
                    self._record.lose()
            except Unreadable:
                refused = ()
                if self._listener.is_valid(question.number):
                    self._record.lose()
            except Exception:  # noqa: BLE001 - whatever a command made up must not end the observer
                refused = ()
                self._record.lose()
            if refused:
                if not self._listener.is_valid(question.number):
                    return
                error = refused[0].error
                for one in refused:
                    self._record.add(one, call.name, question.thread)
        self._listener.answer(question.number, error)


class Observer:
    """Serves a listener, which it owns from now on, in a thread of its own; make it in a thread that is not observed.

    `exempt` are threads, as seen from here, whose calls always go on (a lane's helper, a slot's thread). At most
    `most` denials are kept for one command. `may_signal` and `is_hidden`: see `Judge`. Raises OSError, and then the
    listener is closed.
    """

    def __init__(
        self,
        listener: int,
        confinement: Confinement,
        *,
        exempt: frozenset[int] = frozenset(),
        most: int = 256,
        may_signal: Callable[[int], bool] | None = None,
        is_hidden: Callable[[str], bool] | None = None,
    ) -> None:
        self._owner: Final = os.getpid()
        self._record: Final = _Record(most)
        pipe: tuple[int, ...] = ()
        try:
            arch, machine = _machine()
            judge = Judge(confinement, Kernel(arch), machine, may_signal=may_signal, is_hidden=is_hidden)
            pipe = os.pipe()
            self._stop = pipe[1]
            self._server: Final = _Server(listener, pipe[0], judge, machine.calls, exempt, self._record)
            # Daemonic: a program that forgets to close it must still be able to end.
            self._thread: Final = threading.Thread(target=self._server.serve, name="wisp-observer", daemon=True)
            _start(self._thread)
        except BaseException:
            for one in (listener, *pipe):
                os.close(one)
            raise
        _OBSERVERS.add(self)

    def __del__(self) -> None:
        if hasattr(self, "_thread"):
            self.close()

    @property
    def is_serving(self) -> bool:
        """Whether calls are answered still."""
        return self._thread.is_alive()

    def begin(self) -> None:
        """Start a fresh record, for the next command."""
        self._record.take()

    def take(self) -> Observation:
        """Return what was seen since `begin`, once."""
        return self._record.take()

    def close(self) -> None:
        """End the thread and close the listener: what is still observed gets ENOSYS from now on."""
        stop, self._stop = self._stop, -1
        if stop < 0:
            return
        if self._owner == os.getpid():
            with suppress(BrokenPipeError):
                os.write(stop, b"x")
        os.close(stop)
        if self._owner == os.getpid() and threading.current_thread() is not self._thread:  # collected in it
            self._thread.join(_END)

    def forget(self) -> None:
        """Give up what a fork copied: held here, a listener would keep calls waiting after its owner was killed."""
        if not self._server.is_over:
            self._server.is_over = True
            os.close(self._server.descriptor)
            os.close(self._server.stop)
        self.close()


def _machine() -> tuple[int, Machine]:
    """Return this machine's audit architecture and tables, or raise OSError (ENOSYS)."""
    table = syscalls.numbers()
    if table is None:
        raise OSError(errno.ENOSYS, f"no system call table for {platform.machine()}")
    return table.audit_arch, MACHINES[table.audit_arch]


def _start(thread: threading.Thread) -> None:
    """Start `thread`, or raise OSError (EAGAIN)."""
    try:
        thread.start()
    except RuntimeError as error:  # the limit of processes or of memory, or the interpreter is ending
        raise OSError(errno.EAGAIN, str(error)) from None


def _process_of(thread: int) -> int:
    """Return the process that a thread belongs to; the thread itself where that cannot be read."""
    try:
        return next(iter(status_of(thread, "Tgid")), thread)
    except Unreadable:
        return thread


def _program_of(process: int) -> str:
    """Return the name that a process gives itself; it may hold anything."""
    try:
        with open(f"/proc/{process}/comm", "rb") as comm:
            return os.fsdecode(comm.read().removesuffix(b"\n"))
    except OSError:
        return ""


#: The observers of this process, for a fork.
_OBSERVERS: Final[weakref.WeakSet[Observer]] = weakref.WeakSet()


def _after_fork() -> None:
    for observer in list(_OBSERVERS):
        observer.forget()


os.register_at_fork(after_in_child=_after_fork)
