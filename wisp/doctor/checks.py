"""Looks at wisp's own state: its home, its settings, its log, and what it needs from this machine.

Each check reads, says what it found and what to do; none repairs, creates or removes anything.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Final

from wisp.audit.names import current_path
from wisp.command.line import find_shfmt
from wisp.config import Settings, home_directory, load_settings
from wisp.doctor.report import Check
from wisp.errors import ConfigError, ConfinementError, DirectoryMissing, SandboxUnavailable, WispError
from wisp.probing.scratch import abandoned, choose_place
from wisp.realpath import is_inside, real
from wisp.sandbox.bwrap import why_no_namespaces
from wisp.sandbox.choose import require_tier
from wisp.sandbox.confinement import Confinement

if TYPE_CHECKING:
    from wisp.sandbox.backend import Backend

__all__ = ["Subject", "check_state", "find_subject"]

#: Lines at the end of the audit log that are looked at.
_TAIL_BYTES: Final = 64 * 1024
_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Subject:
    """What is checked. `home` is None where it cannot be told, `settings` where they cannot be read.

    `error` says why, and is None when both are there.
    """

    home: str | None
    settings: Settings | None
    error: ConfigError | None


def find_subject() -> Subject:
    """Return wisp's home and settings as far as they can be found. Never raises for what a person configured."""
    try:
        home = home_directory()
    except ConfigError as error:
        return Subject(None, None, error)
    try:
        return Subject(home, load_settings(home), None)
    except ConfigError as error:
        return Subject(home, None, error)


def check_state(subject: Subject, backend: Backend | None) -> tuple[Check, ...]:
    """Return every check of wisp's own state, in the order in which they are shown.

    `backend` is what would confine commands here, None where there is nothing.
    """
    checks = (
        _guarded("home", lambda: _check_home(subject)),
        _guarded("config", lambda: _check_config(subject)),
        _guarded("sandbox", lambda: _check_sandbox(subject, backend)),
        _guarded("tier", lambda: _check_tier(backend)),
        _guarded("roots", lambda: _check_roots(subject, backend)),
        _guarded("program", lambda: _check_program(subject)),
        _guarded("audit-log", lambda: _check_audit_log(subject)),
        _guarded("scratch", _check_scratch),
        _guarded("shfmt", _check_shfmt),
    )
    return tuple(check for check in checks if check is not None)


