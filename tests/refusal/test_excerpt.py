from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wisp.refusal.excerpt import MOST_BYTES, Watch
from wisp.sandbox.backend import RefusalTexts

if TYPE_CHECKING:
    from collections.abc import Iterable

LANDLOCK = RefusalTexts(
    write=("Permission denied",), link=("Invalid cross-device link",), call=("Operation not permitted",)
)
SEATBELT = RefusalTexts(write=("Operation not permitted",), call=("Operation not permitted",))

CHUNK = 65536
#: A gap in an excerpt may be marked on either side of its halves.
MARKS = 64


def excerpt(chunks: Iterable[bytes], texts: RefusalTexts = LANDLOCK) -> str:
    watch = Watch(texts)
    for chunk in chunks:
        watch.feed(chunk)
    return watch.text()


def test_an_output_without_a_trigger_leaves_nothing() -> None:
    assert excerpt([b"all is well\n" * 1000]) == ""
    assert excerpt([]) == ""


def test_an_output_of_a_backend_without_texts_leaves_nothing() -> None:
    assert excerpt([b"touch: x: Permission denied\n"], RefusalTexts()) == ""


def test_a_hit_is_kept_with_the_lines_around_it() -> None:
    lines = [b"line %d\n" % number for number in range(20)]
    lines[10] = b"rm: x: Permission denied\n"
    kept = "line 7\nline 8\nline 9\nrm: x: Permission denied\nline 11\nline 12\n"
    assert excerpt(lines) == "\u2026\n" + kept


def test_a_hit_in_the_first_and_in_an_unfinished_last_line_is_whole() -> None:
    assert excerpt([b"rm: x: Permission denied"]) == "rm: x: Permission denied"
    assert excerpt([b"a\nrm: x: Permission denied\nb"]) == "a\nrm: x: Permission denied\nb"


def test_lines_between_two_hits_are_kept_once() -> None:
    said = b"a: Permission denied\nbetween\nb: Permission denied\nafter\n"
    assert excerpt([said]) == said.decode()


def test_the_text_is_found_in_any_case() -> None:
    for text in (b"permission denied", b"PERMISSION DENIED", b"Permission Denied"):
        assert excerpt([b"x: " + text + b"\n"]) == f"x: {text.decode()}\n"


def test_a_list_of_directories_below_a_hit_is_kept_to_its_end() -> None:
    listed = "The following directories are not writable by your user:\n" + "".join(f"/opt/{n}\n" for n in range(40))
    assert excerpt([(listed + "\nmore\n" + "other\n" * 9).encode()], SEATBELT) == listed + "\nmore\n"
    assert excerpt([listed.encode()], LANDLOCK) == ""


def test_a_word_and_a_character_split_between_chunks_are_found() -> None:
    said = "rm: cannot remove '/\u00e9\u6587': Permission denied\n".encode()
    for cut in range(len(said)):
        assert excerpt([said[:cut], said[cut:]]) == said.decode()


def test_bytes_that_are_no_utf_8_are_marked() -> None:
    assert excerpt([b"rm: \xff: Permission denied\n"]) == "rm: \ufffd: Permission denied\n"


def test_asking_in_between_changes_nothing() -> None:
    watch = Watch(LANDLOCK)
    watch.feed(b"rm: a: Permission ")
    assert watch.text() == ""
    watch.feed(b"denied\nnext")
    assert watch.text() == watch.text() == "rm: a: Permission denied\nnext"


@pytest.mark.parametrize("before", [0, 4000, 8000])
def test_a_line_up_to_eight_kibibytes_is_whole(before: int) -> None:
    line = b"x" * before + b"Permission denied" + b"y" * (8192 - before - 18) + b"\n"
    assert len(line) == 8192
    assert line.decode() in excerpt([b"a\n", line, b"b\n"])


def test_of_a_longer_line_the_part_around_the_hit_is_kept_and_marked_as_cut() -> None:
    text = excerpt([b"x" * 100_000, b"/a: Permission denied", b"y" * 100_000, b"\n"])
    assert text.startswith("\u2026\n\u2026xxx")
    assert "/a: Permission denied" in text
    assert text.endswith("yyy\u2026\n")
    assert len(text) < 8192 + MARKS


def test_of_a_flood_both_ends_are_kept() -> None:
    flood = b"".join(b"rm: %d: Permission denied\n" % number for number in range(100_000))
    text = excerpt([flood])
    assert text.startswith("rm: 0: Permission denied\nrm: 1: ")
    assert text.endswith("rm: 99998: Permission denied\nrm: 99999: Permission denied\n")
    assert MOST_BYTES * 0.9 < len(text.encode()) <= MOST_BYTES + MARKS


def test_a_late_hit_after_many_is_kept() -> None:
    text = excerpt([b"find: x: Permission denied\n" * 50_000, b"y\n" * 8000, b"rm: last: Permission denied\n"])
    assert text.endswith("rm: last: Permission denied\n")


@pytest.mark.parametrize("piece", [b"x", b"ermission denied", b"Permission denied", b"Permission denied\n"])
def test_what_is_held_is_bounded_whatever_passes(piece: bytes) -> None:
    chunk = (piece * CHUNK)[:CHUNK]
    watch = Watch(LANDLOCK)
    watch.feed(chunk)
    tracemalloc.start()
    try:
        for _ in range(256):
            watch.feed(chunk)
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 2 * MOST_BYTES
    assert peak < 8 * CHUNK
    assert len(watch.text().encode()) <= MOST_BYTES + MARKS


PIECES = st.sampled_from(
    [
        b"Permission denied",
        b"permission denied",
        b"Operation not permitted",
        b"Invalid cross-device link",
        b"Permission den",
        b"\n",
        b"\n\n\n\n",
        b"/a/b\n",
        "\u00e9\u2026\u6587".encode(),
        b"\xff\xc3",
        b"x: ",
        b"x" * 3000,
        b"y" * 9000,
        b"z: Permission denied\n" * 900,
    ]
)


@settings(max_examples=200, deadline=None)
@given(st.lists(PIECES, max_size=30), st.lists(st.integers(1, 20_000), min_size=1, max_size=8), st.data())
def test_how_a_stream_is_split_makes_no_difference(pieces: list[bytes], sizes: list[int], data: st.DataObject) -> None:
    stream = b"".join(pieces)
    watch, at = Watch(LANDLOCK), 0
    ask_at = data.draw(st.integers(0, len(stream)))
    while at < len(stream):
        size = sizes[at % len(sizes)]
        watch.feed(stream[at : at + size])
        if at <= ask_at < at + size:
            assert watch.text() == excerpt([stream[: at + size]])
        at += size
    assert watch.text() == excerpt([stream])


@settings(max_examples=50, deadline=None)
@given(st.lists(st.binary(max_size=30) | PIECES.filter(lambda piece: len(piece) < 100), max_size=20))
def test_byte_by_byte_is_as_all_at_once(pieces: list[bytes]) -> None:
    stream = b"".join(pieces)
    assert excerpt(bytes([one]) for one in stream) == excerpt([stream])


@settings(max_examples=100, deadline=None)
@given(st.lists(PIECES.filter(lambda piece: len(piece) < 3000), max_size=20))
def test_every_short_line_with_a_trigger_is_kept(pieces: list[bytes]) -> None:
    stream = b"".join(pieces)
    text = excerpt([stream]).encode()
    for line in stream.decode("utf-8", "replace").split("\n"):
        if "permission denied" in line.lower() and len(line.encode()) < 4000:
            assert line.encode() in text
