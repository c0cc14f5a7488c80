from __future__ import annotations

import shlex
from typing import get_args

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from wisp.refusal.quoting import unquoted
from wisp.refusal.shapes import Quoting

NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)


@pytest.mark.parametrize(
    ("field", "name"),
    [
        ("  /a/b ", "/a/b"),
        ("'/a b'", "/a b"),
        ('"/a b"', "/a b"),
        ("`/a b'", "/a b"),
        ("\u2018/a b\u2019", "/a b"),
        ("\u201c/a b\u201d", "/a b"),
        ("'", "'"),
        ("it's", "it's"),
        ("'/a\\nb'", "/a\\nb"),
    ],
)
def test_one_pair_of_marks_is_taken_away_and_nothing_else(field: str, name: str) -> None:
    assert unquoted(field, "plain") == name


@example("it's")
@given(NAMES)
def test_a_name_quoted_for_a_shell_comes_back(name: str) -> None:
    assume(name == name.strip())
    quoted = shlex.quote(name).replace("'\"'\"'", "'\\''")
    assert unquoted(quoted if quoted[0] == "'" else f"'{quoted}'", "shell") == name


@example("a\x85\u2028\U000e0001\\b")
@given(NAMES)
def test_a_name_in_pythons_notation_comes_back(name: str) -> None:
    assert unquoted(repr(name), "source") == name
    assert unquoted(ascii(name), "source") == name


@given(NAMES)
def test_a_name_in_pythons_notation_of_bytes_comes_back(name: str) -> None:
    assert unquoted(repr(name.encode()), "source") == name


def test_octal_escapes_are_bytes_of_utf_8() -> None:
    assert unquoted("'/n'$'\\303\\257''ve'", "shell") == "/n\u00efve"
    assert unquoted("'/n'$'\\377''x'", "shell") == "/n\ufffdx"


@example("'\\U7fffffff'", "source")
@given(st.text(), st.sampled_from(get_args(Quoting)))
def test_any_field_gives_some_name(field: str, quoting: Quoting) -> None:
    assert len(unquoted(field, quoting)) <= len(field)
