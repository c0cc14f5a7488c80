"""What every backend promises: to hold one confinement for one command at a time, and to say what was in force.

A backend is asked once for a confinement (`prepare`) and hands out *slots*; a slot starts commands under that
confinement, one at a time. Whatever cannot be enforced is `SandboxUnavailable`: nothing runs unconfined by accident.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from wisp.sandbox.capability import Capability
    from wisp.sandbox.confinement import Confinement
    from wisp.sandbox.observation import Observation

__all__ = ["Backend", "Enforcer", "RefusalTexts", "Running", "Signaller", "Slot"]


@dataclass(frozen=True, slots=True)
class RefusalTexts:
    """Which error texts mean a refusal under the layers in force, as strerror(3) words them in English.

    `write`: a write outside the roots. `link`: a link or rename across the border of a root. `pinned`: renaming a
    directory that is held in place. `call`: a call that names no file (a socket, a signal, a mount). A text that is
    in none of them is never the sandbox's.
    """

    write: tuple[str, ...] = ()
    link: tuple[str, ...] = ()
    pinned: tuple[str, ...] = ()
    call: tuple[str, ...] = ()


class Running(Protocol):
    """A started command, from its start until its exit status was taken."""

    @property
    def pid(self) -> int:
        """The number of its first process, as this process sees it."""
        ...

    @property
    def descriptor(self) -> int:
        """Becomes readable when the first process has ended; -1 before `open`, and where it was reaped elsewhere."""
        ...

    @property
    def is_reaped(self) -> bool:
        """Whether its exit status was taken, or can no longer be."""
        ...

    def claim(self) -> None:
        """See to its end from now on. Raises what interrupted the start, once."""
        ...

    def open(self) -> bool:
        """Start to watch for the end; return False where it is over and nothing will say so. Raises OSError."""
        ...

    def close(self) -> None:
        """Give back what watched it."""
        ...

    def is_over(self, seconds: float) -> bool:
        """Return whether it ends within `seconds`."""
        ...

    def signal_group(self, signum: int) -> None:
        """Signal everything in its process group; nothing when there is nothing left."""
        ...

    def signal_all(self, signum: int) -> None:
        """Signal everything that it has started, once each. Raises nothing."""
        ...

    def end_leftovers(self) -> str:
        """End everything that it has started, when its first process is over; return what may still run, in words."""
        ...

    def give_up(self) -> str:
        """Leave a command that does not end although it was killed; return what may still run, in words."""
        ...

    def reap(self) -> int:
        """Return the exit status (negative: a signal) of a command that is over.

        Raises StatusLost when it cannot be known, OSError when the program could not be started.
        """
        ...


class Signaller(Protocol):
    """What can signal a command's processes and no others."""

    #: Whether what a command started is to be ended with it.
    ends_leftovers: bool

    def signal(self, pids: Iterable[int], signum: int) -> tuple[int, ...]:
        """Send `signum` to those of `pids` that belong to the command, and return them.

        What does not belong to it is refused by the kernel, not by a list. Empty where the kernel cannot tell.
        """
        ...


class Slot(Protocol):
    """One place that runs one confined command at a time."""

    def spawn(
        self, argv: Sequence[str], *, cwd: str, env: Mapping[bytes, bytes], stdin: int, stdout: int, stderr: int
    ) -> Running:
        """Start `argv` confined, in a new session, with these three descriptors and no other.

        Raises OSError when the program cannot be started (some backends learn it later: `Running.reap`) and
        SandboxUnavailable when the confinement is not in force.
        """
        ...

    def observation(self) -> Observation | None:
        """Return what the observer saw of the command that has ended, once; None where nothing observes."""
        ...


class Enforcer(Protocol):
    """One confinement, enforceable: what `prepare` gives. Safe to share between threads."""

    @property
    def layers(self) -> tuple[str, ...]:
        """The layers in force for every command of this enforcer, by name."""
        ...

    @property
    def texts(self) -> RefusalTexts:
        """Which error texts mean a refusal under these layers."""
        ...

    @property
    def ends_leftovers(self) -> str:
        """Empty when all that a command started is ended with it, else what may be left, in words."""
        ...

    def lease(self) -> AbstractContextManager[Slot]:
        """Hold a slot for the length of one command.

        Raises SandboxUnavailable when a root is no longer the directory that was confined, or a layer is refused.
        """
        ...

    def close(self) -> None:
        """Give back everything held; commands that still run keep their confinement."""
        ...


class Backend(Protocol):
    """One way to confine commands on this machine."""

    @property
    def name(self) -> str:
        """`landlock`, `none`, …: what `--backend` takes and `WISP_SANDBOX` says."""
        ...

    def capability(self) -> Capability:
        """Return what this machine can enforce, layer by layer, from functional probes, and why not."""
        ...

    def prepare(self, confinement: Confinement) -> Enforcer:
        """Return an enforcer for `confinement`; raises SandboxUnavailable when it cannot be held whole."""
        ...
