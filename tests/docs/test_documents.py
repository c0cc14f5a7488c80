"""What the documents say is tried: their examples run, their links lead somewhere, their tables are the code's."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

from wisp import capability
from wisp.config import Settings, load_settings
from wisp.probing.probe import CAPABILITIES

_ROOT = Path(__file__).resolve().parents[2]
_DOCUMENTS = sorted(str(file.relative_to(_ROOT)) for file in (*_ROOT.glob("*.md"), *(_ROOT / "docs").rglob("*.md")))
#: A document with Python in it; the blocks of one share their names and run from top to bottom.
_WITH_EXAMPLES = ("README.md", "docs/api.md")

_LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)")
_KEY_ROW = re.compile(r"^\| `([a-zA-Z]+)\.([a-zA-Z]+)` \| `(.+?)` \| (.+) \|$", re.MULTILINE)
_PROMPT = "$ "
_HOME_IN_EXAMPLES = "/home/ann"


def _text(name: str) -> str:
    return (_ROOT / name).read_text(encoding="utf-8")


def _blocks(name: str, language: str) -> list[str]:
    """Return the fenced blocks of `language` in a document."""
    return re.findall(rf"^```{language}\n(.*?)^```$", _text(name), re.DOTALL | re.MULTILINE)


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.title() for part in rest)


@pytest.fixture
def project(wisp_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current directory: a project in a home that is no root, as the examples have it."""
    home = wisp_home.with_name(f"{wisp_home.name}-home")
    (home / "project").mkdir(parents=True)
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("WISP_HOME", str(home / ".wisp"))
    monkeypatch.delenv("TMPDIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.chdir(home / "project")
    return home / "project"


@pytest.mark.linux
@pytest.mark.wisp_requires("backend")
@pytest.mark.parametrize("name", _WITH_EXAMPLES)
def test_the_python_examples_of_a_document_run(name: str, project: Path) -> None:
    examples = list(Sybil(parsers=[PythonCodeBlockParser()]).parse(_ROOT / name).examples())

    assert examples
    for example in examples:
        example.evaluate()


@pytest.mark.linux
@pytest.mark.wisp_requires("backend")
def test_the_commands_of_the_readme_print_what_it_shows(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wisp").write_text(f'#!/bin/sh\nexec {sys.executable} -m wisp "$@"\n')
    (tmp_path / "wisp").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    shown = "".join(_blocks("README.md", "console"))

    seen = ""
    for line in shown.splitlines():
        if line.startswith(_PROMPT):
            command = line.removeprefix(_PROMPT)
            done = subprocess.run(
                ["/bin/bash", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
            )
            seen += f"{line}\n{done.stdout.replace(str(project.parent), _HOME_IN_EXAMPLES)}"

    assert seen == shown


@pytest.mark.linux
@pytest.mark.wisp_requires("backend")
def test_the_pytest_example_of_the_readme_passes(pytester: pytest.Pytester) -> None:
    (example,) = (block for block in _blocks("README.md", "python") if block.startswith("# test_sandbox.py\n"))
    pytester.makepyfile(test_sandbox=example)

    pytester.runpytest_subprocess("-p", "no:cacheprovider", "--wisp-require", "backend").assert_outcomes(passed=2)


@pytest.mark.linux
@pytest.mark.wisp_requires("backend")
def test_the_page_on_trust_names_all_that_is_held_and_all_that_is_left_open() -> None:
    found, page = capability(), _text("docs/trust.md")
    held, _heading, open_ = page.partition("## What stays open")

    assert [name for name in sorted(found.confines) if f"`{name}`" not in held + open_] == []
    assert [limit.name for limit in found.limits if f"| `{limit.name}` |" not in open_] == []
    assert set(re.findall(r"confine\.[a-z-]+", page)) <= set(CAPABILITIES)


@pytest.mark.parametrize("name", _DOCUMENTS)
def test_the_links_within_the_project_lead_to_a_file(name: str, checkout: Path) -> None:
    links = [link for link in _LINK.findall(_text(name)) if "://" not in link]

    assert [link for link in links if not (checkout / name).parent.joinpath(link).exists()] == []


def test_the_table_of_settings_is_the_one_in_the_code() -> None:
    written = _KEY_ROW.findall(_text("docs/configuration.md"))
    defaults = Settings()

    assert written == [
        (_camel(section.name), _camel(one.name), json.dumps(getattr(table, one.name)), one.metadata["allowed"])
        for section in fields(defaults)
        for table in [getattr(defaults, section.name)]
        for one in fields(table)
    ]


def test_the_example_of_a_configuration_is_one(wisp_home: Path) -> None:
    (example,) = _blocks("docs/configuration.md", "json")
    (wisp_home / "config.json").write_text(example, encoding="utf-8")

    settings = load_settings()

    assert not settings.sandbox.allow_network
    assert settings.sandbox.writable_paths == ("~/.cargo/registry", "~/.cache/uv")
    assert settings.limits.command_timeout_seconds == 300


def test_the_readme_has_one_command_for_the_doctor_and_one_for_the_tests() -> None:
    """`.ci/run` types both: it finds them by their first words."""
    lines = re.findall(r"^python3 -m venv .*$", _text("README.md"), re.MULTILINE)

    assert [re.findall(r"\.venv/bin/(\w+) ?\S*", line)[-1] for line in lines] == ["wisp", "tox"]
