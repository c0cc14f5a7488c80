"""What a row may ask of the machine: found out by doing it, and leaving nothing."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from wisp.probing.abilities import ABILITIES, is_ability, missing, python


@pytest.mark.parametrize("name", sorted(ABILITIES))
def test_asking_gives_a_reason_or_nothing_and_leaves_nothing(name: str, tmp_path: Path) -> None:
    reason = missing(name, tmp_path)

    assert "\n" not in reason
    assert list(tmp_path.iterdir()) == []
    assert missing(name, tmp_path) == reason


@pytest.mark.parametrize("name", ["symlinks", "hard-links", "pty", "unix-sockets"])
def test_what_this_machine_can_do_is_not_missing(name: str, tmp_path: Path) -> None:
    assert missing(name, tmp_path) == ""


@pytest.mark.skipif(sys.platform != "linux", reason="abilities of Linux")
@pytest.mark.skipif(os.geteuid() == 0, reason="root can")
@pytest.mark.parametrize("name", ["can.mknod", "can.chown", "can.chroot", "socket.raw", "socket.packet"])
def test_what_needs_root_is_missing_for_others(name: str, tmp_path: Path) -> None:
    assert missing(name, tmp_path)


def test_a_tool_is_looked_up_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").write_text("#!/bin/sh\n")
    (tmp_path / "here").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    assert missing("tool.here", tmp_path) == ""
    assert missing("tool.elsewhere", tmp_path) == "elsewhere is not installed, or not on PATH"


def test_only_known_abilities_and_named_tools_are_abilities() -> None:
    assert is_ability("symlinks")
    assert is_ability("tool.git")
    assert not any(is_ability(name) for name in ("", "linux", "tool", "tool.", "tool./bin/sh", "tool.a b", "root"))


def test_rows_run_the_python_that_runs_wisp() -> None:
    assert python() == sys.executable
