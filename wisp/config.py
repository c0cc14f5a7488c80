"""How wisp behaves: one table of settings, read from `config.json` in wisp's home.

The dataclasses are the table: field, default, and in words what a value may be. JSON keys are the field names in
camelCase. pydantic checks the types and is imported only when a file says something.
"""

from __future__ import annotations

import difflib
import json
import os
import pwd
import re
from dataclasses import Field, dataclass, field, fields
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, Final, Literal

from wisp.config_file import Document, Where, dotted, read_document, shown
from wisp.errors import ConfigError
from wisp.realpath import real

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pydantic import TypeAdapter

__all__ = [
    "PRESETS",
    "AuditSettings",
    "LimitSettings",
    "PolicySettings",
    "SandboxSettings",
    "Settings",
    "home_directory",
    "load_settings",
    "pattern_problem",
    "written_home",
]


#: Words that `sandbox.protectedPaths` may hold in place of a path; `wisp.sandbox.guards` knows what they stand for.
PRESETS: Final = ("guard-project",)

#: A variable's name, or the beginning of names with a `*` behind it.
_VARIABLE: Final = re.compile(r"[^=*\0]+\*?")


def _camel(name: str) -> str:
    """Return a field's name as its JSON key: `allow_network` is `allowNetwork`."""
    first, *rest = name.split("_")
    return first + "".join(part.title() for part in rest)


#: What pydantic reads from a plain dataclass (`__pydantic_config__`), so that the table needs no import of it.
_STRICT: Final[dict[str, object]] = {
    "extra": "forbid",
    "strict": True,
    "allow_inf_nan": False,
    "alias_generator": _camel,
}


def pattern_problem(pattern: object) -> str:
    """Return why google-re2 cannot use `pattern`, in words, or an empty text when it can."""
    import re2  # noqa: PLC0415

    if not pattern:
        return "an empty pattern matches every line; remove it"
    options = re2.Options()
    options.log_errors = False
    try:
        re2.compile(pattern, options)
    except re2.error as error:
        why = error.args[0]
        text = why.decode("utf-8", "replace") if isinstance(why, bytes) else str(why)
        return f"the pattern {shown(str(pattern))!r} does not compile: {text} (google-re2 syntax is wanted)"
    return ""


def _path_problem(path: object) -> str:
    text = str(path)
    if "\0" in text:
        return "a path cannot hold a NUL character"
    return "" if text.startswith(("/", "~/")) else f"a path must be absolute or start with ~/, not {shown(text)!r}"


def _protected_problem(path: object) -> str:
    text = str(path)
    if not text or text.startswith("~") or "/" in text or "\0" in text:
        return _path_problem(path)
    if text in PRESETS:
        return ""
    return f"{shown(text)!r} is no path (absolute or starting with ~/) and no preset; presets: {', '.join(PRESETS)}"


def _variable_problem(name: object) -> str:
    text = str(name)
    if text == "*":
        return 'every variable is what "environment": "all" passes on; name some, like CARGO_*'
    if not _VARIABLE.fullmatch(text):
        return f"a variable's name is wanted, or the beginning of names like CARGO_*, not {shown(text)!r}"
    return ""


def _allows(words: str, problem: Callable[[object], str] | None = None) -> dict[str, object]:
    """Return a field's metadata: what it may be, in words, and a check of each value beyond its type."""
    return {"allowed": words, "problem": problem}


def _allows_number(words: str, holds: Callable[[float], bool]) -> dict[str, object]:
    """Return the metadata of a number for which `holds` is true."""
    return _allows(words, lambda value: "" if isinstance(value, int | float) and holds(value) else f"must be {words}")


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """`commandPolicy`: patterns in google-re2 syntax over a line and each simple command in it.

    `deny` None means the default rows; an empty one really is empty. An `allow` that is not empty must match the line
    and every simple command.
    """

    __pydantic_config__: ClassVar[dict[str, object]] = _STRICT

    deny: tuple[str, ...] | None = field(
        default=None, metadata=_allows("a list of patterns, or null for the default ones", pattern_problem)
    )
    allow: tuple[str, ...] = field(default=(), metadata=_allows("a list of patterns", pattern_problem))


