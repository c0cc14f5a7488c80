"""What no file of the project holds: a package registry's host, or a path outside the checkout."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: What is made by tools, and what belongs to git.
_NOT_OURS = {
    ".git",
    ".hypothesis",
    ".import_linter_cache",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
    ".tox",
    ".venv",
    "__pycache__",
    "build",
    "dist",
    "mutants",
}

#: In two halves, so that this file is no exception.
_REGISTRIES = [
    ("pypi.", "org"),
    ("python", "hosted.org"),
    ("npmjs.", "org"),
    ("npmjs.", "com"),
    ("crates.", "io"),
    ("ruby", "gems.org"),
    ("proxy.", "golang.org"),
    ("deb.", "debian.org"),
    ("repo.", "maven.apache.org"),
]


def _texts(checkout: Path) -> Iterator[tuple[str, str]]:
    """Yield each file of the project as its name and its text."""
    for file in sorted(checkout.rglob("*")):
        name = file.relative_to(checkout)
        if not _NOT_OURS.intersection(name.parts) and file.is_file() and not file.is_symlink():
            yield str(name), file.read_text(encoding="utf-8", errors="replace")


@pytest.mark.parametrize("host", ["".join(halves) for halves in _REGISTRIES])
def test_no_file_names_the_host_of_a_registry(host: str, checkout: Path) -> None:
    assert [name for name, text in _texts(checkout) if host in text] == []


def test_no_file_reads_what_lies_beside_the_checkout(checkout: Path) -> None:
    outside = "../" + "shared"

    assert [name for name, text in _texts(checkout) if outside in text] == []


def test_the_texts_that_are_searched_are_the_project_s(checkout: Path) -> None:
    names = {name for name, _text in _texts(checkout)}

    assert names >= {"README.md", "pyproject.toml", "wisp/__init__.py", "tests/packaging/test_repository.py"}
