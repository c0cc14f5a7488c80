"""`wisp profile`: what a command started here could do, as lines and as one JSON object."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Protocol

import pytest

pytestmark = [pytest.mark.linux, pytest.mark.wisp_requires("landlock"), pytest.mark.timeout(30)]


class Wisp(Protocol):
    directory: Path

    def __call__(
        self, *words: str, env: dict[str, str] | None = None, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[bytes]: ...


def parsed(done: subprocess.CompletedProcess[bytes], status: int = 0) -> dict[str, object]:
    """One object, one line, nothing else."""
    assert (done.returncode, done.stderr, done.stdout.count(b"\n")) == (status, b"", 1)
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def test_the_json_has_the_roots_rights_and_layers_of_the_run(wisp: Wisp, wisp_home: Path) -> None:
    found = parsed(wisp("profile", "--json", "--backend", "landlock"))
    roots, layers, limits = found["roots"], found["layers"], found["limits"]
    assert found == {
        "schema": 1,
        "backend": "landlock",
        "tier": "B",
        "runs": True,
        "confined": True,
        "reason": "",
        "network": True,
        "roots": roots,
        "scratchTmpdir": False,
        "protected": [str(wisp_home)],
        "leftOut": found["leftOut"],
        "layers": layers,
        "limits": limits,
    }
    assert isinstance(roots, list)
    assert roots[0] == str(wisp.directory)
    assert isinstance(layers, list)
    assert all(layer.keys() == {"name", "state", "detail"} for layer in layers)
    assert isinstance(limits, list)
    assert all(limit.keys() == {"name", "because"} for limit in limits)
    used = json.loads(wisp("run", "--json", "--backend", "landlock", "true").stdout)["layers"]
    assert set(used) <= {layer["name"] for layer in layers if layer["state"] == "yes"}


def test_the_lines_hold_a_heading_each(wisp: Wisp, wisp_home: Path) -> None:
    done = wisp("profile", "--backend", "landlock")
    assert (done.returncode, done.stderr) == (0, b"")
    lines = done.stdout.decode().splitlines()
    found = {line[:10].rstrip(): line[11:] for line in lines if line[:10].strip()}
    assert {name: found[name] for name in ("backend", "read", "write", "never", "network")} == {
        "backend": "landlock, tier B",
        "read": "everything this user can read",
        "write": str(wisp.directory),
        "never": str(wisp_home),
        "network": "on",
    }
    assert found["layers"].startswith("landlock: yes, interface ")
    assert "confine.metadata: " in found["not held"]
    assert b"\x1b" not in done.stdout


@pytest.mark.parametrize(("given", "held"), [("on", True), ("off", False)])
def test_the_network_is_as_asked(wisp: Wisp, given: str, held: bool) -> None:
    assert parsed(wisp("profile", "--json", "--network", given))["network"] is held


def test_a_directory_given_is_the_last_root(wisp: Wisp, outside: Path) -> None:
    roots = parsed(wisp("profile", "--json", "--writable", str(outside)))["roots"]
    assert isinstance(roots, list)
    assert roots[-1] == str(outside)


def test_read_only_has_no_root_but_a_scratch_directory(wisp: Wisp) -> None:
    found = parsed(wisp("profile", "--json", "--read-only"))
    assert (found["roots"], found["scratchTmpdir"]) == ([], True)
    assert b"\nwrite      a scratch TMPDIR, removed after\n" in wisp("profile", "--read-only").stdout


def test_no_sandbox_says_so(wisp: Wisp) -> None:
    done = wisp("profile", "--backend", "none")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.splitlines() == [
        b"backend    none",
        b"           no sandbox: a command can do whatever you can do",
    ]
    assert parsed(wisp("profile", "--backend", "none", "--json"))["confined"] is False


def test_what_cannot_be_held_is_exit_status_1_with_the_reason(wisp: Wisp) -> None:
    inside = wisp.directory / "wisp-home"
    env = {"WISP_HOME": str(inside)}
    found = parsed(wisp("profile", "--json", "--backend", "landlock", env=env), 1)
    assert (found["runs"], found["confined"]) == (False, False)
    assert f"the protected path {inside} lies inside the writable root {wisp.directory}" in str(found["reason"])
    done = wisp("profile", "--backend", "landlock", env=env)
    assert done.returncode == 1
    assert b"\n           nothing would be run: " in done.stdout
    assert wisp("run", "--backend", "landlock", "true", env=env).returncode == 125


def test_the_home_directory_is_left_out_and_the_reason_is_there(wisp: Wisp, outside: Path) -> None:
    found = parsed(wisp("profile", "--json", cwd=outside, env={"HOME": str(outside)}))
    assert isinstance(found["roots"], list)
    assert str(outside) not in found["roots"]
    assert isinstance(found["leftOut"], list)
    assert found["leftOut"][0] == (
        f"{outside} is the home directory, so it is not a writable root; to make it one: --writable ."
    )


def test_a_missing_directory_is_an_error_with_its_key(wisp: Wisp, outside: Path) -> None:
    missing = outside / "missing"
    done = wisp("profile", "--writable", str(missing))
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr == f"wisp: --writable: {missing}: does not exist\n".encode()


@pytest.mark.parametrize(
    "words", [("--backend", "bogus"), ("--network", "maybe"), ("--read-only", "--writable", "."), ("word",)]
)
def test_misuse_is_exit_status_2(wisp: Wisp, words: tuple[str, ...]) -> None:
    done = wisp("profile", *words)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"wisp: ")


def test_a_name_that_would_move_the_cursor_is_shown_as_text(wisp: Wisp) -> None:
    odd = wisp.directory / "a\x1b[2Jb"
    odd.mkdir()
    done = wisp("profile", cwd=odd)
    assert done.returncode == 0
    assert b"\x1b" not in done.stdout
