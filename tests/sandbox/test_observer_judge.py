"""What is refused, judged over made-up memory: no kernel is asked but for the paths themselves."""

from __future__ import annotations

import errno
import os
import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wisp.sandbox.confinement import Confinement
from wisp.sandbox.observed import MACHINES, OBSERVED, Observed
from wisp.sandbox.observer_judge import Judge, Refused, always_refused, socket_target
from wisp.sandbox.observer_paths import Unreadable
from wisp.sandbox.syscalls import AUDIT_ARCH

pytestmark = pytest.mark.linux

ME = threading.get_native_id()


@dataclass
class Memory:
    """Texts and bytes by address."""

    held: dict[int, bytes] = field(default_factory=dict)

    def read(self, thread: int, address: int, size: int) -> bytes | None:
        return self.held[address][:size] if address in self.held else None

    def read_text(self, thread: int, address: int) -> bytes | None:
        return self.held.get(address)

    def look(self, path: str, *, follow: bool) -> int:
        return errno.ELOOP


def judge(confinement: Confinement, held: dict[int, bytes] | None = None, machine: str = "x86_64") -> Judge:
    return Judge(confinement, Memory(held or {}), MACHINES[AUDIT_ARCH[machine].audit_arch])


def call(name: str) -> Observed:
    return next(one for one in OBSERVED if one.name == name)


TREE = ("/", "/usr", "/usr/lib", "/usr/li", "/usr/lib/x", "/etc", "/etc/a/b", "/usr/lib/x/y z", "//etc", "/etcetera")


@given(
    roots=st.lists(st.sampled_from(["/", *["/usr", "/usr/lib", "/etc"]]), max_size=3),
    protected=st.lists(st.sampled_from(["/usr/lib/x", "/etc/a", "/usr/li", "/nowhere"]), max_size=2),
    path=st.one_of(st.sampled_from(TREE), st.text("/uslibetcxy ", max_size=12).map(lambda text: "/" + text)),
)
def test_it_allows_exactly_what_the_confinement_allows(roots: list[str], protected: list[str], path: str) -> None:
    confinement = Confinement(tuple(roots), protected=tuple(protected))
    assert judge(confinement).allows(path) is confinement.allows_write(path)


@given(
    machine=st.sampled_from(sorted(AUDIT_ARCH)),
    observed=st.sampled_from(OBSERVED),
    arguments=st.lists(
        st.one_of(st.integers(0, 2**64 - 1), st.sampled_from([0, 1, 2, 2**32 - 100])), min_size=6, max_size=6
    ),
    held=st.dictionaries(
        st.sampled_from([1, 2]), st.binary(max_size=120).map(lambda found: found.replace(b"\0", b"/"))
    ),
)
def test_whatever_a_command_makes_up_has_an_answer(
    machine: str, observed: Observed, arguments: list[int], held: dict[int, bytes]
) -> None:
    confinement = Confinement(("/usr/lib",))
    try:
        refused = judge(confinement, held, machine).refusals(observed, tuple(arguments), ME)
    except Unreadable:
        assert not always_refused(observed, tuple(arguments))
        return
    for one in refused:
        assert not one.target.startswith("/") or not confinement.allows_write(one.target) or one.operation == "mount"
    if always_refused(observed, tuple(arguments)):
        assert refused


@pytest.mark.parametrize("machine", sorted(AUDIT_ARCH))
def test_flags_are_those_of_the_architecture(machine: str, tmp_path: Path) -> None:
    """O_NOFOLLOW of one is O_DIRECT or O_LARGEFILE of the other."""
    (tmp_path / "link").symlink_to(tmp_path / "file")
    (tmp_path / "file").touch()
    nofollow, other = (0o400000, 0o100000) if machine == "x86_64" else (0o100000, 0o400000)
    held = {1: os.fsencode(tmp_path / "link")}
    one = judge(Confinement(()), held, machine)
    target = os.path.realpath(tmp_path / "file")
    assert one.refusals(call("openat"), (0, 1, os.O_WRONLY | other, 0, 0, 0), ME) == (Refused("write", target),)
    assert one.refusals(call("openat"), (0, 1, os.O_WRONLY | nofollow, 0, 0, 0), ME) == ()
    assert one.refusals(call("openat"), (0, 1, os.O_WRONLY | 0o10000000, 0, 0, 0), ME) == ()


def test_the_high_half_of_a_register_that_holds_an_int_says_nothing(tmp_path: Path) -> None:
    one = judge(Confinement(()), {1: b"new"})
    here = os.getcwd()
    os.chdir(tmp_path)
    try:
        refused = one.refusals(call("mkdirat"), (7 << 32 | 0xFFFFFF9C, 1, 0, 0, 0, 0), ME)
    finally:
        os.chdir(here)
    assert refused == (Refused("create", f"{os.path.realpath(tmp_path)}/new"),)


@pytest.mark.parametrize(
    ("arguments", "target"),
    [((2, 1), "inet/stream"), ((10, 2 | 0o4000), "inet6/dgram"), ((17, 3), "packet/raw"), ((40, 5), "vsock/seqpacket")],
)
def test_a_socket_is_named_by_family_and_type(arguments: tuple[int, int], target: str) -> None:
    assert socket_target(arguments) == target
