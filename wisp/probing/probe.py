"""What a probe is: one harmless action with an expected verdict, as data; and what running one gives.

The words of the format are closed lists here, so that a file that uses another one is told which there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, get_args

if TYPE_CHECKING:
    from wisp.outcome import RefusalVerdict

__all__ = [
    "CAPABILITIES",
    "LAYERS",
    "ORACLES",
    "RECEIVERS",
    "VARIABLES",
    "DeclaredLimit",
    "Expectation",
    "ExpectedRefusal",
    "Oracle",
    "Probe",
    "Result",
    "Sign",
    "Trial",
    "Verdict",
]

Expectation: TypeAlias = Literal["refused", "allowed"]

#: `held`: what was expected happened. `leaked`: a refused action crossed. `overblocked`: an allowed one did not.
#: `declared`: not as expected, where a limit of the backend says so; `closed`: as expected although it says so.
#: `not-promised`: outside what wisp promises. `inconclusive`: the row proved nothing here. `skipped`: it did not run.
Verdict: TypeAlias = Literal[
    "held", "leaked", "overblocked", "declared", "closed", "not-promised", "inconclusive", "skipped"
]

#: How the host decides from effects that the action crossed; each is one function of `oracle.py`.
Oracle: TypeAlias = Literal[
    "exists", "absent", "content", "mode", "owner", "times", "xattr", "received", "alive", "signalled", "token"
]

ORACLES: Final[tuple[Oracle, ...]] = get_args(Oracle)

#: What can receive something from a command: the runner listens on each that a row names.
RECEIVERS: Final = ("tcp", "udp", "unix", "abstract", "terminal")

#: What a row's `run` may name. `sh` defines more itself (`$PWD`, `$HOME`); everything else a row has to assign.
VARIABLES: Final = ("ROOT", "ROOT2", "OUTSIDE", "PROTECTED", "LINK", "PORT", "VICTIM", "PYTHON")

LAYERS: Final = (
    "landlock",
    "landlock-scope",
    "seccomp",
    "capabilities",
    "session",
    "descriptors",
    "leftovers",
    "mounts",
    "namespaces",
    "seatbelt",
)

#: The capabilities of a backend that a declared limit may be keyed by (`Capability.confines`).
CAPABILITIES: Final = (
    "confine.write",
    "confine.devices",
    "confine.network",
    "confine.signals",
    "confine.abstract-sockets",
    "confine.ptrace",
    "confine.io-uring",
    "confine.terminal-injection",
    "confine.device-ioctl",
    "confine.descriptors",
    "confine.leftovers",
    "confine.privileges",
    "confine.process-limits",
    "confine.terminal",
    "confine.metadata",
    "confine.unix-sockets",
    "confine.control-sockets",
    "confine.protected-inside-root",
    "confine.fork-chains",
    "confine.terminals",
    "confine.priority",
    "work.across-roots",
    "work.ask-before-write",
)


@dataclass(frozen=True, slots=True)
class Sign:
    """One effect that shows that an action crossed: an oracle and what it looks at (`exists`, `$OUTSIDE/probe`)."""

    oracle: Oracle
    target: str

    def __str__(self) -> str:
        """Return the effect in words: `$OUTSIDE/probe was made`."""
        return _EFFECTS[self.oracle].format(self.target)


_EFFECTS: Final[Mapping[Oracle, str]] = {
    "exists": "{} was made",
    "absent": "{} was taken away",
    "content": "{} was changed",
    "mode": "{} got another mode",
    "owner": "{} got another owner",
    "times": "{} got another time",
    "xattr": "{} got another attribute",
    "received": "the {} stand-in was reached",
    "alive": "the process named in {} outlived the command",
    "signalled": "the process {} outside was hit",
    "token": 'it printed "{}"',
}


@dataclass(frozen=True, slots=True)
class DeclaredLimit:
    """Where the row may go the other way: under a backend without the capability `without`.

    With `sometimes` it is a matter of chance, so that one run that went well does not mean that the limit is gone.
    """

    without: str
    because: str
    sometimes: bool = False


@dataclass(frozen=True, slots=True)
class ExpectedRefusal:
    """What the refusal check must say of the confined run; `paths` are written with the row's variables.

    Where the layer `unless` is in force the action fails in another way, and nothing is expected.
    """

    verdict: RefusalVerdict
    paths: tuple[str, ...] = ()
    unless: str = ""


@dataclass(frozen=True, slots=True)
class Probe:
    """One row. `run` is for `/bin/sh`; it crossed when every sign of `crossed` holds.

    `layer` names what must stop it (taking all of them away must turn it to `leaked`). `operations` are pairs of a
    Seatbelt operation and its argument, for the model of that language; `no_operations` says why there are none.
    `path` is the file that the row came from.
    """

    id: str
    title: str
    why: str
    run: str
    expect: Expectation
    crossed: tuple[Sign, ...]
    layer: tuple[str, ...] = ()
    operations: tuple[tuple[str, str], ...] = ()
    no_operations: str = ""
    refusal: ExpectedRefusal | None = None
    requires: tuple[str, ...] = ()
    limits: tuple[DeclaredLimit, ...] = ()
    promise: bool = True
    network: bool = False
    slow: bool = False
    #: Where `$PROTECTED` lies inside `$ROOT`: whether it is there at the start. None: it lies outside every root.
    protected: Literal["existing", "absent"] | None = None
    path: str = ""

    @property
    def family(self) -> str:
        """The first part of the id: `write` of `write.create-outside`."""
        return self.id.partition(".")[0]

    @property
    def seconds(self) -> float:
        """How long one run of it may take before it is ended, in seconds."""
        return 60.0 if self.slow else 15.0


@dataclass(frozen=True, slots=True)
class Trial:
    """One run of a row's command, as the host saw it.

    `missing` are the signs that did not show; it crossed when there are none. `exit_status` is 0 to 255, or the
    negative number of a signal. `output` is the end of what it printed, both streams, with scratch paths written as
    the row's variables; at most some hundred characters.
    """

    missing: tuple[Sign, ...]
    exit_status: int
    output: str
    timed_out: bool = False
    #: Whether the shell is known to have run the row's command, and not only a launcher that failed before it.
    started: bool = True

    @property
    def crossed(self) -> bool:
        """Whether the action had the effect that the row looks for."""
        return not self.missing

    def as_json(self) -> dict[str, object]:
        """Return one JSON-able object."""
        return {
            "crossed": self.crossed,
            "missing": [str(sign) for sign in self.missing],
            "exitStatus": self.exit_status,
            "timedOut": self.timed_out,
            "started": self.started,
            "output": self.output,
        }


@dataclass(frozen=True, slots=True)
class Result:
    """What running one row gave: a verdict, the reason in one sentence, and what both runs did.

    `control` and `confined` are None for a run that did not take place. `layers` were in force for the confined run.
    `refusal_ok` tells whether the refusal check said what the row expects (None when the row expects nothing, or the
    action was not stopped), `refusal_said` what it said. `seconds` is wall-clock time of the whole row.
    """

    id: str
    family: str
    title: str
    expect: Expectation
    verdict: Verdict
    reason: str
    seconds: float
    control: Trial | None = None
    confined: Trial | None = None
    backend: str = ""
    layers: tuple[str, ...] = ()
    refusal_ok: bool | None = None
    refusal_said: str = ""

    @property
    def repeat(self) -> str:
        """The command that runs this row alone."""
        return f"wisp doctor {self.id}"

    def as_json(self) -> dict[str, object]:
        """Return one JSON-able object: `id`, `family`, `verdict`, `reason`, `seconds` and the evidence."""
        return {
            "id": self.id,
            "family": self.family,
            "title": self.title,
            "expect": self.expect,
            "verdict": self.verdict,
            "reason": self.reason,
            "seconds": round(self.seconds, 3),
            "control": None if self.control is None else self.control.as_json(),
            "confined": None if self.confined is None else self.confined.as_json(),
            "backend": self.backend,
            "layers": list(self.layers),
            "refusalOk": self.refusal_ok,
            "refusalSaid": self.refusal_said,
            "repeat": self.repeat,
        }
