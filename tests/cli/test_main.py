"""The command itself: its subcommands, its version, its errors, and streams that cannot be written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Protocol

import pytest

from wisp._version import __version__

pytestmark = pytest.mark.timeout(30)


class Wisp(Protocol):
    directory: Path

    def __call__(self, *words: str) -> subprocess.CompletedProcess[bytes]: ...

    def in_shell(self, line: str, *words: str) -> subprocess.CompletedProcess[bytes]: ...


VERSION = f"wisp {__version__}\n".encode()
WORDS = [("--version",), ("--help",), (), ("profile", "--backend", "none")]


def facts(done: subprocess.CompletedProcess[bytes]) -> tuple[int, bytes, bytes]:
    return done.returncode, done.stdout, done.stderr


def test_the_version_is_one_line_and_nothing_else(wisp: Wisp) -> None:
    assert facts(wisp("--version")) == (0, VERSION, b"")


def test_the_version_loads_no_library(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from wisp.cli.main import main\n"
        "status = main(['--version'])\n"
        "heavy = {'click', 'rich', 'pydantic', 're2', 'json', 'subprocess'}\n"
        "print(status, sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, timeout=25, check=True)
    assert done.stdout == VERSION + b"0 []\n"


def test_no_arguments_are_a_wish_for_help(wisp: Wisp) -> None:
    done = wisp()
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == wisp("--help").stdout
    for command in (b"doctor", b"profile", b"run"):
        assert b"\n  " + command in done.stdout


@pytest.mark.parametrize("command", ["doctor", "profile", "run"])
def test_each_command_explains_itself(wisp: Wisp, command: str) -> None:
    done = wisp(command, "--help")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(f"Usage: wisp {command} ".encode())


@pytest.mark.parametrize(("word", "near"), [("rnu", "run"), ("doctr", "doctor"), ("profle", "profile")])
def test_an_unknown_word_is_answered_with_the_nearest_command(wisp: Wisp, word: str, near: str) -> None:
    done = wisp(word)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.decode().splitlines() == [
        f"wisp: wisp has no command {word!r}; did you mean `wisp {near}`?",
        "  hint: `wisp --help` lists what it takes",
    ]


def test_a_word_that_is_near_to_none_is_answered_with_all(wisp: Wisp) -> None:
    done = wisp("zzzzzz")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"wisp: wisp has no command 'zzzzzz'; it has doctor, profile, run\n")


def test_a_word_that_is_no_text_is_a_usage_error(wisp: Wisp) -> None:
    done = wisp.in_shell('"$@" "$(printf \'\\377\\033[2J\')"')
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"Traceback" not in done.stderr
    assert b"\x1b" not in done.stderr


def test_an_unknown_option_is_a_usage_error(wisp: Wisp) -> None:
    done = wisp("--bogus")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"wisp: No such option '--bogus'.")


@pytest.mark.linux
@pytest.mark.parametrize("words", WORDS)
def test_a_full_disk_is_said_and_is_a_failure(wisp: Wisp, words: tuple[str, ...]) -> None:
    done = wisp.in_shell('"$@" >/dev/full', *words)
    assert facts(done) == (1, b"", b"wisp: the output could not be written: No space left on device\n")


@pytest.mark.parametrize("words", WORDS)
def test_a_reader_that_is_gone_is_no_traceback(wisp: Wisp, words: tuple[str, ...]) -> None:
    # The FIFO's only reader has left before wisp starts.
    line = 'mkfifo f; : <f & exec 3>f; wait $!; "$@" >&3'
    assert facts(wisp.in_shell(line, *words)) == (141, b"", b"")


@pytest.mark.parametrize("words", [*WORDS, ("--bogus",), ("rnu",)])
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_changes_no_status(wisp: Wisp, words: tuple[str, ...], closed: str) -> None:
    plain = wisp(*words)
    has_out, has_err = " >&-" not in f" {closed}", "2>&-" not in closed
    assert facts(wisp.in_shell(f'"$@" {closed}', *words)) == (
        plain.returncode,
        plain.stdout if has_out else b"",
        plain.stderr if has_err else b"",
    )


@pytest.mark.parametrize(("words", "status"), [(("profile",), 1), (("run", "true"), 125)])
def test_a_file_that_does_not_validate_stops_the_command_and_is_named(
    wisp: Wisp, wisp_home: Path, words: tuple[str, ...], status: int
) -> None:
    file = wisp_home / "config.json"
    file.write_text('{\n "sandbox": {\n  "allowNetwork": "yes"\n }\n}\n')
    done = wisp(*words)
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (status, b"", 1)
    assert done.stderr.startswith(f"wisp: {file}:3: sandbox.allowNetwork: ".encode())


def test_the_version_and_the_help_do_not_read_a_file_that_is_wrong(wisp: Wisp, wisp_home: Path) -> None:
    (wisp_home / "config.json").write_text("{")
    assert wisp("--version").returncode == 0
    assert wisp("--help").returncode == 0
