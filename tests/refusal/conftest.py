"""Ground for refusal checks: two roots, a place outside, a protected place inside a root, and the layers' texts."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from wisp.refusal.check import check
from wisp.sandbox.backend import RefusalTexts
from wisp.sandbox.confinement import Confinement

if TYPE_CHECKING:
    from pathlib import Path

    from wisp.outcome import Refusal

TEXTS = {
    "seatbelt": RefusalTexts(write=("Operation not permitted",), call=("Operation not permitted",)),
    "landlock": RefusalTexts(
        write=("Permission denied",), link=("Invalid cross-device link",), call=("Operation not permitted",)
    ),
    "mounts": RefusalTexts(
        write=("Read-only file system",),
        link=("Invalid cross-device link",),
        pinned=("Device or resource busy",),
        call=("Operation not permitted",),
    ),
}


@dataclass(frozen=True, slots=True)
class Ground:
    """Real directories, and the check with everything but the error output filled in."""

    home: str
    root: str
    root2: str
    outside: str
    protected: str

    def confinement(self, *, network: bool = True) -> Confinement:
        return Confinement(roots=(self.root, self.root2), protected=(self.protected,), network=network)

    def verdict(
        self,
        stderr: str,
        layers: str = "seatbelt",
        *,
        exit_status: int = 1,
        directory: str | None = None,
        network: bool = True,
        may_write: bool = True,
    ) -> Refusal | None:
        return check(
            exit_status=exit_status,
            stderr=stderr,
            confinement=self.confinement(network=network),
            texts=TEXTS[layers],
            directory=directory or self.root,
            home=self.home,
            may_write=lambda _path: may_write,
        )


@pytest.fixture
def texts() -> dict[str, RefusalTexts]:
    return TEXTS


@pytest.fixture
def ground(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ground:
    real = tmp_path.resolve()
    home = real / "home"
    monkeypatch.setenv("WISP_HOME", os.fspath(home / ".wisp"))
    places = {name: home / name for name in ("project", "cache", "elsewhere")}
    for place in (*places.values(), places["project"] / "guarded"):
        place.mkdir(parents=True)
    return Ground(
        home=str(home),
        root=str(places["project"]),
        root2=str(places["cache"]),
        outside=str(places["elsewhere"]),
        protected=str(places["project"] / "guarded"),
    )
