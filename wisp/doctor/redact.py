"""Takes out of a report what identifies a person or a machine, before it is shown in any form.

The home directory becomes `~`, the user's name `USER`, the host's name `HOST`. Ids, verdicts, titles and the other
fixed words of wisp are never touched; every text that came from the machine is.
"""

from __future__ import annotations

import os
import pwd
import re
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from wisp.doctor.report import Check, Exposure, Machine, Report, Row, Surrounding
from wisp.probing.probe import Trial
from wisp.sandbox.capability import Capability
from wisp.sandbox.confinement import user_home

__all__ = ["Redactor", "redacted"]

#: Other people's names, which root meets in paths: their homes, and where screen keeps their sockets.
_OTHERS: Final = re.compile(r"(?:(?<=/home/)|(?<=/Users/)|(?<=/S-))[^/\s'\",;:()*]+")

#: Names of accounts and machines that identify nobody, and that are words of their own in a report.
_COMMON: Final = frozenset({"root", "localhost", "localhost.localdomain"})

#: A name this short, or one of these, is replaced only where it can be nothing else: in a path or an address.
_SHORT: Final = 3
_WORDS: Final = frozenset({
    "a", "an", "and", "any", "are", "build", "command", "control", "directory", "file", "group", "home", "host",
    "kernel", "landlock", "linux", "machine", "network", "none", "not", "outside", "probe", "process", "read", "root",
    "row", "sandbox", "seccomp", "service", "session", "shell", "socket", "system", "test", "the", "tier", "tmp",
    "user", "users", "var", "wisp", "write",
})  # fmt: skip


# Not slotted: `cached_property` keeps its value in the instance.
@dataclass(frozen=True)
class Redactor:
    """Replaces homes, users' names and hosts' names in texts. Use `of_this_process` outside tests."""

    homes: tuple[str, ...]
    users: tuple[str, ...]
    hosts: tuple[str, ...]

    @classmethod
    def of_this_process(cls) -> Redactor:
        """Return a redactor for the user that runs this process, and for the person behind `sudo`, on this host."""
        homes, users = [os.environ.get("HOME", ""), user_home()], list[str]()
        for uid in {os.getuid(), os.geteuid(), _invoking_uid()}:
            try:
                entry = pwd.getpwuid(uid)
            except (KeyError, OverflowError):
                continue
            users.append(entry.pw_name)
            homes += [entry.pw_dir, os.path.realpath(entry.pw_dir)]
        users += [os.environ.get(name, "") for name in ("USER", "LOGNAME", "SUDO_USER")]
        host = socket.gethostname()
        return cls(
            homes=_usable((home.rstrip("/") for home in homes), lambda home: home.startswith("/")),
            users=_usable(users, lambda name: name not in _COMMON),
            hosts=_usable([host, host.partition(".")[0], os.uname().nodename], lambda name: name not in _COMMON),
        )

    @cached_property
    def _patterns(self) -> tuple[tuple[re.Pattern[str], str], ...]:
        patterns = list[tuple[re.Pattern[str], str]]()
        for home in sorted(map(_readable, self.homes), key=len, reverse=True):
            # `/root` is also how other paths end; a longer home is worth hiding wherever it stands (`-I/home/ada`).
            start = r"(?<![\w.~-])" if home.count("/") == 1 else ""
            patterns.append((re.compile(rf"{start}{re.escape(home)}(?![\w-])"), "~"))
        for names, word in ((self.hosts, "HOST"), (self.users, "USER")):
            patterns += [(_name_pattern(name), word) for name in sorted(map(_readable, names), key=len, reverse=True)]
        return tuple(patterns)

    def text(self, text: str) -> str:
        """Return `text` without what identifies, and as text that any encoding and JSON reader can take."""
        text = _readable(text)
        for pattern, word in self._patterns:
            text = pattern.sub(word, text)
        return _OTHERS.sub("USER", text)


def _readable(text: str) -> str:
    """Return `text` with bytes that were no text written as escapes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _name_pattern(name: str) -> re.Pattern[str]:
    whole = rf"(?<!\w){re.escape(name)}(?!\w)"
    if len(name) >= _SHORT and name.lower() not in _WORDS:
        return re.compile(whole)
    # In a path, in an address, or in what id(1) prints.
    return re.compile(rf"(?<=[/@(=]){re.escape(name)}(?!\w)|{whole}(?=@)")


def _usable(texts: Iterable[str], is_wanted: Callable[[str], bool]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for text in texts if text and is_wanted(text)))


def _invoking_uid() -> int:
    """Return the uid that sudo was called by, or this process's own."""
    given = os.environ.get("SUDO_UID", "")
    return int(given) if given.isdigit() and len(given) < 10 else os.getuid()


def redacted(report: Report, redactor: Redactor) -> Report:
    """Return `report` with every text that came from the machine gone over by `redactor`."""
    text = redactor.text
    return replace(
        report,
        machine=_redacted_machine(report.machine, redactor),
        checks=tuple(Check(one.id, one.status, text(one.summary), text(one.advice)) for one in report.checks),
        exposed=tuple(
            Exposure(one.id, one.name, tuple(text(path) for path in one.paths), one.allows, one.closes)
            for one in report.exposed
        ),
        rows=tuple(_redacted_row(row, redactor) for row in report.rows),
        not_run=text(report.not_run),
    )


def _redacted_machine(machine: Machine, redactor: Redactor) -> Machine:
    text = redactor.text
    return replace(
        machine,
        release=text(machine.release),
        distribution=text(machine.distribution),
        inside=tuple(Surrounding(one.kind, text(one.evidence)) for one in machine.inside),
        capability=_redacted_capability(machine.capability, redactor),
    )


def _redacted_capability(capability: Capability, redactor: Redactor) -> Capability:
    text = redactor.text
    return replace(
        capability,
        reason=text(capability.reason),
        layers=tuple(replace(layer, detail=text(layer.detail)) for layer in capability.layers),
    )


def _redacted_row(row: Row, redactor: Redactor) -> Row:
    result = replace(
        row.result,
        reason=redactor.text(row.result.reason),
        refusal_said=redactor.text(row.result.refusal_said),
        control=_redacted_trial(row.result.control, redactor),
        confined=_redacted_trial(row.result.confined, redactor),
    )
    return replace(row, result=result)


def _redacted_trial(trial: Trial | None, redactor: Redactor) -> Trial | None:
    return None if trial is None else replace(trial, output=redactor.text(trial.output))
