"""What the bubblewrap backend can enforce on this machine, found by trying it in a lane made for that.

The same actions are tried by wisp itself (the control) and by a command in the lane; a layer is there when what must be
refused was refused and its pair worked. All of it acts in one scratch directory.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from wisp.errors import WispError
from wisp.sandbox import privileges
from wisp.sandbox.bwrap import why_no_namespaces
from wisp.sandbox.capability import Capability, Layer, LayerState, Limit
from wisp.sandbox.confinement import Confinement
from wisp.sandbox.launch import environment_of, launch
from wisp.sandbox.scratch import Scratch
from wisp.sandbox.streams import Streams
from wisp.sandbox.tail import Tail

if TYPE_CHECKING:
    from wisp.sandbox.backend import Enforcer
    from wisp.sandbox.bubblewrap import BubblewrapBackend

__all__ = ["find_capability"]

_LOSES: Final = {
    "mounts": "writes and changes of modes, owners, times and attributes outside the writable roots; protected paths",
    "namespaces": "other processes, shared memory, and the end of all that a command leaves running",
    "landlock": "a second barrier against writes outside the writable roots",
    "landlock-scope": "abstract sockets of other processes, where the network is on",
    "seccomp": "network off, io_uring, typing into terminals, namespaces of a command's own",
    "capabilities": "what root may do beyond files: hostname, clock, mounts, device nodes",
    "session": "the terminal that wisp was started from",
    "descriptors": "files that wisp itself holds open",
    "leftovers": "the end of what a command leaves running",
}

#: What no lane holds.
_LIMITS: Final = (
    Limit(
        "confine.unix-sockets",
        "a socket that has a path can be connected to, unless it is one of the well-known control sockets, which are "
        "hidden: a daemon of this user's own can be asked to act",
    ),
    Limit(
        "work.across-roots",
        "two writable roots are mounts of their own: renaming or linking from one to the other is refused (EXDEV), and "
        "programs that cannot copy instead fail",
    ),
)

_HELD_BY: Final = {
    "mounts": ("confine.write", "confine.devices", "confine.metadata", "confine.protected-inside-root",
               "confine.control-sockets", "confine.terminals", "work.ask-before-write"),
    "namespaces": ("confine.signals", "confine.ptrace", "confine.leftovers", "confine.fork-chains",
                   "confine.priority", "confine.process-limits"),
    "landlock-scope": ("confine.abstract-sockets",),
    "seccomp": ("confine.network", "confine.io-uring", "confine.terminal-injection"),
    "capabilities": ("confine.privileges",),
    "session": ("confine.terminal",),
    "descriptors": ("confine.descriptors",),
}  # fmt: skip

_SECONDS: Final = 30.0

#: Each line of the output is one attempt: its name, and "yes" or why not. Run as wisp itself and in the lane.
_ATTEMPTS: Final = """
import os, socket, sys
outside, root, guarded, name, canary, kept = sys.argv[1:7]
def attempt(what, act):
    try:
        act()
        print(what, "yes")
    except OSError as error:
        print(what, error.strerror or error)
def reach(family, address):
    with socket.socket(family) as client:
        client.connect(address)
def become_leader():
    os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
attempt("inside", lambda: open(root + "/file", "w").close())
attempt("create", lambda: open(outside + "/file", "w").close())
attempt("mode", lambda: os.chmod(outside, 0o700))
attempt("guarded", lambda: open(guarded + "/file", "w").close())
attempt("canary", lambda: os.kill(int(canary), 0))
attempt("abstract", lambda: reach(socket.AF_UNIX, chr(0) + name))
attempt("unix", lambda: socket.socket(socket.AF_UNIX).close())
attempt("internet", lambda: socket.socket(socket.AF_INET).close())
attempt("terminal", become_leader)
attempt("descriptor", lambda: os.close(int(kept)))
with open("/proc/self/status") as status:
    print("capabilities", next(line.split()[1] for line in status if line.startswith("CapBnd")))
