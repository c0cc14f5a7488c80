"""macOS: Seatbelt, through `/usr/bin/sandbox-exec` and a profile in wisp's home.

Written from published facts. What of them is known from one source only is asked of the Mac itself: `capability` tries
everything that it says, and `prepare` starts a command under the very profile before any other.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, Literal

from wisp.config import home_directory
from wisp.errors import SandboxUnavailable
from wisp.realpath import real
from wisp.sandbox.backend import RefusalTexts
from wisp.sandbox.seatbelt_profile import Profile, profile_of
from wisp.sandbox.seatbelt_start import SeatbeltCommand, nesting, prove, start, start_plainly

if TYPE_CHECKING:
    from wisp.sandbox.capability import Capability
    from wisp.sandbox.confinement import Confinement

__all__ = ["LAYERS", "SeatbeltBackend", "SeatbeltEnforcer"]

#: Every layer of the backend, by name, in the order in which the doctor shows them.
LAYERS: Final = ("seatbelt", "session", "descriptors", "leftovers")

_SANDBOX_EXEC: Final = "/usr/bin/sandbox-exec"
_DIRECTORY: Final = "seatbelt"
_DAY: Final = 86400.0
_TRUSTED: Final = (
    "nested: another sandbox lies around this process, and `sandbox.nested` is `trust-outer`: commands run under that "
    "one alone, and wisp holds nothing"
)


class SeatbeltBackend:
    """Confines commands with Seatbelt.

    Inside another sandbox there can be no second one. `nested` says what then: refuse to run anything, or run commands
    plainly and say so. `sandbox_exec` is there for tests.
    """

    name = "seatbelt"

    def __init__(
        self, nested: Literal["refuse", "trust-outer"] = "refuse", *, sandbox_exec: str = _SANDBOX_EXEC
    ) -> None:
        if nested not in {"refuse", "trust-outer"}:
            raise ValueError(f"nested is refuse or trust-outer, not {nested!r}")
        self._nested: Final = nested
        self._sandbox_exec: Final = sandbox_exec

    def capability(self) -> Capability:
        """Return what this machine can enforce with this backend; runs the functional probes anew."""
        from wisp.sandbox.seatbelt_probe import find_capability  # noqa: PLC0415

        try:
            state, why = nesting(self._sandbox_exec)
        except SandboxUnavailable as error:
            state, why = "missing", error.reason
        return find_capability(self, state, _TRUSTED if state == "nested" and self._nested == "trust-outer" else why)

    def prepare(self, confinement: Confinement) -> SeatbeltEnforcer:
        """Return an enforcer, or raise SandboxUnavailable with the reason and what to do."""
        state, why = nesting(self._sandbox_exec)
        if state == "nested" and self._nested == "trust-outer":
            return SeatbeltEnforcer(confinement, None, "")
        if state == "nested":
            raise SandboxUnavailable(
                self.name, f"nested: {why}; `sandbox.nested: trust-outer` runs commands under that one alone"
            )
        if state != "free":
            raise SandboxUnavailable(self.name, why)
        profile = profile_of(confinement)
        try:
            file = _ProfileFile(confinement, profile)
        except OSError as error:
            raise SandboxUnavailable(
                self.name, f"the profile cannot be kept in wisp's home {home_directory()} ({error.strerror or error})"
            ) from None
        try:
            prove(self._sandbox_exec, file.path, profile)
        except BaseException:
            file.remove()
            raise
        return SeatbeltEnforcer(confinement, (profile, file), self._sandbox_exec)


class SeatbeltEnforcer:
    """One confinement under Seatbelt; with no `held`, commands run under an outer sandbox alone."""

    def __init__(self, confinement: Confinement, held: tuple[Profile, _ProfileFile] | None, sandbox_exec: str) -> None:
        self._roots = confinement.outermost_roots()
        self._held = held
        self._sandbox_exec = sandbox_exec
        self.layers: tuple[str, ...] = LAYERS if held else ("outer",)
        #: What a person has to be told.
        self.notes: tuple[str, ...] = () if held else (_TRUSTED,)
        refused = (os.strerror(errno.EPERM),)
        # What an outer sandbox refuses is not checked against roots that it does not have.
        self.texts = RefusalTexts(write=refused, link=refused, call=refused) if held else RefusalTexts()

    @property
    def ends_leftovers(self) -> str:
        """What may be left when a command has ended, in words."""
        return SeatbeltCommand.guarantee

    @contextmanager
    def lease(self) -> Iterator[_SeatbeltSlot]:
        """Hold a place for one command.

        A root that leads elsewhere now is no danger, as rules are about real paths, but the command would find its
        root closed: that is said instead.
        """
        for root in self._roots if self._held else ():
            if real(root) != root or not os.path.isdir(root):
                raise SandboxUnavailable(
                    SeatbeltBackend.name, f"the writable root {root} is no longer the directory it was"
                )
        if self._held is not None:
            self._held[1].check()
        yield _SeatbeltSlot(self)

    def start(
        self, argv: Sequence[str], *, cwd: str, env: Mapping[bytes, bytes], stdin: int, stdout: int, stderr: int
    ) -> SeatbeltCommand:
        """Start one command; see `wisp.sandbox.backend.Slot`."""
        if self._held is None:
            return start_plainly(argv, cwd=cwd, env=env, stdin=stdin, stdout=stdout, stderr=stderr)
        profile, file = self._held
        return start(
            self._sandbox_exec,
            file.path,
            profile,
            argv,
            cwd=cwd,
            env=env,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
        )

    def close(self) -> None:
        """Remove the profile's file; a command that runs has read it."""
        if self._held is not None:
            self._held[1].remove()


