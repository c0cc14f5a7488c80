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
    import subprocess

    from wisp.sandbox.capability import Capability
    from wisp.sandbox.confinement import Confinement

__all__ = ["Backend", "Enforcer", "RefusalTexts", "Slot"]


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


class Slot(Protocol):
    """One place that runs one confined command at a time."""

    #: Whether what a command started is to be ended with it.
    ends_leftovers: bool

    def spawn(
        self, argv: Sequence[str], *, cwd: str, env: Mapping[bytes, bytes], stdin: int, stdout: int, stderr: int
    ) -> subprocess.Popen[bytes]:
        """Start `argv` confined, in a new session, with these three descriptors and no other.

        Raises OSError when the program cannot be started and SandboxUnavailable when the confinement is not in force.
        """
        ...

    def signal(self, pids: Iterable[int], signum: int) -> tuple[int, ...]:
        """Send `signum` to those of `pids` that belong to this slot's command, and return them.

        What does not belong to it is refused by the kernel, not by a list. Empty where the kernel cannot tell.
        """
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
