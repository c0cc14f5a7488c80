from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wisp.outcome import Cause, Refusal, RefusalVerdict
from wisp.refusal.note import model_note, person_note, visible
from wisp.sandbox.confinement import Confinement

VERDICTS: dict[Cause, RefusalVerdict] = {
    "outside": "refused",
    "protected": "refused",
    "across-roots": "refused",
    "inside": "not-the-sandbox",
    "own-permissions": "not-the-sandbox",
    "read": "not-the-sandbox",
    "no-path": "guess",
    "network": "guess",
}


@dataclass
class Roots:
    """Stands for a confinement whose roots need not exist: a note is made from their names alone."""

    roots: tuple[str, ...]


def both(refusal: Refusal, *roots: str) -> tuple[str, str]:
    confinement = Roots(roots)
    return (
        model_note(refusal, confinement),  # type: ignore[arg-type]
        person_note(refusal, confinement),  # type: ignore[arg-type]
    )


def refusal(cause: Cause, *paths: str, phrase: str = "Operation not permitted") -> Refusal:
    return Refusal(VERDICTS[cause], cause, "path" if paths else "text", paths, phrase, "")


# --- the texts that are a contract ---


def test_a_refused_write_says_where_commands_may_write() -> None:
    assert both(refusal("outside", "/etc/x"), "/work/p", "/private/tmp") == (
        "sandbox: refused writing to /etc/x; commands may write only under /work/p, /private/tmp",
        (
            "· the sandbox refused writing to /etc/x, as it would for the model: "
            "commands write only within wisp's writable roots"
        ),
    )


def test_a_path_inside_says_that_something_else_refused_it() -> None:
    assert both(refusal("inside", "/work/p/x"), "/work/p") == (
        (
            "sandbox: not the sandbox: /work/p/x is inside the writable roots, "
            "so something else refused it (file permissions, flags, or system protection)"
        ),
        "· not the sandbox: /work/p/x is inside wisp's writable roots",
    )


def test_without_a_path_it_says_that_it_guesses_and_that_no_rule_denied() -> None:
    assert both(refusal("no-path"), "/work/p") == (
        (
            "sandbox: the sandbox may have refused this (Operation not permitted, no path to check: "
            "a network connection, a process, or a file the error does not name); no policy rule denied it"
        ),
        "· the sandbox may have refused it (no path to check), as it would the model's; no policy rule denied it",
    )


# --- the cases that the first wisp had no text for ---


def test_the_bracketed_phrase_is_the_one_that_was_seen() -> None:
    model, _ = both(refusal("no-path", phrase="Permission denied"), "/work/p")
    assert model.startswith("sandbox: the sandbox may have refused this (Permission denied, no path to check: ")


@pytest.mark.parametrize(
    ("cause", "paths", "phrase", "model", "person"),
    [
        (
            "protected",
            ("/p/.wisp",),
            "Permission denied",
            "sandbox: refused writing to /p/.wisp; no command may write there, even under a writable root",
            (
                "· the sandbox refused writing to /p/.wisp, as it would for the model: "
                "no command writes there, even within wisp's writable roots"
            ),
        ),
        (
            "across-roots",
            ("/p/a", "/q/b"),
            "Invalid cross-device link",
            "sandbox: refused a link or move between two writable roots: /p/a, /q/b; copy and remove instead",
            (
                "· the sandbox refused a link or move between two of wisp's writable roots (/p/a, /q/b), "
                "as it would for the model: copy and remove instead"
            ),
        ),
        (
            "own-permissions",
            ("/etc/passwd",),
            "Permission denied",
            (
                "sandbox: not the sandbox: this user may not write to /etc/passwd without the sandbox either "
                "(Permission denied)"
            ),
            "· not the sandbox: you may not write to /etc/passwd without it either",
        ),
        (
            "read",
            ("/root/x",),
            "Permission denied",
            (
                "sandbox: not the sandbox: commands may read everywhere, so something else refused /root/x "
                "(file permissions: Permission denied)"
            ),
            "· not the sandbox: reading is free, and something else refused /root/x",
        ),
        (
            "network",
            (),
            "Operation not permitted",
            (
                "sandbox: the sandbox may have refused this (Operation not permitted, no path to check: "
                "the network is off for commands); no policy rule denied it"
            ),
            "· the sandbox may have refused it (the network is off), as it would the model's; no policy rule denied it",
        ),
    ],
)
def test_each_other_cause_has_a_text_in_the_same_voice(
    cause: Cause, paths: tuple[str, ...], phrase: str, model: str, person: str
) -> None:
    assert both(refusal(cause, *paths, phrase=phrase), "/p", "/q") == (model, person)


