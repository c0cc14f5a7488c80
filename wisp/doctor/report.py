"""What the doctor found, as values: the machine, wisp's own state, what is exposed, and a verdict for every row.

Nothing here looks at the machine or prints; `run.collect` fills it, `render_text` and `as_json` show it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal, TypeAlias, get_args

from wisp.probing.probe import Probe, Result, Verdict
from wisp.sandbox.capability import Capability

__all__ = [
    "SCHEMA",
    "VERDICTS",
    "Check",
    "CheckStatus",
    "Exposure",
    "Machine",
    "Report",
    "Row",
    "Selection",
    "Surrounding",
    "rows_as_json",
]

#: The version of the JSON object; `wisp/doctor/schema.json` describes it.
SCHEMA: Final = 1

VERDICTS: Final[tuple[Verdict, ...]] = get_args(Verdict)

#: `failed` makes the doctor exit with 1; `note` is worth reading and changes nothing.
CheckStatus: TypeAlias = Literal["ok", "failed", "note"]

#: Which rows were asked for: the default set, all of them, those of some families, or rows named by id.
Selection: TypeAlias = Literal["default", "all", "family", "named"]


@dataclass(frozen=True, slots=True)
class Check:
    """One look at wisp's own state: what was found in one sentence, and what to do about it when it is not `ok`."""

    id: str
    status: CheckStatus
    summary: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Exposure:
    """A control socket that this process could connect to, and that the sandbox leaves within a command's reach.

    `paths` are the sockets of this kind, `@` first for an abstract one. `allows` is what a command could do through
    them, `closes` what keeps it from that.
    """

    id: str
    name: str
    paths: tuple[str, ...]
    allows: str
    closes: str


@dataclass(frozen=True, slots=True)
class Surrounding:
    """One fact that tells that wisp itself runs inside something: what it is, and what shows it."""

    kind: str
    evidence: str


@dataclass(frozen=True, slots=True)
class Machine:
    """Where the doctor ran. `landlock_abi` is the kernel's own version of the interface, None where there is none."""

    wisp: str
    system: str
    release: str
    distribution: str
    architecture: str
    python: str
    is_root: bool
    landlock_abi: int | None
    landlock_lacks: tuple[str, ...]
    inside: tuple[Surrounding, ...]
    capability: Capability


@dataclass(frozen=True, slots=True)
class Row:
    """One row and what running it gave. `lacks_tool`: it was skipped because a program is not installed."""

    probe: Probe
    result: Result
    lacks_tool: bool = False

    @property
    def must_hold(self) -> bool:
        """Whether wisp promises that this action is refused, so that proving nothing about it is a gap."""
        return self.probe.promise and self.probe.expect == "refused"

    @property
    def is_unproven(self) -> bool:
        """Whether a row that must hold proved nothing here, although this machine could have shown it."""
        if not self.must_hold:
            return False
        return self.result.verdict == "inconclusive" or (self.result.verdict == "skipped" and self.lacks_tool)


@dataclass(frozen=True, slots=True)
class Report:
    """All that one run of the doctor found. `not_run` says why no row was run, and is empty when rows were."""

    machine: Machine
    checks: tuple[Check, ...]
    exposed: tuple[Exposure, ...]
    rows: tuple[Row, ...]
    selection: Selection
    not_run: str
    started: str
    seconds: float
    jobs: int

    @property
    def counts(self) -> Mapping[Verdict, int]:
        """How many rows have each verdict; every verdict is there."""
        found = dict.fromkeys(VERDICTS, 0)
        for row in self.rows:
            found[row.result.verdict] += 1
        return MappingProxyType(found)

    def exit_status(self, *, strict: bool = False) -> int:
        """Return the doctor's exit status.

        0: the backend enforces and each row that must hold held. 1: something leaked or was overblocked, a check
        failed, or there is no backend. 3: nothing worse, but a row that must hold proved nothing or did not run.
        `strict` counts every inconclusive or skipped row as such.
        """
        counts = self.counts
        failed = any(check.status == "failed" for check in self.checks)
        if self.machine.capability.tier is None or failed or counts["leaked"] or counts["overblocked"]:
            return 1
        if self.not_run or any(row.is_unproven for row in self.rows):
            return 3
        return 3 if strict and counts["inconclusive"] + counts["skipped"] else 0

    def as_json(self, *, strict: bool = False) -> dict[str, object]:
        """Return one JSON-able object as `schema.json` describes it."""
        machine, capability = self.machine, self.machine.capability
        return {
            "schema": SCHEMA,
            "started": self.started,
            "seconds": round(self.seconds, 3),
            "jobs": self.jobs,
            "selection": self.selection,
            "exitStatus": self.exit_status(strict=strict),
            "machine": {
                "wisp": machine.wisp,
                "system": machine.system,
                "release": machine.release,
                "distribution": machine.distribution,
                "architecture": machine.architecture,
                "python": machine.python,
                "root": machine.is_root,
                "landlockAbi": machine.landlock_abi,
                "landlockLacks": list(machine.landlock_lacks),
                "inside": [{"kind": one.kind, "evidence": one.evidence} for one in machine.inside],
                "backend": capability.backend,
                "tier": capability.tier,
                "reason": capability.reason,
                "layers": [
                    {
                        "name": layer.name,
                        "state": layer.state,
                        "detail": layer.detail,
                        "loses": layer.loses,
                        "seconds": round(layer.seconds, 4),
                    }
                    for layer in capability.layers
                ],
                "confines": sorted(capability.confines),
                "limits": [{"name": limit.name, "because": limit.because} for limit in capability.limits],
            },
            "checks": [
                {"id": check.id, "status": check.status, "summary": check.summary, "advice": check.advice}
                for check in self.checks
            ],
            "exposed": [
                {
                    "id": one.id,
                    "name": one.name,
                    "paths": list(one.paths),
                    "allows": one.allows,
                    "closes": one.closes,
                }
                for one in self.exposed
            ],
            "probes": [
                {**row.result.as_json(), "promise": row.probe.promise, "slow": row.probe.slow} for row in self.rows
            ],
            "counts": dict(self.counts),
            "notRun": self.not_run,
        }


def rows_as_json(rows: Iterable[Probe]) -> dict[str, object]:
    """Return what `--list --json` prints: each row as it stands in its file, as `schema.json` describes it."""
    return {
        "schema": SCHEMA,
        "rows": [
            {
                "id": row.id,
                "family": row.family,
                "title": row.title,
                "why": row.why,
                "run": row.run,
                "expect": row.expect,
                "promise": row.promise,
                "slow": row.slow,
                "layer": list(row.layer),
                "requires": list(row.requires),
            }
            for row in rows
        ],
    }
