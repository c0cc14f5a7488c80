"""Confinement: the order of the roots, what is left out and why, and what no link may widen."""

from __future__ import annotations

import os
import pickle
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wisp.config import SandboxSettings
from wisp.errors import ConfinementError, DirectoryMissing
from wisp.realpath import is_inside
from wisp.sandbox.confinement import Confinement

linux_roots = pytest.mark.linux


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A made-up machine: a home with a cache, a project, a temporary directory, and wisp's home beside them."""
    base = Path(os.path.realpath(tmp_path))
    for name in ("home/.cache", "home/.cargo/registry", "home/project", "temp", "state"):
        (base / name).mkdir(parents=True)
    monkeypatch.setenv("HOME", str(base / "home"))
    monkeypatch.setenv("TMPDIR", str(base / "temp"))
    monkeypatch.setenv("WISP_HOME", str(base / "state"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    return base


@linux_roots
def test_the_default_roots_come_in_the_documented_order(house: Path) -> None:
    settings = SandboxSettings(writable_paths=("~/.cargo/registry",))

    (house / "home/extra").mkdir()
    confinement = Confinement.default(directory=house / "home/project", settings=settings, writable=["../extra"])

    assert confinement.roots == (
        str(house / "home/project"),
        str(house / "temp"),
        str(house / "home/.cache"),
        str(house / "home/.cargo/registry"),
        str(house / "home/extra"),
    ), "the system's temporary directory holds this made-up home, so it is left out"
    assert confinement.protected == (str(house / "state"),)
    assert confinement.network is True


@linux_roots
def test_the_systems_temporary_directory_is_a_root_after_ones_own(house: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/nonexistent")

    confinement = Confinement.default(directory=house / "home/project", settings=SandboxSettings(writable_paths=()))

    assert confinement.roots == (str(house / "home/project"), str(house / "temp"), "/tmp")


@linux_roots
def test_build_caches_that_exist_are_roots_unless_configured_otherwise(house: Path) -> None:
    project = house / "home/project"

    assert str(house / "home/.cargo/registry") in Confinement.default(directory=project).roots
    narrowed = Confinement.default(directory=project, settings=SandboxSettings(writable_paths=()))
    assert str(house / "home/.cargo/registry") not in narrowed.roots


@pytest.mark.parametrize("place", ["home", "", "/"])
def test_a_launch_directory_that_holds_the_home_is_no_root_and_says_how_to_make_it_one(house: Path, place: str) -> None:
    launch = Path(place) if place == "/" else house / place if place else house

    confinement = Confinement.default(directory=launch)

    assert str(launch) not in confinement.roots
    assert [note for note in confinement.notes if str(launch) in note and "--writable ." in note]


def test_a_person_may_make_the_home_a_root_by_naming_it(house: Path) -> None:
    confinement = Confinement.default(directory=house / "home", writable=["."])

    assert str(house / "home") in confinement.roots
    assert not any("--writable" in note for note in confinement.notes), "what was asked for needs no advice"


def test_a_temporary_directory_that_is_the_home_is_not_trusted(house: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(house / "home"))

    confinement = Confinement.default(directory=house / "home/project")

    assert str(house / "home") not in confinement.roots
    assert [note for note in confinement.notes if note.startswith("TMPDIR")]


def test_a_default_root_that_is_missing_is_left_out_and_listed(house: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(house / "gone"))

    confinement = Confinement.default(directory=house / "home/project")

    assert str(house / "gone") not in confinement.roots
    assert confinement.left_out[0] == f"TMPDIR {house}/gone does not exist, so it is not a writable root"


@pytest.mark.parametrize("key", ["sandbox.writablePaths", "--writable"])
def test_a_configured_root_that_is_missing_is_an_error_with_its_key(house: Path, key: str) -> None:
    missing = str(house / "gone")
    settings = SandboxSettings(writable_paths=(missing,) if key.startswith("sandbox") else ())
    writable = [] if key.startswith("sandbox") else [missing]

    with pytest.raises(ConfinementError) as caught:
        Confinement.default(directory=house / "home/project", settings=settings, writable=writable)

    assert (caught.value.key, caught.value.path, caught.value.reason) == (key, missing, "does not exist")


def test_a_root_that_is_a_file_is_an_error(house: Path) -> None:
    (house / "file").touch()

    with pytest.raises(ConfinementError, match="is not a directory"):
        Confinement.default(directory=house / "home/project", writable=[house / "file"])


def test_a_root_inside_a_protected_path_is_an_error(house: Path) -> None:
    (house / "state/logs").mkdir()

    with pytest.raises(ConfinementError, match="lies inside the protected path"):
        Confinement.default(directory=house / "home/project", writable=[house / "state/logs"])
    with pytest.raises(ConfinementError, match="lies inside the protected path"):
        Confinement(roots=(str(house / "state"),))


def test_a_launch_directory_inside_wisps_home_is_no_root(house: Path) -> None:
    confinement = Confinement.default(directory=house / "state")

    assert str(house / "state") not in confinement.roots


def test_a_link_that_a_command_could_have_planted_is_not_followed(house: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`mv "$TMPDIR" aside; ln -s ~ "$TMPDIR"` inside a root must not make the home writable the next time."""
    (house / "home/project/tmp").symlink_to(house / "home")
    monkeypatch.setenv("TMPDIR", str(house / "home/project/tmp"))
    project = house / "home/project"

    confinement = Confinement.default(directory=project)

    assert str(house / "home") not in confinement.roots
    assert "which a command could have made" in confinement.notes[0]
    with pytest.raises(ConfinementError, match="could have made"):
        Confinement.default(directory=project, writable=["tmp"])


def test_a_link_outside_every_root_is_followed(house: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (house / "big").mkdir()
    (house / "home/tmp").symlink_to(house / "big")
    monkeypatch.setenv("TMPDIR", str(house / "home/tmp"))

    assert str(house / "big") in Confinement.default(directory=house / "home/project").roots


def test_read_only_has_no_root_but_a_scratch_directory(house: Path) -> None:
    confinement = Confinement.default(directory=house / "home/project", read_only=True)

    assert confinement == Confinement(scratch_tmpdir=True)
    assert confinement.roots == ()


def test_roots_given_by_hand_become_real_paths_without_repeats(house: Path) -> None:
    (house / "alias").symlink_to(house / "temp")

    confinement = Confinement(roots=(str(house / "alias"), str(house / "temp/")), network=False)  # both are one

    assert confinement.roots == (str(house / "temp"),)
    assert confinement.network is False


@pytest.mark.parametrize("roots", ["/tmp", b"/tmp", Path("/tmp")])
def test_one_path_in_place_of_a_list_is_an_error(roots: object) -> None:
    """A text is an iterable of one-letter paths, and one of them is `/`."""
    with pytest.raises(ConfinementError, match="a list of paths"):
        Confinement(roots=roots)  # type: ignore[arg-type]


@pytest.mark.parametrize("path", ["", "a\0b"])
def test_a_path_that_names_nothing_is_an_error(path: str) -> None:
    with pytest.raises(ConfinementError):
        Confinement(roots=(path,))
    with pytest.raises(ConfinementError):
        Confinement.default(writable=[path])


def test_wisps_home_is_always_protected(house: Path) -> None:
    confinement = Confinement(roots=(str(house),), protected=(str(house / "home/secret"),))

    assert confinement.protected == (str(house / "state"), str(house / "home/secret"))
    assert confinement.allows_write(str(house / "home/x"))
    assert not confinement.allows_write(str(house / "state/config.json"))
    assert not confinement.allows_write(str(house / "home/secret"))


def test_a_launch_directory_that_was_removed_is_said_to_be_missing(
    house: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = house / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()

    with pytest.raises(DirectoryMissing):
        Confinement.default()


def test_only_the_outermost_roots_are_opened(house: Path) -> None:
    confinement = Confinement(roots=(str(house / "home/project"), str(house / "home"), str(house / "temp")))

    assert confinement.outermost_roots() == (str(house / "home"), str(house / "temp"))


def test_a_confinement_survives_pickling(house: Path) -> None:
    confinement = Confinement(roots=(str(house / "temp"),), network=False)

    assert pickle.loads(pickle.dumps(confinement)) == confinement


@given(st.lists(st.sampled_from(["a", "b", "a/c", "ab"]), max_size=4), st.text("abc/.", max_size=12))
def test_a_write_is_allowed_exactly_under_a_root(names: list[str], path: str) -> None:
    base = "/usr"  # nothing is touched: membership is a matter of names
    roots = tuple(f"{base}/{name}" for name in names)
    confinement = Confinement()
    object.__setattr__(confinement, "roots", roots)
    target = os.path.normpath(f"{base}/{path}")

    expected = any(target == root or target.startswith(root + "/") for root in roots)

    assert confinement.allows_write(target) is expected


@given(st.lists(st.sampled_from(["/", "/a", "/a-b", "/a/b", "/a/b/c", "/b", "/b/a", "/ab"]), max_size=6, unique=True))
def test_every_root_lies_in_exactly_one_outermost_root(roots: list[str]) -> None:
    confinement = Confinement()
    object.__setattr__(confinement, "roots", tuple(roots))
    outermost = confinement.outermost_roots()

    assert all(sum(is_inside(root, one) for one in outermost) == 1 for root in roots)
    assert list(outermost) == [root for root in roots if root in outermost], "in their order"


# Protected paths inside roots.


def test_what_lies_between_a_root_and_a_protected_path_is_pinned(tmp_path: Path) -> None:
    (tmp_path / "root" / "inner").mkdir(parents=True)
    root = str(tmp_path / "root")
    confinement = Confinement(
        roots=(root, f"{root}/inner"),
        protected=(f"{root}/a/b/safe", f"{root}/a/b/safe/below", f"{root}/inner/x/y", str(tmp_path / "beside")),
    )
    assert confinement.protected_inside() == (f"{root}/a/b/safe", f"{root}/inner/x/y")
    assert confinement.pinned() == (f"{root}/a", f"{root}/a/b", f"{root}/inner", f"{root}/inner/x")


def test_a_link_in_a_root_on_the_way_to_a_protected_path_is_told(tmp_path: Path) -> None:
    for name in ("root", "outside"):
        (tmp_path / name).mkdir()
    (tmp_path / "root" / "link").symlink_to(tmp_path / "outside")
    (tmp_path / "link").symlink_to(tmp_path / "root")
    confinement = Confinement(
        roots=(str(tmp_path / "root"),),
        protected=(str(tmp_path / "link" / "link" / "safe"), str(tmp_path / "link" / "x")),
    )
    assert confinement.unheld_links() == (str(tmp_path / "root" / "link"),)
    assert confinement.protected_inside() == (str(tmp_path / "root" / "x"),)
    assert replace(confinement, network=False).unheld_links() == confinement.unheld_links()


@given(st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=5), min_size=1, max_size=5))
def test_every_step_from_a_root_to_a_protected_path_is_the_root_a_pin_or_the_path(steps: list[list[str]]) -> None:
    with tempfile.TemporaryDirectory() as root:
        real_root = os.path.realpath(root)
        confinement = Confinement(roots=(root,), protected=tuple(os.path.join(root, *names) for names in steps))
        assert confinement.protected_inside()
        for path in confinement.protected_inside():
            above = os.path.dirname(path)
            while above != real_root:
                assert above in confinement.pinned()
                above = os.path.dirname(above)
        assert real_root not in confinement.pinned()


def test_a_link_among_the_guarded_files_is_noted_and_its_target_protected(house: Path) -> None:
    project = house / "home" / "project"
    (project / "AGENTS.md").touch()
    (project / "CLAUDE.md").symlink_to("AGENTS.md")
    settings = SandboxSettings(protected_paths=("guard-project",))
    confinement = Confinement.default(directory=project, settings=settings)
    assert str(project / "AGENTS.md") in confinement.protected_inside()
    assert confinement.unheld_links() == ()
    assert [note for note in confinement.notes if str(project / "CLAUDE.md") in note]


def test_a_git_directory_that_is_a_link_is_still_what_no_lane_can_hold(house: Path) -> None:
    project = house / "home" / "project"
    (house / "home" / "project" / "real.git" / "hooks").mkdir(parents=True)
    (project / ".git").symlink_to("real.git")
    settings = SandboxSettings(protected_paths=("guard-project",))
    confinement = Confinement.default(directory=project, settings=settings)
    assert str(project / ".git") in confinement.unheld_links()
