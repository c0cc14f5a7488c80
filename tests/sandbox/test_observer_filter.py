"""The observer's filter, run here by a small interpreter of the kernel's BPF; `test_observer.py` runs it for real."""

from __future__ import annotations

import errno
import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wisp.sandbox.observed import FLAGS_OF, MACHINES, OBSERVED, TERMINAL_IOCTLS, Observed
from wisp.sandbox.observer_filter import build_observer_filter
from wisp.sandbox.syscalls import AUDIT_ARCH, Numbers

ALLOW, ASK, BUSY = 0x7FFF0000, 0x7FC00000, 0x50000 | errno.EBUSY

ARCHITECTURES = pytest.mark.parametrize("table", AUDIT_ARCH.values(), ids=list(AUDIT_ARCH))


def decide(program: bytes, table: Numbers, number: int, *arguments: int, arch: int | None = None) -> int:
    """Return what the program answers; only the instructions that it may hold."""
    padded = (*arguments, 0, 0, 0, 0, 0, 0)[:6]
    data = struct.pack("<IIQ6Q", number & 0xFFFFFFFF, table.audit_arch if arch is None else arch, 0, *padded)
    code = list(struct.iter_unpack("<HBBI", program))
    accumulator, at = 0, 0
    while True:
        operation, yes, no, value = code[at]
        at += 1
        match operation:
            case 0x20:
                (accumulator,) = struct.unpack_from("<I", data, value)
            case 0x15:
                at += yes if accumulator == value else no
            case 0x35:
                at += yes if accumulator >= value else no
            case 0x45:
                at += yes if accumulator & value else no
            case 0x06:
                return int(value)
            case _:
                raise AssertionError(f"an instruction that the filter has no need of: {operation:#x}")


def number_of(table: Numbers, name: str) -> int:
    return next(number for number, one in MACHINES[table.audit_arch].calls.items() if one.name == name)


@ARCHITECTURES
@pytest.mark.parametrize(
    "call", [one for one in OBSERVED if one.number < 0 or one.name == "connect"], ids=lambda one: one.name
)
def test_a_call_that_always_changes_something_is_asked_for(table: Numbers, call: Observed) -> None:
    for number, one in MACHINES[table.audit_arch].calls.items():
        if one == call:
            assert decide(build_observer_filter(table, network=True), table, number) == ASK


@ARCHITECTURES
def test_an_open_is_asked_for_only_when_it_may_change_something(table: Numbers) -> None:
    program = build_observer_filter(table, network=True)
    number = number_of(table, "openat")
    for flags in (0o1, 0o2, 0o3, 0o100, 0o1000, 0o20000000, 0o1 | 1 << 32):
        assert decide(program, table, number, 0, 0, flags) == ASK
    for flags in (0, 0o2000000 | 0o4000, 0o2000, 0o10000000, 0o200000 | 0o40000, 1 << 32):
        assert decide(program, table, number, 0, 0, flags) == ALLOW


@ARCHITECTURES
@pytest.mark.parametrize("name", [one.name for one in OBSERVED if one.operation == "signal"])
def test_a_signal_is_asked_for_but_not_the_question_whether_a_process_is_there(table: Numbers, name: str) -> None:
    program = build_observer_filter(table, network=True)
    number, argument = number_of(table, name), next(one.number for one in OBSERVED if one.name == name)
    registers = [7] * 6
    assert decide(program, table, number, *registers) == ASK
    registers[argument] = 1 << 32  # the kernel reads an int
    assert decide(program, table, number, *registers) == ALLOW


@ARCHITECTURES
def test_only_a_datagram_with_an_address_is_asked_for(table: Numbers) -> None:
    program = build_observer_filter(table, network=True)
    number = number_of(table, "sendto")
    assert decide(program, table, number, 3, 1, 1, 0, 0, 0) == ALLOW
    assert decide(program, table, number, 3, 1, 1, 0, 0x1000, 16) == ASK
    assert decide(program, table, number, 3, 1, 1, 0, 1 << 32, 16) == ASK


@ARCHITECTURES
def test_only_the_ioctls_that_set_flags_or_type_are_asked_for(table: Numbers) -> None:
    program = build_observer_filter(table, network=True)
    for request in (*FLAGS_OF, *TERMINAL_IOCTLS):
        assert decide(program, table, table.ioctl, 0, request) == ASK
        assert decide(program, table, table.ioctl, 0, 1 << 32 | request) == ASK
        assert decide(program, table, table.ioctl, 0, request + 1) == ALLOW


@ARCHITECTURES
@pytest.mark.parametrize("name", ["socket", "socketpair"])
def test_sockets_are_asked_for_only_without_a_network(table: Numbers, name: str) -> None:
    off, on = (build_observer_filter(table, network=network) for network in (False, True))
    for family in range(64):
        assert decide(off, table, number_of(table, name), family) == (ALLOW if family == socket.AF_UNIX else ASK)
        assert decide(on, table, number_of(table, name), family) == ALLOW


@ARCHITECTURES
def test_a_command_has_no_listener_of_its_own(table: Numbers) -> None:
    """The newest listener is asked first: it could let go on what this one refuses."""
    program = build_observer_filter(table, network=True)
    for flags in (8, 8 | 1 << 5, 8 | 1 << 40):
        assert decide(program, table, table.seccomp, 1, flags) == BUSY
    assert decide(program, table, table.seccomp, 1, 0) == ALLOW
    assert decide(program, table, table.seccomp, 2, 8) == ALLOW


@given(
    st.sampled_from(sorted(AUDIT_ARCH)),
    st.booleans(),
    st.integers(0, 0xFFFFFFFF),
    st.lists(st.integers(0, 2**64 - 1), min_size=6, max_size=6),
    st.booleans(),
)
def test_nothing_else_is_asked_for(
    machine: str, network: bool, number: int, arguments: list[int], foreign: bool
) -> None:
    table = AUDIT_ARCH[machine]
    program = build_observer_filter(table, network=network)
    answer = decide(program, table, number, *arguments, arch=0x40000003 if foreign else None)
    if foreign or number not in {*MACHINES[table.audit_arch].calls, table.seccomp}:
        assert answer == ALLOW
    assert answer in {ALLOW, ASK, BUSY}
