"""`wisp doctor` as it is run: in a process of its own, on this kernel."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pexpect
import pytest

pytestmark = pytest.mark.linux

_ONE = "write.create-outside"
_COMMAND = [sys.executable, "-m", "wisp", "doctor"]


def _tree(top: Path) -> dict[str, tuple[int, int, bytes]]:
    """Return what is in `top`, without the time of `top` itself, in which a scratch directory comes and goes."""
    return {
        str(path): (path.lstat().st_mode, path.lstat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in sorted(top.rglob("*"))
    }


@pytest.fixture
def home(wisp_home: Path) -> Path:
    """A home directory with something in it, outside every default root and outside wisp's home."""
    home = wisp_home.with_name(f"{wisp_home.name}-people") / "ada-with-a-home"
    (home / ".config/tool").mkdir(parents=True)
    (home / ".config/tool/settings").write_text("as it was\n")
    (home / ".wisp").mkdir(mode=0o700)
    return home


def test_a_run_before_anything_is_configured_is_well_and_valid_json(
    doctor: Any, validate: Callable[[object], None], tmp_path: Path
) -> None:
    ran = doctor("--json", cwd=tmp_path)
    report = json.loads(ran.stdout)

    validate(report)
    assert (ran.status, ran.stderr) == (report["exitStatus"], "")
    assert ran.status in {0, 3}, report["counts"]
    assert (report["counts"]["leaked"], report["counts"]["overblocked"]) == (0, 0)
    assert sum(report["counts"].values()) == len(report["probes"]) >= 50
    assert not any(probe["slow"] or not probe["promise"] for probe in report["probes"])


def test_the_text_of_a_whole_run_fits_a_piped_line_and_has_no_colour(doctor: Any, tmp_path: Path) -> None:
    ran = doctor("--family", "write", "--family", "metadata", cwd=tmp_path)

    assert (ran.status, ran.stderr) == (0, "")
    assert [line for line in ran.stdout.splitlines() if len(line) > 80] == []
    assert re.match(r"wisp \S+, Linux \S+ \S+: tier [AB]\n", ran.stdout)
    assert "\x1b" not in ran.stdout


def test_a_narrow_terminal_gets_narrow_lines(doctor: Any) -> None:
    ran = doctor("--family", "truncate", env={"COLUMNS": "40"})

    assert [line for line in ran.stdout.splitlines() if len(line) > 40 and " " in line.strip()] == []


def test_one_row_is_shown_in_full(doctor: Any) -> None:
    ran = doctor(_ONE)

    assert (ran.status, ran.stderr) == (0, "")
    for expected in (f"{_ONE}: ", 'touch "$OUTSIDE/probe"', "verdict   HELD", "layers    "):
        assert expected in ran.stdout


def test_the_list_names_every_row_and_its_json_is_valid(doctor: Any, schema: dict[str, Any]) -> None:
    from jsonschema import Draft202012Validator

    from wisp.probing.load import packaged_rows

    text, data = doctor("--list"), json.loads(doctor("--list", "--json").stdout)

    Draft202012Validator({**schema, **schema["$defs"]["list"], "properties": schema["$defs"]["list"]["properties"]})
    assert [row["id"] for row in data["rows"]] == [row.id for row in packaged_rows()]
    assert re.findall(r"(?m)^(?:refused|allowed)  (\S+)", text.stdout) == [row.id for row in packaged_rows()]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["write.create-outsid"], "did you mean write.create-outside?"),
        (["--family", "wriet"], "did you mean write?"),
        (["--no-such-option"], "No such option"),
        (["--jobs", "0"], "--jobs"),
        (["--backend", "jail"], "no backend 'jail'"),
    ],
)
def test_what_has_no_meaning_is_a_usage_error(doctor: Any, words: list[str], said: str) -> None:
    ran = doctor(*words)

    assert (ran.status, ran.stdout, "Traceback" in ran.stderr) == (2, "", False)
    assert said in ran.stderr


def test_no_sandbox_is_a_failure_and_says_so(doctor: Any) -> None:
    ran = doctor("--backend", "none")

    assert ran.status == 1
    assert ran.stdout.splitlines()[0].endswith(": no sandbox")
    assert "None was run" in ran.stdout


def test_a_broken_config_is_reported_as_a_failed_check(doctor: Any, wisp_home: Path) -> None:
    (wisp_home / "config.json").write_text('{"sandbox": {"enabled": flase}}')

    text, data = doctor(_ONE), json.loads(doctor(_ONE, "--json").stdout)

    assert (text.status, text.stderr, data["exitStatus"]) == (1, "", 1)
    assert "FAILED  config" in text.stdout
    assert [check["id"] for check in data["checks"] if check["status"] == "failed"] == ["config"]
    assert data["counts"]["held"] == 1


@pytest.mark.parametrize("value", [None, "", "/nonexistent/home"], ids=["unset", "empty", "missing"])
def test_it_runs_without_a_home(doctor: Any, value: str | None) -> None:
    ran = doctor(_ONE, env={"HOME": value})

    assert (ran.status, ran.stderr) == (0, "")


def test_it_runs_with_a_home_and_a_directory_that_cannot_be_written(doctor: Any, home: Path) -> None:
    home.chmod(0o500)
    try:
        ran = doctor(_ONE, cwd=home, env={"HOME": str(home)})
    finally:
        home.chmod(0o700)

    assert (ran.status, ran.stderr) == (0, "")


