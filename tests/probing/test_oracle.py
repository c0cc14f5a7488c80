"""Each oracle, with the effect that it looks for and without."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from wisp.probing.leftovers import MARK
from wisp.probing.oracle import look, signs_missing
from wisp.probing.probe import Oracle, Probe, Sign
from wisp.probing.standins import StandIns
from wisp.probing.workspace import Workspace, build_workspace


@pytest.fixture
def space(tmp_path: Path) -> Workspace:
    return build_workspace(tmp_path, "w")


def row(oracle: Oracle, target: str, run: str = "true") -> Probe:
    return Probe("a.b", "t", "w", run, "refused", (Sign(oracle, target),), layer=("landlock",))


def shows(space: Workspace, oracle: Oracle, target: str, effect: str) -> bool:
    """Return whether the oracle sees what the shell command `effect` does."""
    probe = row(oracle, target)
    with StandIns(probe, Path(space.outside)) as standins:
        before = look(probe, space)
        env = {**os.environ, **space.variables}
        done = subprocess.run(["/bin/sh", "-c", effect], env=env, capture_output=True, text=True, check=True)
        return signs_missing(probe, space, standins, before, done.stdout) == ()


VICTIM = "$OUTSIDE/victim"

SEEN: list[tuple[Oracle, str, str]] = [
    ("exists", "$OUTSIDE/probe", 'touch "$OUTSIDE/probe"'),
    ("exists", "$OUTSIDE/probe", 'ln -s nowhere "$OUTSIDE/probe"'),
    ("exists", "${ROOT}x/probe", 'mkdir "${ROOT}x/probe"'),
    ("absent", VICTIM, 'rm "$OUTSIDE/victim"'),
    ("absent", "$OUTSIDE/dir", 'mv "$OUTSIDE/dir" "$OUTSIDE/other"'),
    ("content", VICTIM, 'echo x > "$OUTSIDE/victim"'),
    ("content", VICTIM, 'cat "$OUTSIDE/victim" "$OUTSIDE/victim" > "$ROOT/x"; cp "$ROOT/x" "$OUTSIDE/victim"'),
    ("content", VICTIM, ': > "$OUTSIDE/victim"'),
    ("content", VICTIM, 'rm "$OUTSIDE/victim"; mkfifo "$OUTSIDE/victim"'),
    ("content", "$LINK", 'ln -sfn "$OUTSIDE" "$LINK"'),
    ("content", "$OUTSIDE/dir", 'touch "$OUTSIDE/dir/new"'),
    ("mode", VICTIM, 'chmod 600 "$OUTSIDE/victim"'),
    ("times", VICTIM, 'touch "$OUTSIDE/victim"'),
    ("token", "a word", 'echo "here is a word"'),
]


@pytest.mark.parametrize(("oracle", "target", "effect"), SEEN)
def test_an_effect_is_seen(space: Workspace, oracle: Oracle, target: str, effect: str) -> None:
    assert shows(space, oracle, target, effect)


UNSEEN: list[tuple[Oracle, str, str]] = [
    ("exists", "$OUTSIDE/probe", "true"),
    ("exists", VICTIM, 'echo x > "$OUTSIDE/victim"'),
    ("absent", VICTIM, "true"),
    ("absent", "$OUTSIDE/nothing", "true"),
    ("content", VICTIM, 'cat "$OUTSIDE/victim"; chmod 600 "$OUTSIDE/victim"; touch "$OUTSIDE/victim"'),
    ("content", VICTIM, 'rm "$OUTSIDE/victim"'),
    ("content", "$OUTSIDE/new", 'echo x > "$OUTSIDE/new"'),
    ("content", "$OUTSIDE/dir", 'echo x > "$OUTSIDE/dir/file"'),
    ("mode", VICTIM, 'echo x > "$OUTSIDE/victim"'),
    ("mode", VICTIM, 'rm "$OUTSIDE/victim"'),
    ("owner", VICTIM, 'echo x > "$OUTSIDE/victim"'),
    ("times", VICTIM, 'cat "$OUTSIDE/victim"; chmod 600 "$OUTSIDE/victim"'),
    ("xattr", VICTIM, 'chmod 600 "$OUTSIDE/victim"'),
    ("token", "a word", "echo 'a word' >&2"),
    ("received", "tcp", "true"),
    ("received", "udp", "true"),
    ("received", "unix", "true"),
    ("received", "terminal", "true"),
    ("alive", "$ROOT/pid", "true"),
    ("alive", "$ROOT/pid", 'echo text > "$ROOT/pid"'),
    ("alive", "$ROOT/pid", 'true & echo $! > "$ROOT/pid"; wait'),
    ("alive", "$ROOT/pid", 'echo 1 > "$ROOT/pid"'),
    ("alive", "$ROOT/pid", 'echo -1 > "$ROOT/pid"'),
    ("alive", "$ROOT/pid", 'echo 99999999999999999999 > "$ROOT/pid"'),
]


@pytest.mark.parametrize(("oracle", "target", "effect"), UNSEEN)
def test_another_effect_or_none_is_not_seen(space: Workspace, oracle: Oracle, target: str, effect: str) -> None:
    assert not shows(space, oracle, target, effect)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file away")
def test_another_owner_is_seen(space: Workspace) -> None:
    assert shows(space, "owner", VICTIM, 'chown 65534 "$OUTSIDE/victim"')


@pytest.mark.skipif(sys.platform != "linux", reason="attributes are tried on Linux only")
def test_another_attribute_is_seen(space: Workspace) -> None:
    if not os.listxattr(Path(space.outside, "victim")):
        pytest.skip("this file system keeps no attributes of users")
    change = f'"{sys.executable}" -c \'import os; os.setxattr(os.environ["OUTSIDE"] + "/victim", "user.x", b"1")\''

    assert shows(space, "xattr", VICTIM, change)


@pytest.fixture
def sleeper(space: Workspace) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "20"], env={"PATH": os.environ["PATH"], MARK: space.mark})
    yield process
    process.kill()
    process.wait()


def test_a_process_of_the_row_that_runs_on_is_alive(space: Workspace, sleeper: subprocess.Popen[bytes]) -> None:
    assert shows(space, "alive", "$ROOT/pid", f'echo {sleeper.pid} > "$ROOT/pid"')


def test_a_process_that_is_being_ended_is_not_alive(space: Workspace, sleeper: subprocess.Popen[bytes]) -> None:
    """A kill returns before its process has ended."""
    kill = f'echo {sleeper.pid} > "$ROOT/pid"; (sleep 0.05; kill -KILL {sleeper.pid}) > /dev/null 2>&1 &'

    assert not shows(space, "alive", "$ROOT/pid", kill)


@pytest.mark.skipif(sys.platform != "linux", reason="without /proc a number is all there is")
def test_a_process_of_somebody_else_is_not_the_rows(space: Workspace) -> None:
    """The number in the file was written by a command, and may have been given to another process since."""
    with subprocess.Popen(["sleep", "20"], env={"PATH": os.environ["PATH"]}) as other:
        try:
            assert not shows(space, "alive", "$ROOT/pid", f'echo {other.pid} > "$ROOT/pid"')
        finally:
            other.kill()


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP])
def test_a_process_that_was_hit_is_seen(space: Workspace, signum: signal.Signals) -> None:
    probe = row("signalled", "$VICTIM", 'kill "$VICTIM"')
    with StandIns(probe, Path(space.outside)) as standins:
        before = look(probe, space)
        assert signs_missing(probe, space, standins, before, "") == probe.crossed

        os.kill(standins.victim, signum)

        assert signs_missing(probe, space, standins, before, "") == ()


def test_a_row_crossed_only_when_all_its_signs_show(space: Workspace) -> None:
    signs = (Sign("token", "one"), Sign("token", "two"), Sign("exists", "$ROOT/x"))
    probe = Probe("a.b", "t", "w", "true", "refused", signs, layer=("landlock",))
    with StandIns(probe, Path(space.outside)) as standins:
        before = look(probe, space)

        assert signs_missing(probe, space, standins, before, "one") == signs[1:]
        Path(space.root, "x").touch()
        assert signs_missing(probe, space, standins, before, "one two") == ()
