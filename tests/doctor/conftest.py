"""Reports made of values, and the doctor run for real in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

import wisp.doctor
from wisp.doctor.report import Check, Exposure, Machine, Report, Row, Selection, Surrounding
from wisp.probing.probe import DeclaredLimit, Expectation, Probe, Result, Sign, Trial, Verdict
from wisp.sandbox.capability import Capability, Layer, Limit


@dataclass(frozen=True)
class Made:
    """Makes values for reports; every argument has a default that is well."""

    @staticmethod
    def row(
        verdict: Verdict,
        *,
        name: str = "write.create-outside",
        expect: Expectation = "refused",
        promise: bool = True,
        lacks_tool: bool = False,
        reason: str = "it was stopped, and crosses without the sandbox",
        limits: tuple[DeclaredLimit, ...] = (),
        output: str = "",
    ) -> Row:
        probe = Probe(
            id=name,
            title=f"the title of {name}",
            why="the reason for it",
            run='touch "$OUTSIDE/probe"',
            expect=expect,
            crossed=(Sign("exists", "$OUTSIDE/probe"),),
            layer=("landlock",) if expect == "refused" else (),
            promise=promise,
            limits=limits,
        )
        trial = Trial((), 0, output)
        result = Result(
            name, probe.family, probe.title, expect, verdict, reason, 0.25, trial, trial, "landlock", ("landlock",)
        )
        return Row(probe, result, lacks_tool)

    @staticmethod
    def capability(tier: str | None = "B", reason: str = "") -> Capability:
        return Capability(
            "landlock",
            "B" if tier else None,
            reason,
            (
                Layer("landlock", "yes" if tier else "not-enabled", "interface 7", "" if tier else "writes outside"),
                Layer("landlock-scope", "too-old", "interface 5; scopes came with 6", "signals to processes outside"),
            ),
            frozenset({"confine.write"}),
            (Limit("confine.metadata", "Landlock does not govern modes"),),
        )

    @classmethod
    def report(
        cls,
        rows: Iterable[Row] = (),
        *,
        checks: Iterable[Check] = (Check("home", "ok", "it is well"),),
        exposed: Iterable[Exposure] = (),
        inside: Iterable[Surrounding] = (),
        tier: str | None = "B",
        reason: str = "",
        selection: Selection = "default",
        not_run: str = "",
    ) -> Report:
        machine = Machine(
            wisp="1.2.3",
            system="Linux",
            release="6.18.0",
            distribution="Debian GNU/Linux 12 (bookworm)",
            architecture="x86_64",
            python="CPython 3.11.2",
            is_root=False,
            landlock_abi=5,
            landlock_lacks=("signals and abstract sockets (interface 6)",),
            inside=tuple(inside),
            capability=cls.capability(tier, reason),
        )
        return Report(
            machine=machine,
            checks=tuple(checks),
            exposed=tuple(exposed),
            rows=tuple(rows),
            selection=selection,
            not_run=not_run,
            started="2026-11-30T12:00:00.000Z",
            seconds=1.25,
            jobs=2,
        )


@pytest.fixture(scope="session")
def made() -> Made:
    return Made()


@pytest.fixture(scope="session")
def schema() -> dict[str, object]:
    text = Path(wisp.doctor.__file__).with_name("schema.json").read_text("utf-8")
    found: dict[str, object] = json.loads(text)
    return found


@pytest.fixture(scope="session")
def validate(schema: dict[str, object]) -> Callable[[object], None]:
    """Return a function that raises unless its argument is what the published schema describes."""
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema)

    def check(value: object) -> None:
        validator.validate(value)

    return check


@dataclass(frozen=True)
class Ran:
    """What one run of the command gave."""

    status: int
    stdout: str
    stderr: str


Doctor = Callable[..., Ran]


@pytest.fixture
def doctor() -> Doctor:
    """Return a function that runs `wisp doctor` with words; None takes a variable out of its environment."""

    def run(*words: str, cwd: Path | None = None, env: Mapping[str, str | None] | None = None) -> Ran:
        variables = {**os.environ, **(env or {})}
        done = subprocess.run(
            [sys.executable, "-m", "wisp", "doctor", *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=120,
            cwd=cwd,
            env={name: value for name, value in variables.items() if value is not None},
        )
        return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())

    return run
