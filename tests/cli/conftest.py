"""What the tests of the command line share: wisp started as a person starts it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import pytest

#: Seconds that only a hang takes.
BOUND = 30


class Wisp:
    """Starts wisp in a directory; every stream is a pipe unless another is given."""

    words = (sys.executable, "-m", "wisp")

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._started: list[subprocess.Popen[bytes]] = []

    def __call__(
        self,
        *words: str,
        input: bytes = b"",  # noqa: A002 - as subprocess.run calls it
        env: dict[str, str] | None = None,
        cwd: Path | None = None,
        pass_fds: Sequence[int] = (),
        stdout: int | IO[bytes] = subprocess.PIPE,
        stderr: int | IO[bytes] = subprocess.PIPE,
    ) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [*self.words, *words],
            input=input,
            stdout=stdout,
            stderr=stderr,
            cwd=cwd or self.directory,
            env={**os.environ, **(env or {})},
            pass_fds=pass_fds,
            timeout=BOUND,
            check=False,
        )

    def in_shell(self, line: str, *words: str) -> subprocess.CompletedProcess[bytes]:
        """Run a shell line in which `"$@"` is wisp and `words`."""
        return subprocess.run(
            ["sh", "-c", line, "sh", *self.words, *words],
            capture_output=True,
            cwd=self.directory,
            timeout=BOUND,
            check=False,
        )

    def start(self, *words: str, before: Sequence[str] = (), stderr: int = subprocess.PIPE) -> subprocess.Popen[bytes]:
        """Start it and return at once; `before` is what it is started by."""
        process = subprocess.Popen(
            [*before, *self.words, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            cwd=self.directory,
            bufsize=0,
        )
        self._started.append(process)
        return process

    def end(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.wait()
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()


@pytest.fixture
def wisp(tmp_path: Path, wisp_home: Path) -> Iterator[Wisp]:
    """Starts wisp in a directory of the test's own, which is a root."""
    directory = tmp_path / "work"
    directory.mkdir()
    started = Wisp(directory)
    yield started
    started.end()


@pytest.fixture
def outside(wisp_home: Path) -> Path:
    """A directory outside every default root."""
    place = wisp_home.parent / f"{wisp_home.name}-outside"
    place.mkdir()
    return place
