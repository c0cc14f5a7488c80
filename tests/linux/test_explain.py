"""`sandbox.observe` on the real kernel: what a command was refused is listed, under each backend, and nothing else is."""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from wisp.config import SandboxSettings, Settings
from wisp.errors import UsageError
from wisp.outcome import Outcome
from wisp.runner import Runner
from wisp.sandbox.confinement import Confinement

pytestmark = pytest.mark.linux

BACKENDS = [
    pytest.param("bubblewrap", marks=pytest.mark.wisp_requires("namespaces")),
    pytest.param("landlock", marks=pytest.mark.wisp_requires("landlock")),
]
BOUND = 30.0


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    for name in ("root", "outside"):
        (tmp_path / name).mkdir()
    return tmp_path / "root", tmp_path / "outside"


@pytest.fixture(params=BACKENDS)
def runner(request: pytest.FixtureRequest, places: tuple[Path, Path]) -> Iterator[Runner]:
    with make(request.param, places[0]) as made:
        yield made


def make(backend: str, root: Path, *, network: bool = True, observe: bool | None = True) -> Runner:
    confinement = Confinement((str(root),), network=network)
    made = Runner(confinement, backend=backend, settings=Settings(), audit=False, observe=observe)
    made.directory = str(root)
    return made


def told(outcome: Outcome) -> list[tuple[str, str, str]]:
    return [(one.operation, one.target, one.program) for one in outcome.denials]


def test_each_command_has_its_own_list_and_what_is_allowed_is_not_on_it(
    runner: Runner, places: tuple[Path, Path]
) -> None:
    root, outside = places
    first = runner.run(f"touch {outside}/one; touch inside; echo x >/dev/null")
    second = runner.run(f"mkdir {outside}/two 2>/dev/null; chmod 700 inside; true")
    third = runner.run("true")
    assert told(first) == [("create", f"{outside}/one", "touch")]
    assert told(second) == [("create", f"{outside}/two", "mkdir")]
    assert (third.denials, third.denials_lost) == ((), 0)
    assert (root / "inside").exists()
    assert list(outside.iterdir()) == []


def test_denials_behind_exit_status_0_and_in_daemons_are_listed(runner: Runner, places: tuple[Path, Path]) -> None:
    _root, outside = places
    (outside / "old").touch()
    ran = runner.run(
        f"chmod 600 {outside}/old 2>/dev/null; touch -d @5 {outside}/old 2>/dev/null; rm -f {outside}/old 2>/dev/null; "
        f"setsid sh -c 'mv {outside}/old {outside}/new; echo >done' 2>/dev/null & until [ -e done ]; do sleep 0.01; done"
    )
    assert ran.exit_status == 0
    operations = {one.operation for one in ran.denials}
    assert {"mode", "remove", "rename"} <= operations
    assert operations & {"times", "write"}
    assert all(one.target.startswith(str(outside)) for one in ran.denials)
    assert (outside / "old").exists()


def test_the_error_is_the_one_that_seatbelt_gives(runner: Runner, places: tuple[Path, Path]) -> None:
    ran = runner.run(f"touch {places[1]}/new")
    assert "Operation not permitted" in ran.stderr
    assert ran.refusal is not None
    assert (ran.refusal.verdict, ran.refusal.paths) == ("refused", (f"{places[1]}/new",))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_socket_without_a_network_is_listed_and_refused(backend: str, places: tuple[Path, Path]) -> None:
    words = [sys.executable, "-I", "-S", "-c", "import socket; socket.socket()"]
    with make(backend, places[0], network=False) as off, make(backend, places[0]) as on:
        refused = off.run_argv(words)
        allowed = on.run_argv(words)
    assert "Operation not permitted" in refused.stderr
    assert [(one.operation, one.target) for one in refused.denials] == [("socket", "inet/stream")]
    assert (allowed.exit_status, allowed.denials) == (0, ())


@pytest.mark.parametrize("backend", BACKENDS)
def test_without_the_observer_nothing_is_listed_and_the_barrier_is_the_same(
    backend: str, places: tuple[Path, Path]
) -> None:
    with make(backend, places[0], observe=None) as plain:
        ran = plain.run(f"touch {places[1]}/new")
    assert (ran.exit_status, ran.denials, ran.denials_lost) == (1, (), 0)
    assert list(places[1].iterdir()) == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_configuration_switches_it_on(backend: str, places: tuple[Path, Path]) -> None:
    settings = Settings(sandbox=SandboxSettings(observe=True))
    confinement = Confinement((str(places[0]),))
    with Runner(confinement, backend=backend, settings=settings, audit=False) as runner:
        assert told(runner.run(f"touch {places[1]}/new")) == [("create", f"{places[1]}/new", "touch")]


def test_no_sandbox_cannot_be_observed(places: tuple[Path, Path]) -> None:
    with pytest.raises(UsageError, match="the backend none cannot observe"):
        make("none", places[0])


def test_what_is_too_much_to_keep_is_counted(runner: Runner, places: tuple[Path, Path]) -> None:
    ran = runner.run(f"i=0; while [ $i -lt 400 ]; do echo >{places[1]}/$i; i=$((i+1)); done 2>/dev/null; true")
    assert len(ran.denials) + ran.denials_lost == 400
    assert ran.denials_lost > 0


def test_a_time_out_and_a_killed_command_end_in_good_order(runner: Runner, places: tuple[Path, Path]) -> None:
    timed_out = runner.run(f"touch {places[1]}/new 2>/dev/null; setsid sleep 60 & sleep 60", timeout=0.3)
    assert (timed_out.timed_out, timed_out.left_behind) == (True, "")
    assert told(timed_out) == [("create", f"{places[1]}/new", "touch")]
    assert runner.run("kill -9 $$").exit_status == -9
    assert runner.run("echo on").stdout == "on\n"


def test_observed_commands_run_side_by_side(runner: Runner, places: tuple[Path, Path]) -> None:
    found: dict[int, list[tuple[str, str, str]]] = {}

    def run(number: int) -> None:
        found[number] = told(runner.run(f"touch {places[1]}/{number} 2>/dev/null; sleep 0.1", timeout=BOUND))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(6)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert found == {number: [("create", f"{places[1]}/{number}", "touch")] for number in range(6)}


def test_closing_leaves_no_thread_and_no_descriptor(places: tuple[Path, Path]) -> None:
    before = len(os.listdir("/proc/self/fd")), threading.active_count()
    for backend in ("bubblewrap", "landlock"):
        with make(backend, places[0]) as runner:
            runner.run(f"touch {places[1]}/new")
    for _ in range(200):  # a slot's observer ends when the kernel has told it that the thread has
        now = len(os.listdir("/proc/self/fd")), threading.active_count()
        if now <= before:
            return
        threading.Event().wait(0.05)
    raise AssertionError((before, now))


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_ordinary_work_is_not_disturbed(runner: Runner, places: tuple[Path, Path]) -> None:
    line = (
        "git init -q r && cd r && echo x >f && git add f && git -c user.name=a -c user.email=a@invalid commit -qm m && "
        "cd .. && git clone -q --no-hardlinks r s && cp -a s t && rm -rf s && mv t u && ls u"
    )
    ran = runner.run(line, env={"PATH": os.environ["PATH"], "HOME": str(places[0])}, timeout=BOUND)
    assert (ran.exit_status, ran.stdout, ran.denials) == (0, "f\n", ())
