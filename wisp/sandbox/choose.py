"""Which backend holds a confinement on this machine. Never a weaker one by accident."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from wisp.errors import SandboxUnavailable, UsageError

if TYPE_CHECKING:
    from wisp.sandbox.backend import Backend
    from wisp.sandbox.capability import Tier

__all__ = ["BACKENDS", "backend_named", "require_tier"]

#: What `--backend` and `sandbox.backend` take.
BACKENDS: Final = ("auto", "landlock", "none")


def backend_named(name: str) -> Backend:
    """Return the backend called `name`; `auto` is the strongest that wisp has for this system.

    Raises UsageError for a name that is none, SandboxUnavailable where wisp has no backend for the system.
    """
    if name not in BACKENDS:
        raise UsageError(f"there is no backend {name!r}; choose one of {', '.join(BACKENDS)}")
    if name == "none":
        from wisp.sandbox.unconfined import UnconfinedBackend  # noqa: PLC0415

        return UnconfinedBackend()
    if sys.platform != "linux":
        system = "macOS" if sys.platform == "darwin" else sys.platform
        raise SandboxUnavailable(
            "landlock" if name == "landlock" else "auto",
            f"this version of wisp confines commands on Linux only, and this is {system}; nothing was run",
        )
    from wisp.sandbox.landlock import LandlockBackend  # noqa: PLC0415

    return LandlockBackend()


def require_tier(backend: Backend, tier: Tier | None) -> None:
    """Raise SandboxUnavailable when `sandbox.requireTier` asks for more than `backend` gives here."""
    if tier is None:
        return
    found = backend.capability()
    if found.tier is None or found.tier > tier:  # "A" < "B": A holds more
        raise SandboxUnavailable(
            backend.name, f"`sandbox.requireTier` is {tier}, and this backend gives tier {found.tier or 'none'} here"
        )
