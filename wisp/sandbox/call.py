"""What was asked for when a command is to be run, and what that comes to under the settings."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from wisp.errors import UsageError
from wisp.sandbox.environment import without_wisp_keys
from wisp.sandbox.launch import environment_of

if TYPE_CHECKING:
    from wisp.config import LimitSettings
    from wisp.outcome import Origin
    from wisp.sandbox.environment import PassedOn
    from wisp.sandbox.stop import Stop
    from wisp.sandbox.streams import Passthrough

__all__ = ["Call", "Timeout"]

Timeout = float | Literal["default"] | None


@dataclass(frozen=True, slots=True)
class Call:
    """One command as it was asked for; see `wisp.runner.Runner.run`."""

    argv: list[str]
    line: str
    cwd: str | os.PathLike[str] | None
    origin: Origin
    timeout: Timeout
    stop: Stop | None
    env: Mapping[str, str] | None
    max_output: int | None
    passthrough: Passthrough | None = None

    def seconds(self, limits: LimitSettings) -> float | None:
        """Return after how many seconds the command is ended, or None. Raises UsageError."""
        if self.timeout == "default":
            return limits.command_timeout_seconds if self.origin == "model" else None
        if self.timeout is None or self.timeout == math.inf:
            return None
        if not self.timeout > 0:  # also what is not a number (NaN)
            raise UsageError("`timeout` is a number of seconds above 0, or None")
        return self.timeout

    def kept_bytes(self, limits: LimitSettings) -> int:
        """Return how many bytes of the end of each stream are kept. Raises UsageError."""
        kept = limits.command_max_output_bytes if self.max_output is None else self.max_output
        if kept < 0:
            raise UsageError("`max_output` is a number of bytes, 0 or more")
        return kept

    def environment(self, passed_on: PassedOn) -> dict[bytes, bytes]:
        """Return what it is given: what is passed on of this process's environment, or `env`. Raises UsageError."""
        environment = environment_of(self.env)
        return passed_on.inherited(environment) if self.env is None else without_wisp_keys(environment)
