from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from wisp.outcome import Refusal
from wisp.refusal.shapes import NOT_WRITABLE, SHAPES, TEXT, Shape

if TYPE_CHECKING:
    from .conftest import Ground

DENIED = "Permission denied"
NOT_PERMITTED = "Operation not permitted"

every_shape = pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
every_asking_shape = pytest.mark.parametrize("shape", NOT_WRITABLE, ids=lambda shape: shape.name)


def said(shape: Shape, text: str, p: str, q: str = "") -> str:
    return shape.example.replace("{T}", text).replace("{p}", p).replace("{q}", q) + "\n"


def has_two_paths(shape: Shape) -> bool:
    return len(shape.pattern.groupindex) == 2


@every_shape
def test_each_wording_with_a_path_outside_is_a_refusal_of_that_path(shape: Shape, ground: Ground) -> None:
    outside, inside = f"{ground.outside}/new", f"{ground.root}/new"
    expected = Refusal("refused", "outside", "path", (outside,), NOT_PERMITTED, shape.name)
    assert ground.verdict(said(shape, NOT_PERMITTED, outside, inside)) == expected
    if has_two_paths(shape):
        assert ground.verdict(said(shape, NOT_PERMITTED, inside, outside)) == expected


@every_shape
def test_each_wording_with_its_paths_inside_is_not_the_sandbox(shape: Shape, ground: Ground) -> None:
    p, q = f"{ground.root}/new", f"{ground.root2}/new"
    paths = (p, q) if has_two_paths(shape) else (p,)
    assert ground.verdict(said(shape, NOT_PERMITTED, p, q)) == Refusal(
        "not-the-sandbox", "inside", "path", paths, NOT_PERMITTED, shape.name
    )


@every_shape
def test_each_wording_reads_landlocks_text_as_well(shape: Shape, ground: Ground) -> None:
    outside, inside = f"{ground.outside}/new", f"{ground.root}/new"
    verdict = ground.verdict(said(shape, DENIED, outside, inside), "landlock")
    if shape.opens:
        assert verdict == Refusal("not-the-sandbox", "read", "path", (outside,), DENIED, shape.name)
    else:
        assert verdict == Refusal("refused", "outside", "path", (outside,), DENIED, shape.name)


@every_shape
def test_a_name_without_a_slash_is_a_path_only_where_the_wording_leaves_no_doubt(shape: Shape, ground: Ground) -> None:
    verdict = ground.verdict(said(shape, NOT_PERMITTED, "new", "newer"), directory=ground.outside)
    names = ("new", "newer") if has_two_paths(shape) else ("new",)
    paths = tuple(f"{ground.outside}/{name}" for name in names)
    # A word in these two may also be a command, or part of the sentence.
    if shape.bare and shape.name not in {"zsh", "words-path"}:
        assert verdict is not None
        assert (verdict.verdict, verdict.paths) == ("refused", paths)
    else:
        assert verdict == Refusal("guess", "no-path", "text", (), NOT_PERMITTED)


@every_asking_shape
def test_each_not_writable_wording_is_checked_against_the_roots(shape: Shape, ground: Ground) -> None:
    said_so = "not writable"
    assert ground.verdict(said(shape, said_so, ground.outside)) == Refusal(
        "refused", "outside", "path", (ground.outside,), said_so, shape.name
    )
    assert ground.verdict(said(shape, said_so, ground.root)) == Refusal(
        "not-the-sandbox", "inside", "path", (ground.root,), said_so, shape.name
    )


@every_asking_shape
def test_not_writable_says_nothing_where_access_does_not_know_of_the_sandbox(shape: Shape, ground: Ground) -> None:
    assert ground.verdict(said(shape, "not writable", ground.outside), "landlock") is None


def test_names_of_wordings_are_unique() -> None:
    names = [shape.name for shape in (*SHAPES, *NOT_WRITABLE)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("shape", [*SHAPES, *NOT_WRITABLE], ids=lambda shape: shape.name)
def test_a_long_line_made_to_mislead_costs_time_in_proportion(shape: Shape) -> None:
    before, _, after = shape.example.replace("{T}", TEXT).partition(TEXT)
    pieces = (
        before,
        after,
        "'",
        "a'a",
        "' to '",
        " -> ",
        ": ",
        "/ ",
        "open /a ",
        "(",
        "\n",
        before[: len(before) // 2],
    )
    started = time.perf_counter()
    for piece in filter(None, pieces):
        many = (piece * 70000)[:65536]
        for line in (many + TEXT + many, f"{many}: {TEXT};", f"{TEXT}: {many}x"):
            shape.pattern.search(line)
    # Quadratic work on lines this long takes minutes; in proportion it is well under a second.
    assert time.perf_counter() - started < 10
