"""What is written down: one record for each decision of the policy and for each command that ran.

A record is a JSON object with the same envelope for every kind. Its fields are a contract with whoever reads the
log: a field without a value is left out, none is renamed, and a reader keeps the kinds that it does not know.
"""

from __future__ import annotations

import os
import time
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from wisp._version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wisp.outcome import Origin, Outcome

__all__ = ["SCHEMA", "Record", "Verdict", "build_record", "command_outcome", "policy_decision"]

Record: TypeAlias = "dict[str, object]"
Verdict: TypeAlias = Literal["allowed", "denied", "disapproved"]

SCHEMA: Final = 1


def build_record(
    kind: str, details: Mapping[str, object], *, session: str, turn: int | None = None, call: str | None = None
) -> Record:
    """Return `details` in the envelope of a record of `kind`, made now by this process.

    `turn` (a conversation's, from 1) and `call` (a tool call's id) are left out where there is none.
    """
    seconds, nanoseconds = divmod(time.time_ns(), 1_000_000_000)
    record: Record = {
        "schema": SCHEMA,
        "id": os.urandom(8).hex(),
        "time": f"{_stamp(seconds)}.{nanoseconds // 1_000_000:03}Z",
        "version": __version__,
        "pid": os.getpid(),
        "session": session,
        "kind": kind,
        "details": dict(details),
    }
    if turn is not None:
        record["turn"] = turn
    if call is not None:
        record["call"] = call
    return record


@lru_cache(maxsize=1)
def _stamp(seconds: int) -> str:
    """Return the second in words; most records follow another of the same second."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


def policy_decision(
    command: str,
    working_directory: str,
    *,
    verdict: Verdict,
    sandbox: bool,
    network: bool,
    nested: bool = False,
    reason: str | None = None,
    origin: Origin = "model",
) -> Record:
    """Return the details of a `policy.decision`.

    `sandbox` and `network`: whether the command is (or would have been) confined, and has a network. `nested`: another
    sandbox confines wisp itself, which no backend of Linux reports. `reason` says why it was not allowed.
    """
    details: Record = {
        "command": command,
        "workingDirectory": working_directory,
        "verdict": verdict,
        "sandbox": sandbox,
        "network": network,
        "nested": nested,
    }
    if reason:
        details["reason"] = reason
    return _with_origin(details, origin)


def command_outcome(outcome: Outcome, *, origin: Origin = "model") -> Record:
    """Return the details of a `command.outcome`: what the command did, and what a refusal rests on."""
    details: Record = {
        "command": outcome.line,
        "exitStatus": outcome.exit_status,
        "timedOut": outcome.timed_out,
        "truncated": outcome.truncated,
        "stdout": outcome.stdout,
        "stderr": outcome.stderr,
        "seconds": round(outcome.seconds, 6),
    }
    if outcome.stopped:
        details["stopped"] = True
    refusal = outcome.refusal
    if refusal is not None:
        details["sandboxRefusal"] = refusal.verdict
        details["sandboxEvidence"] = refusal.evidence
        if refusal.paths:
            details["sandboxPaths"] = list(refusal.paths)
    return _with_origin(details, origin)


def _with_origin(details: Record, origin: Origin) -> Record:
    """Add who asked, when it was a person: the model is what a log is mostly about."""
    if origin == "person":
        details["origin"] = origin
    return details
