"""Probe rows as pytest items: how they are collected, run, and how a failure reads."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from wisp._pytest_plugin.ground import Ground, ground_of
from wisp._pytest_plugin.start import ROWS
from wisp._pytest_plugin.tally import PROPERTY
from wisp.doctor.selection import is_default
from wisp.errors import ProbeError, WispError
from wisp.probing.abilities import missing
from wisp.probing.load import load_file
from wisp.probing.probe import Probe, Result, Trial
from wisp.probing.run import run_probe

if TYPE_CHECKING:
    from _pytest._code.code import TerminalRepr, TracebackStyle

__all__ = ["ProbeFile", "ProbeItem", "ProbeRows", "RowFailed", "collectors", "select"]

_FAILS: Final = frozenset({"leaked", "overblocked", "inconclusive"})


class RowFailed(Exception):
    """A row leaked, was overblocked, or proved nothing; its text is what the person reads."""


class ProbeFile(pytest.File):
    """A file of rows under a folder named `probes`."""

    def collect(self) -> Iterator[ProbeItem]:
        """Yield an item for each row. Raises ProbeError for a file that is wrong."""
        for probe in load_file(self.path):
            repeat = f"pytest {shlex.quote(f'{self.nodeid}::{probe.id}')}"
            yield ProbeItem.from_parent(self, name=probe.id, probe=probe, repeat=repeat)

    def repr_failure(
        self, excinfo: pytest.ExceptionInfo[BaseException], style: TracebackStyle | None = None
    ) -> str | TerminalRepr:
        """Return what a person reads of a file that is wrong."""
        del style
        return str(excinfo.value) if isinstance(excinfo.value, ProbeError) else super().repr_failure(excinfo)


class ProbeRows(pytest.Collector):
    """A file of rows that `--wisp-probes` named.

    No pytest.File: `--lf` would look for its node id as a path, and skip it.
    """

    packaged: bool

    @classmethod
    def from_row_file(cls, session: pytest.Session, path: Path, nodeid: str, *, packaged: bool) -> ProbeRows:
        """Return the collector of one file."""
        made = cls.from_parent(session, name=nodeid, path=path, nodeid=nodeid)
        made.packaged = packaged
        return made

    def collect(self) -> Iterator[ProbeItem]:
        """Yield an item for each row. Raises ProbeError for a file that is wrong."""
        for probe in load_file(self.path):
            repeat = (
                f"wisp doctor {probe.id}"
                if self.packaged
                else f"pytest --wisp-probes={shlex.quote(str(self.path))} -k {probe.id}"
            )
            yield ProbeItem.from_parent(self, name=probe.id, probe=probe, repeat=repeat)

    def repr_failure(
        self, excinfo: pytest.ExceptionInfo[BaseException], style: TracebackStyle | None = None
    ) -> str | TerminalRepr:
        """Return what a person reads of a file that is wrong."""
        del style
        return str(excinfo.value) if isinstance(excinfo.value, ProbeError) else super().repr_failure(excinfo)


class ProbeItem(pytest.Item):
    """One row: its control and its confined run, and a verdict."""

    def __init__(self, *, name: str, parent: pytest.Collector, probe: Probe, repeat: str) -> None:
        super().__init__(name=name, parent=parent)
        self.probe = probe
        self.repeat = repeat
        self.add_marker("wisp_probe")
        if probe.slow:
            self.add_marker("wisp_slow")

    def runtest(self) -> None:
        """Run the row; raises RowFailed, or skips, or is an expected failure, as its verdict says."""
        ground = ground_of(self.config)
        result = _run(self.probe, ground)
        said = json.dumps(_as_json(result, self.probe, ground))
        # A plugin that runs an item again must not leave two results.
        self.user_properties[:] = [one for one in self.user_properties if one[0] != PROPERTY]
        self.user_properties.append((PROPERTY, said))
        if result.verdict in _FAILS:
            raise RowFailed(failure_text(self.probe, result, self.repeat))
        if result.verdict == "declared":
            pytest.xfail(f"declared: {result.reason}")
        if result.verdict == "skipped":
            for name in ground.required.intersection((*self.probe.requires, "backend")):
                if name != "backend" or ground.capability.tier is None:
                    raise RowFailed(f"{self.probe.id}: --wisp-require {name}: {result.reason}")
            pytest.skip(result.reason)

    def repr_failure(
        self, excinfo: pytest.ExceptionInfo[BaseException], style: TracebackStyle | None = None
    ) -> str | TerminalRepr:
        """Return the failure as a person reads it, without a traceback."""
        if isinstance(excinfo.value, (RowFailed, WispError)):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Return the file as the node id names it, no line, and the id."""
        return self.config.rootpath / self.nodeid.partition("::")[0], None, self.name


