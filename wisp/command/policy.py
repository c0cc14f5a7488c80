"""Whether a line may run at all: patterns that deny it, then patterns of which one must allow it.

Patterns are google-re2's, whose time grows with the line and nothing else: no pattern of a person's and no line of a
model's can hang the policy.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from wisp.command.line import crude_pieces, simple_commands
from wisp.config import pattern_problem
from wisp.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Decision", "DenyRow", "Policy", "default_rows"]

_ALLOW_KEY: Final = "commandPolicy.allow"
_DENY_KEY: Final = "commandPolicy.deny"

#: Bytes that one compiled set of patterns may take; the default of 8 MiB is short for some forty long patterns.
_SET_MEMORY: Final = 64 * 1024 * 1024
_SURROGATES: Final = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Decision:
    """What the policy says of one line.

    `reason` is empty when it is allowed; else it is what the model and the person read. `rule` names what decided: a
    default row, or a key of the configuration (`commandPolicy.deny[2]`, `commandPolicy.allow`). `explanation` says in
    words why a default row is there.
    """

    allowed: bool
    reason: str = ""
    rule: str = ""
    explanation: str = ""


@dataclass(frozen=True, slots=True)
class DenyRow:
    """One row of `deny.toml`, or one pattern of a person's (then only name, pattern and scope say something).

    `scope`: `line` is tried on the whole line and on each simple command, `command` on simple commands only.
    `matched` and `not_matched` are examples, each of them a test.
    """

    name: str
    pattern: str
    scope: Literal["line", "command"] = "line"
    reason: str = ""
    why: str = ""
    matched: tuple[str, ...] = ()
    not_matched: tuple[str, ...] = ()


@lru_cache(maxsize=1)
def default_rows() -> tuple[DenyRow, ...]:
    """Return the rows that hold where `commandPolicy.deny` is not set."""
    import tomllib  # noqa: PLC0415

    table = tomllib.loads(Path(__file__).with_name("deny.toml").read_text(encoding="utf-8"))
    return tuple(
        DenyRow(
            name=row["name"],
            pattern=row["pattern"],
            scope=row["scope"],
            reason=row["reason"],
            why=row["why"],
            matched=tuple(row["matched"]),
            not_matched=tuple(row["not_matched"]),
        )
        for row in table["row"]
    )


class Policy:
    """Patterns over a line and over each simple command in it. Deny wins.

    `deny` None means the default rows; an empty one denies nothing. When `allow` is not empty, one of its patterns
    must match the line and one each simple command. Patterns are searched, not anchored, and use google-re2 syntax.
    Raises ConfigError naming the pattern that does not compile. May be used from several threads.
    """

    def __init__(self, deny: Sequence[str] | None = None, allow: Sequence[str] = ()) -> None:
        self._deny = _Patterns(default_rows() if deny is None else _own_rows(deny, _DENY_KEY))
        self._allow = _Patterns(_own_rows(allow, _ALLOW_KEY))

    def decide(self, line: str) -> Decision:
        """Return whether `line` may run, as far as its text goes; starts nothing of it."""
        if not self._deny.rows and not self._allow.rows:
            return _ALLOWED
        line = _SURROGATES.sub("\ufffd", line)
        # A line that could not be read is cut at every operator, so that no pattern misses a command in it.
        commands = simple_commands(line) or crude_pieces(line)
        row = self._deny.first(line, is_command=line in commands)
        for command in commands:
            if row is None and command != line:
                row = self._deny.first(command, is_command=True)
        if row is not None:
            return Decision(False, f"command matches deny pattern {row.pattern}", row.name, row.reason)
        if self._allow.rows and any(self._allow.first(text, is_command=True) is None for text in (line, *commands)):
            return Decision(False, "command matches no allow pattern", _ALLOW_KEY)
        return _ALLOWED


_ALLOWED: Final = Decision(True)


def _own_rows(patterns: Sequence[str], key: str) -> tuple[DenyRow, ...]:
    """Return a person's patterns as rows. Raises ConfigError for one that does not compile."""
    if isinstance(patterns, str | bytes):
        raise UsageError(f"{key} is a list of patterns, not one text")
    rows = tuple(DenyRow(f"{key}[{index}]", pattern) for index, pattern in enumerate(patterns))
    for row in rows:
        problem = pattern_problem(row.pattern)
        if problem:
            raise ConfigError("the policy", 0, row.name, problem)
    return rows


class _Patterns:
    """Rows, compiled: which is the first that matches a text."""

    def __init__(self, rows: tuple[DenyRow, ...]) -> None:
        self.rows = rows
        self._matches = _matcher([row.pattern for row in rows])

    def first(self, text: str, *, is_command: bool) -> DenyRow | None:
        """Return the first row that matches `text`, which is a whole line or a simple command, or None."""
        hits = self._matches(text)
        if not hits:
            return None
        rows = (self.rows[index] for index in sorted(hits))
        return next((row for row in rows if is_command or row.scope == "line"), None)


def _matcher(patterns: list[str]) -> Callable[[str], Sequence[int] | None]:
    """Return what gives the indices of the patterns that match a text, in any order; nothing where none does."""
    if not patterns:
        return lambda _: None
    import re2  # noqa: PLC0415

    options = re2.Options()
    options.log_errors = False
    each = [re2.compile(pattern, options) for pattern in patterns]
    options.max_mem = _SET_MEMORY
    together = re2.Set.SearchSet(options)
    try:
        for pattern in patterns:
            together.Add(pattern)
        together.Compile()
    except re2.error:
        # Too many or too large to be one automaton; one by one they are slower and as right.
        return lambda text: [index for index, one in enumerate(each) if one.search(text) is not None]
    matches: Callable[[str], Sequence[int] | None] = together.Match
    return matches
