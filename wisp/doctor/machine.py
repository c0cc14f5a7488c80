"""What machine this is, what can confine here, and whether wisp itself already runs inside something.

Told from what the kernel says of this process, never from a marker file that any image may carry: `/.dockerenv` also
lies on machines that are no container.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from wisp._version import __version__
from wisp.doctor.report import Machine, Surrounding
from wisp.sandbox.capability import Capability

__all__ = ["describe_machine", "missing_features", "surroundings"]

#: What each version of the Landlock interface brought (landlock(7)), from the oldest that wisp runs on.
_FEATURES: Final = (
    (3, "truncation"),
    (4, "TCP ports (wisp does not rest on it)"),
    (5, "ioctl on devices"),
    (6, "signals and abstract sockets"),
    (7, "quiet records in the audit log (wisp's own checks will show there)"),
)

#: Inode numbers of the namespaces that the kernel starts with (include/linux/proc_ns.h).
_FIRST_PID_NAMESPACE: Final = "pid:[4026531836]"
_FIRST_USER_MAP: Final = ["0", "0", "4294967295"]
#: CAP_SYS_ADMIN (capability.h): what a container's root usually lacks.
_SYS_ADMIN: Final = 21

_ENGINE: Final = re.compile(
    r"docker|kubepods|containerd|libpod|podman|crio|buildkit|/lxc[./]|lxc\.payload|systemd-nspawn|machine\.slice|garden"
)
_NO_LABEL: Final = ("unconfined", "kernel", "")


def describe_machine(capability: Capability) -> Machine:
    """Return the facts of this machine, with `capability` as what can be enforced here."""
    abi = _landlock_abi()
    on_linux = sys.platform == "linux"
    return Machine(
        wisp=__version__,
        system={"darwin": "macOS", "linux": "Linux"}.get(sys.platform, sys.platform),
        release=platform.release(),
        distribution=_distribution(),
        architecture=platform.machine(),
        python=f"{platform.python_implementation()} {platform.python_version()}",
        is_root=os.geteuid() == 0,
        landlock_abi=abi,
        landlock_lacks=missing_features(abi) if on_linux and abi is not None else (),
        inside=surroundings() if on_linux else (),
        capability=capability,
    )


def missing_features(abi: int) -> tuple[str, ...]:
    """Return what Landlock cannot govern at interface version `abi` although a newer one can, in words."""
    return tuple(f"{name} (interface {version})" for version, name in _FEATURES if abi < version)


def _landlock_abi() -> int | None:
    if sys.platform != "linux":
        return None
    from wisp.sandbox import syscalls  # noqa: PLC0415

    try:
        return syscalls.landlock_abi()
    except OSError:
        return None


def _distribution() -> str:
    if sys.platform == "darwin":
        return f"macOS {platform.mac_ver()[0]}"
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        return ""


def surroundings(
    root: Path = Path("/"), *, environment: Mapping[str, str] | None = None, uid: int | None = None
) -> tuple[Surrounding, ...]:
    """Return what shows that this process runs inside a container, a namespace or another sandbox, on Linux.

    `root` is where the files of the machine are read, for tests. Nothing is opened but files that anybody may read;
    what cannot be read shows nothing.
    """
    environment = os.environ if environment is None else environment
    uid = os.geteuid() if uid is None else uid
    status = _status(_read(root / "proc/self/status"))
    found = [*_container(root), *_namespaces(root), *_filters(root, status, uid)]
    hint = environment.get("WISP_SANDBOX", "")
    if hint:
        what = "a command that wisp runs" if found else "nothing else here shows it"
        found.append(Surrounding("wisp", f"WISP_SANDBOX says {hint[:40]!r} ({what}; only a hint: anybody can set it)"))
    return tuple(found)


def _container(root: Path) -> Iterator[Surrounding]:
    evidence = list[str]()
    engine = _ENGINE.search(_read(root / "proc/1/cgroup"))
    if engine:
        evidence.append(f"the control group of process 1 names {engine[0].strip('./')}")
    for line in _read(root / "proc/1/environ").split("\0"):  # readable by root alone
        if line.startswith("container="):
            evidence.append(f"process 1 was told {line[:60]}")
    if (root / "run/.containerenv").exists():
        evidence.append("/run/.containerenv is there")
    manager = _read(root / "run/systemd/container").strip()
    if manager:
        evidence.append(f"/run/systemd/container says {manager[:40]}")
    if "microsoft" in _read(root / "proc/sys/kernel/osrelease").lower():
        yield Surrounding("wsl", "the kernel is that of the Windows Subsystem for Linux")
    evidence += _layered_root(root)
    if evidence:
        yield Surrounding("container", "; ".join(evidence))


def _layered_root(root: Path) -> Iterator[str]:
    """Yield what shows that `/` is put together from an engine's image (mountinfo in proc(5))."""
    for line in _read(root / "proc/self/mountinfo").splitlines():
        place, _, source = line.partition(" - ")
        if place.split()[4:5] == ["/"] and source.startswith(("overlay ", "fuse.fuse-overlayfs ")):
            engine = _ENGINE.search(source) or re.search("containers/storage", source)
            yield f"the root file system is an overlay{f' of {engine[0]}' if engine else ''}"


def _is_process_namespace(root: Path) -> bool:
    try:
        return os.readlink(root / "proc/self/ns/pid") != _FIRST_PID_NAMESPACE
    except OSError:
        return False


def _namespaces(root: Path) -> Iterator[Surrounding]:
    if _is_process_namespace(root):
        yield Surrounding("process-namespace", "processes of the machine outside are not seen from here")
    mapped = [line.split() for line in _read(root / "proc/self/uid_map").splitlines()]
    if mapped and mapped != [_FIRST_USER_MAP]:
        shown = "; ".join(" ".join(line) for line in mapped[:3])
        yield Surrounding("user-namespace", f"user ids are not the machine's own (uid_map: {shown})")


def _filters(root: Path, status: Mapping[str, str], uid: int) -> Iterator[Surrounding]:
    if status.get("Seccomp") in {"1", "2"}:
        count = status.get("Seccomp_filters", "")
        many = f" ({count} of them)" if count not in {"", "0", "1"} else ""
        yield Surrounding("seccomp", f"a system call filter already lies on this process{many}")
    if status.get("NoNewPrivs") == "1":
        yield Surrounding("no-new-privs", "no_new_privs is set: whatever started wisp gave up gaining rights")
    if uid == 0 and not int(status.get("CapBnd", "") or "f" * 16, 16) >> _SYS_ADMIN & 1:
        yield Surrounding("capabilities", "this root is without CAP_SYS_ADMIN, as root in a container is")
    label = _read(root / "proc/self/attr/current").strip("\0\n ")
    if label.startswith("unconfined_u:") or label.split(" ", 1)[0] in _NO_LABEL:
        return
    yield Surrounding("label", f"a security module confines this process: {label[:80]}")


def _status(text: str) -> dict[str, str]:
    """Return the fields of `/proc/self/status`."""
    pairs = (line.partition(":") for line in text.splitlines())
    return {name: value.strip() for name, _, value in pairs}


def _read(path: Path) -> str:
    """Return the first 64 KiB of a file, empty when it cannot be read."""
    try:
        with path.open("rb") as stream:
            return stream.read(64 * 1024).decode("utf-8", "replace")
    except OSError:
        return ""