def _guarded(name: str, check: Callable[[], Check | None]) -> Check | None:
    """Return what `check` says; a check that cannot be made is a failed one, never the end of the doctor."""
    try:
        return check()
    except (OSError, ValueError, WispError, subprocess.SubprocessError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return Check(name, "failed", f"this could not be checked: {reason}")


def _check_home(subject: Subject) -> Check:
    home = subject.home
    if home is None:
        return Check("home", "failed", str(subject.error), "Set WISP_HOME to an absolute path, or unset it.")
    try:
        facts = os.stat(home)
    except FileNotFoundError:
        return Check("home", "ok", f"{home} is not there yet, which is fine: the defaults hold")
    except PermissionError:
        return Check("home", "failed", f"{home} cannot be looked at by this user", _OWN_HOME)
    if not stat.S_ISDIR(facts.st_mode):
        return Check(
            "home", "failed", f"{home} is not a directory", f"Move it away: wisp makes {home} when it needs it."
        )
    if facts.st_uid != os.geteuid():
        return Check("home", "failed", f"{home} belongs to another user (uid {facts.st_uid})", _OWN_HOME)
    mode = stat.S_IMODE(facts.st_mode)
    if mode & 0o077:
        return Check(
            "home",
            "failed",
            f"{home} is open to other users (mode {mode:04o}, 0700 is wanted)",
            f"Run: chmod 700 {quote(home)}",
        )
    return Check("home", "ok", f"{home} is this user's alone")


_OWN_HOME: Final = "Set HOME to your own home directory, or WISP_HOME to a directory of your own."


def _check_config(subject: Subject) -> Check | None:
    if subject.home is None:
        return None
    if subject.error is not None:
        return Check(
            "config",
            "failed",
            str(subject.error),
            "Until the file is right, wisp runs no command; moved away, the defaults hold.",
        )
    path = f"{subject.home}/config.json"
    if not os.path.lexists(path):
        return Check("config", "ok", "there is no config.json, which is fine: the defaults hold")
    return Check("config", "ok", f"{path} is understood")


def _check_sandbox(subject: Subject, backend: Backend | None) -> Check | None:
    if subject.settings is None:
        return None
    settings = subject.settings.sandbox
    if not settings.enabled or settings.backend == "none":
        key = "sandbox.backend" if settings.enabled else "sandbox.enabled"
        return Check(
            "sandbox",
            "note",
            f"config.json switches the sandbox off ({key}): wisp runs commands with no confinement at all",
            f"Remove {key} from config.json to have commands confined again.",
        )
    if backend is None or settings.require_tier is None:
        return None
    try:
        require_tier(backend, settings.require_tier)
    except SandboxUnavailable as error:
        return Check(
            "sandbox",
            "failed",
            str(error),
            "wisp runs no command here. Remove sandbox.requireTier from config.json to accept less.",
        )
    return Check("sandbox", "ok", f"this machine gives the tier that config.json requires ({settings.require_tier})")


def _check_tier(backend: Backend | None) -> Check | None:
    """Say why the stronger backend is not used, where only the weaker one works."""
    if backend is None or backend.name != "landlock":
        return None
    why = why_no_namespaces()
    if not why:
        return Check("tier", "note", "tier A works on this machine: this is about the backend that was asked for")
    return Check(
        "tier",
        "note",
        f"tier A does not work here, because no namespace can be made: {why}",
        "Where a kernel setting or a container forbids them, allow unprivileged user namespaces there.",
    )


def _check_roots(subject: Subject, backend: Backend | None) -> Check | None:
    """Check that a command started here could be confined: the roots exist and the backend can hold them."""
    if subject.settings is None or backend is None:
        return None
    try:
        confinement = Confinement.default(settings=subject.settings.sandbox)
        backend.prepare(confinement).close()
    except (ConfinementError, DirectoryMissing) as error:
        return Check("roots", "failed", str(error), "wisp runs no command here until this is put right.")
    except SandboxUnavailable as error:
        # The sandbox is whole: it refuses, as it should, what it could not hold.
        return Check("roots", "note", error.reason, "wisp runs no command in this directory until this is put right.")
    count = len(confinement.roots)
    if confinement.notes:
        return Check("roots", "note", "; ".join(confinement.notes))
    return Check("roots", "ok", f"a command started here could write under {count} roots (wisp profile lists them)")


def _check_program(subject: Subject) -> Check | None:
    """Check that a command could not change wisp itself: the next wisp would run what it left, unconfined."""
    if subject.settings is None:
        return None
    try:
        roots = Confinement.default(settings=subject.settings.sandbox).roots
    except (ConfinementError, DirectoryMissing):
        return None
    for place in _own_places():
        inside = next((root for root in roots if is_inside(place, root)), None)
        if inside is not None:
            return Check(
                "program",
                "note",
                f"wisp's own program ({place}) lies in the writable root {inside}: a command started here could change "
                "it, and the next wisp would run that without a sandbox",
                "Install wisp outside the directories that commands may write, or start it elsewhere.",
            )
    return Check("program", "ok", "wisp's own program lies outside what a command started here could write")


def _own_places() -> tuple[str, ...]:
    """Return where wisp's own program lies: the package, its environment, and the interpreter."""
    return real(Path(__file__).parents[1]), real(sys.prefix), real(sys.executable)


def _check_audit_log(subject: Subject) -> Check | None:
    if subject.home is None:
        return None
    if subject.settings is not None and not subject.settings.audit.enabled:
        return Check("audit-log", "note", "config.json switches the audit log off (audit.enabled)")
    path = current_path(f"{subject.home}/logs")
    try:
        # NONBLOCK: a FIFO in its place must not hold the doctor up.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except FileNotFoundError:
        return Check("audit-log", "ok", "nothing was logged yet")
    except OSError as error:
        return Check("audit-log", "failed", f"{path} cannot be read: {error.strerror}", "wisp cannot log what it runs.")
    with os.fdopen(descriptor, "rb") as stream:
        facts = os.fstat(descriptor)
        mode = stat.S_IMODE(facts.st_mode)
        if not stat.S_ISREG(facts.st_mode):
            return Check("audit-log", "failed", f"{path} is not a plain file", f"Move it away: {quote(path)}")
        if facts.st_uid != os.geteuid():
            owner = f"{path} belongs to another user (uid {facts.st_uid})"
            return Check("audit-log", "failed", owner, "wisp cannot log what it runs.")
        if mode != 0o600:
            wide = f"{path} has mode {mode:04o}, 0600 is wanted"
            return Check("audit-log", "failed", wide, f"Run: chmod 600 {quote(path)}")
        stream.seek(max(0, facts.st_size - _TAIL_BYTES))
        if b"\0" in stream.read(_TAIL_BYTES):
            damaged = f"{path} holds NUL bytes, as after a crash of the machine"
            return Check("audit-log", "note", damaged, "The records around them are lost; wisp logs on.")
    return Check("audit-log", "ok", f"{path} is readable and this user's alone ({_size(facts.st_size)})")


def _size(count: int) -> str:
    return f"{count} bytes" if count < 10_000 else f"{count / 1_000_000:.1f} MB"


def _check_scratch() -> Check:
    place = choose_place()
    left = abandoned(place)
    if left:
        names = f"{len(left)} scratch directories" if len(left) > 1 else "a scratch directory"
        shown = ", ".join(left[:3]) + (", ..." if len(left) > 3 else "")
        return Check(
            "scratch",
            "note",
            f"{names} of a doctor that was killed lay in {place.directory}: {shown}",
            "Nothing to do: the next probes remove them.",
        )
    if place.note:
        return Check("scratch", "note", place.note)
    return Check("scratch", "ok", f"nothing of an earlier doctor is left in {place.directory}")


def _check_shfmt() -> Check:
    program = find_shfmt()
    if program is None:
        return Check(
            "shfmt",
            "failed",
            "shfmt, which reads command lines for the policy, is not installed",
            "Install wisp again (its dependency shfmt-py brings it).",
        )
    ran = subprocess.run(
        [program, "--version"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=False,
        timeout=_SECONDS,
    )
    version = ran.stdout.decode("utf-8", "replace").strip()[:40]
    if ran.returncode != 0 or not version:
        return Check("shfmt", "failed", f"{program} does not run (exit status {ran.returncode})", "Install wisp again.")
    return Check("shfmt", "ok", f"shfmt {version} reads command lines for the policy")
