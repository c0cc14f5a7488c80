"""Ending what a row left: only what carries its mark."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from wisp.probing.leftovers import MARK, carries, end_all, is_running

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are known by /proc")


@pytest.fixture
def mark() -> str:
    return f".wisp-probe-1-{uuid.uuid4().int % 10**9}"


def start(*words: str, **variables: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(words or ("sleep", "20"), env={"PATH": os.environ["PATH"], **variables})
    # Popen returns in the middle of the exec, when there is no environment to be read yet.
    while not Path(f"/proc/{process.pid}/environ").read_bytes():
        pass
    return process


@pytest.fixture
def others(mark: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that look like it and are not."""
    started = [
        start(),
        start(**{MARK: mark + "0"}),
        start(**{MARK: "x" + mark}),
        start(**{f"OTHER_{MARK}": mark}),
        start("sh", "-c", f": {MARK}={mark}; sleep 20; :"),
    ]
    yield started
    for process in started:
        process.kill()
        process.wait()


def test_a_process_is_ended_by_its_mark_and_no_other(mark: str, others: list[subprocess.Popen[bytes]]) -> None:
    rows = [start(**{MARK: mark}), start(**{MARK: f"{mark}/c1"}), start(**{MARK: f"{mark}/c2"})]

    assert end_all(f"{mark}/c1") == 1
    assert rows[1].wait(10) == -9
    assert [is_running(process.pid) for process in rows] == [True, False, True]

    assert end_all(mark) == 2
    assert [process.wait(10) for process in rows] == [-9, -9, -9]
    assert all(is_running(process.pid) for process in others)


def test_what_starts_others_is_ended_with_them(mark: str) -> None:
    with start("sh", "-c", "for n in 1 2 3 4 5; do setsid sleep 20 & done; wait", **{MARK: mark}) as process:
        end_all(mark)

        assert process.wait(10) == -9
    assert end_all(mark) == 0


def test_nothing_to_end_is_nothing(mark: str) -> None:
    assert end_all(mark) == 0


def test_a_mark_is_read_from_the_environment_a_process_was_given(mark: str) -> None:
    with start(**{MARK: f"{mark}/c1"}) as process:
        assert carries(process.pid, mark)
        assert carries(process.pid, f"{mark}/c1")
        assert not carries(process.pid, f"{mark}/c")
        process.kill()
    assert not carries(process.pid, mark)


def test_a_process_that_has_ended_does_not_run() -> None:
    with start() as process:
        assert is_running(process.pid)
        process.kill()
        while is_running(process.pid):
            pass
        # Not reaped yet: the number is still this one's.
        os.kill(process.pid, 0)
    assert not is_running(process.pid)
    assert not is_running(2**40)