class _SeatbeltSlot:
    """A place for one command: any number of them can be had at a time."""

    def __init__(self, enforcer: SeatbeltEnforcer) -> None:
        self._enforcer = enforcer

    def spawn(
        self, argv: Sequence[str], *, cwd: str, env: Mapping[bytes, bytes], stdin: int, stdout: int, stderr: int
    ) -> SeatbeltCommand:
        """Start one command; see `wisp.sandbox.backend.Slot`."""
        return self._enforcer.start(argv, cwd=cwd, env=env, stdin=stdin, stdout=stdout, stderr=stderr)

    def observation(self) -> None:
        """Nothing observes here."""


class _ProfileFile:
    """A profile's text in wisp's home, where no command can write, under a name of this process alone.

    Raises OSError where it cannot be written, SandboxUnavailable where others could change it.
    """

    def __init__(self, confinement: Confinement, profile: Profile) -> None:
        directory = os.path.join(home_directory(), _DIRECTORY)
        if confinement.allows_write(os.path.join(directory, "x")):
            raise SandboxUnavailable(
                SeatbeltBackend.name, f"a command could change the profile in {directory}; set WISP_HOME back"
            )
        os.makedirs(os.path.dirname(directory), mode=0o700, exist_ok=True)
        with suppress(FileExistsError):
            os.mkdir(directory, 0o700)
        facts = os.lstat(directory)
        if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid():
            raise SandboxUnavailable(SeatbeltBackend.name, f"{directory} is not a directory of this user's own")
        if facts.st_mode & 0o077:
            os.chmod(directory, 0o700)
        _sweep(directory)
        self.path: Final = os.path.join(directory, f"{os.getpid()}-{secrets.token_hex(8)}.sb")
        self._owner: Final = os.getpid()
        self._lock = threading.Lock()
        self._is_removed = False
        self._identity: Final = _write(self.path, profile.text.encode("ascii"))

    def check(self) -> None:
        """Raise SandboxUnavailable unless the file is still the one that was written."""
        try:
            found = _identity_of(os.lstat(self.path))
        except OSError as error:
            raise SandboxUnavailable(
                SeatbeltBackend.name, f"the profile {self.path} was taken away ({error.strerror}); start wisp again"
            ) from None
        if found != self._identity:
            raise SandboxUnavailable(SeatbeltBackend.name, f"the profile {self.path} was changed; start wisp again")

    def remove(self) -> None:
        """Take the file away, once; a child that a fork made leaves it to its parent."""
        with self._lock:
            if self._is_removed or self._owner != os.getpid():
                return
            self._is_removed = True
        with suppress(OSError):
            os.unlink(self.path)


def _identity_of(facts: os.stat_result) -> tuple[int, ...]:
    return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, stat.S_IMODE(facts.st_mode)


def _write(path: str, content: bytes) -> tuple[int, ...]:
    """Write `content` so that `path` is either whole or not there, and return the file's identity."""
    unfinished = f"{path}.new"
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, 0o600)
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        os.rename(unfinished, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(unfinished)
        raise
    return _identity_of(os.lstat(path))


def _sweep(directory: str) -> None:
    """Take away what processes left that were killed: their numbers are in the names.

    Only what is a day old: a home may be shared with another machine, which has other numbers.
    """
    for name in os.listdir(directory):
        number = name.partition("-")[0]
        if not (name.endswith((".sb", ".sb.new")) and number.isascii() and number.isdigit()):
            continue
        try:
            os.kill(int(number), 0)
        except ProcessLookupError:
            path = os.path.join(directory, name)
            with suppress(OSError):
                if time.time() - os.lstat(path).st_mtime > _DAY:
                    os.unlink(path)
        except (OSError, OverflowError):
            continue
