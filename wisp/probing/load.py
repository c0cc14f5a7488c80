"""Reading probe files, strictly: what is not understood is an error that names the file and the row.

A row that was read half is worse than none, since it would be counted as having held.
"""

from __future__ import annotations

import re
import stat
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NoReturn, TypeVar, cast

from wisp.errors import ProbeError
from wisp.probing.abilities import is_ability
from wisp.probing.probe import (
    CAPABILITIES,
    LAYERS,
    ORACLES,
    RECEIVERS,
    VARIABLES,
    DeclaredLimit,
    Expectation,
    ExpectedRefusal,
    Probe,
    Sign,
)

if TYPE_CHECKING:
    from wisp.outcome import RefusalVerdict

__all__ = ["is_probe_file", "load_file", "load_files", "load_text", "packaged_files", "packaged_rows"]

_SCHEMA: Final = 1
_MOST_BYTES: Final = 1024 * 1024

_KEYS: Final = frozenset(
    {
        "id",
        "title",
        "why",
        "run",
        "expect",
        "crossed",
        "layer",
        "operations",
        "no-operations",
        "refusal",
        "requires",
        "limits",
        "promise",
        "network",
        "slow",
        "protected",
    }
)
_REQUIRED: Final = ("id", "title", "why", "run", "expect", "crossed")

_ID: Final = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*(\.[a-z0-9]+(-[a-z0-9]+)*)+")
_OPERATION: Final = re.compile(r"[a-z][a-z0-9-]*\*?")

#: A variable as sh writes it. `$1`, `$?` and lower-case names are the row's own business.
_NAMED: Final = re.compile(r"\$\{?([A-Z][A-Z0-9_]*)")
_ASSIGNED: Final = re.compile(
    r"(?:^|[\s;({&|])([A-Z][A-Z0-9_]*)=|\bfor\s+([A-Z][A-Z0-9_]*)\b|\bread\s+([A-Z][A-Z0-9_]*)"
)

#: What POSIX sh sets itself, and what the runner sets for every row so that no tool reaches the person's own files.
_OF_THE_SHELL: Final = frozenset({
    "HOME", "IFS", "LINENO", "OLDPWD", "OPTARG", "OPTIND", "PATH", "PPID", "PS1", "PS2", "PS4", "PWD", "TMPDIR",
})  # fmt: skip

#: Where an oracle may look: in what the runner made, never at the person's own files.
_OURS: Final = re.compile(
    r"\$(ROOT2?|OUTSIDE|PROTECTED|LINK)(?![A-Za-z0-9_])|\$\{(ROOT2?|OUTSIDE|PROTECTED|LINK)\}|/proc/\$VICTIM/"
)

T = TypeVar("T")


def is_probe_file(path: str | Path) -> bool:
    """Return whether `path` is a TOML file of probes: `schema = 1` first, then `[[probe]]` as its first table.

    Cheap (it reads to the first table, at most 64 KiB), and False for whatever is foreign, broken or unreadable.
    """
    try:
        place = Path(path)
        # A FIFO called x.toml would block the open; a device might do worse.
        if place.suffix != ".toml" or not stat.S_ISREG(place.stat().st_mode):
            return False
        with place.open("rb") as stream:
            head = stream.read(64 * 1024)
    except (OSError, ValueError):
        return False
    return [*_first_lines(head, 2)] == ["schema=1", "[[probe]]"]


def _first_lines(head: bytes, count: int) -> Iterator[str]:
    """Yield the first `count` lines that say something, without blanks and comments."""
    for line in head.decode("utf-8", "replace").removeprefix("\ufeff").splitlines():
        said = "".join(line.partition("#")[0].split())
        if said:
            yield said
            count -= 1
        if count == 0:
            return


def packaged_files() -> tuple[Path, ...]:
    """Return the files of rows that wisp ships, sorted by name.

    In a wheel they are in `wisp/_probes`; an editable install does not show what the wheel's build moves there, so
    the checkout's own `probes` is read then. Raises ProbeError when there are none.
    """
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "_probes", package.parent / "probes"):
        files = tuple(sorted(folder.glob("*.toml")))
        if files:
            return files
    raise ProbeError(str(package / "_probes"), "", "wisp's own probe files are missing; install wisp again")


def packaged_rows() -> tuple[Probe, ...]:
    """Return every row that wisp ships, file by file in the order of their names. Raises ProbeError."""
    return load_files(packaged_files())


def load_files(paths: Iterable[str | Path]) -> tuple[Probe, ...]:
    """Return the rows of several files; an id may stand only once in all of them. Raises ProbeError."""
    rows = dict[str, Probe]()
    for path in paths:
        for row in load_file(path):
            if row.id in rows:
                raise ProbeError(row.path, row.id, f"this id is already used in {rows[row.id].path}")
            rows[row.id] = row
    return tuple(rows.values())


