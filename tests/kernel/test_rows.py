"""The packaged rows against the real kernel: held when confined, leaked when what must stop them is taken away."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pytest

from wisp.probing.load import packaged_rows
from wisp.probing.probe import CAPABILITIES, Probe
from wisp.probing.run import run_probe
from wisp.probing.scratch import open_scratch
from wisp.sandbox.backend import Backend
from wisp.sandbox.bubblewrap import LAYERS as LANE_LAYERS
from wisp.sandbox.bubblewrap import BubblewrapBackend
from wisp.sandbox.landlock import LandlockBackend
from wisp.sandbox.landlock_probe import LAYERS as THREAD_LAYERS
from wisp.sandbox.unconfined import UnconfinedBackend

pytestmark = [pytest.mark.linux, pytest.mark.wisp_requires("landlock")]

ROWS = packaged_rows()
LAYERS = {"bubblewrap": frozenset(LANE_LAYERS), "landlock": frozenset(THREAD_LAYERS)}
BACKENDS = [
    pytest.param("bubblewrap", marks=pytest.mark.wisp_requires("namespaces")),
    pytest.param("landlock", marks=pytest.mark.wisp_requires("landlock")),
]

#: Rows that do not cross although the layer is gone, and why that is no fault of theirs.
STILL_STOPPED = {
    ("bubblewrap", "terminal.session"): "in a PID namespace of its own the session of wisp has no number",
    ("none", "descriptors.inherited"): "the backend `none` passes on the three standard descriptors only",
    ("none", "leftovers.background-job"): "the backend `none` ends the process group",
    ("none", "leftovers.ignores-hangup-and-terminate"): "the backend `none` ends the process group",
    ("none", "terminal.session"): "the backend `none` makes a session",
}

if os.geteuid() != 0:
    STILL_STOPPED |= {
        ("bubblewrap", f"processes.{name}"): "from a user namespace the kernel lets nobody trace a process outside it"
        for name in ("trace", "write-memory-by-proc", "write-memory-by-call", "take-a-descriptor")
    }


@lru_cache
def backend_of(name: str, without: frozenset[str] = frozenset()) -> Backend:
    return BubblewrapBackend(without=without) if name == "bubblewrap" else LandlockBackend(without=without)


@lru_cache
def confines_of(name: str) -> frozenset[str]:
    return backend_of(name).capability().confines if sys.platform == "linux" else frozenset()


#: What a row gives when the sandbox is whole and this machine can run it.
GOOD = {"held", "declared", "closed", "not-promised"}


def params(rows: list[Probe]) -> list[object]:
    return [pytest.param(row, id=row.id, marks=[pytest.mark.slow] if row.slow else []) for row in rows]


@pytest.fixture(scope="module")
def scratch() -> Iterator[Path]:
    with open_scratch() as made:
        yield made


def test_there_are_enough_rows_and_the_seeds_own_come_first() -> None:
    ids = [row.id for row in ROWS]

    assert len([row for row in ROWS if row.promise]) >= 50
    assert len(set(ids)) == len(ids)
    for wanted in ("write.create-outside",):
        assert wanted in ids


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("row", params(list(ROWS)))
def test_a_row_holds_under_the_whole_sandbox(row: Probe, name: str, scratch: Path) -> None:
    result = run_probe(row, backend=backend_of(name), scratch=scratch, confines=confines_of(name))

    if result.verdict == "skipped":
        pytest.skip(result.reason)
    assert result.verdict in GOOD, f"{result.verdict}: {result.reason}\n{result.as_json()}"
    assert result.refusal_ok is not False, f"the refusal check said {result.refusal_said}"


REFUSED = [row for row in ROWS if row.expect == "refused" and row.promise]


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("row", params(REFUSED))
def test_a_row_leaks_when_the_layers_that_must_stop_it_are_taken_away(row: Probe, name: str, scratch: Path) -> None:
    """A row that holds without its layers proves nothing about them."""
    without = frozenset(row.layer) & LAYERS[name]
    if not without:
        pytest.skip(f"{name} has none of the layers {', '.join(row.layer)}")

    result = run_probe(row, backend=backend_of(name, without), scratch=scratch, confines=confines_of(name))

    if result.verdict == "skipped":
        pytest.skip(result.reason)
    if (name, row.id) in STILL_STOPPED:
        assert result.verdict == "held"
        return
    assert result.verdict in {"leaked", "declared"}, f"{result.verdict}: {result.reason}\n{result.as_json()}"
    if not any(limit.without not in confines_of(name) for limit in row.limits):
        assert result.verdict == "leaked"


@pytest.mark.parametrize("row", params(REFUSED))
def test_a_row_leaks_without_any_sandbox(row: Probe, scratch: Path) -> None:
    """Judged as if everything were promised: what is no sandbox must not pass for one."""
    result = run_probe(row, backend=UnconfinedBackend(), scratch=scratch, confines=frozenset(CAPABILITIES))

    if result.verdict == "skipped":
        pytest.skip(result.reason)
    if any(limit.sometimes for limit in row.limits):  # a matter of chance, also without a sandbox
        assert result.verdict in {"held", "leaked"}
        return
    assert result.verdict == ("held" if ("none", row.id) in STILL_STOPPED else "leaked"), result.reason


SNAPSHOT = """
import hashlib, json, os, sys, threading
from wisp.probing.load import packaged_rows
from wisp.probing.run import run_probes
from wisp.sandbox.unconfined import UnconfinedBackend

