"""What the Landlock backend can enforce on this machine, found by trying it.

Each layer is tried in a thread that is thrown away: the action works before the restriction (the control), is refused
after it, and its allowed pair still works. Nothing is written anywhere.
"""

from __future__ import annotations

import errno
import os
import secrets
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import Final

from wisp.sandbox import privileges, syscalls
from wisp.sandbox.capability import Capability, Layer, LayerState, Limit
from wisp.sandbox.seccomp import build_filter

__all__ = ["LAYERS", "find_capability", "kernel_abi"]

#: Every layer of the backend, by name, in the order in which the doctor shows them.
LAYERS: Final = ("landlock", "landlock-scope", "seccomp", "capabilities", "session", "descriptors", "leftovers")

_BACKEND: Final = "landlock"
_WRITE_FILE: Final = 1 << 1
_SCOPES: Final = 0b11

_LOSES: Final = {
    "landlock": "writes outside the writable roots",
    "landlock-scope": "signals and abstract sockets to processes outside, and the end of what left its process group",
    "seccomp": "network off, io_uring, typing into terminals",
    "capabilities": "what root may do beyond files: hostname, clock, mounts, device nodes",
    "session": "the terminal that wisp was started from",
    "descriptors": "files that wisp itself holds open",
    "leftovers": "the end of what a command leaves running",
}

#: What no version of this backend holds (Landlock interface 7 and before).
_LIMITS: Final = (
    Limit(
        "confine.metadata",
        "Landlock does not govern modes, owners, times and attributes: those of files that this user owns can be "
        "changed outside the roots",
    ),
    Limit(
        "confine.unix-sockets",
        "Landlock does not govern connecting to a socket that has a path: a daemon that this user can reach can be "
        "asked to act",
    ),
    Limit(
        "confine.protected-inside-root",
        "Landlock cannot take a path out of a root: a confinement with a protected path inside a root does not run",
    ),
    Limit(
        "confine.fork-chains",
        "a process that forks and exits faster than it can be found outlives its command",
    ),
    Limit(
        "work.ask-before-write",
        "access(2) knows nothing of Landlock: a tool that asks before it writes is told yes, and fails when it does",
    ),
    Limit("confine.terminals", "other terminals of this user under /dev/pts can be written to"),
)

#: Where commands lose capabilities, the kernel does not let them schedule a process that has more (`cap_safe_nice`).
_PRIORITY: Final = Limit("confine.priority", "the scheduling of this user's other processes can be changed")

_HELD_BY: Final = {
    "landlock": ("confine.write", "confine.devices", "confine.ptrace"),
    "landlock-scope": ("confine.signals", "confine.abstract-sockets", "confine.leftovers"),
    "seccomp": ("confine.network", "confine.io-uring", "confine.terminal-injection", "confine.process-limits"),
    "capabilities": ("confine.privileges",),
    "session": ("confine.terminal",),
    "descriptors": ("confine.descriptors",),
}


class _Unconvincing(Exception):
    """The control did not work, so the probe of a layer says nothing."""


def kernel_abi(wanted: int | None, *, known: int) -> int:
    """Return the Landlock interface version to work with: the kernel's, `known` or `wanted`, whichever is oldest.

    Raises OSError as `syscalls.landlock_abi` does.
    """
    return min(syscalls.landlock_abi(), known, known if wanted is None else wanted)


def find_capability(wanted: int | None, *, oldest: int, known: int) -> Capability:
    """Return what this machine can enforce with Landlock and seccomp, layer by layer."""
    layers = [_probe_landlock(wanted, oldest=oldest, known=known)]
    abi = 0
    if layers[0].state == "yes":
        abi = kernel_abi(wanted, known=known)
    layers += [
        _probe_scope(abi),
        _probe("seccomp", _try_seccomp),
        _probe("capabilities", _try_capabilities),
        _probe("session", _try_session),
        _probe("descriptors", _try_descriptors),
    ]
    states = {layer.name: layer.state for layer in layers}
    layers.append(
        Layer("leftovers", "yes", "what a command leaves running is found and ended, one by one")
        if states["landlock-scope"] == "yes"
        else Layer(
            "leftovers", states["landlock-scope"], "only the process group is ended", "what left its process group"
        )
    )
    missing = [layer for layer in layers if layer.state != "yes" and layer.name not in {"landlock-scope", "leftovers"}]
    if missing:
        first = missing[0]
        return Capability(_BACKEND, None, f"{first.name}: {first.detail}", tuple(layers), frozenset(), ())
    return Capability(_BACKEND, "B", "", tuple(layers), _confines(states, abi), _limits(states, abi))


