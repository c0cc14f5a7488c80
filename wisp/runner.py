"""The life of one command: the only place that strings the steps together.

    line ─► policy ─► audit `policy.decision` ─► one confined launch ─► supervision ─► refusal check
         ─► audit `command.outcome` ─► Outcome

The directory must exist; the policy sees the whole line and then each simple command; there is one launch, never two;
the refusal check changes only what is said.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shlex
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal

from wisp.command.policy import Policy
from wisp.config import Settings, home_directory, load_settings
from wisp.errors import PolicyDenied, UsageError
from wisp.outcome import Outcome, Refusal
from wisp.refusal.excerpt import Watch
from wisp.sandbox.call import Call, Timeout
from wisp.sandbox.choose import backend_named, require_tier
from wisp.sandbox.confinement import Confinement, current_directory, user_home
from wisp.sandbox.environment import PassedOn
from wisp.sandbox.held import Held
from wisp.sandbox.launch import existing_directory, launch
from wisp.sandbox.observation import Observation
from wisp.sandbox.process import Finished
from wisp.sandbox.stop import Stop
from wisp.sandbox.streams import Passthrough, Streams
from wisp.sandbox.tail import Tail

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from wisp.audit.log import AuditLog
    from wisp.outcome import Origin
    from wisp.sandbox.backend import Backend, Enforcer
    from wisp.sandbox.capability import Capability

__all__ = ["Passthrough", "Runner", "capability"]

_SHELL: Final = "/bin/sh"


def capability(backend: str | None = None) -> Capability:
    """Return what this machine can enforce, layer by layer, from functional probes run now.

    `backend` is a name that `--backend` takes; None is what a `Runner()` would use by default. Raises
    SandboxUnavailable where wisp has no backend for the system, UsageError for an unknown name.
    """
    return backend_named(backend or "auto").capability()


class Runner:
    """Runs command lines under one confinement.

    With no argument: the default confinement for the current directory, the backend and settings of `config.json`,
    and an audit log in wisp's home. `backend` is a name or a backend. `audit` False writes no log. Safe to use from
    several threads; use it as a context manager, or `close` it. `observe` lists what each command was refused in
    `Outcome.denials`, at a cost; None is what `sandbox.observe` says. Raises ConfigError and ConfinementError when it
    is made; the sandbox itself is set up by the first run.
    """

    def __init__(
        self,
        confinement: Confinement | None = None,
        *,
        backend: Backend | str | None = None,
        settings: Settings | None = None,
        audit: AuditLog | bool = True,
        session: str | None = None,
        observe: bool | None = None,
    ) -> None:
        self._settings = load_settings() if settings is None else settings
        self.directory = current_directory()
        self.confinement = (
            Confinement.default(directory=self.directory, settings=self._settings.sandbox)
            if confinement is None
            else confinement
        )
        self._backend = self._choose(backend, observe=observe)
        self._audit = self._open_audit(audit)
        self.session = session or secrets.token_hex(8)
        self._given = self.confinement
        # Not at the first run: a pattern that does not compile is an error of the start.
        self._policy = Policy(self._settings.command_policy.deny, self._settings.command_policy.allow)
        self._passed_on = PassedOn.of(self._settings.sandbox.environment, self._settings.sandbox.environment_allow)
        self._lock = threading.Lock()
        self._held = Held()
        # A program that forgets to close a runner leaves neither threads nor a scratch directory behind.
        self._finalizer = weakref.finalize(self, Held.release, self._held)
        _RUNNERS.add(self)

    def _choose(self, backend: Backend | str | None, *, observe: bool | None) -> Backend:
        if backend is not None and not isinstance(backend, str):
            return backend
        configured = self._settings.sandbox
        if backend is None:
            backend = configured.backend if configured.enabled else "none"
        if observe is None:
            observe = configured.observe and backend != "none"
        chosen = backend_named(backend, observe=observe, nested=configured.nested)
        require_tier(chosen, configured.require_tier)
        return chosen

    def _open_audit(self, audit: AuditLog | bool) -> AuditLog | None:
        if not isinstance(audit, bool):
            return audit
        if not audit or not self._settings.audit.enabled:
            return None
        from wisp.audit.log import AuditLog as Log  # noqa: PLC0415

        wanted = self._settings.audit
        return Log(
            os.path.join(home_directory(), "logs"), max_file_bytes=wanted.max_file_bytes, keep_files=wanted.keep_files
        )

    @property
    def backend(self) -> str:
        """The name of the backend that holds the confinement."""
        return self._backend.name

    @property
    def capability(self) -> Capability:
        """What this machine can enforce with this runner's backend; probed anew at each use."""
        return self._backend.capability()

    @property
    def layers(self) -> tuple[str, ...]:
        """The layers in force for every command; sets the sandbox up. Raises SandboxUnavailable."""
        return self._prepared().layers

    def run(
        self,
        line: str,
        *,
        cwd: str | os.PathLike[str] | None = None,
        origin: Origin = "model",
        timeout: Timeout = "default",
        stop: Stop | None = None,
        env: Mapping[str, str] | None = None,
        max_output: int | None = None,
        passthrough: Passthrough | None = None,
    ) -> Outcome:
        """Run `line` by `/bin/sh -c` and return what it did.

        `cwd` is the directory it starts in (default: where the runner was made) and never widens what it may do.
        `timeout` is in seconds; by default a model's command has the configured one and a person's has none.
        `env` replaces the environment, and `sandbox.environment` with it; only variables like WISP_API_KEY, wisp's own
        keys by their name, are never passed on. `max_output` is how many bytes of the end of each stream are kept.

        Raises, before anything has run: PolicyDenied, SandboxUnavailable, LaunchFailed, UsageError.
        """
        argv = [_SHELL, "-c", line]
        return self._run(Call(argv, line, cwd, origin, timeout, stop, env, max_output, passthrough))

    def run_argv(
        self,
        argv: Sequence[str],
        *,
        cwd: str | os.PathLike[str] | None = None,
        origin: Origin = "model",
        timeout: Timeout = "default",
        stop: Stop | None = None,
        env: Mapping[str, str] | None = None,
        max_output: int | None = None,
        passthrough: Passthrough | None = None,
    ) -> Outcome:
        """Run a program without a shell; otherwise as `run`. The policy and the audit see the quoted line."""
        if isinstance(argv, str) or not argv:
            raise UsageError("a program and its arguments are wanted, as a list that is not empty")
        line = shlex.join(argv)
        return self._run(Call(list(argv), line, cwd, origin, timeout, stop, env, max_output, passthrough))

    async def run_async(
        self,
        line: str,
        *,
        cwd: str | os.PathLike[str] | None = None,
        origin: Origin = "model",
        timeout: Timeout = "default",  # noqa: ASYNC109 - it bounds the command, not the call
        stop: Stop | None = None,
        env: Mapping[str, str] | None = None,
        max_output: int | None = None,
    ) -> Outcome:
        """Run `line` as `run` does, without blocking the event loop. Cancelling ends the command first."""
        handle = stop if stop is not None else Stop()
        with self._lock:
            future = self._held.pool().submit(
                self.run, line, cwd=cwd, origin=origin, timeout=timeout, stop=handle, env=env, max_output=max_output
            )
        waiting = asyncio.wrap_future(future)
        try:
            return await asyncio.shield(waiting)
        except asyncio.CancelledError:
            if not future.cancel():
                handle.kill()
                await asyncio.wait([waiting])
            raise

    def close(self) -> None:
        """Give back threads, descriptors and the scratch directory. A later run sets them up again."""
        with self._lock:
            held, self._held = self._held, Held()
            self._finalizer.detach()
            self._finalizer = weakref.finalize(self, Held.release, self._held)
            self.confinement = self._given
        held.release()
        if self._audit is not None:
            self._audit.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _prepared(self) -> Enforcer:
        """Return the enforcer, set up once."""
        with self._lock:
            if self._held.enforcer is not None:
                return self._held.enforcer
            enforcer, self.confinement = self._held.prepare(self._backend, self._given)
            return enforcer

    def _run(self, call: Call) -> Outcome:
        if any("\0" in word for word in call.argv):
            raise UsageError("a command cannot hold a NUL byte")
        seconds, limit = call.seconds(self._settings.limits), call.kept_bytes(self._settings.limits)
        directory = existing_directory(call.cwd, self.directory)
        self._clear(call, directory)
        enforcer = self._prepared()
        env = self._environment(call)
        announced = False

        def announce() -> None:
            # Written while the command's program is being loaded: the same moment, and half of what a record costs.
            nonlocal announced
            announced = True
            self._note_decision(call, directory, "allowed")

        watch = Watch(enforcer.texts)
        out, err = Tail(limit), Tail(limit)

        def take_err(chunk: bytes) -> None:
            err.feed(chunk)
            watch.feed(chunk.replace(b"\r\n", b"\n"))  # a terminal ends its lines so

        streams = Streams(out.feed, take_err, call.passthrough)
        started = time.perf_counter()
        try:
            finished = launch(
                enforcer, call.argv, directory, env, streams, timeout=seconds, stop=call.stop, announce=announce
            )
        finally:
            if not announced:  # it was allowed, and could not be started
                announce()
        spent = time.perf_counter() - started
        refusal = self._check(finished, watch, enforcer, directory)
        outcome = self._describe(call.line, directory, finished, out, err, spent, enforcer.layers, refusal)
        if self._audit is not None:
            from wisp.audit.event import build_record, command_outcome  # noqa: PLC0415

            details = command_outcome(outcome, origin=call.origin)
            self._audit.append(build_record("command.outcome", details, session=self.session))
        return outcome

    def _environment(self, call: Call) -> dict[bytes, bytes]:
        environment = call.environment(self._passed_on)
        environment[b"WISP_SANDBOX"] = os.fsencode(self.backend)
        if self._held.scratch is not None:
            environment[b"TMPDIR"] = os.fsencode(self._held.scratch.path)
        return environment

    def _clear(self, call: Call, directory: str) -> None:
        """Raise PolicyDenied when the policy refuses the line; audited."""
        decision = self._policy.decide(call.line)
        if not decision.allowed:
            self._note_decision(call, directory, "denied", decision.reason)
            raise PolicyDenied(decision.reason, decision.rule)

    def _note_decision(
        self, call: Call, directory: str, verdict: Literal["allowed", "denied"], reason: str | None = None
    ) -> None:
        if self._audit is None:
            return
        from wisp.audit.event import build_record, policy_decision  # noqa: PLC0415

        details = policy_decision(
            call.line,
            directory,
            verdict=verdict,
            sandbox=self.backend != "none",
            network=self.confinement.network,
            reason=reason,
            origin=call.origin,
        )
        self._audit.append(build_record("policy.decision", details, session=self.session))

    def _check(self, finished: Finished, watch: Watch, enforcer: Enforcer, directory: str) -> Refusal | None:
        """Return the verdict on a failed, confined command."""
        seen = watch.text() if finished.exit_status != 0 and self._backend.name != "none" else ""
        if not seen:
            return None
        from wisp.refusal.check import check  # noqa: PLC0415

        return check(
            exit_status=finished.exit_status,
            stderr=seen,
            confinement=self.confinement,
            texts=enforcer.texts,
            directory=directory,
            home=user_home(),
        )

    def _describe(
        self,
        line: str,
        directory: str,
        finished: Finished,
        out: Tail,
        err: Tail,
        seconds: float,
        layers: tuple[str, ...],
        refusal: Refusal | None,
    ) -> Outcome:
        seen = finished.observation or Observation()
        model = person = ""
        if refusal is not None:
            from wisp.refusal.note import model_note, person_note  # noqa: PLC0415

            model, person = model_note(refusal, self.confinement), person_note(refusal, self.confinement)
        return Outcome(
            line=line,
            directory=directory,
            exit_status=finished.exit_status,
            stdout=out.text(),
            stderr=err.text(),
            truncated=out.truncated or err.truncated,
            timed_out=finished.timed_out,
            stopped=finished.stopped,
            seconds=seconds,
            backend=self.backend,
            layers=layers,
            refusal=refusal,
            model_note=model,
            person_note=person,
            left_behind=finished.left_behind,
            denials=seen.denials,
            denials_lost=seen.lost,
        )


_RUNNERS: Final[weakref.WeakSet[Runner]] = weakref.WeakSet()


def _after_fork() -> None:
    """Give each runner in a forked child a lock that nobody holds and no threads that are not there."""
    for runner in list(_RUNNERS):
        runner._lock = threading.Lock()  # noqa: SLF001 - one mechanism in two halves
        runner._held.forget_threads()  # noqa: SLF001


os.register_at_fork(after_in_child=_after_fork)
