"""Checking the options before anything is collected, and the line that says what is active."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, cast

import pytest

from wisp._pytest_plugin.ground import ground_of
from wisp._pytest_plugin.tally import REPORT, check_writable
from wisp._version import __version__
from wisp.errors import ProbeError, UsageError, WispError
from wisp.probing.load import is_probe_file, packaged_files
from wisp.sandbox.choose import BACKENDS

__all__ = ["ROWS", "RowFile", "header", "start"]


class RowFile:
    """A file that `--wisp-probes` names: its path, its node id, and whether it is one of those that wisp ships."""

    __slots__ = ("nodeid", "packaged", "path")

    def __init__(self, path: Path, nodeid: str, *, packaged: bool) -> None:
        self.path, self.nodeid, self.packaged = path, nodeid, packaged


ROWS: Final = pytest.StashKey[tuple[RowFile, ...]]()
_ONLY_ROWS: Final = pytest.StashKey[bool]()

_ADVICE: Final = "a test path stands before --wisp-probes, or after `--`"


def start(config: pytest.Config) -> None:
    """Check every option; find the rows of `--wisp-probes`; with `--wisp-require` fail where the machine lacks it.

    Raises pytest.UsageError for an option that has no meaning, and ends the session with exit status 1 where a
    required capability is missing.
    """
    backend = config.getoption("wisp_backend")
    if backend is not None and backend not in BACKENDS:
        raise pytest.UsageError(f"--wisp-backend: there is no {backend!r}; choose one of {', '.join(BACKENDS)}")
    is_controller = not hasattr(config, "workerinput")
    report = config.getoption("wisp_report")
    if report is not None and is_controller:
        config.stash[REPORT] = check_writable(config.invocation_params.dir / report)
    words = cast("list[list[str]] | None", config.getoption("wisp_probes"))
    if words is not None:
        config.stash[ROWS] = _find_rows(words, config.invocation_params.dir, config.rootpath)
        config.stash[_ONLY_ROWS] = _names_only_rows(config)
        if config.stash[_ONLY_ROWS]:
            config.args = []
    # The controller speaks for its workers. To list tests is not to skip any.
    if is_controller and not config.getoption("collectonly"):
        _require(config)


def header(config: pytest.Config) -> str:
    """Return the line that says what confines here, and which rows run."""
    found = ground_of(config).capability
    parts = [
        f"wisp {__version__}: backend {found.backend}, tier {found.tier}"
        if found.tier
        else f"wisp {__version__}: nothing is confined: {found.reason}"
    ]
    rows = config.stash.get(ROWS, ())
    sources = ["packaged"] if any(row.packaged for row in rows) else []
    sources += [row.nodeid for row in rows if not row.packaged]
    if sources:
        shown = ", ".join(sources[:3]) + (f" and {len(sources) - 3} more files" if len(sources) > 3 else "")
        only = ", and nothing else: no test path was given" if config.stash[_ONLY_ROWS] else ""
        parts.append(f"rows: {shown}{only}")
    return "; ".join(parts)


def _names_only_rows(config: pytest.Config) -> bool:
    """Return whether `--wisp-probes` was typed with no test path beside it or in `testpaths`.

    pytest would then walk the current directory, which may be anybody's. From `addopts` the option never takes the
    place of the tests.
    """
    typed = any(str(word).partition("=")[0] == "--wisp-probes" for word in config.invocation_params.args)
    return typed and config.args_source is pytest.Config.ArgsSource.INVOCATION_DIR


def _find_rows(words: list[list[str]], directory: Path, root: Path) -> tuple[RowFile, ...]:
    """Return the files that the option names, sorted by node id. Raises pytest.UsageError."""
    found = dict[Path, RowFile]()
    for group in words:
        for word in group or [""]:
            try:
                files = _files_of(directory / word) if word else packaged_files()
            except WispError as error:
                raise pytest.UsageError(f"--wisp-probes: {error}") from None
            for path in files:
                nodeid = _nodeid(path, root) if word else f"wisp-probes/{path.name}"
                found.setdefault(path, RowFile(path, nodeid, packaged=not word))
    return tuple(sorted(found.values(), key=lambda row: row.nodeid))


def _files_of(place: Path) -> list[Path]:
    """Return the probe files in a directory, or the one file that is named."""
    resolved = Path(os.path.realpath(place))
    if resolved.is_file() and resolved.suffix == ".toml":
        return [resolved]
    if not resolved.is_dir():
        what = "is not a TOML file of rows" if resolved.exists() else "there is no such file or directory"
        raise ProbeError(str(place), "", f"{what}; {_ADVICE}")
    files = [path for path in resolved.rglob("*.toml") if is_probe_file(path)]
    if not files:
        raise ProbeError(str(place), "", f"holds no file of rows; {_ADVICE}")
    return files


def _nodeid(path: Path, root: Path) -> str:
    return Path(os.path.relpath(path, os.path.realpath(root))).as_posix()


def _require(config: pytest.Config) -> None:
    ground = ground_of(config)
    for name in config.getoption("wisp_require") or ():
        try:
            reason = ground.why_missing(name)
        except UsageError as error:
            raise pytest.UsageError(f"--wisp-require: {error}") from None
        except WispError as error:
            reason = str(error)
        if reason:
            pytest.exit(f"--wisp-require {name}: this machine lacks it: {reason}", returncode=1)