@dataclass(frozen=True, slots=True)
class SandboxSettings:
    """`sandbox`: what confines a command, and what it may do.

    Paths are kept as they were written; the confinement expands `~/` and resolves them. `writable_paths` None means
    the build caches that exist. `protected_paths` may hold a preset's name. `nested` says what to do inside another
    sandbox that leaves no room for one of wisp's (macOS). `environment_allow` adds to what `allow-list` passes on.
    """

    __pydantic_config__: ClassVar[dict[str, object]] = _STRICT

    enabled: bool = field(default=True, metadata=_allows("true or false"))
    backend: Literal["auto", "bubblewrap", "landlock", "seatbelt", "none"] = field(
        default="auto", metadata=_allows('"auto", "bubblewrap", "landlock", "seatbelt" or "none"')
    )
    allow_network: bool = field(default=True, metadata=_allows("true or false"))
    writable_paths: tuple[str, ...] | None = field(
        default=None, metadata=_allows("a list of paths, or null for the build caches that exist", _path_problem)
    )
    protected_paths: tuple[str, ...] = field(
        default=(), metadata=_allows("a list of paths and presets: guard-project", _protected_problem)
    )
    require_tier: Literal["A", "B"] | None = field(default=None, metadata=_allows('"A", "B" or null'))
    nested: Literal["refuse", "trust-outer"] = field(default="refuse", metadata=_allows('"refuse" or "trust-outer"'))
    observe: bool = field(default=False, metadata=_allows("true or false"))
    environment: Literal["all", "allow-list"] = field(default="all", metadata=_allows('"all" or "allow-list"'))
    environment_allow: tuple[str, ...] = field(
        default=(), metadata=_allows("a list of names and beginnings of names, like CARGO_*", _variable_problem)
    )


@dataclass(frozen=True, slots=True)
class AuditSettings:
    """`audit`: whether records are kept, the size in bytes at which a file is rotated, how many rotated ones stay."""

    __pydantic_config__: ClassVar[dict[str, object]] = _STRICT

    enabled: bool = field(default=True, metadata=_allows("true or false"))
    max_file_bytes: int = field(
        default=10_485_760, metadata=_allows_number("a whole number, 4096 or more", lambda size: size >= 4096)
    )
    keep_files: int = field(
        default=5, metadata=_allows_number("a whole number from 0 to 100", lambda count: 0 <= count <= 100)
    )


@dataclass(frozen=True, slots=True)
class LimitSettings:
    """`limits`: seconds that a model's command may take, bytes of the end of each stream that are kept."""

    __pydantic_config__: ClassVar[dict[str, object]] = _STRICT

    command_timeout_seconds: float = field(
        default=60,
        metadata=_allows_number("a number above 0 and at most 86400", lambda seconds: 0 < seconds <= 86_400),
    )
    command_max_output_bytes: int = field(
        default=4096,
        metadata=_allows_number("a whole number from 256 to 1048576", lambda size: 256 <= size <= 1_048_576),
    )


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything `config.json` may say. `Settings()` is what holds without one."""

    __pydantic_config__: ClassVar[dict[str, object]] = _STRICT

    command_policy: PolicySettings = field(default=PolicySettings(), metadata=_allows("an object of settings"))
    sandbox: SandboxSettings = field(default=SandboxSettings(), metadata=_allows("an object of settings"))
    audit: AuditSettings = field(default=AuditSettings(), metadata=_allows("an object of settings"))
    limits: LimitSettings = field(default=LimitSettings(), metadata=_allows("an object of settings"))


def home_directory() -> str:
    """Return the real path of wisp's home: `WISP_HOME`, else `~/.wisp`. It may not exist.

    Raises ConfigError for a relative `WISP_HOME`, and where neither `HOME` nor the password database names a home.
    """
    return real(written_home(), "/")


def written_home() -> str:
    """Return wisp's home as it is written, links and all; raises ConfigError as `home_directory` does."""
    chosen = os.environ.get("WISP_HOME", "")
    if chosen:
        if not chosen.startswith("/"):
            reason = f"must be an absolute path, not {shown(chosen)!r}"
            raise ConfigError("the environment", 0, "WISP_HOME", reason)
        return chosen
    home = os.environ.get("HOME", "")
    if not home.startswith("/"):
        try:
            home = pwd.getpwuid(os.getuid()).pw_dir
        except KeyError:
            reason = f"is not set, and uid {os.getuid()} is not in the password database; set WISP_HOME"
            raise ConfigError("the environment", 0, "HOME", reason) from None
    return os.path.join(home, ".wisp")


