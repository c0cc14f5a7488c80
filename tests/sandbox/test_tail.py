from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wisp.sandbox.tail import Tail


@given(chunks=st.lists(st.binary(max_size=40)), limit=st.integers(0, 100))
def test_the_tail_is_the_last_bytes_however_the_stream_was_split(chunks: list[bytes], limit: int) -> None:
    tail, whole = Tail(limit), b"".join(chunks)
    for chunk in chunks:
        tail.feed(chunk)
    assert tail.data() == (whole[-limit:] if limit else b"")
    assert tail.truncated == (len(whole) > limit)
    assert tail.total == len(whole)


@given(limit=st.integers(0, 64), size=st.integers(1, 100), count=st.integers(0, 500))
def test_never_more_than_twice_the_limit_is_held(limit: int, size: int, count: int) -> None:
    tail = Tail(limit)
    for _ in range(count):
        tail.feed(b"x" * size)
        assert len(tail._held) <= 2 * limit


def test_a_stream_of_single_bytes_is_held_no_longer_than_any_other() -> None:
    tail = Tail(4096)
    for number in range(40_000):
        tail.feed(bytes([number % 251]))
    assert len(tail._held) <= 2 * 4096
    assert tail.data() == bytes(number % 251 for number in range(40_000))[-4096:]


def test_asking_for_the_tail_changes_nothing() -> None:
    tail = Tail(3)
    tail.feed(b"abcd")
    assert (tail.data(), tail.text(), tail.data()) == (b"bcd", "bcd", b"bcd")
    tail.feed(b"e")
    assert tail.text() == "cde"


def test_what_is_not_utf8_becomes_a_replacement_character() -> None:
    tail = Tail(100)
    tail.feed(b"a\xffb\xc3")
    assert tail.text() == "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}"


def test_a_character_that_the_limit_cuts_in_two_becomes_a_replacement_character() -> None:
    tail = Tail(2)
    tail.feed("äb".encode())
    assert tail.text() == "\N{REPLACEMENT CHARACTER}b"


def test_a_character_split_between_two_chunks_is_whole() -> None:
    tail = Tail(100)
    for byte in "ä€".encode():
        tail.feed(bytes([byte]))
    assert tail.text() == "ä€"
