"""Seatbelt, on a real Mac. `tox -e macos` turns the skips of a machine without it into errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from wisp import Runner

pytestmark = [pytest.mark.macos, pytest.mark.wisp_requires("seatbelt")]


def test_a_write_outside_every_root_is_refused_and_one_inside_is_not(wisp_runner: Runner, wisp_outside: Path) -> None:
    inside = wisp_runner.run("touch inside && rm inside")
    outside = wisp_runner.run(f"touch '{wisp_outside}/probe'")

    assert inside.exit_status == 0
    assert outside.exit_status != 0
    assert not (wisp_outside / "probe").exists()