def test_every_cause_has_notes() -> None:
    assert set(VERDICTS) == set(get_args(Cause))


# --- lists ---


def test_three_paths_are_named_and_the_rest_counted() -> None:
    three, five = ("/a", "/b", "/c"), ("/a", "/b", "/c", "/d", "/e")
    assert both(refusal("outside", *three), "/r")[0].startswith("sandbox: refused writing to /a, /b, /c; ")
    assert both(refusal("outside", *five), "/r")[0].startswith("sandbox: refused writing to /a, /b, /c and 2 more; ")
    assert both(refusal("inside", *five), "/r")[1] == (
        "· not the sandbox: /a, /b, /c and 2 more are inside wisp's writable roots"
    )


def test_roots_are_listed_as_far_as_240_bytes_go() -> None:
    root = "/" + "r" * 57  # 58 bytes and 2: four of them are 240
    assert both(refusal("outside", "/x"), *([root] * 4))[0].endswith(f"under {', '.join([root] * 4)}")
    assert both(refusal("outside", "/x"), *([root] * 5))[0].endswith(f"under {', '.join([root] * 4)} and 1 more")
    assert both(refusal("outside", "/x"), root + "r", *([root] * 3))[0].endswith(f"{root}, {root} and 1 more")


def test_bytes_are_counted_and_not_characters() -> None:
    root = "/" + "\u6587" * 40  # 41 characters, 121 bytes
    assert both(refusal("outside", "/x"), root, root)[0].endswith(f"only under {root} and 1 more")


def test_at_least_one_root_is_listed() -> None:
    long = "/" + "r" * 250
    assert both(refusal("outside", "/x"), long, "/b")[0].endswith(f"only under {long} and 1 more")


def test_with_twenty_roots_the_note_stays_short() -> None:
    roots = [f"/Users/someone/projects/number-{number:02}" for number in range(20)]
    model, person = both(refusal("outside", "/usr/local/share/x", "/etc/y"), *roots)
    assert len(model.encode()) < 400
    assert len(person.encode()) < 400
    assert model.endswith("more")


def test_without_roots_commands_may_write_nowhere() -> None:
    assert both(refusal("outside", "/x"))[0] == "sandbox: refused writing to /x; commands may write nowhere"


def test_a_very_long_path_is_shown_by_its_ends() -> None:
    path = "/start" + "/d" * 2000 + "/end"
    for note in both(refusal("outside", path), "/r"):
        assert len(note) < 500
        assert "/start/d" in note
        assert "\u2026" in note
        assert "/d/end" in note


def test_a_real_confinement_is_taken(tmp_path: object) -> None:
    confinement = Confinement(roots=(str(tmp_path),))
    assert model_note(refusal("outside", "/x"), confinement).endswith(f"only under {confinement.roots[0]}")


# --- what a path may do to a line ---


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("/a\nb", "/a\\nb"),
        ("/a\r\x1b[2Kb", "/a\\r\\x1b[2Kb"),
        ("/\u202egpj.exe", "/\\u202egpj.exe"),
        ("/a\u2028b\u2066c", "/a\\u2028b\\u2066c"),
        ("/\ud800", "/\\ud800"),
        ("/\u6587 \u00e9", "/\u6587 \u00e9"),
    ],
)
def test_what_would_change_the_line_is_written_out(name: str, shown: str) -> None:
    assert visible(name) == shown
    for note in both(refusal("inside", name), "/r"):
        assert shown in note


@given(st.text(), st.sampled_from(get_args(Cause)))
def test_a_note_is_one_line_that_can_be_printed(name: str, cause: Cause) -> None:
    for note in both(refusal(cause, "/" + name), "/r" + name):
        note.encode()
        assert len(note.splitlines()) == 1
        assert not any(unicodedata.category(one) in {"Cc", "Cf"} for one in note)
        assert note.startswith(("sandbox: ", "· "))
