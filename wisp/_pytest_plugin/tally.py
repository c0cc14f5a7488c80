"""Gathering what the rows gave, wherever they ran: the summary at the end, and the file of `--wisp-report`.

Results travel as JSON text in `user_properties`, the only way from an xdist worker that also reaches `--junitxml`.
Import-light: the controller of every pytest run has one of these.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias, cast

import pytest

if TYPE_CHECKING:
    from wisp.sandbox.capability import Capability

__all__ = ["PROPERTY", "REPORT", "Tally", "check_writable"]

#: The key of a row's result in `user_properties`.
PROPERTY: Final = "wisp"

#: Where the report goes, as an absolute real path.
REPORT: Final = pytest.StashKey[Path]()

_ROW: TypeAlias = Mapping[str, object]

_ORDER: Final = (
    "held", "leaked", "overblocked", "declared", "closed", "not-promised", "inconclusive", "skipped",
)  # fmt: skip


class Tally:
    """The results of one session, in the controlling process."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._rows = dict[str, _ROW]()
        self._started = time.time()
        self._trouble = list[str]()
        self._written = False

    @property
    def rows(self) -> list[_ROW]:
        """The results as JSON objects, sorted by id and then by node id."""
        return [row for _, row in sorted(self._rows.items(), key=lambda pair: (str(pair[1]["id"]), pair[0]))]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the result of a row; of one that ran twice the last."""
        # The marker keeps out what a test of the project's own records under the same key.
        if report.when == "call" and "wisp_probe" in report.keywords:
            for name, value in report.user_properties:
                if name == PROPERTY:
                    self._rows[report.nodeid] = cast("_ROW", json.loads(str(value)))

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the report; fail a session whose rows proved nothing because nothing confines here."""
        if REPORT in self._config.stash:
            try:
                write_atomically(self._config.stash[REPORT], self._report(_why_cut_short(session)))
                self._written = True
            except OSError as error:
                self._trouble.append(f"--wisp-report: {self._config.stash[REPORT]}: {error.strerror or error}")
        if self._rows and all(row["verdict"] == "skipped" for row in self._rows.values()):
            found = self._capability()
            if found.tier is None:
                self._trouble.append(f"nothing was proved: {found.reason}")
        if self._trouble and session.exitstatus in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the counts by verdict, and each declared limit once."""
        if not (self._rows or self._trouble or self._written):
            return
        terminalreporter.write_sep("=", "wisp")
        limits = {limit.name: limit.because for limit in self._capability().limits} if self._rows else {}
        for line in summary(self.rows, limits):
            terminalreporter.write_line(line)
        if self._written:
            terminalreporter.write_line(f"report: {self._config.stash[REPORT]}")
        for line in self._trouble:
            terminalreporter.write_line(f"ERROR: {line}", red=True)

    def _capability(self) -> Capability:
        from wisp._pytest_plugin.ground import ground_of  # noqa: PLC0415

        return ground_of(self._config).capability

    def _report(self, cut_short: str) -> str:
        from wisp._pytest_plugin.report import build_report  # noqa: PLC0415

        workers = self._config.getoption("numprocesses", None)
        made = build_report(
            self.rows,
            self._capability(),
            everything=bool(self._config.getoption("wisp_all")),
            cut_short=cut_short,
            started=self._started,
            jobs=workers if isinstance(workers, int) and workers > 0 else 1,
        )
        return json.dumps(made, indent=2) + "\n"


def summary(rows: list[_ROW], limits: Mapping[str, str]) -> Iterator[str]:
    """Yield what the end of the session says of the rows; `limits` are the backend's, by name, with their reasons."""
    if not rows:
        return
    counts = {verdict: sum(row["verdict"] == verdict for row in rows) for verdict in _ORDER}
    yield f"{_count(rows)}: " + ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    for verdict in ("declared", "closed"):
        found = dict[str, list[_ROW]]()
        for row in rows:
            if row["verdict"] == verdict:
                found.setdefault(_limit(row), []).append(row)
        for limit, those in sorted(found.items()):
            because = limits.get(limit) or those[0]["reason"]
            yield f"{verdict} {limit}, {_count(those)}: {because}"
            yield f"    {_names(those)}"
    mute = [row for row in rows if row.get("refusalOk") is False]
    if mute:
        yield f"stopped, but the refusal check does not say what the row expects: {_names(mute)}"


def _why_cut_short(session: pytest.Session) -> str:
    """Return why rows may not have run although they were asked for; empty for a session that came to its end."""
    reason = session.shouldstop or session.shouldfail
    if reason:
        return f"pytest ended early: {reason}"
    came_to_its_end = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)
    return (
        "" if session.exitstatus in came_to_its_end else f"pytest ended early, with exit status {session.exitstatus:d}"
    )


def _count(rows: list[_ROW]) -> str:
    return "1 row" if len(rows) == 1 else f"{len(rows)} rows"


def _names(rows: list[_ROW]) -> str:
    return ", ".join(str(row["id"]) for row in rows)


def _limit(row: _ROW) -> str:
    inner = row.get("_")
    return str(inner.get("limit", "")) if isinstance(inner, dict) else ""


def check_writable(path: Path) -> Path:
    """Return the real path of a report that can be written. Raises pytest.UsageError."""
    target = Path(os.path.realpath(path))
    # Replacing /dev/null, or a FIFO, would take it away from everybody.
    if target.exists() and not target.is_file():
        raise pytest.UsageError(f"--wisp-report: {path} is no regular file")
    try:
        name = _temporary(target)
        os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        name.unlink()
    except OSError as error:
        raise pytest.UsageError(f"--wisp-report: {path} cannot be written: {error.strerror or error}") from None
    return target


def write_atomically(path: Path, text: str) -> None:
    """Put `text` into the file `path`, whole or not at all. Raises OSError."""
    name = _temporary(path)
    try:
        with open(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666), "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        name.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            name.unlink()
        raise


def _temporary(path: Path) -> Path:
    return path.parent / f".wisp-report-{secrets.token_hex(6)}"
