"""The plugin as an installed one, and rows of each verdict for it to run."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import wisp
import wisp._pytest_plugin.items
from wisp.runner import capability
from wisp.sandbox.landlock import LandlockBackend

if TYPE_CHECKING:
    from collections.abc import Callable

#: What every row needs and no test here is about.
_ROW = """
[[probe]]
id = "{id}"
title = "{id} is as it should be"
why = "a test needs it"
run = '''{run}'''
expect = "{expect}"
crossed = {{ exists = "{made}" }}
operations = []
no-operations = "not for the model"
"""


@pytest.fixture(autouse=True)
def _plugin_is_installed(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Let the pytest that a test starts find the plugin by its entry point, also where wisp is not installed."""
    if any(point.name == "wisp" for point in entry_points(group="pytest11")):
        return
    site = tmp_path_factory.mktemp("site")
    metadata = site / "wisp_sandbox-0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: wisp-sandbox\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text("[pytest11]\nwisp = wisp.pytest_plugin\n")
    sources = Path(wisp.__file__).resolve().parent.parent
    monkeypatch.setenv("PYTHONPATH", f"{site}:{sources}")
    monkeypatch.syspath_prepend(site)


@pytest.fixture
def row() -> Callable[..., str]:
    """Return the text of one row."""

    def text(name: str, *more: str, expect: str = "refused", made: str = "$OUTSIDE/probe", run: str = "") -> str:
        lines = [_ROW.format(id=name, run=run or f'touch "{made}"', expect=expect, made=made)]
        if expect == "refused":
            lines.append('layer = ["landlock"]\n')
        return "".join((*lines, *(f"{line}\n" for line in more)))

    return text


@pytest.fixture
def rows(pytester: pytest.Pytester) -> Callable[..., Path]:
    """Write a probe file in the test's own project."""

    def write(path: str, *texts: str) -> Path:
        place = pytester.path / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("schema = 1\n" + "".join(texts))
        return place

    return write


@pytest.fixture
def every_verdict(rows: Callable[..., Path], row: Callable[..., str]) -> dict[str, str]:
    """Write a row of each verdict to `probes/own.toml`; return id and verdict. The landlock backend gives them."""
    limit = 'limits = [{ without = "confine.metadata", because = "a test says so" }]'
    inside = "$ROOT/probe"
    rows(
        "probes/own.toml",
        row("own.held"),
        row("own.leaked", made=inside),
        row("own.overblocked", expect="allowed"),
        row("own.declared", limit, made=inside),
        row("own.closed", limit),
        row("own.not-promised", "promise = false"),
        row("own.inconclusive", run="echo unheard-of >&2; exit 3"),
        row("own.skipped", 'requires = ["tool.no-such-tool"]'),
    )
    return {f"own.{name}": name for name in (
        "held", "leaked", "overblocked", "declared", "closed", "not-promised", "inconclusive", "skipped"
    )}  # fmt: skip


@pytest.fixture
def run_pytest(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, _plugin_is_installed: None
) -> Callable[..., pytest.RunResult]:
    """Run pytest with this plugin in the test's own project; `everything` loads whatever else is installed, too.

    Most tests do without: the other plugins take three times as long to start as all else.
    """

    def run(*args: str | Path, everything: bool = False) -> pytest.RunResult:
        if not everything:
            monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
            args = ("-p", "wisp", *args)
        return pytester.runpytest_subprocess("-p", "no:cacheprovider", *args, timeout=120)

    return run


@pytest.fixture
def list_rows(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, _plugin_is_installed: None
) -> Callable[..., list[str]]:
    """Return the node ids that a command line collects, in order. Runs nothing, so no process of its own is needed."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")

    def collect(*args: str | Path) -> list[str]:
        result = pytester.runpytest_inprocess("-p", "wisp", "-p", "no:cacheprovider", "--collect-only", "-q", *args)
        return [line for line in result.outlines if "::" in line]

    return collect


@pytest.fixture
def confined() -> None:
    """Skip the test where no sandbox can be set up: the rows of it would prove nothing."""
    found = capability()
    if found.tier is None:
        pytest.skip(found.reason)


@pytest.fixture
def no_sandbox(pytester: pytest.Pytester) -> str:
    """Make the test's own project run as on a kernel whose Landlock is too old; return the reason."""
    pytester.makeconftest(
        """
        from wisp._pytest_plugin import ground
        from wisp.sandbox.landlock import LandlockBackend

        ground.backend_named = lambda name, **_: LandlockBackend(abi=1)
        """
    )
    return LandlockBackend(abi=1).capability().reason
