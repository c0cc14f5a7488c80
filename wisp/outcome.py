"""All that is known of one run, and how it reads to a model, to a person and as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Cause", "Denial", "Evidence", "Operation", "Origin", "Outcome", "Refusal", "RefusalVerdict"]

Origin = Literal["model", "person"]
RefusalVerdict = Literal["refused", "not-the-sandbox", "guess"]
Evidence = Literal["kernel", "path", "text"]

#: Why the verdict is what it is. For `refused`: `outside` every root, `protected`, `across-roots`. For
#: `not-the-sandbox`: `inside` the roots, `own-permissions` refuse this user anyway, a `read` (reads are free). For
#: `guess`: `no-path`, `network`.
Cause = Literal["outside", "protected", "across-roots", "inside", "own-permissions", "read", "no-path", "network"]


#: What a command was refused. On a file: its data (`write`), its place in a directory (`create`, `remove`, `rename`,
#: `link`), its metadata (`mode`, `owner`, `times`, `attributes` with access lists, `flags` as chattr sets them).
Operation = Literal[
    "write",
    "create",
    "remove",
    "rename",
    "link",
    "mode",
    "owner",
    "times",
    "attributes",
    "flags",
    "connect",
    "socket",
    "signal",
    "mount",
    "terminal",
]


@dataclass(frozen=True, slots=True)
class Denial:
    """One operation that was refused, as the observer saw it.

    `target` is a real path, a `family/type` of socket, or the number of a process as the command wrote it. `call` is
    the kernel's name of the call, `pid` and `program` the process that made it, `count` how often it did.
    """

    operation: Operation
    target: str
    call: str
    pid: int
    program: str
    errno: str = "EPERM"
    count: int = 1


@dataclass(frozen=True, slots=True)
class Refusal:
    """The verdict on a confined command that failed, and what it rests on.

    `paths` are real paths, at most eight: for `refused` only those that the confinement does not allow. `phrase` is
    the error text that was seen (`Permission denied`), `shape` the name of the wording that gave the path.
    """

    verdict: RefusalVerdict
    cause: Cause
    evidence: Evidence
    paths: tuple[str, ...] = ()
    phrase: str = ""
    shape: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one command did. The command ran; everything that kept it from running is an exception instead.

    `exit_status` is 0 to 255, or the negative number of the signal that ended it. `stdout` and `stderr` are the last
    bytes of each stream, decoded as UTF-8 with U+FFFD for what is not. `timed_out` and `stopped` exclude each other.
    `left_behind` is empty when all that the command started has ended, else what may still run, in words.
    """

    line: str
    directory: str
    exit_status: int
    stdout: str
    stderr: str
    truncated: bool
    timed_out: bool
    stopped: bool
    seconds: float
    backend: str
    layers: tuple[str, ...] = ()
    refusal: Refusal | None = None
    denials: tuple[Denial, ...] = ()
    #: How many may be missing from `denials`: there were too many, or a call could not be read (other layers decided).
    denials_lost: int = 0
    model_note: str = ""
    person_note: str = ""
    left_behind: str = ""

    @property
    def confined(self) -> bool:
        """Whether a sandbox held this command."""
        return self.backend != "none"

    def for_model(self) -> str:
        """Return the text a model reads: one part a line, empty parts left out, the sandbox's note last."""
        parts = [f"exit status: {self.exit_status}"]
        if self.timed_out:
            parts.append("timed out: the command was killed")
        if self.stopped:
            parts.append("stopped: the person stopped the command")
        if self.truncated:
            parts.append("output truncated: only the tail of each stream is shown")
        if self.stdout:
            parts.append(f"stdout:\n{self.stdout}")
        if self.stderr:
            parts.append(f"stderr:\n{self.stderr}")
        if self.model_note:
            parts.append(self.model_note)
        return "\n".join(parts)

    def as_json(self) -> dict[str, object]:
        """Return one JSON-able object, `schema` 1, with the same names as the audit record where both have one."""
        refusal: dict[str, object] | None = None
        if self.refusal is not None:
            refusal = {
                "verdict": self.refusal.verdict,
                "cause": self.refusal.cause,
                "evidence": self.refusal.evidence,
                "paths": list(self.refusal.paths),
                "phrase": self.refusal.phrase,
                "shape": self.refusal.shape,
            }
        return {
            "schema": 1,
            "ran": True,
            "command": self.line,
            "directory": self.directory,
            "exitStatus": self.exit_status,
            "timedOut": self.timed_out,
            "stopped": self.stopped,
            "truncated": self.truncated,
            "stdout": self.stdout,
            "stderr": self.stderr,
            "seconds": round(self.seconds, 6),
            "backend": self.backend,
            "sandbox": self.confined,
            "layers": list(self.layers),
            "refusal": refusal,
            "denials": [
                {
                    "operation": one.operation,
                    "target": one.target,
                    "errno": one.errno,
                    "call": one.call,
                    "pid": one.pid,
                    "program": one.program,
                    "count": one.count,
                }
                for one in self.denials
            ],
            "denialsLost": self.denials_lost,
            "note": self.model_note,
            "leftBehind": self.left_behind,
        }
