"""The simple commands in a line, as the shell that runs it would see them.

shfmt reads the line; its tree says where each command starts and ends. A line that it does not read, or not in time,
is *unread*: the caller must then assume the worst, for which `crude_pieces` is made.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import threading
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["crude_pieces", "find_shfmt", "simple_commands"]

_Tree: TypeAlias = "dict[str, object]"

_MOST_BYTES: Final = 16 * 1024
_MOST_SECONDS: Final = 1.0
#: What a shell passes over between words; other white space is a name like any other.
_BLANKS: Final = " \t\r\n"

#: Scripts inside a line (`sh -c '…'`, `eval '…'`): how deep, and how many in all.
_MOST_DEPTH: Final = 8
_MOST_SCRIPTS: Final = 64


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Words that can begin something other than a plain command in one of the dialects: behind one of these, even a line
#: of plain words is read by shfmt.
_SPECIAL_FIRST: Final = _names(
    "if then else elif fi do done case esac while until for in function select time coproc declare typeset local "
    "export readonly nameref let"
)
_SHELLS: Final = _names("sh bash zsh dash ksh mksh ash fish csh tcsh busybox")
_RUNS_TEXT: Final = _SHELLS | {"eval", "trap"}
#: Commands that run the words behind them; behind these a shell may stand anywhere.
_WRAPPERS: Final = _names(
    "sudo doas env nice nohup time timeout xargs command exec builtin caffeinate stdbuf ionice chronic setsid find "
    "busybox"
)

_PLAIN: Final = re.compile(
    r"[ \t]*[a-zA-Z0-9_./:@%+,-]+(?:[ \t]+[a-zA-Z0-9_./:@%+,=-]+)*[ \t]*",
)
#: NUL and other control characters but tab and newline, and what changes the direction of text on a screen: such a
#: line does not read as it looks.
_UNREADABLE: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
#: What bash and a plain POSIX shell read differently. Either may be /bin/sh, so such a line is read as both.
_DIALECTS_DIFFER: Final = re.compile(
    r"\[\[|\(\(|[<>=]\(|\|&|&>|\$['\"\[{]|[?*+@!]\(|<<<|\b(?:function|select|time|coproc|declare|typeset|let)\b"
)
_CRUDE: Final = re.compile(r"[;&|\n()`]|\$\(")

_COMMANDS: Final = frozenset({"CallExpr", "DeclClause", "TestClause", "LetClause", "ArithmCmd"})


class _Unread(Exception):
    """The line was not read; nothing can be said of what it runs."""


@dataclass(frozen=True, slots=True)
class _Command:
    """One command of a line: its text as it stands there, and its words without their quotes."""

    text: str
    words: tuple[str, ...]


def simple_commands(line: str) -> tuple[str, ...]:
    """Return the text of each simple command in `line`, in order and without repeats.

    Also those in substitutions, subshells and functions, and in a literal script given to a shell (`sh -c '…'`),
    `eval` or `trap`. A redirection before or behind a command is not part of its text. Empty for a line that runs
    none, and for an unread one: longer than 16 KiB, with control characters, with a mistake in it, no shfmt, or none
    in time.
    """
    if _is_plain(line):
        return (line.strip(" \t"),)
    try:
        return _commands(line)
    except _Unread:
        return ()


def crude_pieces(line: str) -> tuple[str, ...]:
    """Return `line` split at everything that could start a command, quoted or not: too many pieces, none missed."""
    pieces = (piece.strip(_BLANKS) for piece in _CRUDE.split(line))
    return tuple(dict.fromkeys(piece for piece in pieces if piece))


def _is_plain(line: str) -> bool:
    """Return whether `line` is one command of words without any meaning to a shell."""
    if _PLAIN.fullmatch(line) is None:
        return False
    words = line.split()
    return words[0] not in _SPECIAL_FIRST and _RUNS_TEXT.isdisjoint(word.rpartition("/")[2] for word in words)


@lru_cache(maxsize=128)
def _commands(line: str) -> tuple[str, ...]:
    """Return the simple commands of `line` and of the scripts in it. Raises _Unread, which is not cached."""
    found: dict[str, None] = {}
    waiting = [(line, 0)]
    scripts = 0
    while waiting:
        text, depth = waiting.pop(0)
        try:
            if depth > _MOST_DEPTH or scripts > _MOST_SCRIPTS:
                raise _Unread  # noqa: TRY301 - the same end as a script that shfmt cannot read
            commands, is_sure = _read(text)
        except _Unread:
            if depth == 0:
                raise
            found.update(dict.fromkeys((text.strip(_BLANKS), *crude_pieces(text))))
            continue
        found.update(dict.fromkeys(command.text for command in commands))
        if not is_sure:
            found.update(dict.fromkeys(crude_pieces(text)))
        inner = [script for command in commands if (script := _script(command.words))]
        scripts += len(inner)
        waiting += [(script, depth + 1) for script in inner]
    return tuple(found)


def _read(text: str) -> tuple[list[_Command], bool]:
    """Return the commands of one text, and whether both dialects that could run it agree that it can be read."""
    if _UNREADABLE.search(text) is not None:
        raise _Unread
    data = text.encode()
    if len(data) > _MOST_BYTES:
        raise _Unread
    if _is_plain(text):
        return [_Command(text.strip(" \t"), tuple(text.split()))], True
    dialects = ("posix", "bash") if _DIALECTS_DIFFER.search(text) else ("posix",)
    trees = _trees(data, dialects)
    if trees == [None]:
        dialects, trees = ("posix", "bash"), [None, *_trees(data, ("bash",))]
    readings = [tree for tree in trees if tree is not None]
    if not readings:
        raise _Unread
    commands = {command: None for tree in readings for command in _calls(tree, data)}
    return list(commands), len(readings) == len(dialects)


#: `sysconfig` fills its tables at its first use, and a second thread finds them half filled (seen with CPython 3.11).
_LOOKING: Final = threading.Lock()


@lru_cache(maxsize=1)
def _shfmt() -> str:
    """Return the path of the shfmt that came with wisp, or of one on the PATH. Raises _Unread."""
    with _LOOKING:
        beside = (os.path.dirname(sys.executable), sysconfig.get_path("scripts"))
        user = sysconfig.get_path("scripts", sysconfig.get_preferred_scheme("user"))
    for directory in (*beside, user):
        path = os.path.join(directory, "shfmt")
        if os.access(path, os.X_OK):
            return path
    path = shutil.which("shfmt") or ""
    # A relative entry of the PATH leads into the directory of the moment, which a command can write.
    if not path.startswith("/"):
        raise _Unread
    return path


def find_shfmt() -> str | None:
    """Return the path of the shfmt that reads command lines, or None where there is none."""
    try:
        return _shfmt()
    except _Unread:
        return None


def _trees(data: bytes, dialects: tuple[str, ...]) -> list[_Tree | None]:
    """Return shfmt's tree of `data` in each dialect, None where it is not valid in one. Raises _Unread."""
    running: list[subprocess.Popen[bytes]] = []
    trees: list[_Tree | None] = []
    try:
        for dialect in dialects:
            argv = [_shfmt(), "-ln", dialect, "--to-json"]
            pipe = subprocess.PIPE
            running.append(
                subprocess.Popen(
                    argv, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, cwd="/", env={"GOMAXPROCS": "1"}
                )
            )
        for process in running:
            output, _ = process.communicate(data, timeout=_MOST_SECONDS)
            tree: object = json.loads(output) if output else None
            trees.append(tree if isinstance(tree, dict) else None)
    except (OSError, ValueError, RecursionError, subprocess.TimeoutExpired) as error:
        raise _Unread from error
    finally:
        for process in running:
            if process.returncode is None:
                process.kill()
                process.communicate()
    return trees


