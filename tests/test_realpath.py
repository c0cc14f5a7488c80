"""Real paths: what the kernel would resolve, and the links on the way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wisp.realpath import crossed_links, deepest_existing, is_inside, real, strip_firmlink

NAMES = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=8).filter(
    lambda name: name not in {".", ".."}
)
PATHS = st.lists(NAMES, max_size=6).map(lambda names: "/" + "/".join(names))


def test_dots_are_applied_after_links_as_the_kernel_does(tmp_path: Path) -> None:
    (tmp_path / "a" / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "a" / "deep")

    assert real(f"{tmp_path}/link/../x") == str(tmp_path / "a" / "x")


def test_a_path_that_does_not_exist_keeps_its_rest(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)

    assert real(f"{tmp_path}/link/no/such/file/") == str(tmp_path / "no/such/file")


def test_a_relative_path_is_seen_from_its_base(tmp_path: Path) -> None:
    assert real("x/../y", str(tmp_path)) == str(tmp_path / "y")


@pytest.mark.parametrize("spelling", ["/", "//", "///", "/.", "/..", "/usr/.."])
def test_the_root_directory_has_one_spelling(spelling: str) -> None:
    assert real(spelling) == "/"


def test_a_loop_of_links_does_not_raise(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")

    assert real(tmp_path / "a" / "x").startswith(str(tmp_path))
    assert len(crossed_links(tmp_path / "a" / "x")) > 2


@pytest.mark.parametrize(
    ("path", "root", "inside"),
    [
        ("/work/project", "/work/project", True),
        ("/work/project/x", "/work/project", True),
        ("/work/project2", "/work/project", False),
        ("/work", "/work/project", False),
        ("/anything", "/", True),
        ("/", "/", True),
    ],
)
def test_inside_is_decided_name_by_name(path: str, root: str, inside: bool) -> None:
    assert is_inside(path, root) is inside


@given(PATHS, NAMES)
def test_a_child_is_inside_and_a_longer_name_is_not(root: str, name: str) -> None:
    child = ("" if root == "/" else root) + "/" + name

    assert is_inside(child, root)
    if root != "/":
        assert not is_inside(root + name, root)


@given(PATHS)
def test_a_real_path_is_its_own_real_path(path: str) -> None:
    assert real(real(path)) == real(path)


@pytest.mark.parametrize(
    ("path", "short"),
    [
        ("/System/Volumes/Data/Users/x", "/Users/x"),
        ("/System/Volumes/Data", "/System/Volumes/Data"),
        ("/System/Volumes/Database", "/System/Volumes/Database"),
        ("/Users/x", "/Users/x"),
    ],
)
def test_firmlinks_of_macos_have_the_short_name(path: str, short: str) -> None:
    assert strip_firmlink(path) == short


def test_the_deepest_existing_prefix_of_a_path_is_found(tmp_path: Path) -> None:
    (tmp_path / "dangling").symlink_to("/no/such/target")

    assert deepest_existing(str(tmp_path / "no" / "such")) == str(tmp_path)
    assert deepest_existing(str(tmp_path / "dangling")) == str(tmp_path / "dangling")


def test_every_link_on_the_way_is_named_where_it_really_lies(tmp_path: Path) -> None:
    (tmp_path / "real" / "sub").mkdir(parents=True)
    (tmp_path / "first").symlink_to("real")
    (tmp_path / "real" / "second").symlink_to("sub")

    crossed = crossed_links(f"{tmp_path}/first/second/file")

    assert crossed == (str(tmp_path / "first"), str(tmp_path / "real" / "second"))


def test_a_path_without_links_crosses_none(tmp_path: Path) -> None:
    assert crossed_links(os.path.realpath(tmp_path) + "/x/../y") == ()
