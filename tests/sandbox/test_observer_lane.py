"""The observer outside, what it observes in mount and PID namespaces of its own: made by bubblewrap, by hand."""

from __future__ import annotations

import array
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import wisp
from wisp.outcome import Operation
from wisp.sandbox.bwrap import find_bwrap, why_no_namespaces
from wisp.sandbox.confinement import Confinement
from wisp.sandbox.observer import Observation, Observer

pytestmark = pytest.mark.linux

BOUND = 20.0

#: Gives up new privileges, installs the filter, hands the listener over, and becomes the command.
HELPER = """
import os, socket, sys
sys.path.insert(0, sys.argv[1])
from wisp.sandbox import syscalls
from wisp.sandbox.notify import install_with_listener
from wisp.sandbox.observer_filter import build_observer_filter
control = socket.socket(fileno=int(sys.argv[2]))
syscalls.set_no_new_privs()
listener = install_with_listener(build_observer_filter(syscalls.numbers(), network=True))
socket.send_fds(control, [b"k"], [listener])
os.close(listener)
control.recv(1)
os.execv("/bin/sh", ["sh", "-c", sys.argv[3]])
"""

Run = Callable[..., tuple[str, Observation]]


@pytest.fixture
def ground(tmp_path: Path) -> Path:
    """Return a directory with a root in it, and things beside the root."""
    ground = tmp_path.resolve()
    for name in ("root", "outside/full"):
        (ground / name).mkdir(parents=True)
    (ground / "outside" / "file").write_text("kept")
    return ground


@pytest.fixture
def run(ground: Path) -> Run:
    why = why_no_namespaces()
    if why:
        pytest.skip(why)

    def run(line: str) -> tuple[str, Observation]:
        bwrap = find_bwrap()
        assert bwrap is not None
        root = str(ground / "root")
        ours, theirs = socket.socketpair()
        with ours, theirs:
            os.set_inheritable(theirs.fileno(), True)
            place = os.path.dirname(os.path.dirname(wisp.__file__))
            process = subprocess.Popen(
                [
                    bwrap, *(["--unshare-user"] if os.geteuid() else []), "--unshare-pid", "--die-with-parent",
                    "--ro-bind", "/", "/", "--bind", root, root, "--proc", "/proc", "--dev", "/dev", "--chdir", root,
                    sys.executable, "-I", "-B", "-c", HELPER, place, str(theirs.fileno()), f"OUT={ground}/outside; {line}",
                ],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, pass_fds=(theirs.fileno(),),
            )  # fmt: skip
            theirs.close()
            ours.settimeout(BOUND)
            said, descriptors, _flags, _address = socket.recv_fds(ours, 1, 1)
            if not said:
                pytest.fail(process.communicate()[0].decode())
            assert array.array("i", descriptors)
            observer = Observer(descriptors[0], Confinement((root,)))
            ours.send(b"g")
            try:
                output, _nothing = process.communicate(timeout=BOUND)
            finally:
                process.kill()
                taken = observer.take()
                observer.close()
        return output.decode(), taken

    return run


PATHS: list[tuple[str, Operation, str]] = [
    ("echo x > $OUT/new", "create", "new"),
    ("cd $OUT && echo x > new", "create", "new"),
    ("cd $OUT/full && chmod 700 ../file", "mode", "file"),
    ("ln -s $OUT way && touch way/file", "write", "file"),
    ("cd $OUT && touch -c -h /proc/self/cwd/file", "times", "file"),
    ("exec 3< $OUT/file; echo x > /dev/fd/3", "write", "file"),
    ("cd $OUT && rm file", "remove", "file"),
]


@pytest.mark.parametrize(("line", "operation", "entry"), PATHS)
def test_the_path_is_the_host_s_and_the_error_not_the_mount_s(
    run: Run, ground: Path, line: str, operation: Operation, entry: str
) -> None:
    output, taken = run(line)
    assert [(one.operation, one.target) for one in taken.denials][:1] == [(operation, f"{ground}/outside/{entry}")]
    assert taken.denials[0].program in {"sh", "chmod", "touch", "rm"}
    assert taken.lost == 0
    assert "not permitted" in output
    assert "Read-only" not in output


def test_inside_the_root_and_in_its_own_trees_everything_goes_on(run: Run, ground: Path) -> None:
    output, taken = run(
        "mkdir d && cd d && echo x > f && mv f g && chmod 600 g && echo x > /dev/null && echo x > /dev/shm/a && "
        "echo renamed > /proc/self/comm && echo x > /proc/$$/cwd/h && echo fine"
    )
    assert output == "fine\n"
    assert taken == Observation()
    assert (ground / "root" / "d" / "h").read_text() == "x\n"


def test_a_number_of_its_own_process_says_nothing_outside(run: Run, ground: Path) -> None:
    """Here the same number is another process, or none: the mount answers."""
    output, taken = run("cd $OUT; echo x > /proc/$$/cwd/new")
    assert "Read-only" in output
    assert taken == Observation()


def test_a_signal_to_a_process_outside_is_refused_and_one_to_its_own_arrives(run: Run, ground: Path) -> None:
    victim = subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE)
    try:
        if victim.pid < 1000:
            pytest.skip("this machine's numbers are as low as those inside")
        output, taken = run(
            f"sleep 60 & kill $! && wait $!; kill $! ; kill -TERM {victim.pid} || kill -TERM -{victim.pid}; kill 999999999"
        )
        assert victim.poll() is None
    finally:
        victim.communicate()
    assert [(one.operation, one.target, one.call) for one in taken.denials] == [
        ("signal", str(victim.pid), "kill"),
        ("signal", str(-victim.pid), "kill"),
    ]
    assert output.count("No such process") == 2
    assert output.count("not permitted") == 2
