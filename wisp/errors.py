"""Everything wisp raises on purpose, in one small tree. Anything else that escapes is a bug in wisp.

    WispError
    ├── UsageError           the caller asked for something that has no meaning
    ├── ConfigError          a file does not parse or validate; nothing was run
    ├── ConfinementError     the confinement itself is wrong: a root is missing, or cannot be trusted
    ├── SandboxUnavailable   the machine cannot enforce the confinement; nothing was run
    ├── PolicyDenied         a policy pattern refused the line; nothing was run
    ├── DirectoryMissing     the directory to run in is not there; nothing was run
    ├── LaunchFailed         the program could not be started; nothing was run
    ├── StatusLost           the command ran, but its exit status cannot be known
    └── ProbeError           a probe file is wrong

Each class builds its message from its typed attributes, in one place, and survives pickling (pytest-xdist sends
exceptions between processes).
"""

from __future__ import annotations

__all__ = [
    "ConfigError",
    "ConfinementError",
    "DirectoryMissing",
    "LaunchFailed",
    "PolicyDenied",
    "ProbeError",
    "SandboxUnavailable",
    "StatusLost",
    "UsageError",
    "WispError",
]


class WispError(Exception):
    """Base of everything wisp raises on purpose."""

    def __init__(self, *facts: object) -> None:
        super().__init__(self._message(*facts))
        self._facts = facts

    def __reduce__(self) -> tuple[type[WispError], tuple[object, ...]]:
        return type(self), self._facts

    @staticmethod
    def _message(*facts: object) -> str:
        return " ".join(str(fact) for fact in facts)


class UsageError(WispError):
    """The caller asked for something that has no meaning; the message says what would have one."""


class ConfigError(WispError):
    """A file of wisp's does not parse or validate. Nothing was run, and no wider default was used instead.

    `path`, `line` (1-based, 0 when the file as a whole is meant), `key` (dotted, may be empty), `reason`.
    """

    def __init__(self, path: str, line: int, key: str, reason: str) -> None:
        super().__init__(path, line, key, reason)
        self.path, self.line, self.key, self.reason = path, line, key, reason

    @staticmethod
    def _message(*facts: object) -> str:
        path, line, key, reason = facts
        place = f"{path}:{line}" if line else str(path)
        return f"{place}: {key}: {reason}" if key else f"{place}: {reason}"


class ConfinementError(WispError):
    """The confinement cannot be built: a root is missing or cannot be trusted. Nothing was run.

    `key` names where the path came from (`sandbox.writablePaths`, `--writable`), `path` is as it was given.
    """

    def __init__(self, key: str, path: str, reason: str) -> None:
        super().__init__(key, path, reason)
        self.key, self.path, self.reason = key, path, reason

    @staticmethod
    def _message(*facts: object) -> str:
        key, path, reason = facts
        return f"{key}: {path}: {reason}"


class SandboxUnavailable(WispError):
    """The machine cannot enforce the confinement, so nothing was run.

    Not a refusal by the policy (`PolicyDenied`) and not the command's own failure.
    """

    def __init__(self, backend: str, reason: str) -> None:
        super().__init__(backend, reason)
        self.backend, self.reason = backend, reason

    @staticmethod
    def _message(*facts: object) -> str:
        backend, reason = facts
        return f"the {backend} sandbox cannot hold this confinement here: {reason}"


class PolicyDenied(WispError):
    """The policy refused the line before anything was started.

    `reason` is what the model and the person read; `rule` is the name of the row that decided.
    """

    def __init__(self, reason: str, rule: str = "") -> None:
        super().__init__(reason, rule)
        self.reason, self.rule = reason, rule

    @staticmethod
    def _message(*facts: object) -> str:
        return f"command denied by policy: {facts[0]}"


class DirectoryMissing(WispError):
    """The directory to run in does not exist, or is not a directory. Nothing was run and nothing is audited."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path

    @staticmethod
    def _message(*facts: object) -> str:
        return f"working directory does not exist: {facts[0]}"


class LaunchFailed(WispError):
    """The program could not be started at all; it never ran."""

    def __init__(self, program: str, reason: str) -> None:
        super().__init__(program, reason)
        self.program, self.reason = program, reason

    @staticmethod
    def _message(*facts: object) -> str:
        program, reason = facts
        return f"could not launch {program}: {reason}"


class StatusLost(WispError):
    """The command was started and is over, but its exit status is not known. It is not run again.

    By default another part of this process took it: a process that ignores SIGCHLD or waits for any child. `reason`
    says otherwise.
    """

    def __init__(self, pid: int, reason: str = "") -> None:
        super().__init__(pid, reason)
        self.pid, self.reason = pid, reason

    @staticmethod
    def _message(*facts: object) -> str:
        pid, reason = facts
        if reason:
            return f"the command was started, and its exit status is not known: {reason}"
        return (
            f"the exit status of the command (process {pid}) was taken by this process itself: it ignores SIGCHLD "
            "or waits for any child; wait for your own children by pid instead"
        )


class ProbeError(WispError):
    """A probe file is wrong. `path`, `where` (a probe id or row number), `reason`."""

    def __init__(self, path: str, where: str, reason: str) -> None:
        super().__init__(path, where, reason)
        self.path, self.where, self.reason = path, where, reason

    @staticmethod
    def _message(*facts: object) -> str:
        path, where, reason = facts
        return f"{path}: {where}: {reason}" if where else f"{path}: {reason}"
