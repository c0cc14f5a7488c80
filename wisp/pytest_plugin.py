"""The pytest plugin `wisp`: probes as tests, markers for what a machine must be able to do, and three fixtures.

pytest imports this module at every start, in every project, so it imports nothing of wisp; what a hook needs is
imported where it is needed. Without an option, a `probes` folder, a marker or a fixture of wisp's, nothing runs.

Which rows run. A TOML file of rows (`schema = 1`, then `[[probe]]`) under a folder named `probes` is collected like
any test file. `--wisp-probes` runs the rows that wisp ships, `--wisp-probes DIR…` one's own from anywhere. Both add to
the test paths given beside them or in `testpaths`; typed without either, they take the place of pytest's fall-back to
the current directory. `--wisp-probes` takes every word that follows it, so a test path stands before it, or after
`--` as the last words. `--wisp-probes=DIR` takes that one word, and keeps pytest from looking for its rootdir there;
in `addopts`, `--wisp-probes=` is the packaged rows.

How a verdict reads. `held`, `closed` and `not-promised` pass; `declared` is an expected failure; `leaked`,
`overblocked` and `inconclusive` fail; `skipped` is skipped. Where nothing can confine, every row is skipped and the
session fails: nothing was proved.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

    from wisp._pytest_plugin.refused import AssertRefused
    from wisp.runner import Runner

__all__: list[str] = []

_MARKERS: Final = (
    "macos: runs on macOS and is skipped elsewhere",
    "linux: runs on Linux and is skipped elsewhere",
    "wisp_requires(capability, ...): is skipped, with the reason, where this machine lacks one (landlock, tier.A, …)",
    "wisp_probe: every row of a probe file has it",
    "wisp_slow: the rows that take seconds have it",
)

_SYSTEMS: Final = {"linux": ("linux", "Linux"), "macos": ("darwin", "macOS")}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options; each is None when it was not given."""
    group = parser.getgroup("wisp", "wisp: the sandbox and its probes")
    group.addoption(
        "--wisp-probes",
        nargs="*",
        action="append",
        metavar="DIR",
        default=None,
        help="Run wisp's own probe rows, or those in these directories and files. Takes every word that follows; "
        "put test paths before it. Repeatable.",
    )
    group.addoption(
        "--wisp-all",
        action="store_true",
        default=None,
        help="Run every row, also the slow ones and those outside what wisp promises.",
    )
    group.addoption(
        "--wisp-require",
        action="append",
        metavar="CAP",
        default=None,
        help="Fail where this machine lacks CAP (backend, tier.A, landlock, confine.write, tool.git, …), instead of "
        "skipping what needs it. Repeatable.",
    )
    group.addoption(
        "--wisp-backend",
        metavar="NAME",
        default=None,
        help="The sandbox that rows and fixtures use: auto (the default), landlock, or none.",
    )
    group.addoption(
        "--wisp-report",
        metavar="FILE",
        default=None,
        help="Write one JSON object about the rows that ran, as `wisp doctor --json` prints it.",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers, and in the controlling process what gathers the results."""
    for line in _MARKERS:
        config.addinivalue_line("markers", line)
    if not hasattr(config, "workerinput"):
        from wisp._pytest_plugin.tally import Tally  # noqa: PLC0415

        config.pluginmanager.register(Tally(config), "wisp-tally")


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Check every option before anything is collected."""
    if _is_active(session.config):
        from wisp._pytest_plugin.start import start  # noqa: PLC0415

        start(session.config)


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say what confines, and which rows run."""
    if not _is_active(config):
        return None
    from wisp._pytest_plugin.start import header  # noqa: PLC0415

    return header(config)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect a probe file under a folder named `probes`; every other file is somebody else's."""
    if file_path.suffix != ".toml" or not _is_under_probes(file_path, parent.config.rootpath):
        return None
    from wisp._pytest_plugin.items import ProbeFile  # noqa: PLC0415
    from wisp.probing.load import is_probe_file  # noqa: PLC0415

    return ProbeFile.from_parent(parent, path=file_path) if is_probe_file(file_path) else None


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Add the rows of `--wisp-probes` to what the session collects.

    Not as further test paths: pytest would load the conftest.py files beside them, and name them by where they are
    installed.
    """
    report = yield
    if isinstance(collector, pytest.Session) and collector.config.getoption("wisp_probes"):
        from wisp._pytest_plugin.items import collectors  # noqa: PLC0415

        report.result = [*(report.result or ()), *collectors(collector)]
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out rows that were collected twice, and those that do not run unasked."""
    if "wisp._pytest_plugin.items" in sys.modules:
        from wisp._pytest_plugin.items import select  # noqa: PLC0415

        select(config, items)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip, or with `--wisp-require` fail, what this machine cannot do."""
    wanted = [name for name in _SYSTEMS if item.get_closest_marker(name)]
    if wanted and not any(sys.platform == _SYSTEMS[name][0] for name in wanted):
        here = next((title for platform, title in _SYSTEMS.values() if platform == sys.platform), sys.platform)
        needed = " or ".join(_SYSTEMS[name][1] for name in wanted)
        # A mark, not pytest.skip(): the report then names the test's own line.
        item.add_marker(pytest.mark.skip(reason=f"needs {needed}, and this is {here}"))
        return
    if item.get_closest_marker("wisp_requires"):
        from wisp._pytest_plugin.ground import check_requirements  # noqa: PLC0415

        check_requirements(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Name the row's own file where a row was skipped, not the line in here that skipped it."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and call.excinfo and item.get_closest_marker("wisp_probe"):
        path, line, _ = item.reportinfo()
        report.longrepr = (str(path), (line or 0) + 1, f"Skipped: {call.excinfo.value}")
    return report


@pytest.fixture
def wisp_runner(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Runner]:
    """A Runner whose commands start in `tmp_path` and may write only there; network off, no audit log.

    It uses the backend of `--wisp-backend` and wisp's default settings, not the person's. A machine that cannot
    confine is an error (SandboxUnavailable) at the first run: mark the test with `wisp_requires("backend")`.
    """
    from wisp._pytest_plugin.ground import ground_of  # noqa: PLC0415

    with ground_of(request.config).runner(tmp_path) as runner:
        yield runner


@pytest.fixture
def wisp_outside(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A fresh directory, as a real path, that neither `wisp_runner` nor the default confinement may write in.

    It lies in the home directory (in `/var/tmp` where that is none) and is removed after the test.
    """
    from wisp._pytest_plugin.ground import ground_of  # noqa: PLC0415

    with ground_of(request.config).outside() as directory:
        yield directory


@pytest.fixture
def assert_refused(wisp_runner: Runner) -> AssertRefused:
    """A callable: `assert_refused(action, effect=None, timeout=30)` → the confined Outcome.

    Passes when `action` (a line for /bin/sh, or a list of words) is refused in the sandbox of `wisp_runner` and works
    without it, in the same directory. It does run without the sandbox, so name only what may be written: a path in
    `wisp_outside`. With `effect`, that path must be missing after the confined run and there after the other; it is
    then removed.
    """
    from wisp._pytest_plugin.refused import AssertRefused  # noqa: PLC0415

    return AssertRefused(wisp_runner)


def _is_active(config: pytest.Config) -> bool:
    """Return whether any option of wisp's was given."""
    names = ("wisp_probes", "wisp_all", "wisp_require", "wisp_backend", "wisp_report")
    return any(config.getoption(name) is not None for name in names)


def _is_under_probes(path: Path, root: Path) -> bool:
    """Return whether `path` lies under a folder named `probes`, which `root` may be but nothing above it."""
    if path.is_relative_to(root):
        return "probes" in (root.name, *path.relative_to(root).parts[:-1])
    return "probes" in path.parts[:-1]