def _calls(tree: _Tree, data: bytes) -> Iterator[_Command]:
    """Yield every command in shfmt's tree, wherever it hangs, in the order of the text."""
    waiting: list[object] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, list):
            waiting.extend(reversed(node))
        if not isinstance(node, dict):
            continue
        if node.get("Type") in _COMMANDS:
            words = node.get("Args")
            literal = tuple(_literal(word, data) for word in words) if isinstance(words, list) else ()
            yield _Command(_source(node, data).strip(_BLANKS), literal)
        waiting.extend(reversed(node.values()))


def _source(node: _Tree, data: bytes) -> str:
    """Return the text of a node. shfmt counts bytes."""
    start, end = (_offset(node.get(name)) for name in ("Pos", "End"))
    return data[start:end].decode("utf-8", "replace")


def _offset(position: object) -> int:
    offset = position.get("Offset") if isinstance(position, dict) else None
    if not isinstance(offset, int):
        raise _Unread
    return offset


def _literal(word: object, data: bytes) -> str:
    """Return a word without its quotes; what is not literal in it (`$x`) stays as it is written."""
    parts = word.get("Parts") if isinstance(word, dict) else None
    return "".join(_unquoted(part, data, quoted=False) for part in parts) if isinstance(parts, list) else ""


def _unquoted(part: object, data: bytes, *, quoted: bool) -> str:
    if not isinstance(part, dict):
        raise _Unread
    value = str(part.get("Value", ""))
    kind = part.get("Type")
    if kind == "Lit":
        special = r'\\([$`"\\\n])' if quoted else r"\\([\s\S])"
        return re.sub(special, lambda found: found[1].replace("\n", ""), value)
    if kind == "SglQuoted":
        return _ansi_c(value) if part.get("Dollar") else value
    inner = part.get("Parts")
    if kind == "DblQuoted" and isinstance(inner, list):
        return "".join(_unquoted(one, data, quoted=True) for one in inner)
    return _source(part, data)


