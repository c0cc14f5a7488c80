"""A lane as a slot: what it was made from, and the holding of one for the length of a command."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wisp.errors import SandboxUnavailable
from wisp.sandbox.roots import identities_of

if TYPE_CHECKING:
    from wisp.sandbox.bubblewrap import BubblewrapEnforcer
    from wisp.sandbox.lane import LaneCommand
    from wisp.sandbox.observation import Observation
    from wisp.sandbox.sockets import Hidden

__all__ = ["Ground", "LaneSlot", "Lease", "times_of"]


@dataclass(frozen=True, slots=True)
class Ground:
    """What a lane was made from: its places as they were, and what it hides."""

    paths: tuple[str, ...]
    identities: tuple[tuple[int, int], ...]
    hidden: Hidden
    #: Of the directories in which another control socket may appear, in nanoseconds.
    times: tuple[int, ...]

    def is_unchanged(self) -> bool:
        """Return whether all of it is as it was: what is not makes a lane one that is not used again."""
        return identities_of(self.paths) == self.identities and times_of(self.hidden.watched) == self.times


def times_of(directories: Sequence[str]) -> tuple[int, ...]:
    """Return when each directory was changed last, in nanoseconds; nothing where one is gone."""
    with suppress(OSError):
        return tuple(os.stat(path).st_mtime_ns for path in directories)
    return ()


class Lease(AbstractContextManager["LaneSlot"]):
    """Holds a lane for the length of one command."""

    def __init__(self, enforcer: BubblewrapEnforcer) -> None:
        self._enforcer = enforcer
        self._slot: LaneSlot | None = None

    def __enter__(self) -> LaneSlot:
        self._slot = slot = self._enforcer.take()
        return slot

    def __exit__(self, *_: object) -> None:
        self._enforcer.give_back(self._slot)


class LaneSlot:
    """A lane with what it is bound to."""

    def __init__(self, enforcer: BubblewrapEnforcer, generation: int) -> None:
        self._enforcer = enforcer
        self.generation = generation
        self._renew()

    def _renew(self) -> None:
        self.lane, self._ground = self._enforcer.new_lane()
        self._observer = self._enforcer.observe(self.lane, self._ground.hidden)

    def close(self) -> None:
        """End the lane, and then what observes it: its last calls are to be answered."""
        self.lane.close()
        if self._observer is not None:
            self._observer.close()

    def observation(self) -> Observation | None:
        """Return what the observer saw of the command that has ended."""
        return None if self._observer is None else self._observer.take()

    def is_sound(self) -> bool:
        """Return whether the lane can be asked, and its places still are what it was made from."""
        return self.lane.is_usable and self._ground.is_unchanged()

    def spawn(
        self, argv: Sequence[str], *, cwd: str, env: Mapping[bytes, bytes], stdin: int, stdout: int, stderr: int
    ) -> LaneCommand:
        """Start one command; see `wisp.sandbox.backend.Slot`. Whether it could be started is told at its end."""
        for _ in range(2):
            if self._observer is not None:
                self._observer.begin()
            command = self.lane.run(argv, cwd, env, (stdin, stdout, stderr))
            if command is not None:
                return command
            # The helper was gone before it was asked, so nothing was started: ask a new one.
            self.close()
            self._renew()
        raise SandboxUnavailable("bubblewrap", "its lanes end as soon as they are made")
