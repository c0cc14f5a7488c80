"""Names and places that are hard to print, and settings of the terminal."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Protocol

import pytest

pytestmark = [pytest.mark.linux, pytest.mark.wisp_requires("landlock")]


class Wisp(Protocol):
    directory: Path

    def __call__(
        self,
        *words: str,
        input: bytes = b"",  # noqa: A002
        env: dict[str, str] | None = None,
        cwd: Path | None = None,
        pass_fds: Sequence[int] = (),
        stdout: int | IO[bytes] = subprocess.PIPE,
        stderr: int | IO[bytes] = subprocess.PIPE,
    ) -> subprocess.CompletedProcess[bytes]: ...


@pytest.mark.parametrize("settings", [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0"}, {}])
def test_names_that_cannot_be_printed_are_escaped(wisp: Wisp, settings: dict[str, str]) -> None:
    odd = wisp.directory / os.fsdecode(b"\xff\xc3\xa4\x1b[31m\n")
    odd.mkdir()
    done = wisp("profile", cwd=odd, env=settings)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"\x1b" not in done.stdout
    assert b"\\xff" in done.stdout or b"\\udcff" in done.stdout
    refused = wisp("run", "nonexistent-\udcff-\xe4", cwd=odd, env=settings)
    assert refused.returncode == 125
    assert b"Traceback" not in refused.stderr
    assert wisp("run", "pwd", cwd=odd, env=settings).stdout == os.fsencode(odd) + b"\n"


def test_a_refusal_of_a_name_with_control_characters_stays_on_its_line(wisp: Wisp, wisp_home: Path) -> None:
    name = f"{wisp_home}/a\x1b[31m"
    done = wisp("run", "touch", name, env={"QUOTING_STYLE": "literal"})
    assert done.returncode == 1
    notes = [line for line in done.stderr.decode().splitlines() if line.startswith("  · ")]
    assert notes
    assert all("\x1b" not in line for line in notes)


def test_colour_is_no_matter_of_plain_commands(wisp: Wisp) -> None:
    plain = wisp("profile").stdout
    assert plain == wisp("profile", env={"NO_COLOR": "1"}).stdout == wisp("profile", env={"FORCE_COLOR": "1"}).stdout
    assert b"\x1b" not in plain


def test_nothing_is_made_by_looking(wisp: Wisp, wisp_home: Path) -> None:
    wisp("profile", "--read-only")
    assert list(wisp.directory.iterdir()) == list(wisp_home.iterdir()) == []
