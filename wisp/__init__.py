"""wisp runs a command under the operating system's own sandbox, and knows why it failed.

The public names are imported on first use, so that `import wisp` costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from wisp._version import __version__

if TYPE_CHECKING:
    from wisp.errors import (
        ConfigError,
        ConfinementError,
        DirectoryMissing,
        LaunchFailed,
        PolicyDenied,
        ProbeError,
        SandboxUnavailable,
        StatusLost,
        UsageError,
        WispError,
    )
    from wisp.outcome import Denial, Outcome, Refusal
    from wisp.runner import Runner, capability
    from wisp.sandbox.capability import Capability, Layer, Limit
    from wisp.sandbox.confinement import Confinement
    from wisp.sandbox.process import Stop

__all__ = [
    "Capability",
    "ConfigError",
    "Confinement",
    "ConfinementError",
    "Denial",
    "DirectoryMissing",
    "LaunchFailed",
    "Layer",
    "Limit",
    "Outcome",
    "PolicyDenied",
    "ProbeError",
    "Refusal",
    "Runner",
    "SandboxUnavailable",
    "StatusLost",
    "Stop",
    "UsageError",
    "WispError",
    "__version__",
    "capability",
]

_HOMES: Final = {
    "Capability": "wisp.sandbox.capability",
    "Confinement": "wisp.sandbox.confinement",
    "Denial": "wisp.outcome",
    "Layer": "wisp.sandbox.capability",
    "Limit": "wisp.sandbox.capability",
    "Outcome": "wisp.outcome",
    "Refusal": "wisp.outcome",
    "Runner": "wisp.runner",
    "Stop": "wisp.sandbox.process",
    "capability": "wisp.runner",
}


def __getattr__(name: str) -> object:
    """Import a public name on its first use."""
    if name not in __all__:
        raise AttributeError(f"module 'wisp' has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415

    value: object = getattr(import_module(_HOMES.get(name, "wisp.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names, also those not imported yet."""
    return sorted(__all__)