def _confines(states: dict[str, LayerState], abi: int) -> frozenset[str]:
    held = {name for layer, names in _HELD_BY.items() if states[layer] == "yes" for name in names}
    held.add("work.across-roots")
    if abi >= 5:
        held.add("confine.device-ioctl")
    if _loses_capabilities():
        held.add("confine.priority")
    return frozenset(held)


def _loses_capabilities() -> bool:
    """Return whether a command will have fewer capabilities than this process."""
    _effective, permitted, _inheritable = syscalls.get_capabilities()
    return bool(permitted & ~sum(1 << number for number in privileges.KEPT_BY_ROOT))


def _limits(states: dict[str, LayerState], abi: int) -> tuple[Limit, ...]:
    found = list(_LIMITS)
    if not _loses_capabilities():
        found.append(_PRIORITY)
    if abi < 5:
        found.append(Limit("confine.device-ioctl", f"Landlock interface {abi} does not govern ioctl on devices"))
    if states["landlock-scope"] != "yes":
        why = f"Landlock interface {abi} has no scopes (Linux 6.12 brings them)"
        found += [Limit(name, why) for name in _HELD_BY["landlock-scope"]]
    return tuple(found)


def _probe(name: str, attempt: Callable[[], str]) -> Layer:
    """Run one attempt in a thread of its own and return what it found as a layer."""
    found: list[tuple[LayerState, str]] = []

    def work() -> None:
        try:
            found.append(("yes", attempt()))
        except _Unconvincing as error:
            found.append(("inconclusive", str(error)))
        except OSError as error:
            found.append((_state_of(error), f"{errno.errorcode.get(error.errno or 0, '?')}: {error.strerror}"))

    started = time.perf_counter()
    thread = threading.Thread(target=work, name=f"wisp-probe-{name}")
    thread.start()
    thread.join()
    state, detail = found[0] if found else ("inconclusive", "the check itself failed")
    return Layer(name, state, detail, "" if state == "yes" else _LOSES[name], time.perf_counter() - started)


def _state_of(error: OSError) -> LayerState:
    if error.errno == errno.ENOSYS:
        return "not-built"
    if error.errno == errno.EOPNOTSUPP:
        return "not-enabled"
    if error.errno == errno.E2BIG:
        return "nested"
    return "refused"


def _probe_landlock(wanted: int | None, *, oldest: int, known: int) -> Layer:
    layer = _probe("landlock", lambda: _try_landlock(kernel_abi(wanted, known=known)))
    if layer.state != "yes":
        return layer
    abi = kernel_abi(wanted, known=known)
    if abi >= oldest:
        return layer
    return Layer(
        "landlock",
        "too-old",
        f"interface {abi}; before {oldest} (Linux 6.2) any file could be truncated",
        _LOSES["landlock"],
        layer.seconds,
    )


def _try_landlock(abi: int) -> str:
    for path in ("/dev/null", "/dev/zero"):
        _require(_is_writable(path), f"{path} could not be opened for writing even without a sandbox")
    ruleset = syscalls.create_ruleset(_WRITE_FILE, 0, abi=abi)
    try:
        descriptor = os.open("/dev/null", syscalls.O_PATH | os.O_CLOEXEC)
        try:
            syscalls.add_path_rule(ruleset, _WRITE_FILE, descriptor)
        finally:
            os.close(descriptor)
        syscalls.set_no_new_privs()
        syscalls.restrict_self(ruleset)
    finally:
        os.close(ruleset)
    _require(_is_writable("/dev/null"), "what a rule allows was refused")
    _require(not _is_writable("/dev/zero"), "what no rule allows was not refused")
    return f"interface {abi}"