def test_a_run_changes_nothing_in_the_home_or_the_directory(doctor: Any, home: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine\n")
    environment = {"HOME": str(home), "WISP_HOME": None, "XDG_CACHE_HOME": None}
    before = _tree(home), _tree(tmp_path)

    ran = doctor("--json", cwd=tmp_path, env=environment)

    assert json.loads(ran.stdout)["counts"]["held"] > 50
    assert (_tree(home), _tree(tmp_path)) == before


def test_what_is_printed_names_neither_home_nor_host(doctor: Any, home: Path) -> None:
    (home / ".wisp/config.json").write_text("{")
    environment = {"HOME": str(home), "WISP_HOME": None}

    for ran in (doctor(_ONE, env=environment), doctor(_ONE, "--json", env=environment)):
        assert str(home) not in ran.stdout
        assert "~/.wisp/config.json" in ran.stdout
        assert not re.search(rf"(?<!\w){re.escape(socket.gethostname())}(?!\w)", ran.stdout)


def test_a_socket_within_reach_is_exposed(doctor: Any) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as place, socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{place}/control")
        server.listen(1)
        environment = {"TMUX": f"{place}/control,1,0"}
        text = doctor("--family", "devices", "--backend", "landlock", env=environment)
        data = json.loads(doctor("--json", "--backend", "landlock", _ONE, env=environment).stdout)

    (exposed,) = (one for one in data["exposed"] if one["id"] == "tmux")
    assert f"{place}/control" in exposed["paths"]
    assert "A command could type into your tmux sessions" in text.stdout


def test_an_output_that_nobody_reads_is_no_traceback() -> None:
    line = f"{sys.executable} -m wisp doctor --list | head -1"
    ran = subprocess.run(["/bin/bash", "-c", line], capture_output=True, check=False, timeout=60)

    assert (ran.stdout.count(b"\n"), ran.stderr) == (1, b"")


def test_a_closed_output_is_no_traceback() -> None:
    for closing in (">&-", ">&- 2>&-"):
        line = f"{sys.executable} -m wisp doctor {_ONE} {closing}"
        ran = subprocess.run(["/bin/sh", "-c", line], capture_output=True, check=False, timeout=60)

        assert (ran.returncode, ran.stderr) == (0, b"")


def test_a_full_output_is_a_failure_in_one_line() -> None:
    with open("/dev/full", "wb") as full:
        ran = subprocess.run([*_COMMAND, _ONE], stdout=full, stderr=subprocess.PIPE, check=False, timeout=60)

    assert (ran.returncode, ran.stderr.count(b"\n")) == (1, 1)
    assert b"could not be written" in ran.stderr


def test_an_output_without_unicode_is_written_all_the_same(doctor: Any) -> None:
    ran = doctor("--all", "--list", env={"PYTHONIOENCODING": "ascii", "LC_ALL": "C"})

    assert (ran.status, ran.stdout.isascii()) == (0, True)


def _spawn(*words: str, env: dict[str, str]) -> Any:
    environment = {**os.environ, "TERM": "xterm-256color", **env}
    return pexpect.spawn(_COMMAND[0], [*_COMMAND[1:], *words], env=environment, timeout=60, dimensions=(50, 80))


def _read_all(child: Any) -> tuple[str, int | None]:
    output: bytes = child.read()
    child.close()
    return output.decode(), child.exitstatus


def test_a_terminal_gets_colour_and_a_progress_line_that_is_taken_away() -> None:
    output, status = _read_all(_spawn("--family", "truncate", env={}))

    assert status == 0
    progress, _, report = output.rpartition("\r\x1b[2K")
    assert re.search(r"\d/\d truncate\.\S+: held", progress)
    assert report.startswith("\x1b[1mwisp ")
    assert "\x1b[32m" in report


@pytest.mark.parametrize(
    ("env", "has_progress"), [({"NO_COLOR": "1"}, True), ({"TERM": "dumb"}, False)], ids=["NO_COLOR", "dumb"]
)
def test_a_terminal_that_wants_no_colour_gets_none(env: dict[str, str], has_progress: bool) -> None:
    output, status = _read_all(_spawn("--family", "truncate", env=env))

    assert status == 0
    report = output.rpartition("\r\x1b[2K")[2]
    assert "\x1b" not in report
    assert ("\x1b[2K" in output) is has_progress


def test_ctrl_c_ends_it_with_130_one_line_and_no_scratch(home: Path) -> None:
    child = _spawn("--all", env={"HOME": str(home)})
    child.expect(rb"\d+/\d+ ")
    assert list(home.glob(".wisp-probe-*"))

    child.sendintr()
    output, status = _read_all(child)

    assert status == 130
    assert output.endswith("wisp: doctor was interrupted; its scratch directories are removed\r\n")
    assert "Traceback" not in output
    assert list(home.glob(".wisp-probe-*")) == []


def test_a_termination_signal_ends_it_in_good_order_too(home: Path) -> None:
    environment = {**os.environ, "HOME": str(home)}
    with subprocess.Popen(
        [*_COMMAND, "--all"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as child:
        deadline = time.monotonic() + 30
        while not list(home.glob(".wisp-probe-*/*")) and time.monotonic() < deadline:
            time.sleep(0.02)
        child.send_signal(signal.SIGTERM)
        output, error = child.communicate(timeout=60)

    assert (child.returncode, output) == (128 + signal.SIGTERM, b"")
    assert error == b"wisp: doctor was interrupted; its scratch directories are removed\n"
    assert list(home.glob(".wisp-probe-*")) == []


def test_the_command_loads_neither_rich_nor_pydantic() -> None:
    program = "import sys, wisp.cli.doctor; print(sorted({'rich', 'pydantic', 're2'} & set(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, timeout=60)

    assert ran.stdout == b"[]\n"
