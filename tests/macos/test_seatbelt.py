"""Seatbelt, on a real Mac. `tox -e macos` turns the skips of a machine without it into errors.

The backend was written from published facts; here each of them that the profile rests on is asked of the kernel.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from wisp.errors import LaunchFailed
from wisp.sandbox.confinement import Confinement
from wisp.sandbox.launch import environment_of, launch
from wisp.sandbox.seatbelt import SeatbeltBackend
from wisp.sandbox.streams import Streams
from wisp.sandbox.tail import Tail

if TYPE_CHECKING:
    from wisp import Runner

pytestmark = [pytest.mark.macos, pytest.mark.wisp_requires("seatbelt")]

REFUSED = os.strerror(errno.EPERM)


@dataclass(frozen=True)
class Ran:
    status: int
    out: str
    err: str


Run = Callable[[Confinement, "str | list[str]"], Ran]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path.resolve() / "root"
    made.mkdir()
    return made


@pytest.fixture
def run(root: Path) -> Run:
    """Run one command in `root` under a confinement."""

    def run(confinement: Confinement, argv: str | list[str]) -> Ran:
        out, err = Tail(1 << 16), Tail(1 << 16)
        enforcer = SeatbeltBackend().prepare(confinement)
        try:
            finished = launch(
                enforcer,
                ["/bin/sh", "-c", argv] if isinstance(argv, str) else argv,
                str(root),
                environment_of(None),
                Streams(out.feed, err.feed, None),
                timeout=60,
                stop=None,
                announce=lambda: None,
            )
        finally:
            enforcer.close()
        return Ran(finished.exit_status, out.text(), err.text())

    return run


def test_a_write_outside_every_root_is_refused_and_one_inside_is_not(wisp_runner: Runner, wisp_outside: Path) -> None:
    inside = wisp_runner.run("touch inside && rm inside")
    outside = wisp_runner.run(f"touch '{wisp_outside}/probe'")

    assert inside.exit_status == 0
    assert outside.exit_status != 0
    assert not (wisp_outside / "probe").exists()


def test_all_that_must_be_refused_is() -> None:
    capability = SeatbeltBackend().capability()

    assert (capability.tier, capability.reason) == ("A", "")


@pytest.mark.parametrize(
    "line", ["touch {}", "chmod 600 {}", "xattr -w wisp.test x {}", "chflags hidden {}", "mv {} {}2", "rm {}", ": >>{}"]
)
def test_a_file_outside_is_changed_in_no_way(run: Run, root: Path, wisp_outside: Path, line: str) -> None:
    (root / "file").write_text("")
    (wisp_outside / "file").write_text("")
    confinement = Confinement(roots=(str(root),))

    inside = run(confinement, line.replace("{}", f"'{root}'/file"))
    outside = run(confinement, line.replace("{}", f"'{wisp_outside}'/file"))

    assert (inside.status, inside.err) == (0, "")
    assert outside.status != 0
    assert REFUSED in outside.err


def test_a_file_outside_cannot_be_linked_into_a_root_and_one_inside_can(
    run: Run, root: Path, wisp_outside: Path
) -> None:
    (root / "file").write_text("")
    (wisp_outside / "file").write_text("")
    confinement = Confinement(roots=(str(root),))

    assert run(confinement, "ln file own").status == 0
    assert run(confinement, f"ln '{wisp_outside}/file' theirs").status != 0
    assert not (root / "theirs").exists()


def test_a_clone_may_be_made_of_what_can_be_read_and_only_inside(run: Run, root: Path, wisp_outside: Path) -> None:
    (wisp_outside / "file").write_text("text")
    confinement = Confinement(roots=(str(root),))

    assert run(confinement, f"cp -c '{wisp_outside}/file' copy").status == 0
    assert run(confinement, f"cp -c copy '{wisp_outside}/copy'").status != 0
    assert not (wisp_outside / "copy").exists()


def test_no_command_makes_a_program_that_runs_as_its_owner(run: Run, root: Path) -> None:
    (root / "program").write_text("")
    confinement = Confinement(roots=(str(root),))

    assert run(confinement, "chmod 755 program").status == 0
    assert run(confinement, "chmod 4755 program").status != 0


@pytest.mark.parametrize(
    "line",
    [
        "touch a/b/guarded/x",
        "rmdir a/b/guarded",
        "mv a/b/guarded away",
        "mv a/b away",
        "mv a away",
        "mkdir away && mv a away/",
        "touch A/B/GUARDED/x",
        "mkdir c/guarded",
        "mkdir c",
        "mkdir -p z/guarded && mv z c",
        "ln -s /nowhere c",
    ],
)
def test_a_protected_path_is_held_with_all_that_leads_to_it(run: Run, root: Path, line: str) -> None:
    (root / "a" / "b" / "guarded").mkdir(parents=True)
    confinement = Confinement(roots=(str(root),), protected=(str(root / "a/b/guarded"), str(root / "c/guarded")))

    assert run(confinement, "mkdir -p other/guarded && mv other else && touch a/b/x else/guarded/x").status == 0
    assert run(confinement, line).status != 0
    assert list((root / "a" / "b" / "guarded").iterdir()) == []
    assert not os.path.lexists(root / "c")


def test_a_network_that_is_off_is_refused_and_one_that_is_on_is_not(run: Run, root: Path) -> None:
    code = "import socket; socket.create_connection(('127.0.0.1', 1))"

    off = run(Confinement(roots=(str(root),), network=False), [sys.executable, "-c", code])
    on = run(Confinement(roots=(str(root),)), [sys.executable, "-c", code])

    assert REFUSED in off.err
    assert os.strerror(errno.ECONNREFUSED) in on.err


@pytest.mark.parametrize("status", [65, 71, 134])
def test_a_status_of_the_commands_own_is_its_own(run: Run, root: Path, status: int) -> None:
    assert run(Confinement(roots=(str(root),)), f"exit {status}").status == status


def test_a_program_that_runs_as_its_owner_does_not_start(run: Run, root: Path) -> None:
    with pytest.raises(LaunchFailed) as caught:
        run(Confinement(roots=(str(root),)), ["/bin/ps"])

    assert caught.value.reason == REFUSED


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a)(b", "größe", "a b;c", "${HOME}"])
def test_a_root_of_any_name_is_a_root(run: Run, root: Path, name: str) -> None:
    (root / name).mkdir()
    confinement = Confinement(roots=(str(root / name),))

    assert run(confinement, f"cd '{name}' && touch inside").status == 0
    assert run(confinement, "touch outside").status != 0


def test_a_thousand_roots_are_a_profile_that_compiles(run: Run, root: Path) -> None:
    roots = [root / f"{number:0200}" for number in range(1000)]
    for one in roots:
        one.mkdir()

    confinement = Confinement(roots=tuple(str(one) for one in roots))

    assert run(confinement, f"touch {roots[0].name}/x {roots[-1].name}/x").status == 0
    assert run(confinement, "touch outside").status != 0


def test_a_sandbox_inside_another_is_nested(run: Run, root: Path) -> None:
    code = "from wisp.sandbox.seatbelt_start import nesting; print(nesting('/usr/bin/sandbox-exec')[0])"

    ran = run(Confinement(roots=(str(root),)), [sys.executable, "-c", code])

    assert (ran.out, ran.status) == ("nested\n", 0)


def test_a_process_that_left_the_session_is_ended_when_it_was_seen(run: Run, root: Path) -> None:
    import psutil

    code = "import os, time; os.setsid(); open('pid', 'w').write(str(os.getpid())); time.sleep(300)"
    line = f'"{sys.executable}" -c "{code}" & while ! test -s pid; do sleep 0.05; done; sleep 1'

    assert run(Confinement(roots=(str(root),)), line).status == 0

    assert not psutil.pid_exists(int((root / "pid").read_text()))
