"""Which calls the observer sees, as data: their numbers, what they ask for, and where they name a file.

Numbers: the kernel's `unistd.h` of x86-64 and the generic one that aarch64 uses. A call that an architecture does not
have is None there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from wisp.outcome import Operation

__all__ = ["FLAGS_OF", "MACHINES", "OBSERVED", "TERMINAL_IOCTLS", "Machine", "Observed", "OpenFlags", "Place"]

#: Whether a call goes through a link that is the last name of its path: `unless` its flags say AT_SYMLINK_NOFOLLOW,
#: `if` they say AT_SYMLINK_FOLLOW.
Follow = Literal["always", "never", "unless", "if"]
#: Whether there has to be something at the path, or nothing, for the call to be more than an error of its own.
Presence = Literal["must", "must-not", "any"]
#: How the arguments are read.
Kind = Literal[
    "path", "open", "descriptor", "ioctl", "bind", "connect", "socket", "signal", "descriptor-signal", "mount"
]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a call names a file: the arguments that hold the path, its directory's descriptor and the `AT_` flags.

    -1: there is no such argument. A `path` of -1 means that the descriptor itself is the file.
    """

    path: int
    directory: int = -1
    flags: int = -1
    follow: Follow = "always"
    presence: Presence = "must"


@dataclass(frozen=True, slots=True)
class Observed:
    """One call. `number` is the argument that decides whether it is of interest: open flags, a signal, an address."""

    name: str
    x86_64: int | None
    aarch64: int | None
    kind: Kind
    operation: Operation
    places: tuple[Place, ...] = ()
    number: int = -1


@dataclass(frozen=True, slots=True)
class OpenFlags:
    """The flags of open(2) that differ between architectures."""

    directory: int
    nofollow: int


@dataclass(frozen=True, slots=True)
class Machine:
    """One architecture: its observed calls by number, and numbers that the observer itself needs."""

    calls: dict[int, Observed]
    flags: OpenFlags
    process_vm_readv: int


#: FS_IOC_SETFLAGS and FS_IOC_FSSETXATTR of `fs.h`: what chattr(1) does, through a descriptor that needs no writing.
FLAGS_OF: Final = (0x40086602, 0x401C5820)
#: TIOCSTI and TIOCLINUX of `asm-generic/ioctls.h`.
TERMINAL_IOCTLS: Final = (0x5412, 0x541C)

_FIRST, _SECOND = Place(0), Place(1, 0)
_NEW, _NEW_AT = Place(0, follow="never", presence="must-not"), Place(1, 0, follow="never", presence="must-not")
_OLD, _OLD_AT = Place(0, follow="never"), Place(1, 0, follow="never")
_OPENED = Place(-1, 0)

