"""The rows, the command and the metadata are there from a wheel and from an editable install."""

from __future__ import annotations

import email.parser
import os
import re
import sysconfig
import tarfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest

import wisp

if TYPE_CHECKING:
    from collections.abc import Callable

_ROWS = """
import json
from wisp.probing.load import packaged_files, packaged_rows
print(json.dumps([sorted(map(str, packaged_files())), [row.id for row in packaged_rows()]]))
"""
_PLACES = """
import importlib.metadata, json
found = importlib.metadata.entry_points(module="wisp.cli.main") + importlib.metadata.entry_points(group="pytest11")
print(json.dumps(sorted({(one.group, one.name, one.value) for one in found if one.value.startswith("wisp")})))
"""


class _Installed(Protocol):
    site: Path
    path: Path

    def python(self, *words: str) -> object: ...

    def evaluate(self, code: str) -> object: ...


def _ids_in(folder: Path) -> list[str]:
    """Return the ids of the rows in `folder`, read as text, in the order of the files' names."""
    texts = [file.read_text(encoding="utf-8") for file in sorted(folder.glob("*.toml"))]
    return [found for text in texts for found in re.findall(r'^id = "([^"]+)"', text, re.MULTILINE)]


def test_the_rows_of_a_wheel_lie_in_the_package(from_wheel: _Installed, checkout: Path) -> None:
    places = sorted(
        str(from_wheel.site / "wisp" / "_probes" / file.name) for file in (checkout / "probes").glob("*.toml")
    )

    assert from_wheel.evaluate(_ROWS) == [places, _ids_in(checkout / "probes")]


def test_the_rows_of_an_editable_install_lie_beside_the_package(editable: _Installed, checkout: Path) -> None:
    assert editable.path == checkout
    places = sorted(str(file) for file in (checkout / "probes").glob("*.toml"))

    assert editable.evaluate(_ROWS) == [places, _ids_in(checkout / "probes")]


@pytest.mark.parametrize("layout", ["from_wheel", "editable"])
def test_the_version_is_the_one_that_is_written_down(
    layout: str, request: pytest.FixtureRequest, checkout: Path
) -> None:
    installed = request.getfixturevalue(layout)
    (version,) = re.findall(r'^__version__ = "(.+)"$', (checkout / "wisp/_version.py").read_text(), re.MULTILINE)

    assert installed.python("-m", "wisp", "--version").stdout == f"wisp {version}\n"
    assert (
        installed.evaluate("import json, importlib.metadata as m; print(json.dumps(m.version('wisp-sandbox')))")
        == version
    )


@pytest.mark.parametrize("layout", ["from_wheel", "editable"])
def test_the_command_and_the_pytest_plugin_are_entry_points(layout: str, request: pytest.FixtureRequest) -> None:
    assert request.getfixturevalue(layout).evaluate(_PLACES) == [
        ["console_scripts", "wisp", "wisp.cli.main:main"],
        ["pytest11", "wisp", "wisp.pytest_plugin"],
    ]


def test_a_wheel_holds_the_package_its_data_and_nothing_else(wheel: Path, checkout: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    package = {
        str(file.relative_to(checkout))
        for file in (checkout / "wisp").rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    rows = {f"wisp/_probes/{file.name}" for file in (checkout / "probes").iterdir() if file.is_file()}
    (info,) = {name.split("/")[0] for name in names if ".dist-info/" in name}

    assert names == package | rows | {
        f"{info}/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")
    }


def test_the_metadata_says_what_it_is_and_where_it_runs(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = email.parser.Parser().parsestr(archive.read(name).decode())

    assert {key: metadata[key] for key in ("Name", "License-Expression", "License-File")} == {
        "Name": "wisp-sandbox",
        "License-Expression": "Apache-2.0",
        "License-File": "LICENSE",
    }
    assert sorted(metadata["Requires-Python"].split(",")) == ["<3.15", ">=3.11"]
    assert metadata.get_payload()  # the README


def test_a_source_distribution_holds_what_its_own_tests_need(build: Callable[[str], Path]) -> None:
    with tarfile.open(build("build_sdist")) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}

    assert names >= {
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "LICENSE",
        "README.md",
        "conftest.py",
        "pyproject.toml",
        "tests/packaging/conftest.py",
        "tox.ini",
        "wisp/py.typed",
    }


@pytest.mark.skipif(
    not (os.environ.get("TOX_ENV_NAME") or os.environ.get("WISP_CI_WHEEL")),
    reason="only where an installed wheel is under test: under tox and in .ci/run",
)
def test_the_suite_runs_against_the_installed_wheel_and_not_the_checkout() -> None:
    assert Path(wisp.__file__).is_relative_to(sysconfig.get_path("purelib"))
