"""The layers of the Landlock backend on the real kernel: each refusal beside the same action allowed."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from wisp.errors import SandboxUnavailable
from wisp.runner import Runner
from wisp.sandbox import privileges, syscalls
from wisp.sandbox.confinement import Confinement
from wisp.sandbox.landlock import LandlockBackend
from wisp.sandbox.seccomp import build_filter

pytestmark = [pytest.mark.linux, pytest.mark.wisp_requires("landlock")]

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has capabilities to lose")


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[Runner]:
    with Runner(Confinement(roots=(str(tmp_path),), network=False), backend=LandlockBackend(), audit=False) as made:
        yield made


@pytest.fixture
def free(tmp_path: Path) -> Iterator[Runner]:
    with Runner(Confinement(roots=(str(tmp_path),)), backend="none", audit=False) as made:
        yield made


def status_of(pid: int | str = "self") -> dict[str, str]:
    text = Path(f"/proc/{pid}/status").read_text()
    return dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)


def test_the_embedding_process_is_not_confined(runner: Runner, wisp_outside: Path) -> None:
    before = {name: status_of()[name] for name in ("NoNewPrivs", "Seccomp", "CapEff", "CapBnd")}

    assert runner.run(f"touch {wisp_outside}/by-command").exit_status != 0
    (wisp_outside / "by-wisp").touch()
    threading.Thread(target=(wisp_outside / "by-thread").touch).run()
    socket.socket(socket.AF_INET).close()

    assert {name: status_of()[name] for name in before} == before


def test_a_command_has_no_new_privileges_and_a_filter(runner: Runner, free: Runner) -> None:
    line = "grep -E '^(NoNewPrivs|Seccomp):' /proc/self/status"

    assert runner.run(line).stdout == "NoNewPrivs:\t1\nSeccomp:\t2\n"
    assert free.run(line).stdout == f"NoNewPrivs:\t{status_of()['NoNewPrivs']}\nSeccomp:\t{status_of()['Seccomp']}\n"


@as_root
def test_root_keeps_only_what_work_on_files_needs(runner: Runner, free: Runner) -> None:
    line = "grep -E '^Cap(Inh|Prm|Eff|Bnd|Amb):' /proc/self/status | cut -f2 | sort -u"

    assert runner.run(line).stdout.split() == ["0000000000000000", "00000000000000fb"]
    assert "00000000000000fb" not in free.run(line).stdout


@as_root
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is missing")
def test_root_without_the_right_to_mount_may_not_change_what_is_not_its_own(tmp_path: Path, wisp_outside: Path) -> None:
    """As in a container: the five capabilities that pass over modes and owners are gone too."""
    theirs = wisp_outside / "theirs"
    theirs.touch()
    os.chown(theirs, 65534, 65534)
    theirs.chmod(0o644)
    line = f"grep CapEff: /proc/self/status; chmod 600 {theirs}; chown 0:0 {theirs}; echo $?; cat {theirs} && echo read"
    program = (
        "import sys\nfrom wisp import Runner, Confinement\n"
        f"r = Runner(Confinement(roots=({str(tmp_path)!r},)), backend='landlock', audit=False)\n"
        f"print(r.run({line!r}).stdout)"
    )

    done = subprocess.run(
        ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin", sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
    )

    effective = int(done.stdout.split()[1], 16)
    kept = sum(1 << number for number in privileges.KEPT_WITHOUT_MOUNT)
    assert effective == kept
    assert done.stdout.split()[2:] == ["1", "read"]
    assert theirs.stat().st_uid == 65534
    assert theirs.stat().st_mode & 0o777 == 0o644


def test_with_the_network_off_only_unix_sockets_are_made(runner: Runner, free: Runner) -> None:
    families = {"AF_INET": 2, "AF_INET6": 10, "AF_PACKET": 17, "AF_NETLINK": 16, "AF_UNIX": 1}
    program = (
        "import socket\n"
        f"for name, number in {families!r}.items():\n"
        "    kind = socket.SOCK_DGRAM\n"
        "    try: socket.socket(number, kind).close(); print(name, 'made')\n"
        "    except OSError as e: print(name, e.errno)\n"
    )

    confined = dict(line.split() for line in runner.run_argv([sys.executable, "-c", program]).stdout.splitlines())
    control = dict(line.split() for line in free.run_argv([sys.executable, "-c", program]).stdout.splitlines())

    assert confined == {name: "made" if name == "AF_UNIX" else str(errno.EPERM) for name in families}
    assert control["AF_INET"] == control["AF_UNIX"] == "made"


def test_with_the_network_on_sockets_are_made(tmp_path: Path) -> None:
    with Runner(Confinement(roots=(str(tmp_path),), network=True), backend="landlock", audit=False) as runner:
        outcome = runner.run_argv([sys.executable, "-c", "import socket; socket.socket().close()"])

    assert outcome.exit_status == 0, outcome.stderr


@pytest.mark.skipif(
    platform.machine() != "x86_64" or shutil.which("cc") is None, reason="needs x86-64 and a C compiler"
)
def test_a_call_through_the_i386_interface_kills_the_program(runner: Runner, free: Runner, tmp_path: Path) -> None:
    """`int 0x80` reaches other numbers than the filter knows: the audit architecture gives it away."""
    (tmp_path / "i386.c").write_text(
        'int main(void){long r;__asm__ volatile("int $0x80":"=a"(r):"a"(20):"memory");return r>0?0:3;}\n'
    )
    subprocess.run(["cc", "-o", "i386", "i386.c"], cwd=tmp_path, check=True)
    control = free.run("./i386", cwd=tmp_path)
    if control.exit_status != 0:
        pytest.skip(f"this kernel has no i386 interface (exit status {control.exit_status})")

    assert runner.run("exec ./i386", cwd=tmp_path).exit_status == -signal.SIGSYS


def test_a_device_ioctl_outside_the_allowed_nodes_is_refused(runner: Runner, free: Runner) -> None:
    if runner.capability.holds("confine.device-ioctl") is False:
        pytest.skip("this kernel's Landlock does not govern it")
    program = (
        "import fcntl, array\n"
        "f = open('/dev/random', 'rb')\n"
        "fcntl.ioctl(f, 0x80045200, array.array('i', [0]))\n"  # RNDGETENTCNT reads a number
    )
    confined, control = (one.run_argv([sys.executable, "-c", program]) for one in (runner, free))

    assert control.exit_status == 0, control.stderr
    assert confined.exit_status != 0
    assert "PermissionError" in confined.stderr


def test_below_interface_3_nothing_runs(tmp_path: Path) -> None:
    for abi in (1, 2):
        backend = LandlockBackend(abi=abi)
        assert backend.capability().tier is None
        assert backend.capability().layers[0].state == "too-old"
        with pytest.raises(SandboxUnavailable, match=f"version {abi}"):
            backend.prepare(Confinement(roots=(str(tmp_path),)))


@pytest.mark.parametrize("abi", [3, 4, 5, 6, 7])
def test_an_older_interface_holds_what_it_has_and_declares_the_rest(
    abi: int, tmp_path: Path, wisp_outside: Path
) -> None:
    backend = LandlockBackend(abi=abi)
    found = backend.capability()
    limits = {limit.name for limit in found.limits}

    assert found.tier == "B"
    assert found.holds("confine.device-ioctl") is (abi >= 5) is ("confine.device-ioctl" not in limits)
    assert found.holds("confine.signals") is (abi >= 6) is ("confine.signals" not in limits)
    with Runner(Confinement(roots=(str(tmp_path),)), backend=backend, audit=False) as runner:
        assert runner.run(f"touch {wisp_outside}/x").exit_status != 0
        assert runner.run(f"touch {tmp_path}/x").exit_status == 0
        assert bool(runner.run("sleep 20 >/dev/null 2>&1 & exit 0").left_behind) is (abi < 6)


def _with_landlock_answer(number: int, program: str) -> subprocess.CompletedProcess[str]:
    """Run Python under a filter that answers every Landlock call with an errno, as older kernels do."""
    import struct

    table = syscalls.numbers()
    assert table is not None
    filter_code = struct.pack("<HBBI", 0x20, 0, 0, 0)  # load the call's number
    filter_code += struct.pack("<HBBI", 0x35, 0, 2, 444) + struct.pack("<HBBI", 0x35, 1, 0, 447)
    filter_code += struct.pack("<HBBI", 0x06, 0, 0, 0x50000 | number) + struct.pack("<HBBI", 0x06, 0, 0, 0x7FFF0000)
    prelude = (
        "from wisp.sandbox import syscalls\nsyscalls.set_no_new_privs()\n"
        f"syscalls.install_filter(bytes.fromhex({filter_code.hex()!r}))\n"
    )
    return subprocess.run([sys.executable, "-c", prelude + program], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("number", "state", "advice"),
    [
        (errno.ENOSYS, "not-built", "built without Landlock"),
        (errno.EOPNOTSUPP, "not-enabled", "switched off"),
        (errno.EPERM, "refused", "outer sandbox or container filter"),
    ],
)
def test_why_there_is_no_landlock_is_told_apart(number: int, state: str, advice: str) -> None:
    program = (
        "from wisp import capability, Runner, Confinement, SandboxUnavailable\n"
        "c = capability('landlock'); print(c.tier, c.layers[0].state)\n"
        "try: Runner(Confinement(), backend='landlock', audit=False).run('echo ran')\n"
        "except SandboxUnavailable as e: print(e)\n"
    )

    done = _with_landlock_answer(number, program)

    assert done.stderr == ""
    assert done.stdout.startswith(f"None {state}\n")
    assert advice in done.stdout
    assert "ran" not in done.stdout.splitlines()


def test_sandboxes_nest_until_the_kernel_says_no_and_then_nothing_runs(tmp_path: Path) -> None:
    """The sixteenth domain is the last: the seventeenth fails closed, and is called nested."""
    program = (
        "import sys\nfrom wisp import Runner, Confinement, SandboxUnavailable\n"
        f"depth = int(sys.argv[1])\nr = Runner(Confinement(roots=({str(tmp_path)!r},)), backend='landlock', audit=False)\n"
        "try: o = r.run_argv([sys.executable, sys.argv[2], str(depth + 1), sys.argv[2]], timeout=60)\n"
        "except SandboxUnavailable as e: print(depth, e); sys.exit(0)\n"
        "print(o.stdout, o.stderr, end='')\n"
    )
    script = tmp_path / "nest.py"
    script.write_text(program)

    done = subprocess.run([sys.executable, script, "0", script], capture_output=True, text=True, check=True)

    depth, _, reason = done.stdout.partition(" ")
    assert int(depth) <= 16
    assert "nested" in reason


def test_a_replaced_root_is_not_followed(tmp_path: Path, wisp_outside: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    with Runner(Confinement(roots=(str(root),)), backend="landlock", audit=False) as runner:
        assert runner.run(f"touch {root}/one", cwd="/").exit_status == 0
        root.rename(tmp_path / "aside")
        root.symlink_to(wisp_outside)
        with pytest.raises(SandboxUnavailable, match="no longer the directory"):
            runner.run(f"touch {root}/two", cwd="/")
        root.unlink()
        root.mkdir()
        assert runner.run(f"touch {root}/three && echo no > {tmp_path}/aside/four", cwd="/").exit_status != 0

    assert sorted(path.name for path in root.iterdir()) == ["three"]
    assert sorted(path.name for path in (tmp_path / "aside").iterdir()) == ["one"]
    assert not list(wisp_outside.iterdir())


def test_a_root_whose_parent_became_a_link_is_not_followed(tmp_path: Path, wisp_outside: Path) -> None:
    (tmp_path / "parent/root").mkdir(parents=True)
    (wisp_outside / "root").mkdir()
    runner = Runner(Confinement(roots=(str(tmp_path / "parent/root"),)), backend="landlock", audit=False)
    (tmp_path / "parent").rename(tmp_path / "aside")
    (tmp_path / "parent").symlink_to(wisp_outside)

    with runner, pytest.raises(SandboxUnavailable, match="now leads to"):
        runner.run("touch x", cwd=tmp_path / "parent/root")


def test_a_protected_path_inside_a_root_does_not_run(tmp_path: Path) -> None:
    confinement = Confinement(roots=(str(tmp_path),), protected=(str(tmp_path / "guarded"),))

    with Runner(confinement, backend="landlock", audit=False) as runner, pytest.raises(SandboxUnavailable) as caught:
        runner.run(":")

    assert str(tmp_path / "guarded") in caught.value.reason


def test_wisps_home_inside_a_root_does_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WISP_HOME", str(tmp_path / "state"))

    confinement = Confinement(roots=(str(tmp_path),))
    with (
        Runner(confinement, backend="landlock", audit=False) as runner,
        pytest.raises(SandboxUnavailable, match="WISP_HOME"),
    ):
        runner.run("touch ran")

    assert not (tmp_path / "ran").exists()


def test_the_filter_is_installed_on_one_thread_only() -> None:
    table = syscalls.numbers()
    assert table is not None
    seen: list[str] = []

    def work() -> None:
        syscalls.set_no_new_privs()
        syscalls.install_filter(build_filter(table, network=False))
        try:
            socket.socket(socket.AF_INET)
        except PermissionError:
            seen.append("refused")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

    socket.socket(socket.AF_INET).close()
    assert seen == ["refused"]


def test_a_slot_cannot_signal_or_read_the_memory_of_an_outsider(runner: Runner, free: Runner) -> None:
    victim = subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE)
    try:
        line = f"kill -0 {victim.pid}"
        assert free.run(line).exit_status == 0
        assert runner.run(line).exit_status != 0
        read = f"head -c1 /proc/{victim.pid}/environ >/dev/null"
        assert free.run(read).exit_status == 0
        assert runner.run(read).exit_status != 0
    finally:
        assert victim.stdin is not None
        victim.stdin.close()
        victim.wait()


def test_the_canary_of_the_scope_leaves_no_child_behind(tmp_path: Path) -> None:
    program = (
        "import os\nfrom wisp import Runner, Confinement\n"
        f"r = Runner(Confinement(roots=({str(tmp_path)!r},)), backend='landlock', audit=False)\n"
        "r.run('sleep 20 & exit 0')\n"
        "try: print(os.waitpid(-1, os.WNOHANG))\nexcept ChildProcessError: print('none')\n"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout == "none\n"


def test_raw_calls_raise_with_the_kernels_errno() -> None:
    with pytest.raises(OSError) as caught:
        syscalls.restrict_self(-1)
    assert caught.value.errno in {errno.EBADF, errno.EPERM}
    with pytest.raises(OSError):
        syscalls.create_ruleset(0, 0, abi=7)
    assert ctypes.get_errno() >= 0
