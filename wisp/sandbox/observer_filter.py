"""The observer's seccomp filter: which calls wait for its answer, decided by number and register values.

Pure, like `wisp.sandbox.seccomp`, and installed above that filter. It refuses nothing by itself: where both filters
have something to say, the kernel takes the refusal of the other one before a question to the observer.
"""

from __future__ import annotations

import errno
import socket
import struct
from typing import Final

from wisp.sandbox.observed import FLAGS_OF, MACHINES, TERMINAL_IOCTLS
from wisp.sandbox.syscalls import Numbers

__all__ = ["build_observer_filter"]

_LD_ABS, _JEQ, _JGE, _JSET, _RET = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _USER_NOTIF, _ERRNO = 0x7FFF0000, 0x7FC00000, 0x00050000

#: O_ACCMODE, O_CREAT, O_TRUNC and the bit of O_TMPFILE that is its own: the same on both architectures.
_WRITING: Final = 0o3 | 0o100 | 0o1000 | 0o20000000
_SET_MODE_FILTER, _NEW_LISTENER = 1, 1 << 3
#: Calls of the x32 interface carry this bit and the audit architecture of x86-64.
_X32_BIT: Final = 0x40000000

# Offsets in `struct seccomp_data`; both supported architectures are little-endian.
_NR, _ARCH, _LOW, _HIGH = 0, 4, 16, 20

#: One instruction: code, value, and the names of the places to go to when the test holds and when not.
_Instruction = tuple[int, int, str, str]


def build_observer_filter(table: Numbers, *, network: bool) -> bytes:
    """Return the filter for the architecture of `table`, packed for the kernel.

    A question to the observer: every call of `observed.OBSERVED`, but opens only with a flag that asks for writing,
    signals other than 0, `sendto` with an address, the ioctls that set flags of files or type into a terminal, and,
    only without `network`, sockets of another family than AF_UNIX. A command may not install a filter that asks a
    listener of its own (EBUSY, as the kernel itself says while there is one): a newer listener is asked first.
    Everything else is allowed, another architecture included: that is for the filter beneath.
    """
    simple: list[int] = []
    special: list[tuple[int, str]] = [(table.seccomp, "seccomp")]
    blocks: dict[str, list[_Instruction]] = {"seccomp": _listeners()}
    for number, call in MACHINES[table.audit_arch].calls.items():
        if call.kind == "socket" and network:
            continue
        block = _block(call.kind, call.number) if call.name != "connect" else []
        if block:
            name = f"{call.kind}{call.number}"
            blocks[name] = block
            special.append((number, name))
        else:
            simple.append(number)
    code: list[_Instruction] = [
        (_LD_ABS, _ARCH, "", ""),
        (_JEQ, table.audit_arch, "", "allow"),
        (_LD_ABS, _NR, "", ""),
        (_JGE, _X32_BIT, "allow", ""),
        *((_JEQ, number, name, "") for number, name in special),
        *((_JEQ, number, "ask", "") for number in sorted(simple)),
    ]
    places: dict[str, int] = {"allow": len(code), "ask": len(code) + 1}
    code += [(_RET, _ALLOW, "", ""), (_RET, _USER_NOTIF, "", "")]
    ends: dict[str, int] = {"allow": _ALLOW, "ask": _USER_NOTIF, "busy": _ERRNO | errno.EBUSY}
    for name, block in blocks.items():
        places[name] = len(code)
        code += block
    # The ends once more behind the blocks: jumps go forward only.
    late = {name: len(code) + index for index, name in enumerate(ends)}
    code += [(_RET, action, "", "") for action in ends.values()]
    return _pack(code, places, late)


def _block(kind: str, argument: int) -> list[_Instruction]:
    """Return what decides on a call by the values in its registers; nothing for a call that is always asked for."""
    if argument < 0:
        return []
    load: list[_Instruction] = [(_LD_ABS, _LOW + 8 * argument, "", "")]
    match kind:
        case "open":
            return [*load, (_JSET, _WRITING, "ask", "allow")]
        case "socket":
            return [*load, (_JEQ, socket.AF_UNIX, "allow", "ask")]
        case "signal" | "descriptor-signal":
            return [*load, (_JEQ, 0, "allow", "ask")]
        case "ioctl":
            requests = (*FLAGS_OF, *TERMINAL_IOCTLS)
            tests: list[_Instruction] = [(_JEQ, request, "ask", "") for request in requests[:-1]]
            return [*load, *tests, (_JEQ, requests[-1], "ask", "allow")]
        case "connect":  # sendto: an address or none, a whole pointer
            return [
                *load,
                (_JEQ, 0, "", "ask"),
                (_LD_ABS, _HIGH + 8 * argument, "", ""),
                (_JEQ, 0, "allow", "ask"),
            ]
        case _:
            return []


def _listeners() -> list[_Instruction]:
    return [
        (_LD_ABS, _LOW, "", ""),
        (_JEQ, _SET_MODE_FILTER, "", "allow"),
        (_LD_ABS, _LOW + 8, "", ""),
        (_JSET, _NEW_LISTENER, "busy", "allow"),
    ]


def _pack(code: list[_Instruction], places: dict[str, int], late: dict[str, int]) -> bytes:
    """Return `code` as the kernel takes it, with names made hops: the first place of a name that lies ahead."""
    packed = bytearray()
    for index, (operation, value, then, otherwise) in enumerate(code):
        hops = [0, 0]
        for which, name in enumerate((then, otherwise)):
            if name:
                target = places.get(name, -1)
                hops[which] = (target if target > index else late[name]) - index - 1
        if not all(0 <= hop <= 255 for hop in hops):
            raise AssertionError(f"a jump of {hops} does not fit in one byte")
        packed += struct.pack("<HBBI", operation, hops[0], hops[1], value)
    return bytes(packed)
