"""wisp as it is shipped: a wheel and an editable install, each unpacked into a folder of its own. Offline."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Installed:
    """One way to have wisp: `site` is the folder that an installer would fill, `path` what Python finds wisp by."""

    site: Path
    path: Path

    def python(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run Python away from the checkout with this wisp before any other, and require that it ends well."""
        # Bytecode is not written: the checkout may belong to another user, or be read by other tests at this moment.
        env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(self.path), str(self.site)]),
            "PYTHONSAFEPATH": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        done = subprocess.run(
            [sys.executable, *words], cwd=self.site, env=env, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done

    def evaluate(self, code: str) -> object:
        """Return what `code` prints, read as JSON."""
        return json.loads(self.python("-c", code).stdout)


def _build(target: str, checkout: Path, place: Path) -> Path:
    """Build with hatchling itself: pip would fetch it anew, and its own copy of the tree would hide what is read."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import hatchling.build, sys; print(hatchling.build.{target}(sys.argv[1]))",
            str(place),
        ],
        cwd=checkout,
        env={**os.environ, "PYTHONSAFEPATH": "1", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return place / done.stdout.split()[-1]


@pytest.fixture(scope="session")
def build(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that builds the checkout (`build_wheel`, `build_editable`, `build_sdist`) and returns the file."""
    pytest.importorskip("hatchling", reason="hatchling is not installed; it is in the dependency group `test`")

    def build(target: str) -> Path:
        return _build(target, checkout, tmp_path_factory.mktemp(target))

    return build


@pytest.fixture(scope="session")
def wheel(build: Callable[[str], Path]) -> Path:
    """Return the wheel of the checkout."""
    return build("build_wheel")


@pytest.fixture(scope="session")
def from_wheel(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Return wisp as the wheel installs it."""
    site = tmp_path_factory.mktemp("wheel-site")
    zipfile.ZipFile(wheel).extractall(site)
    return Installed(site, site)


@pytest.fixture(scope="session")
def editable(build: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Return wisp as an editable install has it: metadata, and a `.pth` file that names the checkout."""
    site = tmp_path_factory.mktemp("editable-site")
    zipfile.ZipFile(build("build_editable")).extractall(site)
    (pth,) = site.glob("*.pth")
    # Python reads `.pth` files of site-packages only; an installed wheel would come before them there.
    return Installed(site, Path(pth.read_text(encoding="utf-8").strip()))