def _is_writable(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CLOEXEC))
    except PermissionError:
        return False
    return True


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise _Unconvincing(otherwise)


def _probe_scope(abi: int) -> Layer:
    if abi < 6:
        return Layer(
            "landlock-scope",
            "too-old" if abi else "refused",
            f"Landlock interface {abi}; scopes came with 6 (Linux 6.12)" if abi else "needs Landlock",
            _LOSES["landlock-scope"],
        )
    canary = subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        return _probe("landlock-scope", lambda: _try_scope(canary.pid, abi))
    finally:
        if canary.stdin is not None:
            canary.stdin.close()
        canary.kill()
        canary.wait()


def _try_scope(canary: int, abi: int) -> str:
    name = f"\0wisp-probe-{os.getpid()}-{secrets.token_hex(8)}"
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as listener:
        listener.bind(name)
        listener.listen(4)
        _require(_can_connect(name), "an abstract socket could not be reached even without a sandbox")
        os.kill(canary, 0)
        ruleset = syscalls.create_ruleset(_WRITE_FILE, _SCOPES, abi=abi)
        try:
            syscalls.set_no_new_privs()
            syscalls.restrict_self(ruleset)
        finally:
            os.close(ruleset)
        _require(not _can_connect(name), "an abstract socket outside was reached")
    try:
        os.kill(canary, 0)
    except PermissionError:
        return "signals and abstract sockets"
    raise _Unconvincing("a process outside could be signalled")


def _can_connect(name: str) -> bool:
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as client:
        try:
            client.connect(name)
        except PermissionError:
            return False
    return True


def _try_seccomp() -> str:
    table = syscalls.numbers()
    if table is None:
        raise OSError(errno.ENOSYS, f"no system call table for {os.uname().machine}")
    control = _can_open_socket(socket.AF_INET)
    syscalls.set_no_new_privs()
    syscalls.install_filter(build_filter(table, network=False))
    _require(_can_open_socket(socket.AF_UNIX), "a Unix socket was refused")
    _require(not _can_open_socket(socket.AF_INET), "an internet socket was not refused")
    return "filter installed" if control else "filter installed; an outer sandbox refuses internet sockets already"


def _can_open_socket(family: int) -> bool:
    try:
        socket.socket(family, socket.SOCK_STREAM).close()
    except PermissionError:
        return False
    return True


def _try_capabilities() -> str:
    may_mount = privileges.is_able_to_mount()
    privileges.cut(privileges.KEPT_BY_ROOT)
    _effective, permitted, inheritable = syscalls.get_capabilities()
    kept = sum(1 << number for number in privileges.KEPT_BY_ROOT)
    _require(not permitted & ~kept and not inheritable, "a capability could not be dropped")
    if os.geteuid() != 0:
        return "none to drop"
    return "cut to file work" if may_mount else "cut further: no right to mount here"


def _try_session() -> str:
    held = _run_shell("(: </dev/tty) 2>/dev/null && echo reached", close_fds=True)
    _require(held == "", "a command reached the terminal of wisp")
    return "no controlling terminal"


def _try_descriptors() -> str:
    reader, writer = os.pipe()
    try:
        os.set_inheritable(writer, True)
        line = f"[ -e /proc/self/fd/{writer} ] && echo reached"
        _require(_run_shell(line, close_fds=False) == "reached\n", "an inherited descriptor could not be seen")
        _require(_run_shell(line, close_fds=True) == "", "a command inherited a descriptor")
    finally:
        os.close(reader)
        os.close(writer)
    return "only the three standard ones are passed on"


def _run_shell(line: str, *, close_fds: bool) -> str:
    done = subprocess.run(
        ["/bin/sh", "-c", line],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        close_fds=close_fds,
        start_new_session=True,
        check=False,
        timeout=10,
    )
    return done.stdout.decode("utf-8", "replace")