def load_settings(home: str | None = None) -> Settings:
    """Return the settings in `config.json` of wisp's home (`home_directory()` when None); defaults where it is absent.

    Raises ConfigError, with file, line and key, for anything that is not understood exactly. A file that is wrong
    never falls back to the defaults, which may allow more.
    """
    directory = home_directory() if home is None else home
    document = read_document(os.path.join(directory, "config.json"))
    if document is None or not document.value:
        return Settings()
    settings = _validated(document)
    for where, value, problem in _checks(settings):
        reason = problem(value)
        if reason:
            raise document.error(where, reason)
    return settings


def _validated(document: Document) -> Settings:
    """Return the document as settings, its types checked; the first mistake in the file is the error."""
    from pydantic import ValidationError  # noqa: PLC0415

    try:
        # As JSON, because strict mode takes a list for a tuple and an object for a dataclass only there.
        return _adapter().validate_json(json.dumps(document.value))
    except ValidationError as error:
        wrong = {one["loc"] for one in error.errors(include_url=False, include_context=False, include_input=False)}
    where = next(place for place in document.lines if place in wrong)
    raise document.error(where, _why_wrong(where))


@lru_cache(maxsize=1)
def _adapter() -> TypeAdapter[Settings]:
    from pydantic import TypeAdapter as Adapter  # noqa: PLC0415

    return Adapter(Settings)


@lru_cache(maxsize=1)
def _known_keys() -> dict[Where, Field[object]]:
    """Return every key of the table by its way in the file."""
    defaults = Settings()
    known: dict[Where, Field[object]] = {}
    for section in fields(defaults):
        known[_camel(section.name),] = section
        for one in fields(getattr(defaults, section.name)):
            known[_camel(section.name), _camel(one.name)] = one
    return known


def _named(where: Where) -> Where:
    """Return the way without indices of a list."""
    return tuple(step for step in where if isinstance(step, str))


def _why_wrong(where: Where) -> str:
    """Return what is allowed at `where`, or the nearest key when there is no such key."""
    known = _known_keys()
    entry = known.get(_named(where))
    if entry is not None:
        return "must be a text" if isinstance(where[-1], int) else f"must be {entry.metadata['allowed']}"
    beside = {str(key[-1]): key for key in known if key[:-1] == where[:-1]}
    everywhere = {str(key[-1]): key for key in known}
    for choices in (beside, everywhere):
        nearest = difflib.get_close_matches(_camel(str(where[-1])[:60]), choices, n=1)
        if nearest:
            return f"unknown key; did you mean {dotted(choices[nearest[0]])}?"
    return f"unknown key; known here: {', '.join(beside)}"


def _checks(settings: Settings) -> Iterator[tuple[Where, object, Callable[[object], str]]]:
    """Yield each value that has a check beyond its type: its way in the file, the value, the check."""
    for section in fields(settings):
        values = getattr(settings, section.name)
        for one in fields(values):
            problem = one.metadata["problem"]
            value = getattr(values, one.name)
            if problem is None or value is None:
                continue
            where = (_camel(section.name), _camel(one.name))
            if isinstance(value, tuple):
                yield from (((*where, index), item, problem) for index, item in enumerate(value))
            else:
                yield where, value, problem
