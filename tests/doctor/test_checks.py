"""Each check of wisp's own state: what is well, what is not, and what to do; and that none changes anything."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from wisp.command import line
from wisp.config import SandboxSettings, Settings
from wisp.doctor.checks import Subject, check_state, find_subject
from wisp.doctor.report import Check
from wisp.probing import scratch
from wisp.sandbox.capability import Capability
from wisp.sandbox.unconfined import UnconfinedBackend


class _BackendB(UnconfinedBackend):
    """Says that it gives tier B, and can hold every confinement."""

    def capability(self) -> Capability:
        return Capability("made-up", "B", "", (), frozenset(), ())


def _found(name: str, subject: Subject | None = None) -> Check | None:
    checks = check_state(find_subject() if subject is None else subject, _BackendB())
    return next((check for check in checks if check.id == name), None)


def _status(name: str) -> str | None:
    check = _found(name)
    return None if check is None else check.status


def _write_config(home: Path, settings: object) -> None:
    (home / "config.json").write_text(json.dumps(settings))


@pytest.fixture
def in_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_before_anything_is_configured_all_is_well(in_project: Path) -> None:
    checks = check_state(find_subject(), _BackendB())

    # The checkout that is tested may itself lie in a writable root.
    assert [(check.id, check.status) for check in checks if check.id not in {"scratch", "shfmt", "program"}] == [
        ("home", "ok"),
        ("config", "ok"),
        ("roots", "ok"),
        ("audit-log", "ok"),
    ]


def test_a_home_of_this_user_alone_is_well(wisp_home: Path) -> None:
    assert _status("home") == "ok"


@pytest.mark.parametrize("mode", [0o755, 0o710, 0o770])
def test_a_home_that_is_open_to_others_fails_with_the_command_that_closes_it(wisp_home: Path, mode: int) -> None:
    wisp_home.chmod(mode)

    check = _found("home")

    assert check == Check(
        "home",
        "failed",
        f"{wisp_home} is open to other users (mode {mode:04o}, 0700 is wanted)",
        f"Run: chmod 700 {wisp_home}",
    )
    subprocess.run(["/bin/sh", "-c", check.advice.removeprefix("Run: ")], check=True)
    assert _status("home") == "ok"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_home_of_another_user_fails(wisp_home: Path) -> None:
    os.chown(wisp_home, 65534, 65534)

    check = _found("home")

    assert check is not None
    assert (check.status, "belongs to another user" in check.summary) == ("failed", True)


def test_a_file_in_the_place_of_the_home_fails(wisp_home: Path) -> None:
    wisp_home.rmdir()
    wisp_home.touch()

    assert _status("home") == "failed"


def test_a_home_that_is_no_absolute_path_fails_and_nothing_else_rests_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WISP_HOME", "here")

    checks = {check.id: check for check in check_state(find_subject(), _BackendB())}

    assert "WISP_HOME" in checks["home"].summary
    assert (checks["home"].status, checks.keys() & {"config", "roots", "audit-log"}) == ("failed", set())


def test_a_config_that_is_understood_is_well(wisp_home: Path) -> None:
    _write_config(wisp_home, {"sandbox": {"allowNetwork": False}})

    assert _found("config") == Check("config", "ok", f"{wisp_home}/config.json is understood")


def test_a_broken_config_fails_with_file_line_and_key(wisp_home: Path) -> None:
    (wisp_home / "config.json").write_text('{\n  "sandbox": {"enabeld": true}\n}')

    check = _found("config")

    assert check is not None
    assert check.status == "failed"
    assert check.summary.startswith(f"{wisp_home}/config.json:2: sandbox.enabeld: ")
    assert check.advice


@pytest.mark.parametrize(("settings", "key"), [({"enabled": False}, "enabled"), ({"backend": "none"}, "backend")])
def test_a_sandbox_that_is_switched_off_is_noted(wisp_home: Path, settings: dict[str, object], key: str) -> None:
    _write_config(wisp_home, {"sandbox": settings})

    check = _found("sandbox")

    assert check is not None
    assert (check.status, f"sandbox.{key}" in check.summary) == ("note", True)


@pytest.mark.parametrize(("tier", "status"), [("A", "failed"), ("B", "ok"), (None, None)])
def test_a_tier_that_is_required_must_be_there(wisp_home: Path, tier: str | None, status: str | None) -> None:
    _write_config(wisp_home, {"sandbox": {"requireTier": tier}})

    assert _status("sandbox") == status


def test_a_configured_root_that_is_missing_fails_with_its_key(wisp_home: Path, in_project: Path) -> None:
    missing, there = in_project / "missing", in_project / "there"
    there.mkdir()
    _write_config(wisp_home, {"sandbox": {"writablePaths": [str(missing)]}})
    failed = _found("roots")
    _write_config(wisp_home, {"sandbox": {"writablePaths": [str(there)]}})

    assert failed is not None
    assert (failed.status, "sandbox.writablePaths" in failed.summary) == ("failed", True)
    assert _status("roots") == "ok"


def test_a_launch_directory_that_was_removed_fails(in_project: Path) -> None:
    gone = in_project / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()

    assert _status("roots") == "failed"


@pytest.mark.linux
def test_a_home_inside_a_root_is_noted_where_the_backend_cannot_hold_it(
    in_project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from wisp.sandbox.landlock import LandlockBackend

    monkeypatch.setenv("WISP_HOME", str(in_project / "state"))
    subject = find_subject()

    checks = {check.id: check for check in check_state(subject, LandlockBackend())}

    assert checks["roots"].status == "note", "the sandbox is whole: it refuses what it could not hold"
    assert str(in_project / "state") in checks["roots"].summary


@pytest.mark.parametrize(("place", "status"), [(".venv", "note"), ("/usr/lib/wisp", "ok")])
def test_a_program_that_a_command_could_change_is_noted(
    in_project: Path, monkeypatch: pytest.MonkeyPatch, place: str, status: str
) -> None:
    """A command that rewrites `.venv/bin/wisp` runs unconfined the next time."""
    own = str(in_project / place)
    monkeypatch.setattr("wisp.doctor.checks._own_places", lambda: (own,))

    checks = {check.id: check for check in check_state(find_subject(), _BackendB())}

    assert checks["program"].status == status
    assert (own in checks["program"].summary) is (status == "note")


def test_wisps_own_program_is_its_package_and_its_interpreter() -> None:
    import wisp
    from wisp.doctor.checks import _own_places

    assert os.path.realpath(os.path.dirname(wisp.__file__)) in _own_places()
    assert os.path.realpath(sys.executable) in _own_places()


def test_an_audit_log_is_well_when_it_is_readable_and_this_users_alone(wisp_home: Path) -> None:
    log = _make_log(wisp_home, b'{"kind": "x"}\n')

    assert _found("audit-log") == Check("audit-log", "ok", f"{log} is readable and this user's alone (14 bytes)")


def test_an_audit_log_that_others_may_read_fails_with_the_command_that_closes_it(wisp_home: Path) -> None:
    log = _make_log(wisp_home, b"")
    log.chmod(0o640)

    assert _found("audit-log") == Check(
        "audit-log", "failed", f"{log} has mode 0640, 0600 is wanted", f"Run: chmod 600 {log}"
    )


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_an_audit_log_that_cannot_be_read_fails(wisp_home: Path) -> None:
    _make_log(wisp_home, b"").chmod(0)

    assert _status("audit-log") == "failed"


@pytest.mark.parametrize("kind", ["fifo", "symlink", "directory"])
def test_what_is_no_plain_file_in_the_place_of_the_log_fails_at_once(wisp_home: Path, kind: str) -> None:
    log = _make_log(wisp_home, b"")
    log.unlink()
    if kind == "fifo":
        os.mkfifo(log)
    elif kind == "symlink":
        log.symlink_to("/dev/null")
    else:
        log.mkdir()

    assert _status("audit-log") == "failed"


def test_an_audit_log_that_is_switched_off_is_noted(wisp_home: Path) -> None:
    _write_config(wisp_home, {"audit": {"enabled": False}})

    assert _status("audit-log") == "note"


def test_an_audit_log_with_a_torn_end_is_well_and_one_with_nul_bytes_is_noted(wisp_home: Path) -> None:
    log = _make_log(wisp_home, b'{"kind": "x"}\n{"kin')
    torn = _status("audit-log")
    log.write_bytes(b'{"kind": "x"}\n' + bytes(100))

    assert (torn, _status("audit-log")) == ("ok", "note")


def _make_log(home: Path, data: bytes) -> Path:
    (home / "logs").mkdir(mode=0o700)
    log = home / "logs/audit.jsonl"
    log.write_bytes(data)
    log.chmod(0o600)
    return log


@pytest.mark.linux
def test_scratch_of_a_dead_doctor_is_noted_and_that_of_a_living_one_is_not(
    wisp_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(wisp_home))
    started = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    (wisp_home / f".wisp-probe-{os.getpid()}-{started}").mkdir()
    living = _found("scratch")
    dead = wisp_home / f".wisp-probe-{os.getpid()}-1"
    dead.mkdir()
    (dead / scratch._LOCK).touch()  # as every run has it, and holds it while it lives
    left = _found("scratch")

    assert living == Check("scratch", "ok", f"nothing of an earlier doctor is left in {wisp_home}")
    assert left is not None
    assert (left.status, dead.name in left.summary, dead.is_dir()) == ("note", True, True)


def test_shfmt_is_found_and_run() -> None:
    check = _found("shfmt")

    assert check is not None
    assert (check.status, check.summary.startswith("shfmt ")) == ("ok", True)


def test_a_machine_without_shfmt_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_args, **_names: None)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr("sysconfig.get_path", lambda *_: str(tmp_path / "none"))
    line._shfmt.cache_clear()

    try:
        assert _status("shfmt") == "failed"
    finally:
        line._shfmt.cache_clear()


def test_no_check_changes_anything(wisp_home: Path, in_project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(wisp_home))
    _write_config(wisp_home, {"audit": {"enabled": True}})
    _make_log(wisp_home, b"{")
    (wisp_home / "logs/audit.jsonl").chmod(0o644)
    (wisp_home / ".wisp-probe-1-1").mkdir()
    before = _tree(wisp_home)

    statuses = {check.id: check.status for check in check_state(find_subject(), _BackendB())}

    assert (statuses["audit-log"], _tree(wisp_home)) == ("failed", before)


def _tree(top: Path) -> dict[str, tuple[int, int, bytes]]:
    return {
        str(path): (path.lstat().st_mode, path.lstat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in sorted([top, *top.rglob("*")])
    }


def test_settings_that_could_be_read_are_part_of_the_subject(wisp_home: Path) -> None:
    _write_config(wisp_home, {"sandbox": {"allowNetwork": False}})

    assert find_subject() == Subject(str(wisp_home), Settings(sandbox=SandboxSettings(allow_network=False)), None)