def _ansi_c(value: str) -> str:
    r"""Return what `$'…'` stands for: `\n`, `\x41`, `\101` and the like."""
    named = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "v": "\v"}

    def plain(found: re.Match[str]) -> str:
        code = found[1]
        if code[0] in "xuU" and len(code) > 1:
            number = int(code[1:], 16)
        elif code[0] in "01234567":
            number = int(code, 8) & 0xFF
        else:
            return named.get(code, code)
        return chr(number) if number < 0xD800 else "\ufffd"

    return re.sub(r"\\(x[0-9a-fA-F]{1,2}|u[0-9a-fA-F]{1,4}|U[0-9a-fA-F]{1,8}|[0-7]{1,3}|[\s\S])", plain, value)


def _script(words: tuple[str, ...]) -> str:
    """Return the text that a command runs as a script, or an empty one."""
    names = [word.rpartition("/")[2] for word in words]
    if not names:
        return ""
    # Behind a wrapper the shell may be anywhere; elsewhere `sh -c x` among the arguments is only text.
    reach = len(names) if names[0] in _WRAPPERS else 1
    for index in range(reach):
        rest = words[index + 1 :]
        if names[index] == "eval":
            return " ".join(rest)
        if names[index] == "trap" and rest:
            return rest[1] if rest[0] == "--" and len(rest) > 1 else rest[0]
        if names[index] in _SHELLS:
            script = _dash_c(rest)
            if script:
                return script
    return ""


def _dash_c(arguments: tuple[str, ...]) -> str:
    """Return the script among a shell's arguments: the first one behind the options, when one of these has a c."""
    has_c = False
    takes_value = False
    for index, argument in enumerate(arguments):
        if takes_value:
            takes_value = False
        elif argument == "--":
            return arguments[index + 1] if has_c and len(arguments) > index + 1 else ""
        elif argument.startswith("--"):
            takes_value = argument in {"--rcfile", "--init-file"}
        elif argument.startswith(("-", "+")) and len(argument) > 1:
            has_c = has_c or (argument[0] == "-" and "c" in argument)
            takes_value = argument.endswith(("o", "O"))
        else:
            return argument if has_c else ""
    return ""
