"""The backend `none`: no sandbox at all. Only a person chooses it, and everything that runs under it says so."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from wisp.sandbox.backend import RefusalTexts
from wisp.sandbox.capability import Capability
from wisp.sandbox.confinement import Confinement
from wisp.sandbox.leader import Leader

__all__ = ["UnconfinedBackend"]


class UnconfinedBackend:
    """Starts commands as they are: the control of every probe, and a person's explicit choice."""

    name = "none"

    def capability(self) -> Capability:
        """Return that nothing is held."""
        return Capability(
            self.name, None, "no sandbox was asked for: nothing that a command does is held", (), frozenset(), ()
        )

    def prepare(self, confinement: Confinement) -> UnconfinedEnforcer:
        """Return what starts commands unconfined; `confinement` is not enforced."""
        del confinement
        return UnconfinedEnforcer()


class UnconfinedEnforcer:
    """Enforces nothing."""

    layers: tuple[str, ...] = ()
    texts = RefusalTexts()
    ends_leftovers = "only the command's own process group is ended: a process that left it may still run"

    @contextmanager
    def lease(self) -> Iterator[_UnconfinedSlot]:
        """Hold a place for one command."""
        yield _UnconfinedSlot()

    def close(self) -> None:
        """Nothing is held, so nothing is given back."""


class _UnconfinedSlot:
    """Starts a command by plain subprocess, in a new session like everywhere else."""

    ends_leftovers = True

    def spawn(
        self, argv: Sequence[str], *, cwd: str, env: Mapping[bytes, bytes], stdin: int, stdout: int, stderr: int
    ) -> Leader:
        """Start one command; see `wisp.sandbox.backend.Slot`."""
        process = subprocess.Popen(
            list(argv), cwd=cwd, env=env, stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=True
        )
        return Leader(process, self, UnconfinedEnforcer.ends_leftovers)

    def observation(self) -> None:
        """Nothing observes here."""

    def signal(self, pids: Iterable[int], signum: int) -> tuple[int, ...]:
        """Signal nothing: outside a sandbox the kernel cannot tell whose a process is."""
        del pids, signum
        return ()
