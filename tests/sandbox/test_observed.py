"""The table of observed calls, against itself; its numbers against the kernel's headers where they are installed."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from wisp.sandbox.observed import MACHINES, OBSERVED
from wisp.sandbox.syscalls import AUDIT_ARCH

HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}


def test_each_call_has_one_row_and_each_number_one_call() -> None:
    assert [name for name, count in Counter(one.name for one in OBSERVED).items() if count > 1] == []
    for machine, numbers in AUDIT_ARCH.items():
        own = [getattr(one, machine) for one in OBSERVED if getattr(one, machine) is not None]
        assert len(own) == len(set(own)) == len(MACHINES[numbers.audit_arch].calls)


@pytest.mark.parametrize("machine", sorted(HEADERS))
def test_the_numbers_are_those_of_the_headers(machine: str) -> None:
    header = HEADERS[machine]
    if not header.exists():
        pytest.skip(f"no {header}")
    found = dict(re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", header.read_text()))
    newest = max(int(number) for number in found.values())
    for one in OBSERVED:
        number = getattr(one, machine)
        if number is None:
            assert one.name not in found
        elif number <= newest:
            assert found.get(one.name) == str(number), one.name


@pytest.mark.parametrize("machine", sorted(AUDIT_ARCH))
def test_the_numbers_that_the_base_filter_has_as_well_agree(machine: str) -> None:
    numbers = AUDIT_ARCH[machine]
    for one in OBSERVED:
        if hasattr(numbers, one.name):
            assert getattr(numbers, one.name) == getattr(one, machine)


def test_every_place_is_in_a_register() -> None:
    for one in OBSERVED:
        for place in one.places:
            assert {place.path, place.directory, place.flags, one.number} <= set(range(-1, 6))
            assert place.path >= 0 or place.directory >= 0
