"""Lines for people: never wider than asked, and nothing in them that acts on a terminal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wisp.doctor.page import Page, clean


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("two\nlines\tand a tab", "two lines and a tab"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("\x07\x7f\x9b", "\\x07\\x7f\\x9b"),
        ("turned \u202e round", "turned \\u202e round"),
        ("\udcff", "\\xff"),
        ("\U000e0001", "\\U000e0001"),
        ("été 日本", "été 日本"),
    ],
)
def test_what_acts_or_hides_is_shown_as_an_escape(text: str, shown: str) -> None:
    assert clean(text) == shown


def test_a_label_and_its_text_stand_side_by_side_where_there_is_room() -> None:
    page = Page(60)
    page.entry("label", "one two three four five six seven eight nine ten", column=10)

    assert page.plain() == (
        "  label     one two three four five six seven eight nine ten\n"
    )  # fmt: skip


def test_a_text_stands_below_its_label_where_there_is_none() -> None:
    page = Page(40)
    page.entry("label", "one two three four five six seven eight nine ten", column=16)
    page.entry("short", "fits", column=16)

    assert page.plain() == (
        "  label\n"
        "    one two three four five six seven\n"
        "    eight nine ten\n"
        "  short  fits\n"
    )  # fmt: skip


def test_a_label_that_is_longer_than_its_column_has_a_line_of_its_own() -> None:
    page = Page(60)
    page.entry("a-very-long-label", "text", column=10)

    assert page.plain() == "  a-very-long-label\n            text\n"


def test_a_list_breaks_between_its_items_only() -> None:
    page = Page(24)
    page.items(["0 not promised", "12 held", "3 leaked"], end=".")

    assert page.plain() == "0 not promised, 12 held,\n3 leaked.\n"


def test_a_command_keeps_its_indentation() -> None:
    page = Page(40)
    page.verbatim("for x in 1 2\ndo\n\techo $x\n\ndone", indent=4)

    assert page.plain() == "    for x in 1 2\n    do\n        echo $x\n    done\n"


_TEXTS = st.lists(st.text(max_size=60), min_size=1, max_size=4)


@given(
    width=st.integers(20, 120),
    label=st.text("abcdefghij-", min_size=1, max_size=25),
    texts=_TEXTS,
    column=st.integers(4, 30),
    indent=st.integers(0, 6),
)
def test_a_line_is_wider_than_asked_only_for_a_single_word(
    width: int, label: str, texts: list[str], column: int, indent: int
) -> None:
    page = Page(width)
    page.heading(texts[0])
    page.entry(label, " ".join(texts), column=column, indent=indent)
    page.below(texts, column=column, indent=indent)
    page.verbatim("\n".join(texts), indent=indent)

    for line in page.plain().split("\n"):
        assert line.isprintable()
        *before, _word = line.split() or [""]
        assert len(line) <= width or before in ([], [label])


@given(width=st.integers(20, 60), texts=st.lists(st.text("abc ", min_size=1, max_size=12), max_size=12))
def test_a_list_of_short_items_is_never_wider_than_asked(width: int, texts: list[str]) -> None:
    page = Page(width)
    page.items(texts, end=".")

    assert all(len(line) <= width for line in page.plain().split("\n"))
