"""What Seatbelt can enforce on this Mac, found by trying it.

The same actions are tried by wisp itself (the control) and by a command under a profile; a layer is there when what
must be refused was refused and its pair worked. All of it acts in one scratch directory.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from wisp.errors import WispError
from wisp.sandbox.capability import Capability, Layer, LayerState, Limit
from wisp.sandbox.confinement import Confinement
from wisp.sandbox.launch import environment_of, launch
from wisp.sandbox.scratch import Scratch
from wisp.sandbox.streams import Streams
from wisp.sandbox.tail import Tail

if TYPE_CHECKING:
    from wisp.sandbox.backend import Backend, Enforcer

__all__ = ["Seen", "describe", "find_capability"]

_BACKEND: Final = "seatbelt"

_LOSES: Final = {
    "seatbelt": "writes and changes of modes and the like outside the writable roots; protected paths; network off",
    "session": "the terminal that wisp was started from",
    "descriptors": "files that wisp itself holds open",
    "leftovers": "the end of what a command leaves running",
}

#: What the profile leaves open, on every Mac.
_LIMITS: Final = (
    Limit("confine.signals", "the profile does not govern signals: this user's other processes can be signalled"),
    Limit(
        "confine.ptrace",
        "the profile does not govern debugging: this user's processes that the system lets be debugged can be",
    ),
    Limit(
        "confine.unix-sockets",
        "services that are asked by Mach messages (launchd, Apple events, `open`) act outside the sandbox, and while "
        "the network is on, so do daemons behind a socket that has a path",
    ),
    Limit("confine.control-sockets", "while the network is on, no control socket of a daemon is hidden"),
    Limit(
        "confine.leftovers",
        "what left the command's session is ended only if it was seen while its parent still ran",
    ),
    Limit("confine.fork-chains", "a process that forks and exits faster than it can be seen outlives its command"),
    Limit("confine.terminals", "other terminals of this user under /dev can be written to"),
    Limit("confine.device-ioctl", "the profile does not govern ioctl on devices that may be opened for reading"),
    Limit("confine.priority", "the scheduling of this user's other processes can be changed"),
    Limit("confine.process-limits", "the profile does not govern what limits this user's other processes have"),
)

#: What root may do besides, as the profile is about files and sockets.
_LIMITS_OF_ROOT: Final = (
    Limit(
        "confine.privileges", "as root, a command may change what belongs to no file: clock, hostname, kernel settings"
    ),
    Limit("confine.terminal-injection", "root may type into any terminal (TIOCSTI)"),
)

#: Each line of the output is one attempt: its name, and "yes" or why not. Run as wisp itself and under a profile.
_ATTEMPTS: Final = """
import os, socket, sys
outside, root, guarded, kept = sys.argv[1:5]
def attempt(what, act):
    try:
        act()
        print(what, "yes")
    except OSError as error:
        print(what, error.strerror or error)
def reach():
    with socket.socket() as client:
        try:
            client.connect(("127.0.0.1", 1))
        except ConnectionRefusedError:
            pass
def link_and_write():
    os.link(outside + "/linked", root + "/linked")
    try:
        open(root + "/linked", "a").close()
    finally:
        os.unlink(root + "/linked")
def move_away():
    os.rename(os.path.dirname(guarded), root + "/away")
    os.rename(root + "/away", os.path.dirname(guarded))
