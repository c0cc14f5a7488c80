"""The seccomp filter, run here by a small interpreter of the kernel's BPF; `tests/linux` runs it for real."""

from __future__ import annotations

import errno
import socket
import struct
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wisp.sandbox.seccomp import CLONE3, IO_URING, NAMESPACES, build_filter
from wisp.sandbox.syscalls import AUDIT_ARCH, Numbers

ALLOW, KILL = 0x7FFF0000, 0x80000000
EPERM, ENOSYS = 0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS

MACHINES = pytest.mark.parametrize("machine", sorted(AUDIT_ARCH))


@dataclass(frozen=True, slots=True)
class Call:
    """One system call as the filter sees it (`struct seccomp_data`)."""

    number: int
    arguments: tuple[int, ...] = field(default=())
    arch: int | None = None


def decide(program: bytes, call: Call, table: Numbers) -> int:
    """Return what the program answers; only the five instructions that it may hold."""
    padded = (*call.arguments, 0, 0, 0, 0, 0, 0)[:6]
    arch = table.audit_arch if call.arch is None else call.arch
    data = struct.pack("<IIQ6Q", call.number & 0xFFFFFFFF, arch, 0, *padded)
    code = list(struct.iter_unpack("<HBBI", program))
    accumulator, at = 0, 0
    while True:
        operation, yes, no, value = code[at]
        at += 1
        if operation == 0x20:
            (accumulator,) = struct.unpack_from("<I", data, value)
        elif operation == 0x15:
            at += yes if accumulator == value else no
        elif operation == 0x35:
            at += yes if accumulator >= value else no
        elif operation == 0x45:
            at += yes if accumulator & value else no
        elif operation == 0x06:
            return int(value)
        else:
            raise AssertionError(f"an instruction that the filter has no need of: {operation:#x}")


@MACHINES
@pytest.mark.parametrize("network", [True, False])
def test_another_audit_architecture_is_killed(machine: str, network: bool) -> None:
    table = AUDIT_ARCH[machine]
    program = build_filter(table, network=network)
    foreign = {numbers.audit_arch for numbers in AUDIT_ARCH.values()} | {0x40000003, 0x40000028}

    answers = {arch: decide(program, Call(0, arch=arch), table) for arch in foreign}

    assert answers.pop(table.audit_arch) == ALLOW
    assert set(answers.values()) == {KILL}


def test_the_x32_calls_do_not_exist() -> None:
    table = AUDIT_ARCH["x86_64"]
    program = build_filter(table, network=True)

    assert decide(program, Call(0x40000000 | 1), table) == ENOSYS
    assert decide(program, Call(0x40000000 - 1), table) == ALLOW


@MACHINES
@pytest.mark.parametrize("number", IO_URING)
def test_io_uring_does_not_exist(machine: str, number: int) -> None:
    table = AUDIT_ARCH[machine]
    program = build_filter(table, network=True)

    assert decide(program, Call(number), table) == ENOSYS
    assert decide(program, Call(number + 10), table) == ALLOW


@MACHINES
@pytest.mark.parametrize("request_code", [0x5412, 0x541C])
def test_typing_into_a_terminal_is_refused_whatever_the_high_half_of_the_request_says(
    machine: str, request_code: int
) -> None:
    """The kernel reads an unsigned int: a filter that compared 64 bits was passed by setting the high ones."""
    table = AUDIT_ARCH[machine]
    program = build_filter(table, network=True)

    for high in (0, 1, 0xFFFFFFFF):
        assert decide(program, Call(table.ioctl, (0, high << 32 | request_code)), table) == EPERM
    assert decide(program, Call(table.ioctl, (0, 0x5413)), table) == ALLOW


