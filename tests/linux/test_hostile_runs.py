"""A thousand hostile runs leave the machine as it was: slow, and counted."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

from wisp.config import Settings
from wisp.errors import WispError
from wisp.runner import Runner
from wisp.sandbox import process
from wisp.sandbox.bubblewrap import BubblewrapBackend, BubblewrapEnforcer
from wisp.sandbox.confinement import Confinement

pytestmark = [pytest.mark.linux, pytest.mark.slow, pytest.mark.wisp_requires("namespaces")]

RUNS = 1000

#: What a command does to its lane and to the machine, each bounded: at most some hundred processes, a few MB.
HOSTILE = [
    "kill -9 -1",
    "kill -9 $$",
    "kill -STOP $$",
    "for i in $(seq 100); do sleep $LONG & done",
    "for i in $(seq 20); do setsid sleep $LONG & done; exit 3",
    "(setsid sh -c 'exec 0<&- 1>&- 2>&-; sleep $LONG' &); exit 4",
    "trap '' TERM INT HUP; while :; do :; done",
    "yes | head -c 3000000",
    "yes >&2 & sleep 0.05",
    "exec 1>&- 2>&-; sleep $LONG",
    "head -c 2000000 /dev/zero >/dev/shm/full; mkdir -p /dev/shm/a/b; ln -s / /dev/shm/l",
    "mount -o remount,rw / ; umount -l /proc; chmod 777 /; touch /wisp-was-here",
    "kill -9 1; kill -STOP 1; kill -USR1 1",
    "cd / && rm -rf --no-preserve-root ./wisp-nothing-here",
    "mkdir x 2>/dev/null; mv x y; rm -rf y; ln -sfn / l; echo >l/wisp-was-here",
    "ulimit -n 3; ls",
    "ulimit -v 1000; ls",
    "exec /nonexistent",
    "printf '\\000\\377' ; exit 200",
    "sleep $LONG",
]


def listing(mark: str) -> dict[str, object]:
    """What could be left behind: processes that bear the mark, mounts, descriptors, shared memory, names in /."""
    commands = []
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (place / "cmdline").read_bytes()
            if mark.encode() in words:  # as the time that it sleeps, or in a path of its lane
                commands.append(words)
    return {
        "commands": commands,
        "mounts": Path("/proc/self/mountinfo").read_text(),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "shm": sorted(os.listdir("/dev/shm")),
        "root": sorted(os.listdir("/")),
    }


def attack_lane(runner: Runner, draw: random.Random) -> None:
    """Do to an idle lane what the world may do to it."""
    enforcer = runner._prepared()
    assert isinstance(enforcer, BubblewrapEnforcer)
    for slot in list(enforcer._idle):
        with suppress(ProcessLookupError):
            os.kill(draw.choice((slot.lane.helper_pid, slot.lane.pid)), draw.choice((signal.SIGKILL, signal.SIGTERM)))


@pytest.mark.timeout(900)
def test_a_thousand_hostile_runs_leave_the_machine_as_it_was() -> None:
    """In a process of its own, so that what it leaves would be seen."""
    program = "from tests.linux.test_hostile_runs import main; main()"
    mark = f"60.{os.getpid()}"
    before = listing(mark)
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "LONG": mark},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    counted = dict(line.split(": ") for line in done.stdout.splitlines())
    assert int(counted["runs"]) == RUNS
    assert int(counted["descriptors"]) == 0
    assert int(counted["twice"]) == 0
    assert listing(mark) == before


def main() -> None:
    draw = random.Random(20261130)
    setattr(process, "_GRACE", 0.2)  # noqa: B010 - two seconds for each line that ignores TERM would be most of the time
    with tempfile.TemporaryDirectory(prefix=f"wisp-{os.environ['LONG']}-") as place:
        root = Path(place) / "root"
        root.mkdir()
        count = root / "count"
        opened = len(os.listdir("/proc/self/fd"))
        ended = asked = twice = 0
        with Runner(Confinement((str(root),)), backend=BubblewrapBackend(), settings=Settings(), audit=False) as runner:
            for number in range(RUNS):
                line = draw.choice(HOSTILE)
                if draw.random() < 0.1:
                    attack_lane(runner, draw)
                if draw.random() < 0.05:
                    root.rename(root.with_name(f"aside-{number}"))
                    root.mkdir()
                count.unlink(missing_ok=True)
                try:
                    runner.run(f"echo >>count; {line}", cwd=root, timeout=0.3)
                except WispError:
                    asked += 1
                ended += 1
                with suppress(FileNotFoundError):
                    twice += count.read_text().count("\n") > 1
            assert runner.run("echo on", cwd=root).stdout == "on\n"
        left = len(os.listdir("/proc/self/fd")) - opened
        sys.stdout.write(f"runs: {ended}\nerrors: {asked}\ntwice: {twice}\ndescriptors: {left}\n")
