"""Tier B on Linux: Landlock and seccomp, bound to the threads that start the commands.

Needs no privilege, no namespace and no helper. What Landlock does not govern is declared in `LIMITS`, not hidden.
Facts: `landlock(7)`, Documentation/userspace-api/landlock.rst; measured on Linux 6.18 with interface version 7.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from wisp.errors import SandboxUnavailable
from wisp.realpath import is_inside
from wisp.sandbox import privileges, syscalls
from wisp.sandbox.backend import RefusalTexts
from wisp.sandbox.confinement import Confinement
from wisp.sandbox.landlock_probe import LAYERS, find_capability, kernel_abi
from wisp.sandbox.leader import Leader
from wisp.sandbox.roots import identities_of, open_root
from wisp.sandbox.ruleset import (
    KNOWN_ABI,
    LOG_SAME_EXEC_OFF,
    OLDEST_ABI,
    device_rules,
    file_rights,
    handled_rights,
    root_rights,
    scopes,
)
from wisp.sandbox.seccomp import build_filter
from wisp.sandbox.slot import SlotThread

if TYPE_CHECKING:
    from wisp.sandbox.capability import Capability
    from wisp.sandbox.observer import Observation, Observer

__all__ = ["LandlockBackend"]

#: Idle slots kept for the next command of the same confinement.
_MOST_IDLE: Final = 4


class LandlockBackend:
    """Confines commands with Landlock and seccomp.

    `abi` makes it work as on a kernel with that older interface. `without` takes layers away and is there to prove
    the probe suite: a sandbox with a hole must be caught. No configuration and no variable reaches either. With
    `observe` each command's refusals are listed, at a cost.
    """

    name = "landlock"

    def __init__(self, *, abi: int | None = None, without: frozenset[str] = frozenset(), observe: bool = False) -> None:
        unknown = without - set(LAYERS)
        if unknown:
            raise ValueError(f"no such layer: {', '.join(sorted(unknown))}")
        self._abi = abi
        self._without = without
        self._observe = observe

    def capability(self) -> Capability:
        """Return what this machine can enforce with this backend; runs the functional probes anew."""
        return find_capability(self._abi, oldest=OLDEST_ABI, known=KNOWN_ABI)

    def prepare(self, confinement: Confinement) -> LandlockEnforcer:
        """Return an enforcer, or raise SandboxUnavailable with the reason and what to do."""
        try:
            abi = kernel_abi(self._abi, known=KNOWN_ABI)
        except OSError as error:
            raise SandboxUnavailable(self.name, _why_no_landlock(error)) from None
        if abi < OLDEST_ABI:
            raise SandboxUnavailable(
                self.name,
                f"the kernel's Landlock interface is version {abi}, and before version {OLDEST_ABI} (Linux 6.2) a "
                "command could truncate any file; use a newer kernel",
            )
        if syscalls.numbers() is None:
            raise SandboxUnavailable(
                self.name, f"wisp has no system call table for {os.uname().machine}; x86_64 and aarch64 are supported"
            )
        for root in confinement.roots:
            for guarded in confinement.protected:
                if is_inside(guarded, root):
                    raise SandboxUnavailable(
                        self.name,
                        f"the protected path {guarded} lies inside the writable root {root}, and Landlock cannot take "
                        "a path out of a root; use a narrower root, or move the protected path out of it"
                        + (" (WISP_HOME moves wisp's own)" if os.path.basename(guarded) else ""),
                    )
        return LandlockEnforcer(confinement, abi, self._without, observe=self._observe)


def _why_no_landlock(error: OSError) -> str:
    """Return what keeps Landlock from being used, and what to do about it."""
    if error.errno == errno.ENOSYS:
        return "the kernel was built without Landlock (Linux 5.13 or newer with CONFIG_SECURITY_LANDLOCK is needed)"
    if error.errno == errno.EOPNOTSUPP:
        return "Landlock is in the kernel but switched off; add `landlock` to the boot parameter `lsm=`"
    return f"the Landlock calls are refused here ({error.strerror}); an outer sandbox or container filter is in the way"


class LandlockEnforcer:
    """One confinement under Landlock: a pool of slots that all restricted themselves in the same way."""

    def __init__(self, confinement: Confinement, abi: int, without: frozenset[str], *, observe: bool) -> None:
        self._confinement = confinement
        self._roots = confinement.outermost_roots()
        self._abi = abi
        self._without = without
        self._observes = observe
        self._lock = threading.Lock()
        self._idle: list[_LandlockSlot] = []
        may_mount = os.geteuid() != 0 or privileges.is_able_to_mount()
        self._kept = privileges.KEPT_BY_ROOT if may_mount else privileges.KEPT_WITHOUT_MOUNT
        self._scoped = abi >= 6 and "landlock-scope" not in without
        self.layers: tuple[str, ...] = tuple(name for name in LAYERS if self._has(name))
        seen = (os.strerror(errno.EPERM),) if observe else ()  # what the observer answers
        self.texts = RefusalTexts(
            write=(os.strerror(errno.EACCES), *seen),
            link=(os.strerror(errno.EXDEV),),
            call=(os.strerror(errno.EPERM),),
        )
        _ENFORCERS.add(self)

    def _has(self, layer: str) -> bool:
        if layer == "landlock-scope" and self._abi < 6:
            return False
        return layer not in self._without

    @property
    def ends_leftovers(self) -> str:
        """What may be left when a command has ended, in words."""
        if self._has("leftovers") and self._scoped:
            return ""
        return "only the command's own process group is ended: a process that left it may still run"

    @contextmanager
    def lease(self) -> Iterator[_LandlockSlot]:
        """Hold a slot for one command; a slot whose roots were replaced is thrown away, never used."""
        slot = self._take()
        try:
            yield slot
        finally:
            with self._lock:
                keep = slot.thread.is_usable and len(self._idle) < _MOST_IDLE
                if keep:
                    self._idle.append(slot)
            if not keep:
                slot.close()

    def _take(self) -> _LandlockSlot:
        with self._lock:
            slot = self._idle.pop() if self._idle else None
        if slot is not None:
            if slot.thread.is_usable and slot.identities == identities_of(self._roots):
                return slot
            slot.close()
        return self._make()

    def _make(self) -> _LandlockSlot:
        """Return a new slot; raises SandboxUnavailable when any layer cannot be applied."""
        roots = self._roots
        opened: list[int] = []
        try:
            identities: list[tuple[int, int]] = []
            for root in roots:
                descriptor = open_root(root, LandlockBackend.name)
                opened.append(descriptor)
                facts = os.fstat(descriptor)
                identities.append((facts.st_dev, facts.st_ino))
            listeners: list[int] = []
            try:
                thread = SlotThread(
                    LandlockBackend.name,
                    lambda: self._restrict(opened, listeners),
                    new_session=self._has("session"),
                    closes=self._has("descriptors"),
                )
            except OSError as error:
                raise SandboxUnavailable(LandlockBackend.name, _why_not_restricted(error)) from None
        finally:
            for descriptor in opened:
                os.close(descriptor)
        observer: Observer | None = None
        if listeners:
            from wisp.sandbox.observer import Observer as Observing  # noqa: PLC0415

            observer = Observing(listeners[0], self._confinement, exempt=frozenset({thread.native_id}))
        return _LandlockSlot(
            thread,
            tuple(identities),
            self.ends_leftovers,
            observer,
            scoped=self._scoped,
            ends_leftovers=self._has("leftovers"),
        )

    def _restrict(self, roots: Sequence[int], listeners: list[int]) -> None:
        """Put the calling thread under every layer; whatever fails raises, and the thread is not used.

        The order matters: capabilities before no_new_privs can no longer be followed by a gain, the filter last
        because it refuses calls that came before. With an observer its filter is the very last: from then on this
        thread's own calls are asked about, and answered once the observer is there. `listeners` takes its descriptor.
        """
        if self._has("capabilities"):
            privileges.cut(self._kept)
        syscalls.set_no_new_privs()
        if self._has("landlock") or self._scoped:
            self._restrict_with_landlock(roots)
        if self._has("seccomp"):
            # A call that this filter answers is none that the observer is asked about; it refuses the same sockets.
            network = self._confinement.network or self._observes
            syscalls.install_filter(build_filter(syscalls.table(), network=network))
        if self._has("landlock"):
            _prove_landlock()
        if self._observes:
            from wisp.sandbox.notify import install_with_listener  # noqa: PLC0415
            from wisp.sandbox.observer_filter import build_observer_filter  # noqa: PLC0415

            program = build_observer_filter(syscalls.table(), network=self._confinement.network)
            listeners.append(install_with_listener(program))

    def _restrict_with_landlock(self, roots: Sequence[int]) -> None:
        handled = handled_rights(self._abi) if self._has("landlock") else 0
        ruleset = syscalls.create_ruleset(handled, scopes() if self._scoped else 0, abi=self._abi)
        try:
            if self._has("landlock"):
                for root in roots:
                    syscalls.add_path_rule(ruleset, root_rights(self._abi), root)
                for rights, path in device_rules(self._abi):
                    _allow(ruleset, rights, path)
            syscalls.restrict_self(ruleset, LOG_SAME_EXEC_OFF if self._abi >= 7 else 0)
        finally:
            os.close(ruleset)

    def close(self) -> None:
        """End the idle slots; a command that runs keeps its slot until it ends."""
        with self._lock:
            idle, self._idle = self._idle, []
        for slot in idle:
            slot.close()

    def after_fork(self) -> None:
        """Begin anew in a forked child: it has the list but none of the threads, and maybe a lock that is held."""
        self._lock, self._idle = threading.Lock(), []


class _LandlockSlot:
    """A slot thread with the identity of the roots that its rules are bound to."""

    def __init__(
        self,
        thread: SlotThread,
        identities: tuple[tuple[int, int], ...],
        guarantee: str,
        observer: Observer | None,
        *,
        scoped: bool,
        ends_leftovers: bool,
    ) -> None:
        self.thread = thread
        self.identities = identities
        self._guarantee = guarantee
        self.ends_leftovers = ends_leftovers
        self._signals = scoped and ends_leftovers
        self._proven = False
        self._observer = observer

    def close(self) -> None:
        """Let the thread end; what observes it ends when the last process of its commands has."""
        self.thread.close()
        self._observer = None

    def observation(self) -> Observation | None:
        """Return what the observer saw of the command that has ended."""
        return None if self._observer is None else self._observer.take()

    def spawn(
        self, argv: Sequence[str], *, cwd: str, env: Mapping[bytes, bytes], stdin: int, stdout: int, stderr: int
    ) -> Leader:
        """Start one command; see `wisp.sandbox.backend.Slot`."""
        if self._observer is not None:
            self._observer.begin()
        process = self.thread.spawn(argv, cwd=cwd, env=env, stdin=stdin, stdout=stdout, stderr=stderr)
        return Leader(process, self, self._guarantee)

    def signal(self, pids: Iterable[int], signum: int) -> tuple[int, ...]:
        """Signal those of `pids` that are of this slot's command: the kernel refuses all others.

        Before the first use a canary proves it: a process of the same user outside the domain must be out of reach.
        Raises OSError where it is not.
        """
        if not self._signals:
            return ()
        if not self._proven:
            if not _is_scoped(self.thread):
                raise OSError(errno.EPROTO, "the kernel does not keep its signals to itself")
            self._proven = True
        return self.thread.signal(pids, signum)


def _is_scoped(thread: SlotThread) -> bool:
    """Return whether the slot is refused the smallest signal to a process outside its domain."""
    import subprocess as processes  # noqa: PLC0415

    canary = processes.Popen(["/bin/cat"], stdin=processes.PIPE, stdout=processes.DEVNULL, stderr=processes.DEVNULL)

    def reach() -> bool:
        try:
            os.kill(canary.pid, 0)
        except PermissionError:
            return False
        return True

    try:
        return not thread.ask(reach)
    finally:
        if canary.stdin is not None:
            canary.stdin.close()
        canary.kill()
        canary.wait()


def _allow(ruleset: int, rights: int, path: str) -> None:
    """Add a rule for a device node or tree of /dev; one that is not there is left out."""
    with suppress(FileNotFoundError):
        descriptor = os.open(path, syscalls.O_PATH | os.O_CLOEXEC)
        try:
            if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
                rights = file_rights(rights)
            syscalls.add_path_rule(ruleset, rights, descriptor)
        finally:
            os.close(descriptor)


def _prove_landlock() -> None:
    """Raise OSError unless Landlock refuses this thread what it just gave up.

    Opening one's own `oom_score_adj` for writing is allowed to every process; it is under no root, and nothing is
    written to it.
    """
    try:
        descriptor = os.open("/proc/thread-self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
    except PermissionError:
        return
    except FileNotFoundError:  # no /proc in this container: the call's own success has to do
        return
    os.close(descriptor)
    raise OSError(errno.EPROTO, "a file outside the roots could still be opened for writing")


def _why_not_restricted(error: OSError) -> str:
    if error.errno == errno.E2BIG:
        return "sixteen Landlock sandboxes already lie around this process, and the kernel allows no more (nested)"
    return f"a layer could not be applied: {error.strerror or error}"


_ENFORCERS: Final[weakref.WeakSet[LandlockEnforcer]] = weakref.WeakSet()


def _after_fork() -> None:
    for enforcer in list(_ENFORCERS):
        enforcer.after_fork()


os.register_at_fork(after_in_child=_after_fork)
