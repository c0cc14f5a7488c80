"""The fields of a record, to the letter: readers of the log depend on them."""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime, timedelta
from itertools import product

import pytest

from wisp import __version__
from wisp.audit.event import build_record, command_outcome, policy_decision
from wisp.outcome import Outcome, Refusal

DECISION = {"command", "workingDirectory", "verdict", "sandbox", "network", "nested"}
DECISION_OPTIONAL = {"reason", "origin"}
OUTCOME = {"command", "exitStatus", "timedOut", "truncated", "stdout", "stderr", "seconds"}
OUTCOME_OPTIONAL = {"origin", "stopped", "sandboxRefusal", "sandboxPaths", "sandboxEvidence"}
ENVELOPE = {"schema", "id", "time", "version", "pid", "session", "kind", "details"}
ENVELOPE_OPTIONAL = {"turn", "call"}


def _outcome(*, stopped: bool = False, refusal: Refusal | None = None) -> Outcome:
    return Outcome("ls x", "/work", 2, "out", "err", False, False, stopped, 0.12345678, "landlock", refusal=refusal)


def test_the_envelope_says_who_when_and_what() -> None:
    before = datetime.now(UTC) - timedelta(seconds=1)
    record = build_record("some.kind", {"a": 1}, session="s1")
    identity, stamp = record.pop("id"), record.pop("time")
    assert record == {
        "schema": 1,
        "version": __version__,
        "pid": os.getpid(),
        "session": "s1",
        "kind": "some.kind",
        "details": {"a": 1},
    }
    assert re.fullmatch(r"[0-9a-f]{16}", str(identity))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", str(stamp))
    assert before <= datetime.fromisoformat(str(stamp)) <= datetime.now(UTC)


def test_the_envelope_has_a_turn_and_a_call_only_where_there_is_one() -> None:
    assert set(build_record("k", {}, session="s")) == ENVELOPE
    record = build_record("k", {}, session="s", turn=3, call="c7")
    assert set(record) == ENVELOPE | ENVELOPE_OPTIONAL
    assert (record["turn"], record["call"]) == (3, "c7")


def test_two_records_have_two_ids() -> None:
    assert len({str(build_record("k", {}, session="s")["id"]) for _ in range(1000)}) == 1000


def test_a_record_keeps_its_own_details() -> None:
    details: dict[str, object] = {"a": 1}
    record = build_record("k", details, session="s")
    details["a"] = 2
    assert record["details"] == {"a": 1}


def test_a_decision_of_the_model_has_only_what_there_is() -> None:
    assert policy_decision("ls", "/work", verdict="allowed", sandbox=True, network=False) == {
        "command": "ls",
        "workingDirectory": "/work",
        "verdict": "allowed",
        "sandbox": True,
        "network": False,
        "nested": False,
    }


def test_a_refused_decision_of_a_person_has_reason_and_origin() -> None:
    assert policy_decision(
        "sudo ls", "/work", verdict="denied", sandbox=True, network=True, reason="why", origin="person"
    ) == {
        "command": "sudo ls",
        "workingDirectory": "/work",
        "verdict": "denied",
        "sandbox": True,
        "network": True,
        "nested": False,
        "reason": "why",
        "origin": "person",
    }


def test_an_outcome_has_only_what_there_is() -> None:
    assert command_outcome(_outcome()) == {
        "command": "ls x",
        "exitStatus": 2,
        "timedOut": False,
        "truncated": False,
        "stdout": "out",
        "stderr": "err",
        "seconds": 0.123457,
    }


def test_an_outcome_with_everything_has_every_field() -> None:
    refusal = Refusal("refused", "outside", "path", ("/x", "/y"), "Permission denied", "shell")
    assert command_outcome(_outcome(stopped=True, refusal=refusal), origin="person") == {
        "command": "ls x",
        "exitStatus": 2,
        "timedOut": False,
        "truncated": False,
        "stdout": "out",
        "stderr": "err",
        "seconds": 0.123457,
        "stopped": True,
        "sandboxRefusal": "refused",
        "sandboxEvidence": "path",
        "sandboxPaths": ["/x", "/y"],
        "origin": "person",
    }


def test_a_guess_has_no_paths() -> None:
    details = command_outcome(_outcome(refusal=Refusal("guess", "no-path", "text")))
    assert set(details) == OUTCOME | {"sandboxRefusal", "sandboxEvidence"}


REFUSALS = [None, Refusal("guess", "network", "text"), Refusal("not-the-sandbox", "inside", "path", ("/w/x",))]


@pytest.mark.parametrize(("stopped", "refusal", "person"), list(product([False, True], REFUSALS, [False, True])))
def test_no_outcome_has_a_field_that_is_not_documented(stopped: bool, refusal: Refusal | None, person: bool) -> None:
    details = command_outcome(_outcome(stopped=stopped, refusal=refusal), origin="person" if person else "model")
    assert set(details) >= OUTCOME
    assert set(details) <= OUTCOME | OUTCOME_OPTIONAL
    assert ("origin" in details) is person
    assert ("stopped" in details) is stopped


@pytest.mark.parametrize(("reason", "person"), list(product([None, "", "why"], [False, True])))
def test_no_decision_has_a_field_that_is_not_documented(reason: str | None, person: bool) -> None:
    details = policy_decision(
        "ls",
        "/w",
        verdict="disapproved",
        sandbox=False,
        network=True,
        reason=reason,
        origin="person" if person else "model",
    )
    assert set(details) >= DECISION
    assert set(details) <= DECISION | DECISION_OPTIONAL
    assert ("origin" in details) is person
    assert ("reason" in details) is (reason == "why")
