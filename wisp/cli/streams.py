"""How `wisp run` shares a person's streams with a command: passed through, captured, or a terminal of its own."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import pty
import re
import signal
import stat
import termios
import tty
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from wisp.errors import LaunchFailed, UsageError
from wisp.realpath import crossed_links, is_inside, real
from wisp.sandbox.streams import Passthrough, Terminal

if TYPE_CHECKING:
    from types import FrameType, TracebackType
    from typing import Self

    from wisp.sandbox.confinement import Confinement

__all__ = ["StatusFile", "captured_streams", "own_terminal", "shared_streams"]

#: Names of this process's own descriptors: what a shell's `>(…)` gives is one of them.
_DESCRIPTOR: Final = re.compile(r"(?:/dev/fd/|/proc/self/fd/)?([0-9]{1,9})")
_STANDARD: Final = {"/dev/stdin": 0, "/dev/stdout": 1, "/dev/stderr": 2}
_O_PATH: Final[int] = getattr(os, "O_PATH", os.O_RDONLY)


def shared_streams() -> Passthrough:
    """Return the streams of this process for a command: input and output handed over, error output as it comes.

    Where output and error output are one pipe or file, both go through the same pipe, so that their order is kept.
    """
    both = _is_same_stream(1, 2) and not os.isatty(1)
    return Passthrough(stdin=0, stdout=None if both else 1, stderr=2)


def captured_streams() -> Passthrough:
    """Return the input of this process for a command whose outputs are captured."""
    return Passthrough(stdin=0, stdout=None, stderr=2, captures=True)


def _is_same_stream(one: int, other: int) -> bool:
    first, second = os.fstat(one), os.fstat(other)
    return (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino)


@contextmanager
def own_terminal() -> Iterator[Passthrough]:
    """Give the command a pseudo-terminal of its own, joined to the person's terminal while it runs.

    Raises UsageError where standard input is no terminal any more, LaunchFailed where the system has none to give.
    """
    try:
        before = termios.tcgetattr(0)
    except termios.error:
        raise UsageError("`--tty` needs a terminal on standard input") from None
    try:
        master, slave = pty.openpty()
    except OSError as error:
        raise LaunchFailed("a terminal of its own", error.strerror or str(error)) from None
    terminal = Terminal(master, slave, typed=0)

    def resize(_signum: int, _frame: FrameType | None) -> None:
        _copy_size(master)

    previous = signal.signal(signal.SIGWINCH, resize)
    try:
        termios.tcsetattr(slave, termios.TCSANOW, before)
        _copy_size(master)
        # Not TCSAFLUSH: what was typed ahead is meant for the command.
        with suppress(termios.error):
            tty.setraw(0, termios.TCSADRAIN)
        yield Passthrough(stdin=slave, stdout=slave, stderr=1, terminal=terminal)
    finally:
        with suppress(termios.error):  # a terminal that was closed has no mode to restore
            termios.tcsetattr(0, termios.TCSADRAIN, before)
        signal.signal(signal.SIGWINCH, previous)
        terminal.close_slave()
        os.close(master)


def _copy_size(master: int) -> None:
    with suppress(OSError):
        fcntl.ioctl(master, termios.TIOCSWINSZ, fcntl.ioctl(0, termios.TIOCGWINSZ, b"\0" * 8))


class StatusFile:
    """Where `--status-json` goes: opened before the command runs, so that the command cannot redirect it.

    `target` is a path, or a descriptor of this process by its number or its name under /dev. A path that leads through
    a link which lies in a writable root is refused: a command may have made that link, and wisp would write where it
    points with a person's own rights. Raises UsageError.
    """

    def __init__(self, target: str | None, confinement: Confinement) -> None:
        self._descriptor: int | None = None
        if target is None:
            return
        number = _STANDARD.get(target)
        if number is None and (named := _DESCRIPTOR.fullmatch(target)):
            number = int(named[1])
        if number is not None:
            self._descriptor = _duplicate(number)
            return
        if not target or "\0" in target:
            raise UsageError("`--status-json`: a file or the number of a descriptor is wanted")
        for link in crossed_links(target):
            if any(is_inside(link, root) for root in confinement.roots):
                raise UsageError(
                    f"`--status-json`: {target} leads through the link {link}, which a command could have made; "
                    "name its target instead"
                )
        try:
            self._descriptor = _open_for_writing(real(target))
        except OSError as error:
            raise UsageError(f"`--status-json`: {target}: {error.strerror}") from None

    def write(self, facts: Mapping[str, object]) -> None:
        """Write one JSON object and a newline; a full disk is reported, and is not the command's failure."""
        if self._descriptor is None:
            return
        data = (json.dumps(facts, ensure_ascii=True, sort_keys=True) + "\n").encode()
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
        except OSError as error:
            with suppress(OSError):
                os.write(2, f"wisp: --status-json could not be written: {error.strerror}\n".encode())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _duplicate(number: int) -> int:
    try:
        return fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 3)
    except (OSError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) else os.strerror(errno.EBADF)
        raise UsageError(f"`--status-json`: descriptor {number}: {reason}") from None


def _open_for_writing(path: str) -> int:
    """Open the real path `path`, new or emptied, through no link at all.

    A real path leads through none, so one that is met was put there since it was looked at, by a command that runs in
    the same roots.
    """
    *parents, name = path.split("/")[1:]
    directory = os.open("/", _O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for parent in parents:
            flags = _O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            directory, outer = os.open(parent, flags, dir_fd=directory), directory
            os.close(outer)
        # NONBLOCK: a FIFO without a reader must not hold wisp up.
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        opened = os.open(name or ".", flags, 0o600, dir_fd=directory)
    finally:
        os.close(directory)
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.set_blocking(opened, True)
    return opened
