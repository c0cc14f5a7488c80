"""The preset `guard-project`: each row, where git's part lies, and what absent names mean."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wisp.config import PRESETS, SandboxSettings
from wisp.errors import ConfinementError
from wisp.realpath import is_inside, real
from wisp.sandbox.confinement import Confinement
from wisp.sandbox.guards import GuardRow, guard_rows, guarded_paths

(PRESET,) = PRESETS
ROWS = guard_rows()
GUARD = SandboxSettings(protected_paths=(PRESET,))

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    place = tmp_path / "project"
    place.mkdir()
    return place


def _guarded(place: Path) -> set[str]:
    """What is guarded in `place`, by names seen from it."""
    return {os.path.relpath(path, place) for path in guarded_paths(PRESET, str(place))}


def _make(path: Path, kind: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "directory":
        path.mkdir()
    else:
        path.write_text("x\n")


def _git(place: Path, *words: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "protocol.file.allow=always"]
    environment = {"PATH": os.environ["PATH"], "HOME": str(place), "GIT_CONFIG_NOSYSTEM": "1"}
    done = subprocess.run(
        ["git", *identity, *words], cwd=place, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


# The table.


@pytest.mark.parametrize("row", ROWS, ids=[f"{row.place}:{row.path}" for row in ROWS])
def test_a_row_is_guarded_where_it_exists_and_says_what_holds_where_it_is_absent(row: GuardRow, project: Path) -> None:
    (project / ".git").mkdir()
    written = row.path if row.place == "project" else f".git/{row.path}"

    assert (written in _guarded(project)) is row.held_absent
    _make(project / written, row.kind)
    assert written in _guarded(project) or row.path == "commondir"
    assert row.why


def test_the_rows_are_relative_ways_down_and_none_is_there_twice() -> None:
    assert len({(row.place, row.path) for row in ROWS}) == len(ROWS)
    assert all(row.path == os.path.normpath(row.path) and not row.path.startswith(("/", "..")) for row in ROWS)


def test_the_issue_s_rows_are_there() -> None:
    wanted = {".envrc", ".vscode", ".idea", ".mcp.json", ".claude", ".codex", ".cursor", "AGENTS.md", "CLAUDE.md"}
    assert wanted <= {row.path for row in ROWS if row.place == "project"}
    assert {row.path for row in ROWS if row.place == "common"} == {"hooks", "config"}


def test_an_unknown_preset_is_an_error() -> None:
    with pytest.raises(ValueError, match="no preset 'guard-home'"):
        guarded_paths("guard-home", "/")


# Where git's part lies.


def test_without_a_repository_nothing_of_gits_is_guarded_so_that_one_can_be_made(project: Path) -> None:
    assert not [name for name in _guarded(project) if name.startswith(".git/") or name == ".git"]


def test_in_a_repository_hooks_and_config_are_guarded_and_not_the_repository_itself(project: Path) -> None:
    (project / ".git").mkdir()
    assert {name for name in _guarded(project) if name.startswith(".git") and not name.startswith(".github")} == {
        ".git/hooks",
        ".git/config",
    }


@needs_git
def test_in_a_linked_work_tree_what_git_itself_uses_is_guarded(tmp_path: Path) -> None:
    main, linked = tmp_path / "main", tmp_path / "linked"
    main.mkdir()
    _git(main, "init", "-q")
    _git(main, "commit", "-q", "--allow-empty", "-m", "x")
    _git(main, "worktree", "add", "-q", str(linked))

    guarded = {real(path) for path in guarded_paths(PRESET, str(linked))}

    wanted = {str(linked / ".git"), *(_git(linked, "rev-parse", "--git-path", name) for name in ("hooks", "config"))}
    own = _git(linked, "rev-parse", "--git-dir")
    assert {*wanted, f"{own}/commondir"} == {path for path in guarded if "/.git" in path and "/.github" not in path}


@needs_git
def test_in_a_submodule_what_git_itself_uses_is_guarded(tmp_path: Path) -> None:
    for name in ("inner", "outer"):
        (tmp_path / name).mkdir()
        _git(tmp_path / name, "init", "-q")
        _git(tmp_path / name, "commit", "-q", "--allow-empty", "-m", "x")
    _git(tmp_path / "outer", "submodule", "add", "-q", str(tmp_path / "inner"), "sub")
    sub = tmp_path / "outer" / "sub"

    guarded = {real(path) for path in guarded_paths(PRESET, str(sub))}

    assert (sub / ".git").is_file()
    assert {real(_git(sub, "rev-parse", "--git-path", name), str(sub)) for name in ("hooks", "config")} | {
        str(sub / ".git")
    } == {path for path in guarded if "/.git" in path and "/.github" not in path}


@pytest.mark.parametrize(
    "content",
    [b"", b"nonsense", b"gitdir:", b"gitdir: ", b"gitdir: \n", b"gitdir:/elsewhere", b"Gitdir: /elsewhere", b"gitdir: \0/elsewhere"],
)  # fmt: skip
def test_a_git_file_that_leads_nowhere_is_guarded_itself(content: bytes, project: Path) -> None:
    before = _guarded(project)
    (project / ".git").write_bytes(content)
    assert _guarded(project) == before | {".git"}


@pytest.mark.parametrize(
    ("content", "target"),
    [
        (b"gitdir: /else where \r\n\n", "/else where "),
        (b"gitdir: ../beside", "../beside"),
        (b"gitdir: /a\0/b\n", "/a"),
        (b"gitdir: /a\nb\n", "/a\nb"),
        (b"gitdir: /\xff\n", os.fsdecode(b"/\xff")),
    ],
)
def test_a_git_file_is_read_as_git_reads_it(content: bytes, target: str, project: Path) -> None:
    (project / ".git").write_bytes(content)
    assert os.path.join(project, target, "hooks") in guarded_paths(PRESET, str(project))


@pytest.mark.parametrize("what", ["fifo", "loop", "dangling link"])
def test_what_is_no_repository_is_guarded_itself_and_is_not_waited_for(what: str, project: Path) -> None:
    before = _guarded(project)
    if what == "fifo":
        os.mkfifo(project / ".git")
    else:
        (project / ".git").symlink_to(".git" if what == "loop" else "nowhere")
    assert _guarded(project) == before | {".git"}


def test_a_commondir_leads_to_the_hooks_that_count_and_is_guarded(project: Path) -> None:
    (project / ".git").mkdir()
    (project / ".git" / "commondir").write_text("../../common\n")
    names = _guarded(project)
    assert {".git/commondir", "../common/hooks", "../common/config"} <= names
    assert ".git/hooks" not in names


# What a confinement makes of it.


def test_a_confinement_protects_what_the_preset_names_besides_the_other_paths(project: Path, tmp_path: Path) -> None:
    (project / ".git").mkdir()
    settings = SandboxSettings(writable_paths=(), protected_paths=(str(tmp_path / "keys"), PRESET))

    confinement = Confinement.default(directory=project, settings=settings)

    assert set(confinement.protected) >= {str(tmp_path / "keys"), *map(real, guarded_paths(PRESET, str(project)))}
    assert not confinement.allows_write(str(project / ".git" / "hooks" / "pre-commit"))
    assert not confinement.allows_write(str(project / "CLAUDE.md"))
    assert confinement.allows_write(str(project / ".git" / "HEAD"))
    assert confinement.allows_write(str(project / "src" / "main.py"))
    narrow = Confinement(roots=(str(project),), protected=guarded_paths(PRESET, str(project)))
    assert narrow.pinned() == (str(project / ".git"), str(project / ".github"))


def test_without_the_preset_a_command_may_write_all_of_it(project: Path) -> None:
    (project / ".git").mkdir()
    confinement = Confinement.default(directory=project, settings=SandboxSettings(writable_paths=()))
    assert confinement.allows_write(str(project / ".git" / "hooks" / "pre-commit"))


def test_a_git_directory_outside_every_root_is_not_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/nonexistent")
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / ".git").write_text("gitdir: /usr/elsewhere\n")

    protected = Confinement.default(directory=tmp_path / "project", settings=GUARD).protected

    assert str(tmp_path / "project" / ".git") in protected
    assert not [path for path in protected if path.startswith("/usr")]


@pytest.mark.parametrize("name", [".git", ".vscode", "CLAUDE.md", ".git/hooks"])
def test_a_link_on_the_way_is_told_also_when_it_leads_out_of_every_root(name: str, project: Path) -> None:
    (project / name).parent.mkdir(exist_ok=True)
    (project / name).symlink_to("/usr")

    confinement = Confinement.default(directory=project, settings=GUARD)

    assert confinement.unheld_links() == (str(project / name),)


def test_the_preset_says_nothing_where_nothing_is_writable(project: Path) -> None:
    confinement = Confinement.default(directory=project, settings=GUARD, read_only=True)
    assert confinement == Confinement(scratch_tmpdir=True)


def test_a_preset_in_place_of_a_path_is_an_error_and_not_a_path_of_that_name() -> None:
    with pytest.raises(ConfinementError, match="a preset belongs into the settings"):
        Confinement(protected=(PRESET,))


KINDS = st.sampled_from(["", "directory", "file", "link"])
PLACES = st.dictionaries(
    st.sampled_from([".git", ".git/hooks", ".git/config", ".git/commondir", ".envrc", ".vscode", ".github", "CLAUDE.md", ".husky"]),
    KINDS,
)  # fmt: skip


@given(
    PLACES,
    st.sampled_from(
        ["x", ".", "..", "../other", "gitdir: ../other", "gitdir: .", "gitdir: /", "gitdir: " + "a" * 5000]
    ),
)
def test_whatever_a_project_holds_its_guard_is_held_or_its_links_are_told(kinds: dict[str, str], text: str) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        project = Path(os.path.realpath(scratch)) / "project"
        project.mkdir()
        for name in sorted(kinds):
            if kinds[name] and (project / name).parent.is_dir() and not os.path.lexists(project / name):
                if kinds[name] == "link":
                    (project / name).symlink_to(text.removeprefix("gitdir: ")[:200])
                elif kinds[name] == "file":
                    (project / name).write_text(text)
                else:
                    (project / name).mkdir()
        guarded = guarded_paths(PRESET, str(project))
        assert len(set(guarded)) == len(guarded)
        if any(is_inside(str(project), real(path)) for path in guarded):  # a link that leads up: nothing is writable
            with pytest.raises(ConfinementError, match="lies inside the protected path"):
                Confinement(roots=(str(project),), protected=guarded)
            return
        confinement = Confinement(roots=(str(project),), protected=guarded)

        for row in ROWS:
            place = project / row.path
            if row.place == "project" and (row.held_absent or os.path.lexists(place)):
                assert not confinement.allows_write(real(place))
                assert real(place) == str(place) or confinement.unheld_links()
        for path in confinement.protected_inside():
            above = os.path.dirname(path)
            assert above == str(project) or above in confinement.pinned()