OBSERVED: Final = (
    Observed("open", 2, None, "open", "write", (_FIRST,), number=1),
    Observed("openat", 257, 56, "open", "write", (_SECOND,), number=2),
    Observed("openat2", 437, 437, "open", "write", (_SECOND,)),
    Observed("creat", 85, None, "open", "write", (_FIRST,)),
    Observed("truncate", 76, 45, "path", "write", (_FIRST,)),
    Observed("mkdir", 83, None, "path", "create", (_NEW,)),
    Observed("mkdirat", 258, 34, "path", "create", (_NEW_AT,)),
    Observed("mknod", 133, None, "path", "create", (_NEW,)),
    Observed("mknodat", 259, 33, "path", "create", (_NEW_AT,)),
    Observed("symlink", 88, None, "path", "create", (Place(1, follow="never", presence="must-not"),)),
    Observed("symlinkat", 266, 36, "path", "create", (Place(2, 1, follow="never", presence="must-not"),)),
    Observed("rmdir", 84, None, "path", "remove", (_OLD,)),
    Observed("unlink", 87, None, "path", "remove", (_OLD,)),
    Observed("unlinkat", 263, 35, "path", "remove", (_OLD_AT,)),
    Observed("rename", 82, None, "path", "rename", (_OLD, Place(1, follow="never", presence="any"))),
    Observed("renameat", 264, 38, "path", "rename", (_OLD_AT, Place(3, 2, follow="never", presence="any"))),
    Observed("renameat2", 316, 276, "path", "rename", (_OLD_AT, Place(3, 2, follow="never", presence="any"))),
    Observed("link", 86, None, "path", "link", (_OLD, Place(1, follow="never", presence="must-not"))),
    Observed(
        "linkat", 265, 37, "path", "link",
        (Place(1, 0, 4, follow="if"), Place(3, 2, follow="never", presence="must-not")),
    ),
    Observed("chmod", 90, None, "path", "mode", (_FIRST,)),
    Observed("fchmod", 91, 52, "descriptor", "mode", (_OPENED,)),
    Observed("fchmodat", 268, 53, "path", "mode", (_SECOND,)),
    Observed("fchmodat2", 452, 452, "path", "mode", (Place(1, 0, 3, follow="unless"),)),
    Observed("chown", 92, None, "path", "owner", (_FIRST,)),
    Observed("lchown", 94, None, "path", "owner", (_OLD,)),
    Observed("fchown", 93, 55, "descriptor", "owner", (_OPENED,)),
    Observed("fchownat", 260, 54, "path", "owner", (Place(1, 0, 4, follow="unless"),)),
    Observed("utime", 132, None, "path", "times", (_FIRST,)),
    Observed("utimes", 235, None, "path", "times", (_FIRST,)),
    Observed("futimesat", 261, None, "path", "times", (_SECOND,)),
    Observed("utimensat", 280, 88, "path", "times", (Place(1, 0, 3, follow="unless"),)),
    Observed("setxattr", 188, 5, "path", "attributes", (_FIRST,)),
    Observed("lsetxattr", 189, 6, "path", "attributes", (_OLD,)),
    Observed("fsetxattr", 190, 7, "descriptor", "attributes", (_OPENED,)),
    Observed("removexattr", 197, 14, "path", "attributes", (_FIRST,)),
    Observed("lremovexattr", 198, 15, "path", "attributes", (_OLD,)),
    Observed("fremovexattr", 199, 16, "descriptor", "attributes", (_OPENED,)),
    Observed("setxattrat", 463, 463, "path", "attributes", (Place(1, 0, 2, follow="unless"),)),
    Observed("removexattrat", 466, 466, "path", "attributes", (Place(1, 0, 2, follow="unless"),)),
    Observed("file_setattr", 469, 469, "path", "flags", (Place(1, 0, 4, follow="unless"),)),
    Observed("ioctl", 16, 29, "ioctl", "flags", (_OPENED,), number=1),
    Observed("bind", 49, 200, "bind", "create", number=1),
    Observed("connect", 42, 203, "connect", "connect", number=1),
    Observed("sendto", 44, 206, "connect", "connect", number=4),
    Observed("socket", 41, 198, "socket", "socket", number=0),
    Observed("socketpair", 53, 199, "socket", "socket", number=0),
    Observed("kill", 62, 129, "signal", "signal", number=1),
    Observed("tkill", 200, 130, "signal", "signal", number=1),
    Observed("tgkill", 234, 131, "signal", "signal", number=2),
    Observed("rt_sigqueueinfo", 129, 138, "signal", "signal", number=1),
    Observed("rt_tgsigqueueinfo", 297, 240, "signal", "signal", number=2),
    Observed("pidfd_send_signal", 424, 424, "descriptor-signal", "signal", number=1),
    Observed("mount", 165, 40, "mount", "mount", (Place(1),)),
    Observed("umount2", 166, 39, "mount", "mount", (_FIRST,)),
    Observed("mount_setattr", 442, 442, "mount", "mount", (Place(1, 0, 2, follow="unless"),)),
    Observed("move_mount", 429, 429, "mount", "mount", (Place(3, 2),)),
    Observed("pivot_root", 155, 41, "mount", "mount", (_FIRST,)),
)  # fmt: skip

#: By the audit architecture of `audit.h`, as in `wisp.sandbox.syscalls.Numbers`.
MACHINES: Final = {
    0xC000003E: Machine(
        {one.x86_64: one for one in OBSERVED if one.x86_64 is not None}, OpenFlags(0o200000, 0o400000), 310
    ),
    0xC00000B7: Machine(
        {one.aarch64: one for one in OBSERVED if one.aarch64 is not None}, OpenFlags(0o40000, 0o100000), 270
    ),
}
