"""One launch of one command under an enforcer: what it is started with, and what every failure of it is called."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from wisp.errors import DirectoryMissing, LaunchFailed, UsageError
from wisp.realpath import real
from wisp.sandbox.process import end_now, supervise

if TYPE_CHECKING:
    from wisp.sandbox.backend import Enforcer
    from wisp.sandbox.process import Finished
    from wisp.sandbox.stop import Stop
    from wisp.sandbox.streams import Streams

__all__ = ["environment_of", "existing_directory", "launch"]


def launch(
    enforcer: Enforcer,
    argv: list[str],
    directory: str,
    env: Mapping[bytes, bytes],
    streams: Streams,
    *,
    timeout: float | None,
    stop: Stop | None,
    announce: Callable[[], None],
) -> Finished:
    """Start `argv` once in `directory`, confined, and see it to its end.

    `announce` is called once, in the moment in which the command has started and is still loading its program.

    Raises LaunchFailed when it could not be started, SandboxUnavailable when the confinement is not in force, and
    StatusLost.
    """
    listening = nullcontext(None) if stop is None else stop.attached()
    try:
        # All that takes descriptors comes before the start, so that a program short of them starts nothing.
        with streams, listening as attached, enforcer.lease() as slot:
            try:
                command = slot.spawn(
                    streams.wrap(argv, directory, env),
                    cwd=directory,
                    env=env,
                    stdin=streams.stdin,
                    stdout=streams.stdout,
                    stderr=streams.stderr,
                )
            except (ValueError, subprocess.SubprocessError) as error:
                raise LaunchFailed(argv[0], str(error)) from None
            try:
                announce()
                streams.close_theirs()
                finished = supervise(
                    command,
                    streams.hand_over(),
                    timeout=timeout,
                    stop=attached,
                    onward=streams.onward,
                    borrowed=streams.borrowed,
                )
                seen = slot.observation()
                return finished if seen is None else replace(finished, observation=seen)
            except BaseException:
                if not command.is_reaped:  # interrupted before it was watched
                    end_now(command)
                raise
    except OSError as error:
        raise LaunchFailed(argv[0], _why(error, argv[0])) from None


def existing_directory(path: str | os.PathLike[str] | None, base: str) -> str:
    """Return the real path of a directory that is there, seen from `base`, or raise DirectoryMissing."""
    text = base if path is None else os.fspath(path)
    try:
        directory = base if path is None else real(text, base)
        if text and stat.S_ISDIR(os.stat(directory).st_mode):
            return directory
    except (OSError, ValueError):  # ValueError: a NUL byte
        pass
    raise DirectoryMissing(text)


def environment_of(given: Mapping[str, str] | None) -> dict[bytes, bytes]:
    """Return `given`, or a copy of this process's environment, as bytes: what exec takes. Raises UsageError."""
    if given is None:
        held = getattr(os.environ, "_data", None)  # CPython's own store; through os.environ it costs ten times more
        if isinstance(held, dict) and isinstance(next(iter(held), b""), bytes):
            return held.copy()
        given = os.environ
    try:
        return {os.fsencode(name): os.fsencode(value) for name, value in given.items()}
    except UnicodeEncodeError as error:
        raise UsageError(f"the environment cannot be encoded: {error}") from None


def _why(error: OSError, program: str) -> str:
    if not error.strerror:
        return str(error)
    named = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else program
    return error.strerror if named == program else f"{error.strerror}: {named}"
