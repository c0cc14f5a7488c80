from __future__ import annotations

import dataclasses
import itertools
import json
import pickle

import pytest

from wisp.outcome import Denial, Outcome, Refusal

PLAIN = Outcome(
    line="true",
    directory="/w",
    exit_status=0,
    stdout="",
    stderr="",
    truncated=False,
    timed_out=False,
    stopped=False,
    seconds=0.25,
    backend="landlock",
)

#: Each part of what a model reads: what brings it, and the part to the letter, in the order in which they stand.
PARTS: list[tuple[dict[str, object], str]] = [
    ({"timed_out": True}, "timed out: the command was killed"),
    ({"stopped": True}, "stopped: the person stopped the command"),
    ({"truncated": True}, "output truncated: only the tail of each stream is shown"),
    ({"stdout": "out\n"}, "stdout:\nout\n"),
    ({"stderr": "err"}, "stderr:\nerr"),
    ({"model_note": "sandbox: refused writing to /x"}, "sandbox: refused writing to /x"),
]


@pytest.mark.parametrize("wanted", list(itertools.product([False, True], repeat=len(PARTS))))
def test_a_model_reads_the_parts_that_there_are_one_a_line_in_order(wanted: tuple[bool, ...]) -> None:
    chosen = [part for part, is_wanted in zip(PARTS, wanted, strict=True) if is_wanted]
    changes: dict[str, object] = {name: value for values, _text in chosen for name, value in values.items()}
    outcome = dataclasses.replace(PLAIN, **changes)  # type: ignore[arg-type]
    assert outcome.for_model() == "\n".join(["exit status: 0", *(text for _values, text in chosen)])


@pytest.mark.parametrize("status", [0, 1, 255, -9, -15])
def test_the_exit_status_is_always_the_first_part(status: int) -> None:
    assert dataclasses.replace(PLAIN, exit_status=status).for_model() == f"exit status: {status}"


def test_only_the_backend_none_is_unconfined() -> None:
    assert PLAIN.confined
    assert not dataclasses.replace(PLAIN, backend="none").confined


def test_json_holds_everything_under_the_names_of_the_audit_record() -> None:
    outcome = dataclasses.replace(
        PLAIN,
        exit_status=-9,
        stdout="ä\ud800",
        layers=("landlock", "seccomp"),
        refusal=Refusal("refused", "outside", "path", ("/x",), "Permission denied", "quoted"),
        denials=(Denial("create", "/x", "openat", 7, "touch", count=2),),
        denials_lost=3,
        model_note="sandbox: …",
        person_note="· …",
        left_behind="a daemon",
        seconds=1.23456789,
    )
    expected = {
        "schema": 1,
        "ran": True,
        "command": "true",
        "directory": "/w",
        "exitStatus": -9,
        "timedOut": False,
        "stopped": False,
        "truncated": False,
        "stdout": "ä\ud800",
        "stderr": "",
        "seconds": 1.234568,
        "backend": "landlock",
        "sandbox": True,
        "layers": ["landlock", "seccomp"],
        "refusal": {
            "verdict": "refused",
            "cause": "outside",
            "evidence": "path",
            "paths": ["/x"],
            "phrase": "Permission denied",
            "shape": "quoted",
        },
        "denials": [
            {
                "operation": "create",
                "target": "/x",
                "errno": "EPERM",
                "call": "openat",
                "pid": 7,
                "program": "touch",
                "count": 2,
            }
        ],
        "denialsLost": 3,
        "note": "sandbox: …",
        "leftBehind": "a daemon",
    }
    assert outcome.as_json() == expected
    assert json.loads(json.dumps(outcome.as_json())) == expected


def test_json_without_a_refusal_says_null() -> None:
    assert PLAIN.as_json()["refusal"] is None


def test_an_outcome_survives_a_pickle() -> None:
    assert pickle.loads(pickle.dumps(PLAIN)) == PLAIN