"""


@dataclass(frozen=True, slots=True)
class _Seen:
    """What each attempt said, by name: as wisp itself, in a lane without and with a network."""

    plain: dict[str, str]
    off: dict[str, str]
    on: dict[str, str]
    #: Whether a process that a command left in the lane went on.
    left: bool
    seconds: float


def find_capability(backend: BubblewrapBackend) -> Capability:
    """Return what this machine can enforce with lanes, layer by layer."""
    started = time.perf_counter()
    why = why_no_namespaces()
    if not why:
        try:
            return _describe(backend, _look(backend))
        except (WispError, OSError, ValueError, subprocess.SubprocessError) as error:
            why = str(error)
    layers = tuple(
        Layer(name, "refused", "needs a lane" if index else why, loses, 0.0 if index else time.perf_counter() - started)
        for index, (name, loses) in enumerate(_LOSES.items())
    )
    return Capability(backend.name, None, f"no lane can be made here: {why}", layers, frozenset(), ())


def _look(backend: BubblewrapBackend) -> _Seen:
    """Make the attempts, and leave a process in the lane. Raises WispError and OSError."""
    started = time.perf_counter()
    with ExitStack() as stack:
        scratch = Scratch()
        stack.callback(scratch.remove)
        root, outside = os.path.join(scratch.path, "root"), os.path.join(scratch.path, "outside")
        guarded, left = os.path.join(root, "parent", "guarded"), os.path.join(root, "left")
        os.mkdir(outside, 0o700)
        os.makedirs(guarded, 0o700)
        name = f"wisp-{os.path.basename(scratch.path)}"
        listener = stack.enter_context(closing(socket.socket(socket.AF_UNIX)))
        listener.bind("\0" + name)
        listener.listen(8)
        canary = stack.enter_context(_canary())
        reader, kept = os.pipe()
        stack.callback(os.close, reader)
        stack.callback(os.close, kept)
        os.set_inheritable(kept, True)
        words = [sys.executable, "-I", "-S", "-B", "-c", _ATTEMPTS]
        words += [outside, root, guarded, name, str(canary), str(kept)]
        plain = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=True,
            timeout=_SECONDS,
            close_fds=False,
        ).stdout
        said = list[dict[str, str]]()
        for network in (False, True):
            enforcer = backend.prepare(Confinement(roots=(root,), protected=(guarded,), network=network))
            stack.callback(enforcer.close)
            said.append(_read(_run(enforcer, words, root)))
            if not network:
                _run(enforcer, ["/bin/sh", "-c", _LEAVE, "sh", left], root)
        time.sleep(2 * _PAUSE)
        off, on = said
        return _Seen(_read(plain), off, on, os.path.exists(left), time.perf_counter() - started)


#: Seconds after which a process that was left behind shows that it is there.
_PAUSE: Final = 0.05
_LEAVE: Final = f"""setsid sh -c 'sleep {_PAUSE}; : >"$0"' "$1" >/dev/null 2>&1 &"""


@contextmanager
def _canary() -> Iterator[int]:
    """Run a process of this user outside every sandbox, and give its number."""
    process = subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    try:
        yield process.pid
    finally:
        process.communicate()


def _run(enforcer: Enforcer, words: list[str], directory: str) -> bytes:
    """Return what the command printed in a lane. Raises WispError where it did not end well."""
    out, err = Tail(1 << 14), Tail(1 << 12)
    streams = Streams(out.feed, err.feed, None)
    finished = launch(
        enforcer, words, directory, environment_of(None), streams, timeout=_SECONDS, stop=None, announce=lambda: None
    )
    if finished.exit_status != 0:
        raise WispError(f"the check in the lane ended with {finished.exit_status}: {err.text().strip()[-200:]}")
    return out.text().encode()


def _read(output: bytes) -> dict[str, str]:
    lines = (line.partition(" ") for line in output.decode().splitlines())
    return {name: said for name, _, said in lines}


def _describe(backend: BubblewrapBackend, seen: _Seen) -> Capability:
    layers = tuple(Layer(name, *_state(backend, name, seen), seconds) for name, seconds in _timed(seen.seconds))
    states = {layer.name: layer.state for layer in layers}
    limits = list(_LIMITS)
    if states["landlock-scope"] != "yes":
        limits.append(
            Limit("confine.abstract-sockets", "with the network on, abstract sockets of other processes are in reach")
        )
    abi = backend.landlock_abi()
    if abi < 5:
        limits.append(
            Limit("confine.device-ioctl", f"Landlock interface {abi} does not govern ioctl on the devices of a lane")
        )
    confines = frozenset(held for name, held_by in _HELD_BY.items() if states[name] == "yes" for held in held_by)
    if abi >= 5:
        confines |= {"confine.device-ioctl"}
    needed = {"mounts", "namespaces", "seccomp", "capabilities", "session", "descriptors", "leftovers"}
    missing = [name for name in _LOSES if name in needed and states[name] != "yes"]
    reason = f"not in force in the lane: {', '.join(missing)}" if missing else ""
    return Capability(backend.name, None if missing else "A", reason, layers, confines, tuple(limits))


def _timed(seconds: float) -> list[tuple[str, float]]:
    """Return each layer with the time its check took: they are checked together, so the first has all of it."""
    return [(name, 0.0 if index else seconds) for index, name in enumerate(_LOSES)]


def _state(backend: BubblewrapBackend, name: str, seen: _Seen) -> tuple[LayerState, str, str]:
    """Return state, detail, and what is lost without the layer."""
    problem, detail = _judged(backend, name, seen)
    return ("refused", problem, _LOSES[name]) if problem else ("yes", detail, "")


def _judged(backend: BubblewrapBackend, name: str, seen: _Seen) -> tuple[str, str]:
    """Return why the layer is not there, and what was seen when it is."""
    plain, off, on = seen.plain, seen.off, seen.on
    match name:
        case "mounts":
            return _held_writes(plain, off), "read-only but for the writable roots"
        case "namespaces":
            return _refused(plain, off, "canary"), "processes, IPC, and the network when it is off"
        case "landlock" | "landlock-scope":
            return _landlock(name, backend.landlock_abi(), plain, on)
        case "seccomp":
            works = "" if off["unix"] == "yes" else f"a Unix socket was refused ({off['unix']})"
            return works or _refused(plain, off, "internet"), "filter installed"
        case "capabilities":
            return _capabilities(off["capabilities"])
        case "session":
            reached = "a command reached the terminal of wisp" if off["terminal"] == "yes" else ""
            return reached, "no controlling terminal"
        case "descriptors":
            return _refused(plain, off, "descriptor"), "only the three standard ones are passed on"
        case _:
            return ("a process that was left behind went on" if seen.left else ""), "everything in the lane is ended"


def _held_writes(plain: dict[str, str], off: dict[str, str]) -> str:
    tried = ("create", "mode", "guarded")
    if "yes" in {off[one] for one in tried} or off["inside"] != "yes":
        return f"writes: {', '.join(f'{one}: {off[one]}' for one in (*tried, 'inside'))}"
    return _control(plain, *tried)


def _landlock(name: str, abi: int, plain: dict[str, str], on: dict[str, str]) -> tuple[str, str]:
    if name == "landlock":
        return ("" if abi else "the kernel has no Landlock that is of use"), f"interface {abi}, proven by each lane"
    if abi < 6:
        return "Landlock interface 6 (Linux 6.12) brings scopes", ""
    return _refused(plain, on, "abstract"), "abstract sockets"


def _refused(plain: dict[str, str], confined: dict[str, str], what: str) -> str:
    """Return why the attempt `what` does not show that the lane refuses it, or an empty text."""
    if confined[what] == "yes":
        return f"{what}: not refused in the lane"
    return _control(plain, what)


def _control(plain: dict[str, str], *tried: str) -> str:
    failed = [f"{one} ({plain[one]})" for one in tried if plain[one] != "yes"]
    return f"could not be done without the sandbox either: {', '.join(failed)}" if failed else ""


def _capabilities(bounding: str) -> tuple[str, str]:
    kept = sum(1 << number for number in privileges.KEPT_BY_ROOT)
    over = int(bounding, 16) & ~kept
    if over:
        return f"capabilities were left ({over:#x})", ""
    return "", "cut to file work" if int(bounding, 16) else "none"