def load_file(path: str | Path) -> tuple[Probe, ...]:
    """Return the rows of one file, in order. Raises ProbeError, also when it cannot be read."""
    try:
        with Path(path).open("rb") as stream:
            data = stream.read(_MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ProbeError(str(path), "", f"cannot be read: {reason}") from None
    if len(data) > _MOST_BYTES:
        raise ProbeError(str(path), "", f"is longer than {_MOST_BYTES} bytes")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ProbeError(str(path), "", f"is not UTF-8: {error.reason} at byte {error.start}") from None
    return load_text(text, path=str(path))


def load_text(text: str, *, path: str = "<text>") -> tuple[Probe, ...]:
    """Return the rows of a probe file's text; `path` is for messages. Raises ProbeError and nothing else."""
    try:
        document = cast("dict[str, object]", tomllib.loads(text))
    except (ValueError, RecursionError) as error:
        # tomllib follows nested arrays by recursion; a file of brackets must not end in a traceback.
        reason = "is nested too deeply" if isinstance(error, RecursionError) else f"is not TOML: {error}"
        raise ProbeError(path, "", reason) from None
    if next(iter(document), None) != "schema":
        raise ProbeError(path, "", f"the first key must be schema = {_SCHEMA}")
    schema = document.pop("schema")
    if type(schema) is not int or schema != _SCHEMA:
        raise ProbeError(path, "", f"schema is {schema!r}; this wisp reads schema = {_SCHEMA}")
    tables = document.pop("probe", None)
    for key in document:
        raise ProbeError(path, "", f"unknown key {key!r}; after schema there are only [[probe]] tables")
    if not isinstance(tables, list) or not tables:
        raise ProbeError(path, "", "there is no [[probe]] table")
    rows = dict[str, Probe]()
    for number, table in enumerate(tables, 1):
        row = _Row(path, number, table).probe()
        if row.id in rows:
            raise ProbeError(path, row.id, f"this id is already used in this file; probe {number} needs its own")
        rows[row.id] = row
    return tuple(rows.values())


class _Row:
    """One `[[probe]]` table while it is read: every question about it is a method that returns or raises."""

    def __init__(self, path: str, number: int, table: object) -> None:
        self._path = path
        self._where = f"probe {number}"
        if not isinstance(table, dict):
            self._wrong("is not a table")
        self._table = cast("Mapping[str, object]", table)
        name = self._table.get("id")
        if isinstance(name, str) and _ID.fullmatch(name):
            self._where = name

    def probe(self) -> Probe:
        for key in self._table:
            if key not in _KEYS:
                self._wrong(f"unknown key {key!r}; there are {', '.join(sorted(_KEYS))}")
        for key in _REQUIRED:
            if key not in self._table:
                self._wrong(f"the key {key} is missing")
        expect = self._one_of("expect", ("refused", "allowed"))
        promise = self._flag("promise", default=True)
        layer = self._names("layer", lambda name: name in LAYERS, f"a layer; there are {', '.join(LAYERS)}")
        if expect == "refused" and promise and not layer:
            self._wrong("layer is missing: name what must stop it")
        if expect == "allowed" and layer:
            self._wrong("layer is given, but nothing must stop an allowed row")
        operations, reason = self._operations()
        return Probe(
            id=self._id(),
            title=self._text("title"),
            why=self._text("why"),
            run=self._command(),
            expect=cast("Expectation", expect),
            crossed=self._crossed(),
            layer=layer,
            operations=operations,
            no_operations=reason,
            refusal=self._refusal(expect),
            requires=self._names("requires", is_ability, "something wisp can probe a machine for"),
            limits=self._limits(),
            promise=promise,
            network="network" in self._table and self._one_of("network", ("on", "off")) == "on",
            slow=self._flag("slow", default=False),
            protected=self._protected(),
            path=self._path,
        )

    def _protected(self) -> Literal["existing", "absent"] | None:
        if "protected" not in self._table:
            return None
        return "existing" if self._one_of("protected", ("existing", "absent")) == "existing" else "absent"

    def _wrong(self, reason: str) -> NoReturn:
        raise ProbeError(self._path, self._where, reason)

    def _text(self, key: str) -> str:
        value = self._table[key]
        if not isinstance(value, str) or not value.strip():
            self._wrong(f"{key} must be a text that is not empty")
        return value

    def _flag(self, key: str, *, default: bool) -> bool:
        value = self._table.get(key, default)
        if not isinstance(value, bool):
            self._wrong(f"{key} must be true or false")
        return value

    def _one_of(self, key: str, choices: tuple[str, ...]) -> str:
        value = self._table[key]
        if not isinstance(value, str) or value not in choices:
            self._wrong(f"{key} is {value!r}; it may be {' or '.join(choices)}")
        return value

    def _names(self, key: str, known: Callable[[str], bool], kind: str) -> tuple[str, ...]:
        names = self._list(key, str)
        for name in names:
            if not known(name):
                self._wrong(f"{key}: {name!r} is not {kind}")
        if len(set(names)) != len(names):
            self._wrong(f"{key} names something twice")
        return tuple(names)

    def _list(self, key: str, kind: type[T]) -> list[T]:
        value = self._table.get(key, [])
        if not isinstance(value, list) or not all(isinstance(one, kind) for one in value):
            self._wrong(f"{key} must be a list of {'texts' if kind is str else 'tables or lists'}")
        return cast("list[T]", value)

    def _id(self) -> str:
        name = self._text("id")
        if not _ID.fullmatch(name):
            self._wrong(f"id {name!r} must be dotted lower case, family first: write.create-outside")
        return name

    def _command(self) -> str:
        command = self._text("run")
        if "\0" in command:
            self._wrong("run holds a NUL byte, which no command line can")
        assigned = {name for found in _ASSIGNED.findall(command) for name in cast("tuple[str, ...]", found)}
        for name in _NAMED.findall(command):
            if name not in {*VARIABLES, *_OF_THE_SHELL, *assigned}:
                self._wrong(f"run names ${name}; the runner sets only {', '.join('$' + one for one in VARIABLES)}")
        return command

    def _crossed(self) -> tuple[Sign, ...]:
        table = self._table["crossed"]
        if not isinstance(table, dict) or not table:
            self._wrong('crossed must be a table with at least one oracle, as { exists = "$OUTSIDE/probe" }')
        signs = list[Sign]()
        for oracle, targets in cast("Mapping[str, object]", table).items():
            if oracle not in ORACLES:
                self._wrong(f"crossed: unknown oracle {oracle!r}; there are {', '.join(ORACLES)}")
            for target in targets if isinstance(targets, list) and targets else [targets]:
                if not isinstance(target, str) or not target:
                    self._wrong(f"crossed: {oracle} must be a text, or a list of texts")
                self._check_target(oracle, target)
                signs.append(Sign(oracle, target))
        return tuple(signs)

    def _check_target(self, oracle: str, target: str) -> None:
        if oracle == "token":
            return
        if oracle == "received":
            if target not in RECEIVERS:
                self._wrong(f"crossed: received is {target!r}; there are {', '.join(RECEIVERS)}")
        elif oracle == "signalled":
            if target != "$VICTIM":
                self._wrong("crossed: signalled can only be $VICTIM")
        elif not _OURS.match(target) or "\0" in target:
            self._wrong(f"crossed: {oracle} must be a path under $ROOT, $ROOT2, $OUTSIDE, $PROTECTED or $LINK")

    def _operations(self) -> tuple[tuple[tuple[str, str], ...], str]:
        pairs = list[tuple[str, str]]()
        for pair in self._list("operations", list):
            if len(pair) != 2 or not all(isinstance(one, str) for one in pair) or not _OPERATION.fullmatch(pair[0]):
                self._wrong('operations must be pairs of an operation and its argument: ["file-write-create", "$ROOT"]')
            pairs.append((pair[0], pair[1]))
        has_reason = "no-operations" in self._table
        if has_reason and pairs:
            self._wrong("no-operations is the reason for operations = [], not for some")
        return tuple(pairs), self._text("no-operations") if has_reason else ""

    def _refusal(self, expect: str) -> ExpectedRefusal | None:
        if "refusal" not in self._table:
            return None
        table = self._table["refusal"]
        if expect == "allowed":
            self._wrong("refusal is given, but an allowed row is not refused")
        if not isinstance(table, dict) or not {"verdict"} <= table.keys() <= {"verdict", "paths", "unless"}:
            self._wrong("refusal must be a table with a verdict and paths, and perhaps a layer after `unless`")
        verdict, paths = table["verdict"], table.get("paths", [])
        if not isinstance(verdict, str) or verdict not in {"refused", "not-the-sandbox", "guess"}:
            self._wrong(f"refusal: verdict is {verdict!r}; it may be refused, not-the-sandbox or guess")
        if not isinstance(paths, list) or not all(isinstance(path, str) and _OURS.match(path) for path in paths):
            self._wrong("refusal: paths must be a list of paths that start with one of the row's variables")
        if (verdict == "refused") != bool(paths):
            self._wrong("refusal: refused names paths, and nothing else does")
        unless = table.get("unless", "")
        if not isinstance(unless, str) or (unless and unless not in LAYERS):
            self._wrong(f"refusal: unless is {unless!r}; it may be one of {', '.join(LAYERS)}")
        return ExpectedRefusal(cast("RefusalVerdict", verdict), tuple(paths), unless)

    def _limits(self) -> tuple[DeclaredLimit, ...]:
        limits = list[DeclaredLimit]()
        for table in self._list("limits", dict):
            if not {"without", "because"} <= table.keys() <= {"without", "because", "sometimes"}:
                self._wrong("limits: each must be a table with without and because, and perhaps sometimes")
            without, because, sometimes = table["without"], table["because"], table.get("sometimes", False)
            if not isinstance(without, str) or without not in CAPABILITIES:
                self._wrong(f"limits: {without!r} is not a capability; there are {', '.join(CAPABILITIES)}")
            if not isinstance(because, str) or not because.strip():
                self._wrong("limits: because must say why")
            if not isinstance(sometimes, bool):
                self._wrong("limits: sometimes must be true or false")
            limits.append(DeclaredLimit(without, because, sometimes))
        return tuple(limits)
