"""Where probes act, and that nothing of it stays."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wisp.errors import WispError
from wisp.probing.scratch import Place, abandoned, choose_place, open_scratch, remove_tree, start_time, sweep
from wisp.realpath import real


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(Path(real(tmp_path)))


def dead_process() -> tuple[int, int]:
    """Return the number and start of a process that is over."""
    with subprocess.Popen(["sleep", "20"]) as process:
        started = start_time(process.pid)
        process.kill()
    return process.pid, started


def test_a_scratch_directory_is_this_users_alone_and_gone_at_the_end(place: Place) -> None:
    with open_scratch(place) as made:
        assert made.parent == place.directory
        assert made.name == f".wisp-probe-{os.getpid()}-{start_time(os.getpid())}"
        assert stat.S_IMODE(made.stat().st_mode) == 0o700
        (made / "file").touch()

    assert list(place.directory.iterdir()) == []


def test_two_at_once_in_one_process_have_names_of_their_own(place: Place) -> None:
    with open_scratch(place) as one, open_scratch(place) as two:
        assert two.name == f"{one.name}-1"
        assert abandoned(place) == ()


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ValueError])
def test_it_is_gone_whatever_happened(place: Place, error: type[BaseException]) -> None:
    with pytest.raises(error), open_scratch(place):
        raise error

    assert list(place.directory.iterdir()) == []


def test_a_place_that_takes_no_directory_is_an_error_that_names_it(tmp_path: Path) -> None:
    with (
        pytest.raises(WispError, match=rf"{tmp_path}/missing: no scratch directory"),
        open_scratch(Place(tmp_path / "missing")),
    ):
        pass


def make_left(place: Place, pid: int, started: int, *, lock: bool = True) -> Path:
    left = place.directory / f".wisp-probe-{pid}-{started}"
    (left / "w" / "deep").mkdir(parents=True)
    (left / "w" / "file").touch()
    if lock:
        (left / "lock").touch()
    return left


def test_what_a_dead_run_left_is_swept(place: Place) -> None:
    left = make_left(place, *dead_process())

    assert abandoned(place) == (left.name,)
    assert sweep(place) == (left.name,)
    assert list(place.directory.iterdir()) == []


def test_what_a_living_run_uses_is_not_swept(place: Place) -> None:
    make_left(place, os.getpid(), start_time(os.getpid()))

    assert sweep(place) == ()


def test_a_number_that_another_process_has_now_does_not_save_it(place: Place) -> None:
    left = make_left(place, os.getpid(), start_time(os.getpid()) - 1)

    assert sweep(place) == (left.name,)


def test_what_a_run_that_is_not_seen_from_here_has_locked_is_not_swept(place: Place) -> None:
    """Two containers with one home do not see each other's processes."""
    left = make_left(place, *dead_process())
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import fcntl, sys; f = open(sys.argv[1]); fcntl.flock(f, 2); print(); input()",
            left / "lock",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        assert sweep(place) == ()
        holder.communicate(b"\n")

    assert sweep(place) == (left.name,)


def test_one_that_was_just_made_and_has_no_lock_yet_is_left_for_a_minute(place: Place) -> None:
    left = make_left(place, *dead_process(), lock=False)
    assert sweep(place) == ()

    os.utime(left, (0, 0))

    assert sweep(place) == (left.name,)


def test_only_directories_of_the_right_name_are_swept(place: Place) -> None:
    pid, started = dead_process()
    (place.directory / ".wisp-probe-").mkdir()
    (place.directory / f".wisp-probe-{pid}-{started}.old").mkdir()
    (place.directory / f"x.wisp-probe-{pid}-{started}").mkdir()
    (place.directory / f".wisp-probe-{pid}-{started}").touch()
    (place.directory / f".wisp-probe-{pid}-{started}-1").symlink_to(place.directory)
    before = sorted(place.directory.iterdir())

    assert sweep(place) == ()
    assert sorted(place.directory.iterdir()) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a directory away")
def test_a_directory_of_another_user_is_not_swept(place: Place) -> None:
    left = make_left(place, *dead_process())
    os.chown(left, 65534, 65534)

    assert sweep(place) == ()
    assert left.exists()


def test_a_place_that_is_not_there_has_nothing_to_sweep(tmp_path: Path) -> None:
    assert sweep(Place(tmp_path / "missing")) == ()


@pytest.mark.skipif(sys.platform != "linux", reason="a process is known by /proc")
def test_a_process_that_a_dead_run_left_is_ended(place: Place) -> None:
    left = make_left(place, *dead_process())
    env = {"PATH": os.environ["PATH"], "WISP_PROBE": f"{left.name}/c0"}
    with subprocess.Popen(["sleep", "20"], env=env) as process:
        sweep(place)

        assert process.wait(10) == -9


def test_removing_follows_no_link(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "directory").symlink_to(kept)
    (tree / "file").symlink_to(kept / "file")
    (tree / "dangling").symlink_to("nowhere")

    remove_tree(tree)

    assert not tree.exists()
    assert [path.name for path in kept.iterdir()] == ["file"]


def test_a_link_in_the_place_of_the_tree_is_removed_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    (tmp_path / "tree").symlink_to("kept")

    remove_tree(tmp_path / "tree")

    assert not (tmp_path / "tree").is_symlink()
    assert (tmp_path / "kept" / "file").exists()


def test_directories_without_any_mode_are_removed(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "a" / "b").mkdir(parents=True)
    (tree / "a" / "b" / "file").touch()
    for path, mode in ((tree / "a" / "b", 0o000), (tree / "a", 0o100), (tree, 0o500)):
        path.chmod(mode)

    remove_tree(tree)

    assert not tree.exists()


def test_a_tree_that_is_not_there_is_no_error(tmp_path: Path) -> None:
    remove_tree(tmp_path / "missing")
    remove_tree(tmp_path / "missing" / "deeper")


TREES = st.recursive(
    st.sampled_from(["file", "link", "fifo"]),
    lambda inner: st.dictionaries(st.sampled_from(["a", "b", "\u00e9", " -rf", "x\ny"]), inner, max_size=3),
    max_leaves=12,
)


def build(path: Path, tree: object, mode: int) -> None:
    if isinstance(tree, dict):
        path.mkdir()
        for name, inner in tree.items():
            build(path / name, inner, mode)
        path.chmod(mode)
    elif tree == "link":
        path.symlink_to("/")
    elif tree == "fifo":
        os.mkfifo(path, mode)
    else:
        path.touch(mode)


@given(TREES, st.sampled_from([0o000, 0o100, 0o300, 0o500, 0o700]))
def test_any_tree_is_removed_whole(tree: object, mode: int) -> None:
    top = Path(os.environ["WISP_HOME"] + "-tree")
    build(top, tree, mode)

    remove_tree(top)

    assert not os.path.lexists(top)


def test_the_home_directory_is_where_probes_act(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = real(Path(os.environ["WISP_HOME"]).parent)
    monkeypatch.setenv("HOME", home)

    assert choose_place() == Place(Path(home))


def test_a_home_that_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/nowhere-at-all")

    assert choose_place() == Place(
        Path(real("/var/tmp")), "the home directory does not exist, so probes act in /var/tmp"
    )


def test_a_home_in_the_temporary_directory_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))

    assert choose_place().note == "the home directory lies in the temporary directory, so probes act in /var/tmp"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_home_that_cannot_be_written_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/usr")

    assert choose_place().note == "the home directory is not writable, so probes act in /var/tmp"
