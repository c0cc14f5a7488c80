"""What rows act on instead of the person's own things."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from wisp.probing.probe import Probe, Sign
from wisp.probing.standins import StandIns, mentions


def row(run: str, *received: str, layer: tuple[str, ...] = ("seccomp",)) -> Probe:
    signs = tuple(Sign("received", name) for name in received) or (Sign("token", "x"),)
    return Probe("a.b", "t", "w", run, "refused", signs, layer=layer)


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    (tmp_path / "victim").write_text("victim\n")
    return tmp_path


@pytest.mark.parametrize("run", ['kill "$VICTIM"', "${VICTIM}", 'os.environ["VICTIM"]', "os.environ['VICTIM']"])
def test_a_command_names_a_variable_in_sh_or_in_python(run: str) -> None:
    assert mentions(row(run), "VICTIM")


@pytest.mark.parametrize("run", ["echo victim", "VICTIM=1", "$OUTSIDE/victim"])
def test_a_command_that_only_looks_like_it_names_none(run: str) -> None:
    assert not mentions(row(run), "VICTIM")


def test_a_row_gets_only_what_it_names(outside: Path) -> None:
    with StandIns(row("true"), outside) as standins:
        assert dict(standins.variables()) == {"PORT": "0", "VICTIM": "0"}
        assert standins.kept is None
        assert sorted(path.name for path in outside.iterdir()) == ["victim"]
        assert [standins.received(name) for name in ("tcp", "udp", "unix", "abstract", "terminal")] == [False] * 5
        assert not standins.signalled()


def test_one_port_takes_connections_and_datagrams(outside: Path) -> None:
    with StandIns(row("true", "tcp", "udp"), outside) as standins:
        address = "127.0.0.1", standins.port
        assert not standins.received("tcp")
        assert not standins.received("udp")

        socket.create_connection(address, 5).close()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
            one.sendto(b"x", address)

        assert standins.received("tcp")
        assert standins.received("udp")


def test_a_unix_socket_and_a_terminal_take_what_reaches_them(outside: Path) -> None:
    with StandIns(row("true", "unix", "terminal"), outside) as standins:
        assert not standins.received("unix")
        assert not standins.received("terminal")

        with socket.socket(socket.AF_UNIX) as one:
            one.connect(str(outside / "socket"))
        with (outside / "terminal").open("w") as terminal:
            terminal.write("x")

        assert standins.received("unix")
        assert standins.received("terminal")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has abstract names")
def test_an_abstract_socket_is_named_by_the_port(outside: Path) -> None:
    with StandIns(row('f"\\0wisp-probe-{os.environ["PORT"]}"', "abstract"), outside) as standins:
        assert not standins.received("abstract")

        with socket.socket(socket.AF_UNIX) as one:
            one.connect(f"\0wisp-probe-{standins.port}")

        assert standins.received("abstract")


def test_two_rows_at_once_have_ports_of_their_own(outside: Path) -> None:
    with StandIns(row("$PORT"), outside) as one, StandIns(row("$PORT"), outside) as two:
        assert one.port != two.port


def test_the_victim_is_in_this_session_and_ends_with_the_context(outside: Path) -> None:
    with StandIns(row("$VICTIM"), outside) as standins:
        assert os.getsid(standins.victim) == os.getsid(0)
        assert os.getpgid(standins.victim) != os.getpgid(0)
        os.kill(standins.victim, 0)
        pid = standins.victim

    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_stopped_victim_ends_as_well(outside: Path) -> None:
    with StandIns(row("$VICTIM"), outside) as standins:
        os.kill(standins.victim, signal.SIGSTOP)
        pid = standins.victim

    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_victim_ends_when_its_runner_is_killed(tmp_path: Path) -> None:
    (tmp_path / "victim").touch()
    program = """
import sys, time
from pathlib import Path
from wisp.probing.probe import Probe, Sign
from wisp.probing.standins import StandIns
row = Probe("a.b", "t", "w", "$VICTIM", "refused", (Sign("token", "x"),), layer=("seccomp",))
standins = StandIns(row, Path(sys.argv[1]))
print(standins.victim, flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True) as runner:
        assert runner.stdout is not None
        victim = int(runner.stdout.readline())
        os.kill(victim, 0)
        runner.kill()

    for _ in range(200):
        try:
            state = Path(f"/proc/{victim}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):  # the second when it ends between open and read
            break
        if state == "Z":
            break
        time.sleep(0.01)
    else:
        pytest.fail("the victim outlived its runner")


def test_a_row_about_descriptors_gets_one_that_children_would_inherit(outside: Path) -> None:
    with StandIns(row("true", layer=("descriptors",)), outside) as standins:
        assert standins.kept is not None
        assert os.get_inheritable(standins.kept)
        assert os.path.sameopenfile(standins.kept, os.open(outside / "victim", os.O_RDONLY | os.O_CLOEXEC))
