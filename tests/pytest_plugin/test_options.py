"""The options: what `--wisp-probes` takes, what is a usage error, and which of two settings wins."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from wisp.probing.load import packaged_files, packaged_rows

Run = Callable[..., pytest.RunResult]
Rows = Callable[..., Path]
RowText = Callable[..., str]

_USAGE = pytest.ExitCode.USAGE_ERROR


@pytest.fixture
def listed(list_rows: Callable[..., list[str]]) -> Callable[..., list[str]]:
    """Return the node ids that a command line collects, sorted."""
    return lambda *args: sorted(list_rows(*args))


Listed = Callable[..., list[str]]


def packaged(*, everything: bool = False) -> list[str]:
    """Return the node ids of the rows that wisp ships."""
    return sorted(
        f"wisp-probes/{Path(row.path).name}::{row.id}"
        for row in packaged_rows()
        if everything or (row.promise and not row.slow)
    )


def test_alone_it_runs_the_packaged_rows_in_an_empty_directory(listed: Listed) -> None:
    assert listed("--wisp-probes") == packaged()
    assert listed("--wisp-probes", "--wisp-all") == packaged(everything=True)


def test_typed_without_a_test_path_it_leaves_the_current_directory_alone(
    pytester: pytest.Pytester, listed: Listed
) -> None:
    pytester.makepyfile("raise SystemExit('this file is somebody else’s')")
    assert listed("--wisp-probes") == packaged()


@pytest.fixture
def project(pytester: pytest.Pytester, rows: Rows, row: RowText) -> None:
    """A project with a test, and rows in a folder that is not named `probes`."""
    (pytester.path / "tests").mkdir()
    (pytester.path / "tests/test_it.py").write_text("def test_one(): pass\n")
    rows("sandbox/own.toml", row("own.one"))
    rows("sandbox/deep/more.toml", row("own.two"))
    rows("sandbox/Cargo.toml", '\n[package]\nname = "foreign"\n')


_TEST = "tests/test_it.py::test_one"
_ONE = "sandbox/own.toml::own.one"
_TWO = "sandbox/deep/more.toml::own.two"


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    ("words", "ids"),
    [
        ("--wisp-probes sandbox", [_TWO, _ONE]),
        ("--wisp-probes=sandbox", [_TWO, _ONE]),
        ("--wisp-probes sandbox/own.toml", [_ONE]),
        ("--wisp-probes sandbox/own.toml sandbox/deep", [_TWO, _ONE]),
        ("--wisp-probes=sandbox/own.toml --wisp-probes=sandbox/deep", [_TWO, _ONE]),
        ("--wisp-probes sandbox sandbox/own.toml --wisp-probes=./sandbox", [_TWO, _ONE]),
        ("tests --wisp-probes sandbox/deep", [_TWO, _TEST]),
        ("--wisp-probes=sandbox/deep tests", [_TWO, _TEST]),
        ("--wisp-probes sandbox/deep -- tests", [_TWO, _TEST]),
        ("-o testpaths=tests --wisp-probes=sandbox/deep", [_TWO, _TEST]),
        ("-o addopts=--wisp-probes=sandbox/deep", [_TWO, _TEST]),
        ("-o addopts=--wisp-probes=sandbox/deep tests", [_TWO, _TEST]),
    ],
)
def test_it_adds_rows_to_the_test_paths(words: str, ids: list[str], listed: Listed) -> None:
    assert listed(*words.split()) == ids


@pytest.mark.usefixtures("project")
def test_without_a_word_it_adds_the_packaged_rows(listed: Listed) -> None:
    wanted = sorted([_TEST, *packaged()])
    assert listed("tests", "--wisp-probes") == wanted
    assert listed("--wisp-probes=", "tests") == wanted
    assert listed("-o", "addopts=--wisp-probes=", "tests") == wanted
    assert listed("-o", "addopts=--wisp-probes=") == wanted
    assert listed("--wisp-probes=", "--wisp-probes=sandbox/deep") == sorted([_TWO, *packaged()])


def test_rows_from_outside_the_rootdir_are_named_by_the_way_there(
    pytester: pytest.Pytester, rows: Rows, row: RowText, listed: Listed
) -> None:
    rows("rows/own.toml", row("own.one"))
    (pytester.path / "project").mkdir()
    (pytester.path / "project/pytest.ini").write_text("[pytest]\n")
    pytester.chdir()
    assert listed("--rootdir=project", "--wisp-probes=rows") == ["../rows/own.toml::own.one"]


def test_a_conftest_beside_the_rows_is_not_loaded(
    pytester: pytest.Pytester, rows: Rows, row: RowText, listed: Listed
) -> None:
    rows("rows/own.toml", row("own.one"))
    (pytester.path / "rows/conftest.py").write_text("raise SystemExit('loaded')")
    assert listed("--wisp-probes=rows") == ["rows/own.toml::own.one"]


def test_rows_that_are_collected_anyway_are_there_once(rows: Rows, row: RowText, listed: Listed) -> None:
    rows("probes/own.toml", row("own.one"))
    assert listed("probes", "--wisp-probes=probes") == ["probes/own.toml::own.one"]
    assert listed(".", "--wisp-probes=probes/own.toml") == ["probes/own.toml::own.one"]


def test_a_wrong_file_among_them_is_a_collection_error(rows: Rows, row: RowText, run_pytest: Run) -> None:
    rows("rows/good.toml", row("own.one"))
    rows("rows/wrong.toml", row("own.two", "surprise = 1"))
    result = run_pytest("--wisp-probes=rows")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*ERROR collecting rows/wrong.toml*", "*wrong.toml: own.two: unknown key 'surprise'*"])
    assert "Traceback" not in result.stdout.str()


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "--wisp-probes tests",
            "--wisp-probes: *tests: holds no file of rows; a test path stands before --wisp-probes*",
        ),
        ("--wisp-probes nowhere", "--wisp-probes: *nowhere: there is no such file or directory; *"),
        (
            "--wisp-probes tests/test_it.py::test_one",
            "--wisp-probes: *::test_one: there is no such file or directory; *",
        ),
        ("--wisp-probes tests/test_it.py", "--wisp-probes: *test_it.py: is not a TOML file of rows; *"),
        (
            "--wisp-backend seatbelts",
            "--wisp-backend: there is no 'seatbelts'; choose one of auto, bubblewrap, landlock, seatbelt, none",
        ),
        ("--wisp-require landlok", "--wisp-require: there is no capability 'landlok'; did you mean 'landlock'?"),
        ("--wisp-require zzz", "--wisp-require: there is no capability 'zzz'; there are tool.NAME, *"),
        ("--wisp-report nowhere/r.json", "--wisp-report: *nowhere/r.json cannot be written: No such file or directory"),
        ("--wisp-report tests", "--wisp-report: *tests is no regular file"),
        ("--wisp-report /dev/null", "--wisp-report: /dev/null is no regular file"),
        ("--wisp-report tests/test_it.py/r", "--wisp-report: *test_it.py/r cannot be written: Not a directory"),
    ],
)
def test_a_word_without_meaning_is_a_usage_error_before_anything_runs(words: str, said: str, run_pytest: Run) -> None:
    result = run_pytest(*words.split())
    assert result.ret == _USAGE
    result.stderr.fnmatch_lines([f"ERROR: {said}"])
    result.stdout.no_fnmatch_line("collected*")
    assert "Traceback" not in result.stdout.str() + result.stderr.str()


def test_a_row_named_in_a_file_of_another_kind_is_a_collection_error(rows: Rows, run_pytest: Run) -> None:
    rows("rows/other.toml", "\n[other]\n")
    result = run_pytest("--wisp-probes=rows/other.toml")
    result.assert_outcomes(errors=1)


@pytest.mark.usefixtures("confined")
def test_the_header_says_what_confines_and_which_rows_run(
    pytester: pytest.Pytester, rows: Rows, row: RowText, run_pytest: Run
) -> None:
    first = "wisp *: backend landlock, tier B"
    args = ("--collect-only", "--wisp-backend=landlock")
    run_pytest(*args).stdout.fnmatch_lines([first])
    run_pytest(*args, "--wisp-probes").stdout.fnmatch_lines(
        [f"{first}; rows: packaged, and nothing else: no test path was given"]
    )
    rows("own/rows.toml", row("own.one"))
    run_pytest(*args, ".", "--wisp-probes=own").stdout.fnmatch_lines([f"{first}; rows: own/rows.toml"])


def test_the_header_says_that_nothing_is_confined(no_sandbox: str, run_pytest: Run) -> None:
    run_pytest("--wisp-backend=auto").stdout.fnmatch_lines([f"wisp *: nothing is confined: *{no_sandbox}*"])


@pytest.mark.usefixtures("confined")
def test_the_later_backend_wins_and_the_command_line_over_addopts(rows: Rows, row: RowText, run_pytest: Run) -> None:
    rows("probes/own.toml", row("own.one"))
    run_pytest("--wisp-backend=none", "--wisp-backend=landlock").assert_outcomes(passed=1)
    run_pytest("--wisp-backend=landlock", "--wisp-backend=none").assert_outcomes(failed=1)
    run_pytest("-o", "addopts=--wisp-backend=none", "--wisp-backend=landlock").assert_outcomes(passed=1)


def test_each_packaged_file_has_rows_under_a_node_id_of_its_own() -> None:
    assert len({path.name for path in packaged_files()}) == len(packaged_files())
    assert len(packaged(everything=True)) == len(set(packaged(everything=True)))
