from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from wisp.errors import SandboxUnavailable
from wisp.sandbox.placeholders import Placeholders

pytestmark = pytest.mark.linux


def test_what_is_absent_is_made_for_this_user_alone_and_taken_away_again(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir(mode=0o755)
    held = Placeholders([str(tmp_path)])
    held.make([str(tmp_path / "a" / "b" / "safe"), str(tmp_path / "there")])
    for place in ("a", "a/b", "a/b/safe"):
        assert stat.S_IMODE((tmp_path / place).stat().st_mode) == 0o700
    held.remove()
    assert [one.name for one in tmp_path.iterdir()] == ["there"]


def test_what_was_put_into_one_or_in_its_place_stays(tmp_path: Path) -> None:
    held = Placeholders([str(tmp_path)])
    held.make([str(tmp_path / "a" / "safe"), str(tmp_path / "other")])
    (tmp_path / "a" / "mine").touch()
    (tmp_path / "other").rename(tmp_path / "moved")
    (tmp_path / "other").mkdir()
    held.remove()
    assert sorted(one.name for one in tmp_path.rglob("*")) == ["a", "mine", "moved", "other"]


def test_no_placeholder_is_made_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "root" / "a").symlink_to(tmp_path / "outside")
    with pytest.raises(SandboxUnavailable, match="a placeholder for it cannot be made"):
        Placeholders([str(tmp_path / "root")]).make([str(tmp_path / "root" / "a" / "safe")])
    assert not list((tmp_path / "outside").iterdir())


def test_a_file_in_the_way_is_said(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    with pytest.raises(SandboxUnavailable, match=f"the protected path {tmp_path}/a/safe is absent"):
        Placeholders([str(tmp_path)]).make([str(tmp_path / "a" / "safe")])


def test_a_forked_child_takes_nothing_away(tmp_path: Path) -> None:
    held = Placeholders([str(tmp_path)])
    held.make([str(tmp_path / "safe")])
    child = os.fork()
    if child == 0:
        held.remove()
        os._exit(0)
    os.waitpid(child, 0)
    assert (tmp_path / "safe").is_dir()
    held.remove()
    assert not (tmp_path / "safe").exists()


def test_one_that_another_wisp_uses_stays_until_the_last_is_gone(tmp_path: Path) -> None:
    first, second = Placeholders([str(tmp_path)]), Placeholders([str(tmp_path)])
    for held in (first, second):
        held.make([str(tmp_path / "safe")])
    first.remove()
    assert (tmp_path / "safe").is_dir()
    second.remove()  # it did not make it, so it may have been a person's
    assert (tmp_path / "safe").is_dir()


def test_one_that_was_taken_away_is_made_again(tmp_path: Path) -> None:
    held = Placeholders([str(tmp_path)])
    held.make([str(tmp_path / "safe")])
    (tmp_path / "safe").rmdir()
    held.make([str(tmp_path / "safe")])
    assert (tmp_path / "safe").is_dir()
    held.remove()
    assert not list(tmp_path.iterdir())


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    held = Placeholders([str(tmp_path)])
    for _ in range(3):
        held.make([str(tmp_path / "a" / "safe")])
    held.remove()
    assert len(os.listdir("/proc/self/fd")) == before
