"""What a runner holds: set up on request, given back as a whole."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from wisp.errors import SandboxUnavailable
from wisp.sandbox.confinement import Confinement
from wisp.sandbox.held import Held
from wisp.sandbox.unconfined import UnconfinedBackend


def test_a_scratch_directory_is_a_root_until_it_is_given_back() -> None:
    held, given = Held(), Confinement(scratch_tmpdir=True)

    enforcer, confinement = held.prepare(UnconfinedBackend(), given)

    assert held.enforcer is enforcer
    assert held.scratch is not None
    assert confinement == Confinement(roots=(held.scratch.path,))
    assert os.path.isdir(held.scratch.path)
    held.release()
    assert not os.path.exists(held.scratch.path)


def test_nothing_is_made_where_nothing_is_asked_for(tmp_path: Path) -> None:
    held, given = Held(), Confinement(roots=(str(tmp_path),))
    assert held.prepare(UnconfinedBackend(), given)[1] is given
    assert held.scratch is None
    held.release()


def test_a_temporary_directory_that_is_missing_makes_the_sandbox_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(SandboxUnavailable, match="no scratch TMPDIR can be made"):
        Held().prepare(UnconfinedBackend(), Confinement(scratch_tmpdir=True))


def test_the_threads_are_made_once_and_take_nothing_when_they_are_given_back() -> None:
    held = Held()
    pool = held.pool()
    assert held.pool() is pool
    assert pool.submit(lambda: 3).result() == 3
    held.release()
    with pytest.raises(RuntimeError):
        pool.submit(lambda: 3)


def test_a_forked_child_forgets_the_threads_of_its_parent() -> None:
    held = Held()
    pool = held.pool()
    held.forget_threads()
    assert held.pool() is not pool
    held.release()
    pool.shutdown()
