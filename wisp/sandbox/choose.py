"""Which backend holds a confinement on this machine. Never a weaker one by accident."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final, Literal

from wisp.errors import SandboxUnavailable, UsageError
from wisp.sandbox.bwrap import why_no_namespaces

if TYPE_CHECKING:
    from wisp.sandbox.backend import Backend
    from wisp.sandbox.capability import Tier

__all__ = ["BACKENDS", "backend_named", "require_tier"]

#: What `--backend` and `sandbox.backend` take.
BACKENDS: Final = ("auto", "bubblewrap", "landlock", "seatbelt", "none")


def backend_named(
    name: str, *, abi: int | None = None, observe: bool = False, nested: Literal["refuse", "trust-outer"] = "refuse"
) -> Backend:
    """Return the backend called `name`; `auto` is the strongest that works on this machine.

    `abi` has it work as on a kernel with that older Landlock interface. With `observe` it lists what each command was
    refused. `nested` is what Seatbelt does inside another sandbox. Raises UsageError for a name that is none and for a
    backend that cannot observe, SandboxUnavailable where wisp has no backend of that name for the system.
    """
    if name not in BACKENDS:
        raise UsageError(f"there is no backend {name!r}; choose one of {', '.join(BACKENDS)}")
    if observe and (name in {"none", "seatbelt"} or sys.platform != "linux"):
        raise UsageError(f"the backend {name} cannot observe what it refuses; bubblewrap and landlock can, on Linux")
    if name == "none":
        from wisp.sandbox.unconfined import UnconfinedBackend  # noqa: PLC0415

        return UnconfinedBackend()
    if sys.platform == "linux" and name != "seatbelt":
        return _linux_backend(name, abi, observe=observe)
    if sys.platform == "darwin" and name in {"auto", "seatbelt"}:
        from wisp.sandbox.seatbelt import SeatbeltBackend  # noqa: PLC0415

        return SeatbeltBackend(nested)
    system = {"linux": "Linux", "darwin": "macOS"}.get(sys.platform, sys.platform)
    raise SandboxUnavailable(
        name, f"this is {system}: wisp confines commands by bubblewrap or Landlock on Linux, and by Seatbelt on macOS"
    )


def _linux_backend(name: str, abi: int | None, *, observe: bool) -> Backend:
    """Return what was asked for; where lanes cannot be made at all, `auto` is Landlock alone, which says its limits."""
    if name == "bubblewrap" or (name == "auto" and not why_no_namespaces()):
        from wisp.sandbox.bubblewrap import BubblewrapBackend  # noqa: PLC0415

        return BubblewrapBackend(abi=abi, observe=observe)
    from wisp.sandbox.landlock import LandlockBackend  # noqa: PLC0415

    return LandlockBackend(abi=abi, observe=observe)


def require_tier(backend: Backend, tier: Tier | None) -> None:
    """Raise SandboxUnavailable when `sandbox.requireTier` asks for more than `backend` gives here."""
    if tier is None:
        return
    found = backend.capability()
    if found.tier is None or found.tier > tier:  # "A" < "B": A holds more
        raise SandboxUnavailable(
            backend.name, f"`sandbox.requireTier` is {tier}, and this backend gives tier {found.tier or 'none'} here"
        )