def collectors(session: pytest.Session) -> Iterator[ProbeRows]:
    """Yield a collector for each file that `--wisp-probes` names, in the order of their node ids."""
    for row in session.config.stash.get(ROWS, ()):
        yield ProbeRows.from_row_file(session, row.path, row.nodeid, packaged=row.packaged)


def select(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave in `items` each row once, and of the rows that do not run unasked only those that were asked for.

    Asked for: by `--wisp-all`, or by its own node id on the command line.
    """
    seen = set[tuple[str, str]]()
    named = {arg.rpartition("::")[2] for arg in config.args if "::" in arg}
    kept, left_out = list[pytest.Item](), list[pytest.Item]()
    for item in items:
        if isinstance(item, ProbeItem):
            key = os.path.realpath(item.path), item.name
            if key in seen:
                continue
            seen.add(key)
            if not (config.getoption("wisp_all") or is_default(item.probe) or item.name in named):
                left_out.append(item)
                continue
        kept.append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
    items[:] = kept


def _run(probe: Probe, ground: Ground) -> Result:
    """Run one row, unless there is no sandbox that it could prove."""
    found = ground.capability
    if found.tier is None and not ground.is_unconfined_by_choice:
        reason = f"there is no sandbox to prove: {found.reason}"
        return Result(probe.id, probe.family, probe.title, probe.expect, "skipped", reason, 0.0)
    return run_probe(probe, backend=ground.backend, scratch=ground.scratch, confines=found.confines)


def _as_json(result: Result, probe: Probe, ground: Ground) -> dict[str, object]:
    """Return the result as the doctor reports it, and what only the summary needs under `_`."""
    limits = [one.without for one in probe.limits if one.without not in ground.capability.confines]
    lacks_tool = result.verdict == "skipped" and any(
        name.startswith("tool.") and missing(name, Path("/")) for name in probe.requires
    )
    return {
        **result.as_json(),
        "promise": probe.promise,
        "slow": probe.slow,
        "_": {"limit": limits[0] if limits else "", "lacksTool": lacks_tool},
    }


def failure_text(probe: Probe, result: Result, repeat: str) -> str:
    """Return what a person reads of a row that failed: what it is for, what both runs did, how to repeat it."""
    layers = f": {', '.join(result.layers)}" if result.layers else ""
    parts = [
        (f"{result.verdict}. Expected: {probe.title}", ()),
        ("why it matters", (probe.why,)),
        ("what was seen", (result.reason,)),
        ("command", probe.run.strip().splitlines()),
        ("control, without a sandbox", _trial(result.control)),
        (f"confined ({result.backend}{layers})", _trial(result.confined)),
        ("to repeat it", (repeat,)),
        ("row", (f"{probe.path}: {probe.id}",)),
    ]
    return "\n".join(line for title, said in parts for line in _part(title, said))


def _part(title: str, said: Iterable[str]) -> Iterator[str]:
    lines = list(said)
    if len(lines) == 1:
        yield f"{title}: {lines[0]}"
        return
    yield title if not lines else f"{title}:"
    yield from (f"    {line}" for line in lines)


def _trial(trial: Trial | None) -> list[str]:
    if trial is None:
        return ["did not run"]
    ended = "did not end in time" if trial.timed_out else f"exit status {trial.exit_status}"
    said = trial.output.splitlines()
    return [f"{'crossed' if trial.crossed else 'did not cross'}, {ended}", *(f"| {line}" for line in said)]
