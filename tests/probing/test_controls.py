"""Every packaged row's control: without a sandbox, the action has the effect that the row looks for.

A row whose control does not cross proves nothing, whatever the sandbox does.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from wisp.probing.abilities import missing
from wisp.probing.load import packaged_rows
from wisp.probing.probe import Probe
from wisp.probing.run import run_control
from wisp.probing.scratch import open_scratch

ROWS = packaged_rows()


@pytest.fixture(scope="module")
def scratch() -> Iterator[Path]:
    with open_scratch() as made:
        yield made


@pytest.mark.parametrize(
    "row", [pytest.param(row, id=row.id, marks=[pytest.mark.slow] if row.slow else []) for row in ROWS]
)
def test_the_control_crosses_and_leaves_nothing(row: Probe, scratch: Path) -> None:
    for name in row.requires:
        reason = missing(name, scratch)
        if reason:
            pytest.skip(f"needs {name}: {reason}")

    control = run_control(row, scratch=scratch)

    assert control.started
    assert control.crossed, control.as_json()
    assert not control.timed_out
    assert [path.name for path in scratch.iterdir()] == ["lock"]
