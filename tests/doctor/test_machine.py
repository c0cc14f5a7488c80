"""What is told of the machine, and what shows that wisp runs inside something."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import pytest

from wisp import __version__
from wisp.doctor.machine import describe_machine, missing_features, surroundings
from wisp.doctor.report import Surrounding

_PLAIN_STATUS = "Name:\tpython\nCapBnd:\t000001ffffffffff\nNoNewPrivs:\t0\nSeccomp:\t0\nSeccomp_filters:\t0\n"


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A plain machine's /proc, as much of it as is looked at."""
    files = {
        "proc/self/status": _PLAIN_STATUS,
        "proc/self/uid_map": "         0          0 4294967295\n",
        "proc/1/cgroup": "0::/init.scope\n",
        "proc/self/mountinfo": "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n",
        "proc/self/attr/current": "unconfined\n",
        "proc/sys/kernel/osrelease": "6.18.0\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "proc/self/ns").mkdir()
    (tmp_path / "proc/self/ns/pid").symlink_to("pid:[4026531836]")
    (tmp_path / "run/systemd").mkdir(parents=True)
    return tmp_path


def _kinds(machine: Path, *, uid: int = 1000, **environment: str) -> list[str]:
    return [one.kind for one in surroundings(machine, environment=environment, uid=uid)]


def test_a_plain_machine_is_inside_nothing(machine: Path) -> None:
    assert surroundings(machine, environment={}, uid=0) == ()


def test_a_marker_file_alone_is_no_evidence_of_a_container(machine: Path) -> None:
    (machine / ".dockerenv").touch()

    assert _kinds(machine) == []


@pytest.mark.parametrize(
    ("file", "text", "evidence"),
    [
        ("proc/1/cgroup", "0::/system.slice/docker-0123.scope\n", "names docker"),
        ("proc/1/cgroup", "11:pids:/kubepods/besteffort/pod1\n", "names kubepods"),
        ("proc/1/environ", "PATH=/bin\0container=lxc\0", "container=lxc"),
        ("run/.containerenv", "", "/run/.containerenv"),
        ("run/systemd/container", "systemd-nspawn\n", "systemd-nspawn"),
        (
            "proc/self/mountinfo",
            "600 500 0:50 / / rw - overlay overlay rw,lowerdir=/var/lib/docker/overlay2/l/A\n",
            "an overlay of docker",
        ),
        ("proc/self/mountinfo", "600 500 0:50 / / rw - overlay overlay rw,lowerdir=/a\n", "is an overlay"),
    ],
)
def test_a_container_is_told_from_what_process_1_and_the_mounts_say(
    machine: Path, file: str, text: str, evidence: str
) -> None:
    (machine / file).write_text(text)

    (found,) = surroundings(machine, environment={}, uid=1000)

    assert found.kind == "container"
    assert evidence in found.evidence


def test_a_process_namespace_of_its_own_is_told_from_its_number(machine: Path) -> None:
    (machine / "proc/self/ns/pid").unlink()
    (machine / "proc/self/ns/pid").symlink_to("pid:[4026532999]")

    assert _kinds(machine) == ["process-namespace"]


def test_a_user_namespace_is_told_from_its_map(machine: Path) -> None:
    (machine / "proc/self/uid_map").write_text("         0       1000          1\n")

    assert surroundings(machine, environment={}, uid=1000) == (
        Surrounding("user-namespace", "user ids are not the machine's own (uid_map: 0 1000 1)"),
    )


def test_filters_and_given_up_rights_are_told_from_the_status_of_this_process(machine: Path) -> None:
    status = _PLAIN_STATUS.replace("NoNewPrivs:\t0", "NoNewPrivs:\t1").replace("Seccomp:\t0", "Seccomp:\t2")
    (machine / "proc/self/status").write_text(status.replace("filters:\t0", "filters:\t3"))

    assert surroundings(machine, environment={}, uid=1000) == (
        Surrounding("seccomp", "a system call filter already lies on this process (3 of them)"),
        Surrounding("no-new-privs", "no_new_privs is set: whatever started wisp gave up gaining rights"),
    )


def test_root_without_the_right_to_administer_is_told_and_an_ordinary_user_is_not(machine: Path) -> None:
    (machine / "proc/self/status").write_text(_PLAIN_STATUS.replace("000001ffffffffff", "00000000a80425fb"))

    assert (_kinds(machine, uid=0), _kinds(machine, uid=1000)) == (["capabilities"], [])


@pytest.mark.parametrize(
    ("label", "kinds"),
    [
        ("unconfined\n", []),
        ("", []),
        ("unconfined_u:unconfined_r:unconfined_t:s0-s0:c0.c1023\0", []),
        ("docker-default (enforce)\n", ["label"]),
        ("system_u:system_r:container_t:s0:c1,c2\0", ["label"]),
    ],
)
def test_the_label_of_a_security_module_is_told_unless_it_confines_nothing(
    machine: Path, label: str, kinds: list[str]
) -> None:
    (machine / "proc/self/attr/current").write_text(label)

    assert _kinds(machine) == kinds


def test_the_variable_of_wisp_is_only_a_hint(machine: Path) -> None:
    (alone,) = surroundings(machine, environment={"WISP_SANDBOX": "landlock"}, uid=1000)
    (machine / "proc/self/status").write_text(_PLAIN_STATUS.replace("Seccomp:\t0", "Seccomp:\t2"))
    _, beside = surroundings(machine, environment={"WISP_SANDBOX": "landlock"}, uid=1000)

    assert (alone.kind, beside.kind) == ("wisp", "wisp")
    assert "nothing else here shows it; only a hint" in alone.evidence
    assert "a command that wisp runs; only a hint" in beside.evidence


def test_a_kernel_of_windows_is_told(machine: Path) -> None:
    (machine / "proc/sys/kernel/osrelease").write_text("5.15.167.4-microsoft-standard-WSL2\n")

    assert _kinds(machine) == ["wsl"]


def test_a_machine_without_proc_shows_nothing(tmp_path: Path) -> None:
    assert surroundings(tmp_path, environment={}, uid=0) == ()


def test_what_an_older_landlock_does_not_govern_is_named() -> None:
    assert missing_features(7) == ()
    assert [name.partition(" ")[0] for name in missing_features(4)] == ["ioctl", "signals", "quiet"]


@pytest.mark.linux
def test_this_machine_is_described_as_python_and_the_kernel_say(made: Any) -> None:
    capability = made.capability()

    found = describe_machine(capability)

    assert (found.wisp, found.system, found.release, found.architecture, found.is_root, found.capability) == (
        __version__,
        "Linux",
        os.uname().release,
        os.uname().machine,
        os.geteuid() == 0,
        capability,
    )
    assert found.python.endswith(platform.python_version())
