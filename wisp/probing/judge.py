"""From what both runs of a row did to its verdict: a table, and nothing that touches the machine."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from wisp.probing.probe import DeclaredLimit, Probe, Trial, Verdict

__all__ = ["Judgement", "judge"]

#: A verdict and the reason for it, one sentence without its full stop.
Judgement = tuple[Verdict, str]

#: sh(1): the program was found and could not be run; there is no such program.
_COULD_NOT_RUN = (126, 127)


def judge(probe: Probe, control: Trial, confined: Trial | None, confines: AbstractSet[str]) -> Judgement:
    """Return the verdict on `probe` and the reason in one sentence.

    `confined` is None when there was no confined run because the control proved nothing. `confines` are the
    capabilities that hold under the backend; a declared limit applies where its capability is not among them.
    """
    if not control.started:
        return "inconclusive", f"the control did not start: {_what_it_did(control)}"
    if not control.crossed or confined is None:
        return "inconclusive", f"the control did not cross: not that {_first_missing(control)}; {_what_it_did(control)}"
    if not probe.promise:
        crossed = "crossed" if confined.crossed else "was stopped"
        return "not-promised", f"outside what wisp promises; here it {crossed}"
    limit = next((one for one in probe.limits if one.without not in confines), None)
    if probe.expect == "allowed":
        return _judge_allowed(confined, limit)
    return _judge_refused(probe, control, confined, limit)


def _judge_refused(probe: Probe, control: Trial, confined: Trial, limit: DeclaredLimit | None) -> Judgement:
    if confined.crossed:
        if limit is not None:
            return "declared", f"it crossed, as declared: {limit.because} (no {limit.without})"
        return "leaked", f"it crossed: {' and '.join(str(sign) for sign in probe.crossed)}"
    # That nothing happened proves a refusal only when the command was really there to be refused.
    if not confined.started:
        return "inconclusive", f"the confined command did not start: {_what_it_did(confined)}"
    if confined.timed_out:
        return "inconclusive", f"the confined command did not end in {probe.seconds:g} s, so it may not have tried"
    if confined.exit_status in _COULD_NOT_RUN and control.exit_status not in _COULD_NOT_RUN:
        return "inconclusive", f"the confined command could not run its program: {_what_it_did(confined)}"
    if limit is not None and limit.sometimes:
        return "declared", f"it was stopped this time, which is not certain: {limit.because} (no {limit.without})"
    if limit is not None:
        return "closed", f"it was stopped, although {limit.without} is declared not to hold: {limit.because}"
    return "held", "it was stopped, and crosses without the sandbox"


def _judge_allowed(confined: Trial, limit: DeclaredLimit | None) -> Judgement:
    if confined.crossed:
        if limit is not None and limit.sometimes:
            return "declared", f"it worked this time, which is not certain: {limit.because} (no {limit.without})"
        if limit is not None:
            return "closed", f"it works, although {limit.without} is declared not to hold: {limit.because}"
        return "held", "it works in the sandbox, as it does without"
    if not confined.started:
        return "inconclusive", f"the confined command did not start: {_what_it_did(confined)}"
    if limit is not None:
        return "declared", f"it does not work, as declared: {limit.because} (no {limit.without})"
    return (
        "overblocked",
        f"it works only without the sandbox: not that {_first_missing(confined)}; {_what_it_did(confined)}",
    )


def _first_missing(trial: Trial) -> str:
    return str(trial.missing[0]) if trial.missing else "it ran"


def _what_it_did(trial: Trial) -> str:
    ended = "it did not end in time" if trial.timed_out else f"exit status {trial.exit_status}"
    said = " ".join(trial.output.split())
    return f"{ended}, it printed {said!r}" if said else f"{ended}, it printed nothing"