def tree(top, depth=99):
    seen = {}
    for directory, names, files in os.walk(top):
        if directory[len(top):].count("/") >= depth: names.clear()
        for name in names + files:
            path = os.path.join(directory, name)
            try: facts = os.lstat(path)
            except OSError: continue
            seen[path] = (facts.st_mode, facts.st_uid, facts.st_size, facts.st_mtime_ns if not os.path.isdir(path) else 0)
    return hashlib.sha256(repr(sorted(seen.items())).encode()).hexdigest(), len(seen)

def is_alive(pid):
    try: return open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError: return False

def state():
    return {
        "hostname": os.uname().nodename,
        "mounts": open("/proc/self/mountinfo").read(),
        # The script is process 1 here and reaps nobody else's children: an entry that has ended is no process.
        "processes": sorted(int(name) for name in os.listdir("/proc") if name.isdigit() and is_alive(name)),
        "home": tree(os.environ["HOME"]),
        "etc": tree("/etc"),
        "cwd": tree(os.getcwd()),
    }

before = state()
rows = [row for row in packaged_rows() if not row.slow]
results = run_probes(rows, backend=UnconfinedBackend(), jobs=2)
import time
for _ in range(100):
    if state()["processes"] == before["processes"]: break
    time.sleep(0.05)
after = state()
print(json.dumps({
    "changed": [name for name in before if before[name] != after[name]],
    "before": before["processes"], "after": after["processes"],
    "verdicts": {one.id: one.verdict for one in results},
    "reasons": {one.id: one.reason for one in results},
}))
"""


@pytest.mark.skipif(shutil.which("unshare") is None, reason="unshare is missing")
def test_every_row_is_harmless_even_without_a_sandbox(tmp_path: Path) -> None:
    """All rows, unconfined, in namespaces of their own: afterwards everything is as it was."""
    home = Path.home() / f".wisp-test-home-{os.getpid()}"
    home.mkdir(mode=0o700)
    (home / ".profile").write_text("# a person's file\n")
    (home / "project").mkdir()
    own = ["--user", "--map-root-user"] if os.geteuid() != 0 else []
    namespaces = ["unshare", *own, "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"]
    try:
        if subprocess.run([*namespaces, "true"], capture_output=True, check=False).returncode:
            pytest.skip("this machine refuses the namespaces that the test would run in")
        done = subprocess.run(
            [*namespaces, sys.executable, "-c", SNAPSHOT],
            env={**os.environ, "HOME": str(home)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
    finally:
        shutil.rmtree(home, ignore_errors=True)

    assert found["changed"] == [], f"processes {found['before']} became {found['after']}"
    by_id = {row.id: row for row in ROWS}
    unexpected = {
        name: (verdict, found["reasons"][name])
        for name, verdict in found["verdicts"].items()
        if verdict == "overblocked" or (verdict == "inconclusive" and by_id[name].promise)
    }
    assert unexpected == {}
    held = {
        name for name, verdict in found["verdicts"].items() if verdict == "held" and by_id[name].expect == "refused"
    }
    # What wisp does for every command, confined or not: a session of its own, closed descriptors, the end of its group.
    assert all(set(by_id[name].layer) & {"session", "descriptors", "leftovers"} for name in held), held
