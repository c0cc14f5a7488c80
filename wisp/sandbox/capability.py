"""What this machine can enforce, said layer by layer, and what stays open: values only.

The backends fill them from functional probes (an action that must be refused was refused, its pair worked), never
from a version number or a platform's name alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Capability", "Layer", "LayerState", "Limit", "Tier"]

#: Why a layer is or is not there. `not-built`: the kernel knows no such call. `not-enabled`: built in, off at boot.
#: `too-old`: an interface version below what the layer needs. `refused`: this process may not use it. `nested`: an
#: outer sandbox is in the way. `inconclusive`: the check itself could not be made, so the layer counts as absent.
LayerState = Literal["yes", "not-built", "not-enabled", "too-old", "refused", "nested", "inconclusive"]

Tier = Literal["A", "B"]


@dataclass(frozen=True, slots=True)
class Layer:
    """One mechanism of a backend as a functional probe found it on this machine."""

    name: str
    state: LayerState
    #: What the probe saw: the interface version, or the error and what it means.
    detail: str
    #: What is not held without this layer, in words; empty when the layer is there.
    loses: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Limit:
    """Something that this backend leaves open on this machine, declared rather than hidden.

    `name` is the capability that is missing (`confine.metadata`); probes key their declared limits by it.
    """

    name: str
    because: str


@dataclass(frozen=True, slots=True)
class Capability:
    """All that is known of one backend on this machine.

    `tier` is None when the backend cannot confine here, and then `reason` says why and what to do. `confines` are
    the capabilities that hold (`confine.write`, …), `limits` those that do not.
    """

    backend: str
    tier: Tier | None
    reason: str
    layers: tuple[Layer, ...]
    confines: frozenset[str]
    limits: tuple[Limit, ...]

    def holds(self, name: str) -> bool:
        """Return whether the capability `name` (`confine.write`) holds."""
        return name in self.confines
