"""What an observer saw of one command: values only."""

from __future__ import annotations

from dataclasses import dataclass

from wisp.outcome import Denial

__all__ = ["Observation"]


@dataclass(frozen=True, slots=True)
class Observation:
    """What was seen of one command. `lost`: denials that were too many to keep, and calls that could not be read."""

    denials: tuple[Denial, ...] = ()
    lost: int = 0
