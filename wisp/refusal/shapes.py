"""The wordings in which tools say which path an error is about: a table, one row a wording.

A row sees one line (or a few) in which the error text has been replaced by `TEXT`, so that the same row serves every
text that a layer gives. Rows are tried in order and the first that yields a path has the line: what is particular
stands above what is general. No pattern nests one repetition in another, and what looks for words anywhere in a line
takes their last place only, so a row's work is linear in the line: the command that is being judged wrote it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

__all__ = ["CLOSING", "NOT_WRITABLE", "OPENING", "SHAPES", "TEXT", "Quoting", "Shape"]

#: The marks that open and close a name in messages: straight ones, a backtick that opens, curly ones.
OPENING: Final = "'\"`\u2018\u201c"
CLOSING: Final = "'\"`\u2019\u201d"

#: Stands for the error text in what a pattern sees. A lone surrogate: text decoded from bytes never holds one.
TEXT: Final = "\udfff"

#: How a path is written: as it is; as GNU tools quote for a shell; with backslashes, as in source code.
Quoting = Literal["plain", "shell", "source"]


@dataclass(frozen=True, slots=True)
class Shape:
    """One wording. `example` shows it, with `{T}` for the error text and `{p}`, `{q}` for the paths.

    The named groups of `pattern` are the paths. With `bare`, a field is surely a path even when it does not begin
    with a slash, `~/`, `./` or `../`. `before` and `after` say how many neighbouring lines `pattern` sees. With
    `listed`, the paths are the lines that follow, as long as they begin with a slash. `opens` means that the wording
    is used for running or entering something, never for writing.
    """

    name: str
    pattern: re.Pattern[str]
    example: str
    bare: bool = False
    quoting: Quoting = "plain"
    before: int = 0
    after: int = 0
    listed: bool = False
    opens: bool = False


#: Pieces of patterns, written `{NAME}` in a row.
_PIECES: Final = {
    "T": TEXT,
    # What may follow the error text: a number, perl's and php's place, a full stop.
    "END": (
        r"(?: \((?:\d+|os error \d+|Errno::E[A-Z]+)\)| at \S{1,200} line \d+| in \S[^\n]* on line \d+)?[.!]?[ \t]*$"
    ),
    # A program's name and its colon, at the start of a line: `touch: `, `/bin/rm: `, `-bash: `.
    "PROGRAM": r"^[^\s:'\"`]{1,200}: ",
    # Everything up to the start of a word. Inside `(?>…)` with the words, it finds their last place and keeps to it.
    "ANYTHING": r"[^\n]*(?<![\w-])",
    # The start of what cannot be anything but a path.
    "ROOTED": r"(?:/|~/|\.\.?/)",
    "OPEN": f"[{OPENING}]",
    "CLOSE": f"[{CLOSING}]",
    "NO_QUOTE": rf"[^{OPENING}{CLOSING}\n]",
    # Words before a quoted name; an apostrophe inside a word opens no quotation.
    "LABEL": rf"(?:[^{OPENING}{CLOSING}\n]|(?<=\w)'(?=\w)){{0,300}}",
    "FAILED_TO": r"(?i:cannot|can't|could not|couldn't|unable to|failed to)",
    # Stems: what follows names a file.
    "WRITES": (
        r"(?:open|creat|writ|remov|delet|unlink|renam|mov|cop|link|mkdir|rmdir|mak|touch|lock|sav|append|truncat|"
        r"overwrit|chang|set|preserv|redirect|chmod|chown|access|stat|read|updat|replac|install|extract|clos|sync)"
    ),
    # Tools whose BSD messages are `tool: PATH: text` and nothing else.
    "BSD_TOOL": (
        r"^(?:\S{0,200}/)?(?:touch|cp|mv|rm|rmdir|mkdir|ln|link|unlink|tee|chmod|chown|chgrp|chflags|ditto|install|"
        r"mkfifo|mknod|truncate|sed|dd|gzip|bzip2|xz|zstd|tar|cat|sort|patch|rsync|xattr): "
    ),
    "GO_CALL": (
        r"(?:open|openat|create|mkdir|mkdirat|remove|unlink|unlinkat|rmdir|chmod|chown|lchown|chtimes|truncate|"
        r"symlink|mknod|mkfifo|stat|lstat|fork/exec)"
    ),
    # node's own prefix; not the same words inside a sentence such as a commit's subject.
    "NODE": r"(?:^\s*|Error: |^\s*E[A-Z]+ +)E[A-Z]+: ",
}
_PIECE: Final = re.compile(r"\{([A-Z_]+)\}")


def _pattern(source: str) -> re.Pattern[str]:
    return re.compile(_PIECE.sub(lambda piece: _PIECES[piece[1]], source))


SHAPES: Final[tuple[Shape, ...]] = (
    # --- two paths: both ends count, since either may be the one outside ---
    Shape(
        "gnu-move",
        _pattern(
            r"{PROGRAM}cannot (?:move|rename|copy) (?P<p>{OPEN}(?:(?!{CLOSE} to {OPEN})[^\n])+{CLOSE})"
            r" to (?P<q>{OPEN}.+{CLOSE}): {T}{END}"
        ),
        "mv: cannot move '{p}' to '{q}': {T}",
        bare=True,
        quoting="shell",
    ),
    Shape(
        "gnu-inter-device",
        _pattern(
            r"{PROGRAM}inter-device move failed: (?P<p>{OPEN}(?:(?!{CLOSE} to {OPEN})[^\n])+{CLOSE})"
            r" to (?P<q>{OPEN}.+{CLOSE}); unable to remove target: {T}{END}"
        ),
        "mv: inter-device move failed: '{p}' to '{q}'; unable to remove target: {T}",
        bare=True,
        quoting="shell",
    ),
    Shape(
        "gnu-hard-link",
        _pattern(
            r"{PROGRAM}(?:failed to create|creating|cannot create) hard link "
            r"(?P<p>{OPEN}(?:(?!{CLOSE} => {OPEN})[^\n])+{CLOSE}) => (?P<q>{OPEN}.+{CLOSE}): {T}{END}"
        ),
        "ln: failed to create hard link '{p}' => '{q}': {T}",
        bare=True,
        quoting="shell",
    ),
    Shape(
        # Only the link itself is written; what it points to is text.
        "gnu-symbolic-link",
        _pattern(
            r"{PROGRAM}(?:failed to create|creating) symbolic link "
            r"(?P<p>{OPEN}(?:(?!{CLOSE} -> )[^\n])+{CLOSE}) -> .+: {T}{END}"
        ),
        "ln: failed to create symbolic link '{p}' -> 'target': {T}",
        bare=True,
        quoting="shell",
    ),
    Shape(
        "bsd-rename",
        _pattern(r"{PROGRAM}rename (?P<p>(?:(?! to )[^\n])+) to (?P<q>.+): {T}{END}"),
        "mv: rename {p} to {q}: {T}",
        bare=True,
    ),
    Shape(
        "python-two-paths",
        _pattern(r"\[Errno \d+\] {T}: (?P<p>b?['\"](?:(?!['\"] -> )[^\n])+['\"]) -> (?P<q>b?['\"].+['\"])\s*$"),
        "PermissionError: [Errno 1] {T}: '{p}' -> '{q}'",
        bare=True,
        quoting="source",
    ),
    Shape(
        "node-two-paths",
        _pattern(r"{NODE}{T}, \w+ '(?P<p>(?:(?!' -> ')[^\n])+)' -> '(?P<q>.+)'\s*$"),
        "Error: EPERM: {T}, rename '{p}' -> '{q}'",
        bare=True,
    ),
    Shape(
        "rsync-rename",
        _pattern(r"rename (?P<p>\"[^\"\n]+\") -> (?P<q>\"[^\"\n]+\"): {T}{END}"),
        'rsync: rename "{p}" -> "{q}": {T} (1)',
        bare=True,
    ),
    Shape(
        "java-two-paths",
        _pattern(r"^(?>[^\n]*Exception: )(?P<p>(?:(?! -> )[^\n])+) -> (?P<q>.+): {T}{END}"),
        "java.nio.file.FileSystemException: {p} -> {q}: {T}",
        bare=True,
    ),
    Shape(
        "ruby-two-paths",
        _pattern(r"{T} @ \w+ - \((?P<p>[^,\n]+), (?P<q>.+?)\)(?: \(Errno::E[A-Z]+\))?\s*$"),
        "mv.rb:3:in `rename': {T} @ rb_file_s_rename - ({p}, {q}) (Errno::EPERM)",
        bare=True,
    ),
    Shape(
        "php-two-paths",
        _pattern(r"\w\((?P<p>[^,()\n]+),\s?(?P<q>[^,()\n]+)\): {T} in "),
        "PHP Warning:  rename({p},{q}): {T} in mv.php on line 3",
        bare=True,
    ),
    Shape(
        "go-two-paths",
        _pattern(r"(?:^|: )(?:rename|link|symlink) (?P<p>[^\s:]+) (?P<q>[^\s:]+): {T}{END}"),
        "go: rename {p} {q}: {T}",
        bare=True,
    ),
    # --- the path after the text ---
    Shape(
        "python",
        _pattern(r"\[Errno \d+\] {T}: (?P<p>b?['\"].+['\"])\s*$"),
        "PermissionError: [Errno 1] {T}: '{p}'",
        bare=True,
        quoting="source",
    ),
    Shape("node", _pattern(r"{NODE}{T}, \w+ '(?P<p>.+)'\s*$"), "Error: EPERM: {T}, open '{p}'", bare=True),
    Shape(
        "ruby",
        _pattern(r"{T} @ \w+ - (?P<p>[^(\s].*?)(?: \(Errno::E[A-Z]+\))?\s*$"),
        "w.rb:1:in `write': {T} @ rb_sysopen - {p} (Errno::EPERM)",
        bare=True,
    ),
    Shape(
        "ruby-plain",
        _pattern(r"{T} - (?P<p>{ROOTED}.*?)(?: \(Errno::E[A-Z]+\))?\s*$"),
        "Error: {T} - {p}",
    ),
    Shape(
        # A word without a slash may be a command as well as a file, so it is no path here.
        "zsh",
        _pattern(r"^[^\s:]{1,200}:(?:\d+:)? {T}: (?P<p>.*/.*)$"),
        "zsh:1: {T}: {p}",
        bare=True,
    ),
    Shape(
        "rust-at-path",
        _pattern(r"{T} \(os error \d+\) at path \"(?P<p>.+)\""),
        'error: couldn\'t create a temp dir: {T} (os error 13) at path "{p}"',
        bare=True,
    ),
    # --- shells ---
    Shape(
        "dash-redirect",
        _pattern(
            r"(?:{PROGRAM}\d+: |^(?:\S{0,200}/)?(?:sh|ash|mksh|oksh): )(?:cannot|can't) create (?P<p>.+): {T}{END}"
        ),
        "sh: 1: cannot create {p}: {T}",
        bare=True,
    ),
    Shape(
        "ksh-redirect",
        _pattern(r"{PROGRAM}(?:line \d+: |\d+: )?(?P<p>.+): cannot (?:create|open) \[{T}\]\s*$"),
        "ksh: {p}: cannot create [{T}]",
        bare=True,
    ),
    Shape(
        "bad-interpreter",
        _pattern(r"{PROGRAM}(?:line \d+: )?(?P<p>{ROOTED}[^:\n]*): (?:[^:\n]*: )?bad interpreter: {T}{END}"),
        "bash: {p}: /usr/bin/python: bad interpreter: {T}",
        opens=True,
    ),
    Shape("shell-line", _pattern(r"{PROGRAM}line \d+: (?P<p>{ROOTED}.*): {T}{END}"), "sh: line 1: {p}: {T}"),
    Shape(
        # dash says `cannot create` when it redirects; without these words it could not run the file.
        "dash-command",
        _pattern(r"{PROGRAM}\d+: (?P<p>{ROOTED}.*): {T}{END}"),
        "sh: 1: {p}: {T}",
        opens=True,
    ),
    # --- the path in quotes ---
    Shape(
        "python-script",
        _pattern(r"^(?>{ANYTHING}can't open file )(?P<p>['\"].+['\"]): \[Errno \d+\] {T}"),
        "python3: can't open file '{p}': [Errno 1] {T}",
        bare=True,
        opens=True,
    ),
    Shape(
        "quoted-for-writing",
        _pattern(r"(?P<p>{OPEN}{NO_QUOTE}+{CLOSE}) for (?:writing|appending|reading|update)[:,] {T}{END}"),
        'openssl: Can\'t open "{p}" for writing, {T}',
        bare=True,
    ),
    Shape(
        # Greedy to the last quote before the text: GNU quotes `it's` as 'it'\''s'.
        "quoted",
        _pattern(r"^(?={LABEL}{WRITES}){LABEL}(?P<p>{OPEN}.+{CLOSE}): {T}{END}"),
        "touch: cannot touch '{p}': {T}",
        bare=True,
        quoting="shell",
    ),
    Shape(
        "last-quoted",
        _pattern(r"^.*{OPEN}(?P<p>{ROOTED}{NO_QUOTE}*){CLOSE}: {T}{END}"),
        "fatal: 'refs/heads/x': nothing done with '{p}': {T}",
    ),
    Shape(
        "text-in-quotes",
        _pattern(r"{OPEN}(?P<p>{NO_QUOTE}+){CLOSE}: '{T}'\s*$"),
        "error: unable to open output file '{p}': '{T}'",
        bare=True,
    ),
    Shape(
        "quoted-failed",
        _pattern(r"\"(?P<p>{ROOTED}[^\"\n]*)\" failed: {T}{END}"),
        'rsync: [receiver] mkstemp "{p}" failed: {T} (13)',
    ),
    Shape(
        "quoted-with-number",
        _pattern(r"{OPEN}(?P<p>{NO_QUOTE}+){CLOSE} \([^()\n]{0,40}errno:? \d+ - {T}\)"),
        "mysqld: Can't create directory '{p}' (OS errno 13 - {T})",
        bare=True,
    ),
    Shape(
        "perl-call",
        _pattern(r"Can't \w+\((?P<p>'[^'\n]+')[^)\n]*\): {T} at "),
        "Can't mkdir('{p}'): {T} at -e line 1",
        bare=True,
    ),
    # --- the path in brackets ---
    Shape(
        "php",
        _pattern(r"\w\((?P<p>[^()\n]+)\): (?:[Ff]ailed to open stream: )?{T} in "),
        "PHP Warning:  file_put_contents({p}): Failed to open stream: {T} in w.php on line 1",
        bare=True,
    ),
    Shape(
        "java-file",
        _pattern(r"^(?>[^\n]*FileNotFoundException: )(?P<p>.+) \({T}\)\s*$"),
        "java.io.FileNotFoundException: {p} ({T})",
        bare=True,
    ),
    # --- the path, then words, then the text ---
    Shape(
        "path-then-words",
        _pattern(r"{PROGRAM}(?P<p>[^:\n]+): {FAILED_TO} {WRITES}[a-z ]{0,40}: {T}{END}"),
        "tar: {p}: Cannot open: {T}",
        bare=True,
    ),
    Shape(
        "perl-inplace",
        _pattern(r"^(?>{ANYTHING}do inplace edit on )(?P<p>.+): Cannot make temp name: {T}"),
        "Can't do inplace edit on {p}: Cannot make temp name: {T}.",
        bare=True,
    ),
    Shape("path-then-call", _pattern(r"^(?P<p>/[^:\n]+): [a-z]{2,20}: {T}{END}"), "{p}: mkstemp: {T}"),
    Shape(
        "path-then-failed",
        _pattern(r"^(?>{ANYTHING}directory )(?P<p>{ROOTED}\S*) failed [^\n]*\(\d+: {T}\)"),
        "W: chown to _apt:root of directory {p} failed - SetupAPTPartialDirectory (1: {T})",
    ),
    # --- words, then the path, then the text ---
    Shape(
        "open-failed",
        _pattern(r"^(?>{ANYTHING}open failed: )(?P<p>.+): {T}{END}"),
        "sort: open failed: {p}: {T}",
        bare=True,
    ),
    Shape(
        "bsd-change-mode",
        _pattern(r"^(?>{ANYTHING}Unable to change file [a-z]+ on )(?P<p>.+): {T}{END}"),
        "chmod: Unable to change file mode on {p}: {T}",
        bare=True,
    ),
    Shape(
        "words-file-path",
        _pattern(
            r"^(?>{ANYTHING}{FAILED_TO} {WRITES}[a-z ]{0,40} (?:file|directory|dir|folder|to) )"
            r"(?P<p>{ROOTED}[^:\n]*|[^\s'\":]+): {T}{END}"
        ),
        "ld: cannot open output file {p}: {T}",
        bare=True,
    ),
    Shape(
        "words-path",
        _pattern(
            r"^(?>{ANYTHING}{FAILED_TO} {WRITES}\w{0,10} (?:old )?)(?P<p>{ROOTED}[^:\n]*|[^\s'\":]*/[^\s:]*): {T}{END}"
        ),
        "fatal: cannot mkdir {p}: {T}",
        bare=True,
    ),
    Shape("go", _pattern(r"(?:^|: ){GO_CALL} (?P<p>[^\s:]+): {T}{END}"), "open {p}: {T}", bare=True),
    # --- the plain form: a program, a path, the text ---
    Shape("bsd-tool", _pattern(r"{BSD_TOOL}(?P<p>[^\s:'\"]+|{ROOTED}.*): {T}{END}"), "rm: {p}: {T}", bare=True),
    Shape("field", _pattern(r"^(?:.*: )?(?P<p>{ROOTED}[^:\n]*): {T}{END}"), "lua: w.lua:3: {p}: {T}"),
    Shape("last-word", _pattern(r"^.*\s(?P<p>{ROOTED}[^\s:'\"]*): {T}{END}"), "mktemp: mkdtemp failed on {p}: {T}"),
    Shape("dash-between", _pattern(r"^(?:.*\s)?(?P<p>{ROOTED}\S*) - {T}{END}"), "could not access {p} - {T}"),
    # --- several lines ---
    Shape(
        "unzip",
        _pattern(r"^(?>{ANYTHING}cannot create )(?:extraction directory: )?(?P<p>[^\n]+)\n\s+{T}\s*$"),
        "error:  cannot create {p}\n        {T}",
        bare=True,
        before=1,
    ),
    Shape(
        "fish",
        _pattern(r"^(?>{ANYTHING}redirecting file )(?P<p>'[^\n]+')\n\w+: {T}\s*$"),
        "warning: An error occurred while redirecting file '{p}'\nopen: {T}",
        bare=True,
        before=1,
    ),
    Shape(
        "caused-by",
        _pattern(r"[`'](?P<p>[^`'\n]+)[`']\n[ \t]*\nCaused by:\n\s+{T}{END}"),
        "  failed to create directory `{p}`\n\nCaused by:\n  {T} (os error 13)",
        bare=True,
        before=3,
    ),
    Shape(
        "zip",
        _pattern(r"zip [A-Za-z/]{0,10} ?error: {T}\s*\nzip error: [^(\n]*\((?P<p>[^)\n]+)\)"),
        "zip I/O error: {T}\nzip error: Could not create output file ({p})",
        bare=True,
        after=1,
    ),
)

#: Homebrew and others ask before they write and say only this; `TEXT` stands for the words "not writable".
NOT_WRITABLE: Final[tuple[Shape, ...]] = (
    Shape(
        "homebrew-list",
        _pattern(r"directories are {T} by your user:\s*$"),
        "Error: The following directories are {T} by your user:\n{p}",
        listed=True,
    ),
    Shape(
        "is-not-writable",
        _pattern(r"(?:^|: |\bThe )(?P<p>{ROOTED}\S*)(?: directory)?(?: is)? {T}(?:[.!]|$)"),
        "Error: {p} is {T}.",
    ),
    Shape("not-writable-path", _pattern(r"is {T}: (?P<p>{ROOTED}.*)$"), "E137: Viminfo file is {T}: {p}"),
)