attempt("inside", lambda: open(root + "/file", "w").close())
attempt("null", lambda: open("/dev/null", "w").close())
attempt("create", lambda: open(outside + "/file", "w").close())
attempt("mode", lambda: os.chmod(outside, 0o700))
attempt("link", link_and_write)
attempt("guarded", lambda: open(guarded + "/file", "w").close())
attempt("moved", move_away)
attempt("internet", reach)
attempt("terminal", lambda: os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)))
attempt("descriptor", lambda: os.close(int(kept)))
"""

#: What must work, and what must be refused, for the layer to be there; without a sandbox all of it works.
_ALLOWED: Final = {"inside": "a write inside a root", "null": "a write to /dev/null"}
_REFUSED: Final = {
    "create": "a file was made outside every root",
    "mode": "a mode was changed outside every root",
    "link": "a file from outside was written to by a link of it inside",
    "guarded": "a protected path was written to",
    "moved": "a directory that leads to a protected path was moved away",
    "internet": "a connection was tried although the network is off",
}

_SECONDS: Final = 30.0
#: Seconds after which a process that was left behind shows that it is there.
_PAUSE: Final = 0.05
_LEAVE: Final = f"""(sleep {_PAUSE}; : >"$0") >/dev/null 2>&1 &"""


@dataclass(frozen=True, slots=True)
class Seen:
    """What each attempt said, by name, as wisp itself and under a profile; whether a background job went on."""

    plain: dict[str, str]
    confined: dict[str, str]
    left: bool
    seconds: float = 0.0


def find_capability(backend: Backend, state: str, why: str) -> Capability:
    """Return what this Mac can enforce, layer by layer: `state` and `why` are what was found out of nesting."""
    started = time.perf_counter()
    if state == "free":
        try:
            return describe(_look(backend))
        except (WispError, OSError, ValueError, subprocess.SubprocessError) as error:
            why = str(error)
    seconds = time.perf_counter() - started
    states: dict[str, LayerState] = {"nested": "nested", "missing": "not-built"}
    layers = tuple(
        Layer(name, states.get(state, "refused"), "needs Seatbelt" if index else why, loses, 0.0 if index else seconds)
        for index, (name, loses) in enumerate(_LOSES.items())
    )
    reason = why if why.startswith("nested") or state != "nested" else f"nested: {why}"
    return Capability(_BACKEND, None, reason, layers, frozenset(), ())


def describe(seen: Seen) -> Capability:
    """Return what `seen` means."""
    found = {
        "seatbelt": _seatbelt_state(seen),
        "session": _unless(seen, "terminal", "a command reached the terminal of wisp", "no controlling terminal"),
        "descriptors": _unless(
            seen, "descriptor", "a command inherited a descriptor", "only the three standard ones are passed on"
        ),
        "leftovers": _leftovers_state(seen),
    }
    layers = tuple(
        Layer(name, state, detail, "" if state == "yes" else _LOSES[name], 0.0 if index else seen.seconds)
        for index, (name, (state, detail)) in enumerate(found.items())
    )
    missing = [layer for layer in layers if layer.state != "yes"]
    if missing:
        return Capability(_BACKEND, None, f"{missing[0].name}: {missing[0].detail}", layers, frozenset(), ())
    limits = _LIMITS + (_LIMITS_OF_ROOT if os.geteuid() == 0 else ())
    return Capability(_BACKEND, "A", "", layers, _confines(), limits)


def _confines() -> frozenset[str]:
    held = {
        "confine.write",
        "confine.devices",
        "confine.metadata",
        "confine.protected-inside-root",
        "confine.network",
        "confine.terminal",
        "confine.descriptors",
        # There is no such thing on macOS.
        "confine.abstract-sockets",
        "confine.io-uring",
    }
    if os.geteuid() != 0:
        # An ordinary user has nothing to lose, and types only into a terminal that is the session's own: it has none.
        held |= {"confine.privileges", "confine.terminal-injection"}
    return frozenset(held)


def _seatbelt_state(seen: Seen) -> tuple[LayerState, str]:
    for name in (*_ALLOWED, *_REFUSED):
        if seen.plain.get(name) != "yes":
            return "inconclusive", f"{name}: even without a sandbox: {seen.plain.get(name, 'nothing was said')}"
    for name, what in _ALLOWED.items():
        if seen.confined.get(name) != "yes":
            return "inconclusive", f"{what} was refused: {seen.confined.get(name, 'nothing was said')}"
    for name, what in _REFUSED.items():
        if seen.confined.get(name, "yes") == "yes":
            return "refused", what
    return "yes", "files, protected paths and network, each refused as it must be"


def _unless(seen: Seen, name: str, crossed: str, held: str) -> tuple[LayerState, str]:
    if name not in seen.confined:
        return "inconclusive", "nothing was said"
    return ("refused", crossed) if seen.confined[name] == "yes" else ("yes", held)


def _leftovers_state(seen: Seen) -> tuple[LayerState, str]:
    if seen.left:
        return "refused", "a background job outlived its command"
    return "yes", "the session, and what was seen of the tree"


def _look(backend: Backend) -> Seen:
    """Make the attempts, and leave a process behind. Raises WispError and OSError."""
    started = time.perf_counter()
    with ExitStack() as stack:
        scratch = Scratch()
        stack.callback(scratch.remove)
        root, outside = os.path.join(scratch.path, "root"), os.path.join(scratch.path, "outside")
        guarded, left = os.path.join(root, "parent", "guarded"), os.path.join(root, "left")
        os.mkdir(outside, 0o700)
        os.makedirs(guarded, 0o700)
        with open(os.path.join(outside, "linked"), "xb"):
            pass
        reader, kept = os.pipe()
        stack.callback(os.close, reader)
        stack.callback(os.close, kept)
        os.set_inheritable(kept, True)
        words = [sys.executable, "-I", "-S", "-B", "-c", _ATTEMPTS, outside, root, guarded, str(kept)]
        plain = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=True,
            timeout=_SECONDS,
            close_fds=False,
        ).stdout
        enforcer = backend.prepare(Confinement(roots=(root,), protected=(guarded,), network=False))
        stack.callback(enforcer.close)
        confined = _run(enforcer, words, root)
        _run(enforcer, ["/bin/sh", "-c", _LEAVE, left], root)
        time.sleep(2 * _PAUSE)
        return Seen(_read(plain), _read(confined), os.path.exists(left), time.perf_counter() - started)


def _run(enforcer: Enforcer, words: list[str], directory: str) -> bytes:
    """Return what the command printed under the profile. Raises WispError where it did not end well."""
    out, err = Tail(1 << 14), Tail(1 << 12)
    streams = Streams(out.feed, err.feed, None)
    finished = launch(
        enforcer, words, directory, environment_of(None), streams, timeout=_SECONDS, stop=None, announce=lambda: None
    )
    if finished.exit_status != 0:
        raise WispError(f"the check ended with {finished.exit_status}: {err.text().strip()[-200:]}")
    return out.text().encode()


def _read(output: bytes) -> dict[str, str]:
    lines = (line.partition(" ") for line in output.decode("utf-8", "replace").splitlines())
    return {name: said for name, _, said in lines}
