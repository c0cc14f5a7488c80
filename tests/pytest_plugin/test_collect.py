"""Which files are rows, and which are somebody else's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., pytest.RunResult]
Rows = Callable[..., Path]
RowText = Callable[..., str]
Listed = Callable[..., list[str]]


def test_a_project_full_of_toml_collects_nothing(pytester: pytest.Pytester, run_pytest: Run, list_rows: Listed) -> None:
    for name, text in {
        "pyproject.toml": '[project]\nname = "foreign"\nversion = "1"\n',
        "Cargo.toml": '[package]\nname = "foreign"\n',
        "probes/other.toml": '[tool]\nname = "a probe of another kind"\n',
        "probes/list.toml": "[[probe]]\nid = 1\n",
        "probes/version.toml": "schema = 2\n[[probe]]\nid = 1\n",
        "probes/first.toml": "schema = 1\n[other]\nx = 1\n[[probe]]\nid = 1\n",
        "probes/empty.toml": "",
        "probes/broken.toml": "= = [[",
        "probes/deep/config.toml": "schema = 1\n",
        "probes/readme.md": "schema = 1\n[[probe]]\n",
    }.items():
        place = pytester.path / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    (pytester.path / "junk.toml").write_bytes(bytes(range(256)))
    (pytester.path / "probes/junk.toml").write_bytes(b"\xff\xfe\0" * 1000)
    (pytester.path / "probes/dangling.toml").symlink_to("nowhere")
    (pytester.path / "probes/folder.toml").mkdir()
    pytester.makepyfile("def test_one(): pass")
    run_pytest(everything=True).assert_outcomes(passed=1)
    assert list_rows() == ["test_a_project_full_of_toml_collects_nothing.py::test_one"]


@pytest.mark.parametrize(
    ("path", "is_collected"),
    [
        ("probes/own.toml", True),
        ("probes/deep/er/own.toml", True),
        ("tests/sandbox/probes/own.toml", True),
        ("own.toml", False),
        ("probe/own.toml", False),
        ("probes.d/own.toml", False),
        ("my-probes/own.toml", False),
        ("probes/own.txt", False),
        ("probes/.own.toml.swp", False),
    ],
)
def test_rows_are_collected_below_a_folder_named_probes_alone(
    path: str, *, is_collected: bool, rows: Rows, row: RowText, list_rows: Listed
) -> None:
    rows(path, row("own.one"))
    assert list_rows() == ([f"{path}::own.one"] if is_collected else [])


def test_a_folder_above_the_rootdir_does_not_count(
    pytester: pytest.Pytester, list_rows: Listed, rows: Rows, row: RowText
) -> None:
    rows("probes/project/own.toml", row("own.one"))
    (pytester.path / "probes/project/pytest.ini").write_text("[pytest]\n")
    assert list_rows("probes/project") == []


def test_the_rootdir_itself_may_be_named_probes(
    pytester: pytest.Pytester, list_rows: Listed, rows: Rows, row: RowText
) -> None:
    rows("probes/own.toml", row("own.one"))
    (pytester.path / "probes/pytest.ini").write_text("[pytest]\n")
    assert list_rows("probes") == ["own.toml::own.one"]


def test_a_row_can_be_named_by_its_node_id(rows: Rows, row: RowText, list_rows: Listed) -> None:
    rows("probes/own.toml", row("own.one"), row("own.two"))
    assert list_rows("probes/own.toml::own.two") == ["probes/own.toml::own.two"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("\n[[probe]]\nid = 'own.one'\n", "probes/own.toml: own.one: the key title is missing"),
        ("\n[[probe]]\nid = \n", "probes/own.toml: is not TOML: *"),
    ],
)
def test_a_file_that_is_ours_but_wrong_is_a_collection_error_without_a_traceback(
    wrong: str, said: str, rows: Rows, run_pytest: Run
) -> None:
    rows("probes/own.toml", wrong)
    result = run_pytest()
    result.assert_outcomes(errors=1)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["*ERROR collecting probes/own.toml*", f"*{said}"])
    assert "Traceback" not in result.stdout.str()
    assert "load.py" not in result.stdout.str()


@pytest.mark.usefixtures("confined")
def test_rows_and_tests_run_side_by_side_and_are_chosen_alike(
    pytester: pytest.Pytester, rows: Rows, row: RowText, run_pytest: Run
) -> None:
    rows("probes/own.toml", row("own.one"), row("own.two", made="$ROOT/probe", expect="allowed"))
    pytester.makepyfile("def test_one(): pass")
    run_pytest().assert_outcomes(passed=3)
    run_pytest("-k", "own.two").assert_outcomes(passed=1, deselected=2)
    run_pytest("-m", "wisp_probe").assert_outcomes(passed=2, deselected=1)
    run_pytest("-m", "not wisp_probe").assert_outcomes(passed=1, deselected=2)
    run_pytest("--deselect", "probes/own.toml::own.one").assert_outcomes(passed=2, deselected=1)


@pytest.mark.usefixtures("confined")
def test_slow_rows_and_those_that_are_not_promised_run_when_asked_for(
    rows: Rows, row: RowText, run_pytest: Run
) -> None:
    rows("probes/own.toml", row("own.one"), row("own.slow", "slow = true"), row("own.more", "promise = false"))
    run_pytest().assert_outcomes(passed=1, deselected=2)
    run_pytest("--wisp-all").assert_outcomes(passed=3)
    run_pytest("--wisp-all", "-m", "wisp_slow").assert_outcomes(passed=1, deselected=2)
    run_pytest("probes/own.toml::own.slow").assert_outcomes(passed=1)


def test_a_file_is_read_in_the_order_of_its_rows_and_files_by_name(rows: Rows, row: RowText, list_rows: Listed) -> None:
    rows("probes/b.toml", row("own.two"), row("own.one"))
    rows("probes/a.toml", row("own.three"))
    assert list_rows() == [
        "probes/a.toml::own.three",
        "probes/b.toml::own.two",
        "probes/b.toml::own.one",
    ]
