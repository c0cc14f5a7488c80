"""The report as people read it: at every width, whatever was found."""

from __future__ import annotations

from typing import Any

import pytest

from wisp.doctor.render_text import render_list, render_text
from wisp.doctor.report import VERDICTS, Check, Exposure, Report, Surrounding
from wisp.probing.probe import DeclaredLimit, Verdict


def _everything(made: Any) -> Report:
    long = "a reason that goes on and on, far beyond what fits on one line of an ordinary terminal window"
    report: Report = made.report(
        [
            made.row(verdict, name=f"{family}.{verdict}", reason=f"{verdict}: {long}", output="one\x1b[31m two\n")
            for family in ("write", "net")
            for verdict in VERDICTS
        ],
        checks=[Check("config", "failed", long, long), Check("home", "note", long), Check("shfmt", "ok", long)],
        exposed=[Exposure("tmux", "tmux", tuple(f"/tmp/tmux-1000/{n}" for n in range(5)), long, long)],
        inside=[Surrounding("container", long), Surrounding("seccomp", long)],
        reason="",
    )
    return report


@pytest.mark.parametrize("selection", ["default", "named"])
@pytest.mark.parametrize("width", [40, 80, 100])
def test_no_line_is_wider_than_asked(made: Any, width: int, selection: Any) -> None:
    from dataclasses import replace

    text = render_text(replace(_everything(made), selection=selection), width=width).plain()

    assert [line for line in text.splitlines() if len(line) > width] == []
    assert text.isascii()
    assert "\x1b" not in text


def test_the_first_line_says_version_system_and_tier(made: Any) -> None:
    there = render_text(made.report([made.row("held")])).plain()
    absent = render_text(made.report([], tier=None, reason="no Landlock", not_run="no sandbox")).plain()

    assert there.splitlines()[0] == "wisp 1.2.3, Linux 6.18.0 x86_64: tier B"
    assert absent.splitlines()[0] == "wisp 1.2.3, Linux 6.18.0 x86_64: no sandbox"


def test_the_parts_come_in_their_order(made: Any) -> None:
    text = render_text(_everything(made)).plain()

    heads = ["wisp 1.2.3", "Machine", "Layers", "Left open", "wisp's own state", "Exposed", "Probes", "2 held"]
    places = [text.index(f"\n{head}") if place else text.index(head) for place, head in enumerate(heads)]
    assert places == sorted(places)


def test_a_layer_that_is_not_there_says_why_and_what_is_lost(made: Any) -> None:
    text = render_text(made.report([made.row("held")])).plain()

    assert "landlock-scope  too old: interface 5; scopes came with 6\n" in text
    assert "lost: signals to processes outside\n" in text


def test_a_family_in_which_all_is_well_is_one_line(made: Any) -> None:
    rows = [made.row("held", name=f"write.{number}") for number in range(14)]

    text = render_text(made.report(rows)).plain()

    assert "  write           14 held\n" in text
    assert "write.3" not in text


@pytest.mark.parametrize("verdict", ["leaked", "overblocked", "inconclusive", "closed", "declared", "skipped"])
def test_what_matters_has_a_line_of_its_own_with_its_reason(made: Any, verdict: Verdict) -> None:
    rows = [made.row("held", name="write.one"), made.row(verdict, name="write.two", reason="because of this")]

    text = render_text(made.report(rows)).plain()

    assert f"1 held, 1 {verdict}\n" in text
    assert "write.two\n                  because of this.\n" in text
    assert "write.one\n" not in text.partition("one probe in full")[0]


@pytest.mark.parametrize("verdict", ["leaked", "overblocked", "inconclusive"])
def test_a_finding_names_the_command_that_repeats_it(made: Any, verdict: Verdict) -> None:
    text = render_text(made.report([made.row(verdict, name="write.two")])).plain()

    assert "Repeat it: wisp doctor write.two\n" in text


def test_declared_rows_with_one_limit_share_one_entry(made: Any) -> None:
    def declared(name: str, because: str) -> Any:
        limits = (DeclaredLimit("confine.metadata", because),)
        return made.row("declared", name=name, limits=limits, reason=f"it crossed, as declared: {because}")

    rows = [declared("metadata.mode", "not chmod"), declared("metadata.owner", "not chown")]

    assert (
        "    declared      metadata.mode, metadata.owner\n                  left open, as declared: metadata, above.\n"
    ) in render_text(made.report(rows)).plain()


