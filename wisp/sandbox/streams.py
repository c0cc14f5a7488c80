"""The three streams of one command: captured, shared with a person's, or a terminal of its own."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from wisp.errors import LaunchFailed

if TYPE_CHECKING:
    from typing import Self

    from wisp.sandbox.process import Sink

__all__ = ["Passthrough", "Streams", "Terminal"]

_SHELL: Final = "/bin/sh"


class Terminal:
    """A pseudo-terminal for one command.

    `master` is the side that stays here and belongs to the caller. The other side is closed here as soon as the
    command has it: as long as it were open, the end of the command's output could not be seen. What can be read from
    `typed` is typed into it.
    """

    def __init__(self, master: int, slave: int, typed: int) -> None:
        self.master: Final = master
        self.typed: Final = typed
        self.name: Final = os.ttyname(slave)
        self.slave = slave

    def close_slave(self) -> None:
        """Close the command's side; closing it again does nothing."""
        slave, self.slave = self.slave, -1
        if slave >= 0:
            os.close(slave)


@dataclass(frozen=True, slots=True)
class Passthrough:
    """How a command shares the streams of a person's terminal or pipeline, instead of having them captured.

    `stdin` and `stdout` are descriptors handed to the command as they are; with `stdout` None its output goes the way
    of the error output, through the same pipe, so that the order of the two is kept. The error output is written to
    `stderr` as it comes. With `terminal` all three are that terminal, and its output is written to `stderr`. With
    `captures` only the input is shared, and both outputs are kept as without a passthrough.
    """

    stdin: int
    stdout: int | None
    stderr: int
    captures: bool = False
    terminal: Terminal | None = None


class Streams:
    """The descriptors of one command, and what takes the bytes that come out of it.

    Opened by `with`; raises OSError where no descriptor is left. `stdin`, `stdout` and `stderr` are what to start it
    with, after which `close_theirs` is due; `hand_over`, `onward` and `borrowed` are for `supervise`.
    """

    def __init__(self, take_out: Sink, take_err: Sink, passthrough: Passthrough | None) -> None:
        self._take_out, self._take_err, self._shared = take_out, take_err, passthrough
        self._sources: dict[int, Sink] = {}
        self._theirs: list[int] = []
        self.stdin = self.stdout = self.stderr = -1
        self.onward: dict[int, int] = {}
        self.borrowed: frozenset[int] = frozenset()

    def __enter__(self) -> Self:
        try:
            self._open()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self.close_theirs()
        while self._sources:
            source, _sink = self._sources.popitem()
            if source not in self.borrowed:
                os.close(source)

    def _open(self) -> None:
        shared = self._shared
        if shared is None:
            self.stdin = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            self._theirs.append(self.stdin)
        else:
            self.stdin = shared.stdin
        if shared is None or shared.captures:
            self.stdout, _reader = self._pipe(self._take_out)
            self.stderr, _reader = self._pipe(self._take_err)
        elif shared.terminal is not None:
            self._join(shared.terminal, shared.stderr)
        else:
            self.stderr, reader = self._pipe(self._take_err)
            self.stdout = self.stderr if shared.stdout is None else shared.stdout
            self.onward[reader] = shared.stderr

    def _pipe(self, sink: Sink) -> tuple[int, int]:
        """Return the ends of a new pipe: the one to write to, and the one that is read here."""
        reader, writer = os.pipe()
        self._sources[reader] = sink
        self._theirs.append(writer)
        return writer, reader

    def _join(self, terminal: Terminal, output: int) -> None:
        """Make the terminal all three streams, its output going to `output`."""
        reader = os.dup(terminal.master)
        self._sources[reader] = self._take_err
        self.onward[reader] = output
        self._sources[terminal.typed] = len  # nothing is kept of what a person types
        self.onward[terminal.typed] = terminal.master
        self.borrowed = frozenset({terminal.typed})
        self.stdin = self.stdout = self.stderr = terminal.slave

    def wrap(self, argv: list[str], directory: str, env: Mapping[bytes, bytes]) -> list[str]:
        """Return what to start: on a terminal of its own, a shell that makes it the controlling one first.

        A session leader without a controlling terminal gets the first terminal that it opens (setsid(2), tty(4)).
        Raises LaunchFailed where that shell would not find the program.
        """
        if self._shared is None or self._shared.terminal is None:
            return argv
        program = argv[0] if "/" not in argv[0] else os.path.join(directory, argv[0])
        if shutil.which(program, path=os.fsdecode(env.get(b"PATH", os.fsencode(os.defpath)))) is None:
            raise LaunchFailed(argv[0], os.strerror(2))
        # By descriptor where the kernel opens one anew: a lane has terminals of its own, and none of this name. Closed
        # again: what is opened under Landlock takes fewer ioctls than what was handed over.
        again = "/proc/self/fd/0" if sys.platform == "linux" else self._shared.terminal.name
        return [_SHELL, "-c", ': <"$0"; exec "$@"', again, *argv]

    def close_theirs(self) -> None:
        """Close what only the command holds from now on."""
        # Forgotten first: an interrupt in between must not have a number closed twice, which may be another's by then.
        while self._theirs:
            os.close(self._theirs.pop())
        if self._shared is not None and self._shared.terminal is not None:
            self._shared.terminal.close_slave()

    def hand_over(self) -> Mapping[int, Sink]:
        """Give away the descriptors to read from and what takes their bytes; the caller closes them."""
        taken, self._sources = self._sources, {}
        return taken