@MACHINES
@pytest.mark.parametrize("call", ["socket", "socketpair"])
def test_without_a_network_only_unix_sockets_are_made(machine: str, call: str) -> None:
    table = AUDIT_ARCH[machine]
    off, on = build_filter(table, network=False), build_filter(table, network=True)
    number = getattr(table, call)

    for family in range(64):
        expected = ALLOW if family == socket.AF_UNIX else EPERM
        for high in (0, 1 << 32):
            assert decide(off, Call(number, (high | family,)), table) == expected
        assert decide(on, Call(number, (family,)), table) == ALLOW


@MACHINES
def test_only_ones_own_limits_can_be_set(machine: str) -> None:
    table = AUDIT_ARCH[machine]
    program = build_filter(table, network=True)

    assert decide(program, Call(table.prlimit64, (0, 0, 0x7FFF0000, 0)), table) == ALLOW
    assert decide(program, Call(table.prlimit64, (77, 0, 0, 0x7FFF0000)), table) == ALLOW, "reading them is free"
    assert decide(program, Call(table.prlimit64, (77, 0, 0x7FFF0000, 0)), table) == EPERM
    assert decide(program, Call(table.prlimit64, (77, 0, 1 << 32, 0)), table) == EPERM


@MACHINES
def test_a_file_is_not_opened_by_its_handle(machine: str) -> None:
    table = AUDIT_ARCH[machine]

    assert decide(build_filter(table, network=True), Call(table.open_by_handle_at), table) == EPERM


@MACHINES
def test_in_a_lane_no_namespace_is_made_or_entered(machine: str) -> None:
    table = AUDIT_ARCH[machine]
    lane, plain = (build_filter(table, network=True, namespaces=allowed) for allowed in (False, True))
    single = [1 << bit for bit in range(32) if NAMESPACES >> bit & 1]
    assert len(single) == 7
    for flag in single:
        for number in (table.clone, table.unshare):
            for more in (0, 17, 1 << 32):
                assert decide(lane, Call(number, (flag | more,)), table) == EPERM
                assert decide(plain, Call(number, (flag | more,)), table) == ALLOW
    assert decide(lane, Call(table.unshare, (0x80,)), table) == EPERM, "a time namespace"
    for number in (table.setns, table.bpf, table.perf_event_open):
        assert decide(lane, Call(number), table) == EPERM
        assert decide(plain, Call(number), table) == ALLOW
    assert decide(lane, Call(CLONE3), table) == ENOSYS
    assert decide(plain, Call(CLONE3), table) == ALLOW


@MACHINES
def test_in_a_lane_processes_and_threads_are_made_as_ever(machine: str) -> None:
    table = AUDIT_ARCH[machine]
    lane = build_filter(table, network=True, namespaces=False)
    fork, vfork, thread = 0x01200011, 0x4111, 0x003D0F00
    for flags in (fork, vfork, thread, 0x80 | 17):  # the low byte is the number of a signal
        assert decide(lane, Call(table.clone, (flags,)), table) == ALLOW
    assert decide(lane, Call(table.unshare, (0x600,)), table) == ALLOW  # CLONE_FS | CLONE_FILES


@given(
    st.sampled_from(sorted(AUDIT_ARCH)),
    st.booleans(),
    st.booleans(),
    st.integers(0, 0xFFFFFFFF),
    st.lists(st.integers(0, 2**64 - 1), min_size=6, max_size=6),
)
def test_every_call_gets_an_answer_and_the_filter_refuses_nothing_else(
    machine: str, network: bool, namespaces: bool, number: int, arguments: list[int]
) -> None:
    table = AUDIT_ARCH[machine]
    program = build_filter(table, network=network, namespaces=namespaces)
    answer = decide(program, Call(number, tuple(arguments)), table)
    touched = {*IO_URING, table.open_by_handle_at, table.ioctl, table.prlimit64, table.socket, table.socketpair}
    if not namespaces:
        touched |= {CLONE3, table.clone, table.unshare, table.setns, table.bpf, table.perf_event_open}
    if number not in touched and not (machine == "x86_64" and number >= 0x40000000):
        assert answer == ALLOW
    assert answer in {ALLOW, EPERM, ENOSYS}
