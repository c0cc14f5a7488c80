"""What a person does not use is not loaded: start-up time, and nothing that shadows a pytest run's coverage."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import wisp

_HEAVY = ("click", "filelock", "pydantic", "re2", "rich")


def _loaded_by(code: str) -> list[str]:
    """Return which of the heavy libraries `code` loads in a Python of its own, and that it ends."""
    ask = f"import json, sys; print(json.dumps([name for name in {_HEAVY!r} if name in sys.modules]), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{ask}"], capture_output=True, text=True, check=True, timeout=60
    )
    names: list[str] = json.loads(done.stderr)
    return names


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("import wisp", id="the package"),
        pytest.param("import wisp.pytest_plugin", id="the pytest plugin"),
        pytest.param("from wisp.cli.main import main\nassert main(['--version']) == 0", id="the version"),
    ],
)
def test_starting_loads_no_heavy_library(code: str) -> None:
    assert _loaded_by(code) == []


def test_the_list_of_heavy_libraries_can_be_seen_when_one_is_loaded() -> None:
    assert _loaded_by("import click, rich") == ["click", "rich"]


@pytest.mark.parametrize("name", sorted(wisp.__all__))
def test_every_public_name_can_be_had_from_the_package(name: str) -> None:
    assert getattr(wisp, name) is not None
    assert name in dir(wisp)


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'wisp' has no attribute 'run_everything'"):
        wisp.run_everything  # noqa: B018
