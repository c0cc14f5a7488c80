"""What every test stands on: a home for wisp that is not the person's own, and an unchanged environment."""

from __future__ import annotations

import itertools
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest_plugins = ["pytester"]

# No deadline and no complaint of slowness: the machine may be busy. No database: the checkout may belong to another.
hypothesis.settings.register_profile(
    "wisp", database=None, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("wisp")

_HOMES = pytest.StashKey[Path]()
_OUTER_HOME = pytest.StashKey["str | None"]()
_NUMBERS = itertools.count(1)
_PREFIX = ".wisp-test-"
_STALE_SECONDS = 24 * 3600

#: What changes how wisp or a pytest within a test prints, or what it believes of its surroundings: the person's own.
_NOT_FOR_TESTS = (
    "BUILD_NUMBER",
    "CI",
    "CLICOLOR_FORCE",
    "COLUMNS",
    "FORCE_COLOR",
    "LINES",
    "NO_COLOR",
    "PYTEST_ADDOPTS",
    "WISP_SANDBOX",
)


def pytest_configure(config: pytest.Config) -> None:
    """Move wisp's home before anything is collected: each xdist worker has a directory of its own."""
    config.stash[_OUTER_HOME] = os.environ.get("WISP_HOME")
    base = _make_base()
    config.stash[_HOMES] = base
    os.environ["WISP_HOME"] = str(base / "0")


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove what the run made."""
    base = config.stash.get(_HOMES, None)
    if base is not None:
        shutil.rmtree(base, ignore_errors=True)
    outer = config.stash.get(_OUTER_HOME, None)
    if outer is None:
        os.environ.pop("WISP_HOME", None)
    else:
        os.environ["WISP_HOME"] = outer


def _make_base() -> Path:
    """Return a new directory, 0700, that lies in no default root.

    The home directory is never a root unasked, and the temporary and cache directories always are. A home that is
    itself temporary, or that cannot be written, leaves /var/tmp, which is no root either.
    """
    home = Path.home().resolve()
    roots = [Path(os.environ.get("TMPDIR") or "/tmp").resolve(), Path("/tmp").resolve(), home / ".cache"]
    is_open = any(home.is_relative_to(root) for root in roots)
    parent = home if os.access(home, os.W_OK) and not is_open else Path("/var/tmp").resolve()
    _sweep(parent)
    return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=parent))


def _sweep(parent: Path) -> None:
    """Remove what killed runs of this user left, once it is a day old: a run that lives is never so old."""
    for left in parent.glob(f"{_PREFIX}*"):
        try:
            facts = left.lstat()
        except OSError:
            continue
        if facts.st_uid == os.getuid() and facts.st_mtime < time.time() - _STALE_SECONDS:
            shutil.rmtree(left, ignore_errors=True)


@pytest.fixture(autouse=True)
def _environment_is_left_as_it_was() -> Iterator[None]:
    """Fail the test that leaves a variable changed: the next one, in random order, would run under it."""
    before = _environment()
    yield
    after = _environment()
    leaked = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    for name in leaked:
        if name in before:
            os.environ[name] = before[name]
        else:
            del os.environ[name]
    if leaked:
        pytest.fail(f"the test left these environment variables changed: {', '.join(leaked)}", pytrace=False)


def _environment() -> dict[str, str]:
    """Return the environment without what pytest itself keeps changing."""
    return {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}


@pytest.fixture(autouse=True)
def _own_wisp_home(
    _environment_is_left_as_it_was: None, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Path:
    """Name a directory of the test's own in WISP_HOME, not made yet, so that no test touches the real one."""
    home = request.config.stash[_HOMES] / str(next(_NUMBERS))
    monkeypatch.setenv("WISP_HOME", str(home))
    for name in _NOT_FOR_TESTS:
        monkeypatch.delenv(name, raising=False)
    return home


@pytest.fixture
def wisp_home(_own_wisp_home: Path) -> Path:
    """Return wisp's home for this test: an empty directory, 0700, outside every default root."""
    _own_wisp_home.mkdir(mode=0o700)
    return _own_wisp_home


@pytest.fixture(scope="session")
def checkout() -> Path:
    """Return the directory of the checkout: the sources, even where the tests run away from them, against a wheel."""
    return Path(os.environ.get("WISP_CHECKOUT") or Path(__file__).parent).resolve()


@pytest.fixture(scope="session")
def shared_python() -> str:
    """Return this Python where any user can start it; skip where it lies in a home that others cannot enter."""
    for place in (sys.executable, sys.prefix, sys.base_prefix):
        closed = [folder for folder in Path(place).resolve().parents if not folder.stat().st_mode & 0o001]
        if closed:
            pytest.skip(f"other users cannot start this Python: it lies under {closed[0]}")
    return sys.executable
