"""From both runs to a verdict: the whole table."""

from __future__ import annotations

import pytest

from wisp.probing.judge import judge
from wisp.probing.probe import DeclaredLimit, Expectation, Probe, Sign, Trial

SIGN = Sign("exists", "$OUTSIDE/probe")
CROSSED = Trial((), 0, "")
STOPPED = Trial((SIGN,), 1, "touch: Permission denied")
DID_NOT = "not that $OUTSIDE/probe was made; exit status 1, it printed 'touch: Permission denied'"
LIMIT = DeclaredLimit("confine.metadata", "chmod is not governed")
CHANCE = DeclaredLimit("confine.fork-chains", "some are missed", sometimes=True)
HOLDS = frozenset({"confine.metadata", "confine.fork-chains"})
NOTHING = frozenset[str]()


def probe(expect: Expectation, *limits: DeclaredLimit, promise: bool = True) -> Probe:
    return Probe("a.b", "t", "w", "true", expect, (SIGN,), limits=limits, promise=promise)


REFUSED, ALLOWED = probe("refused"), probe("allowed")

TABLE = [
    (REFUSED, STOPPED, HOLDS, "held", "it was stopped, and crosses without the sandbox"),
    (REFUSED, CROSSED, HOLDS, "leaked", "it crossed: $OUTSIDE/probe was made"),
    (ALLOWED, CROSSED, HOLDS, "held", "it works in the sandbox, as it does without"),
    (
        ALLOWED,
        STOPPED,
        HOLDS,
        "overblocked",
        f"it works only without the sandbox: {DID_NOT}",
    ),
    (
        probe("refused", LIMIT),
        CROSSED,
        NOTHING,
        "declared",
        "it crossed, as declared: chmod is not governed (no confine.metadata)",
    ),
    (
        probe("refused", LIMIT),
        STOPPED,
        NOTHING,
        "closed",
        "it was stopped, although confine.metadata is declared not to hold: chmod is not governed",
    ),
    (probe("refused", LIMIT), CROSSED, HOLDS, "leaked", "it crossed: $OUTSIDE/probe was made"),
    (probe("refused", LIMIT), STOPPED, HOLDS, "held", "it was stopped, and crosses without the sandbox"),
    (
        probe("refused", CHANCE),
        STOPPED,
        NOTHING,
        "declared",
        "it was stopped this time, which is not certain: some are missed (no confine.fork-chains)",
    ),
    (
        probe("refused", CHANCE),
        CROSSED,
        NOTHING,
        "declared",
        "it crossed, as declared: some are missed (no confine.fork-chains)",
    ),
    (
        probe("allowed", LIMIT),
        STOPPED,
        NOTHING,
        "declared",
        "it does not work, as declared: chmod is not governed (no confine.metadata)",
    ),
    (
        probe("allowed", LIMIT),
        CROSSED,
        NOTHING,
        "closed",
        "it works, although confine.metadata is declared not to hold: chmod is not governed",
    ),
    (
        probe("allowed", CHANCE),
        CROSSED,
        NOTHING,
        "declared",
        "it worked this time, which is not certain: some are missed (no confine.fork-chains)",
    ),
    (
        probe("refused", promise=False),
        CROSSED,
        HOLDS,
        "not-promised",
        "outside what wisp promises; here it crossed",
    ),
    (
        probe("refused", promise=False),
        STOPPED,
        HOLDS,
        "not-promised",
        "outside what wisp promises; here it was stopped",
    ),
    (
        REFUSED,
        Trial((SIGN,), 125, "bwrap: no", started=False),
        HOLDS,
        "inconclusive",
        "the confined command did not start: exit status 125, it printed 'bwrap: no'",
    ),
    (
        ALLOWED,
        Trial((SIGN,), 125, "", started=False),
        HOLDS,
        "inconclusive",
        "the confined command did not start: exit status 125, it printed nothing",
    ),
    (
        REFUSED,
        Trial((SIGN,), -9, "", timed_out=True),
        HOLDS,
        "inconclusive",
        "the confined command did not end in 15 s, so it may not have tried",
    ),
    (
        REFUSED,
        Trial((SIGN,), 127, "sh: touch: not found"),
        HOLDS,
        "inconclusive",
        "the confined command could not run its program: exit status 127, it printed 'sh: touch: not found'",
    ),
]


@pytest.mark.parametrize(
    ("row", "confined", "confines", "verdict", "reason"), TABLE, ids=[f"{n}-{one[3]}" for n, one in enumerate(TABLE)]
)
def test_the_verdict_and_its_reason_follow_from_both_runs(
    row: Probe, confined: Trial, confines: frozenset[str], verdict: str, reason: str
) -> None:
    assert judge(row, CROSSED, confined, confines) == (verdict, reason)


def test_a_leak_is_a_leak_however_the_command_ended() -> None:
    for confined in (Trial((), -9, "", timed_out=True), Trial((), 127, ""), Trial((), 1, "", started=False)):
        assert judge(REFUSED, CROSSED, confined, HOLDS)[0] == "leaked"


@pytest.mark.parametrize("row", [REFUSED, ALLOWED, probe("refused", LIMIT), probe("refused", promise=False)])
def test_a_control_that_did_not_cross_proves_nothing_whatever_the_confined_run_did(row: Probe) -> None:
    for confined in (None, STOPPED, CROSSED):
        assert judge(row, STOPPED, confined, NOTHING) == (
            "inconclusive",
            f"the control did not cross: {DID_NOT}",
        )


def test_a_control_that_did_not_start_or_end_says_so() -> None:
    assert judge(REFUSED, Trial((SIGN,), 1, "", started=False), None, HOLDS) == (
        "inconclusive",
        "the control did not start: exit status 1, it printed nothing",
    )
    assert judge(REFUSED, Trial((SIGN,), -9, "", timed_out=True), None, HOLDS) == (
        "inconclusive",
        "the control did not cross: not that $OUTSIDE/probe was made; it did not end in time, it printed nothing",
    )


def test_a_program_that_is_missing_in_both_runs_is_judged_by_its_effect() -> None:
    missing = Trial((), 127, "")

    assert judge(REFUSED, missing, Trial((SIGN,), 127, ""), HOLDS)[0] == "held"