def test_every_verdict_is_counted_at_the_end(made: Any) -> None:
    text = " ".join(render_text(made.report([made.row("held")])).plain().split())

    assert (
        "1 held, 0 leaked, 0 overblocked, 0 declared, 0 closed, 0 not promised, 0 inconclusive, 0 skipped "
        "1.2 s, 2 probes at a time"
    ) in text


def test_a_refusal_check_that_erred_is_noted(made: Any) -> None:
    from dataclasses import replace

    row = made.row("held", name="write.two")
    wrong = replace(row, result=replace(row.result, refusal_ok=False, refusal_said="guess"))

    assert "write.two: stopped, but the refusal check said: guess\n" in render_text(made.report([wrong])).plain()


def test_no_colour_is_the_only_sign_of_a_failure(made: Any) -> None:
    text = render_text(_everything(made)).plain()

    assert "FAILED  config" in text
    assert "LEAKED" in text
    assert "OVERBLOCKED" in text


_HOLDS = "The sandbox (tier B) holds here: 1 probe held (each action works without it)"
_NO_TIER = {"tier": None, "reason": "no Landlock", "not_run": "no"}
_FAILED = {"checks": [Check("config", "failed", "wrong")]}


@pytest.mark.parametrize(
    ("rows", "arguments", "end"),
    [
        pytest.param(["held", "declared"], {}, f"{_HOLDS}; 1 left open, as declared.", id="well"),
        pytest.param(
            ["held", "leaked"], {}, "does NOT hold: 1 probe leaked. Let no model run commands here.", id="leak"
        ),
        pytest.param(["overblocked"], {}, "The sandbox breaks ordinary work: 1 probe overblocked.", id="overblocked"),
        pytest.param(["held", "inconclusive"], {}, f"1 probe that must hold proved nothing here. {_HOLDS}.", id="gap"),
        pytest.param(["held"], _FAILED, f"wisp's own state needs care: config failed. {_HOLDS}.", id="failed"),
        pytest.param([], {"not_run": "no room"}, "No probe was run, so nothing is proven.", id="not-run"),
        pytest.param([], _NO_TIER, "on this machine, unless a person chooses --backend none.", id="no-tier"),
    ],
)
def test_the_last_sentence_says_what_it_all_means(
    made: Any, rows: list[Verdict], arguments: dict[str, Any], end: str
) -> None:
    report = made.report([made.row(verdict) for verdict in rows], **arguments)

    text = " ".join(render_text(report).plain().split())

    assert text.endswith(end)


def test_a_named_row_is_shown_in_full_and_what_is_exposed_is_not(made: Any) -> None:
    row = made.row("held", output="line one\n\x1b[2Jline two")
    exposed = [Exposure("tmux", "tmux", ("/tmp/t",), "type", "end it")]

    text = render_text(made.report([row], selection="named", exposed=exposed)).plain()

    assert (
        "write.create-outside: the title of write.create-outside\n"
        "  why       the reason for it\n"
        "  command\n"
        '    touch "$OUTSIDE/probe"\n'
        "  expected  refused by landlock; it has crossed when: $OUTSIDE/probe was made\n"
        "  without   crossed; exit status 0; it printed:\n"
        "    line one\n"
        "    \\x1b[2Jline two\n"
        "  inside    crossed; exit status 0; it printed:\n"
        "    line one\n"
        "    \\x1b[2Jline two\n"
        "  layers    landlock\n"
        "  verdict   HELD: it was stopped, and crosses without the sandbox. (0.25 s)\n"
    ) in text
    assert "Exposed" not in text


def test_a_named_row_does_not_hide_a_failed_check(made: Any) -> None:
    checks = [Check("config", "failed", "it does not parse"), Check("home", "ok", "it is well")]

    text = render_text(made.report([made.row("held")], selection="named", checks=checks)).plain()

    assert "it does not parse" in text
    assert "it is well" not in text


def test_the_list_names_what_is_expected_and_what_does_not_run_unasked(made: Any) -> None:
    rows = (made.row("held").probe, made.row("held", name="work.git", expect="allowed", promise=False).probe)

    assert render_list(rows).plain() == (
        "refused  write.create-outside\n"
        "         the title of write.create-outside\n"
        "allowed  work.git  (not promised)\n"
        "         the title of work.git\n"
    )
