"""`wisp run`: one command, confined, as if it had been started directly."""

from __future__ import annotations

import json
import os
import select
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Final, Literal

import click

from wisp.cli.streams import StatusFile, captured_streams, own_terminal, shared_streams
from wisp.errors import PolicyDenied, StatusLost, UsageError, WispError
from wisp.refusal.note import visible

if TYPE_CHECKING:
    from types import FrameType

    from wisp.config import Settings
    from wisp.outcome import Origin, Outcome
    from wisp.runner import Runner
    from wisp.sandbox.confinement import Confinement
    from wisp.sandbox.process import Stop

__all__ = ["failure_as_json", "print_json", "run", "wants_json"]

_TIMED_OUT, _NOT_RUN, _DENIED = 124, 125, 126
#: Interrupts (Ctrl-C) after which the command is ended rather than asked.
_PATIENCE: Final = 3
_FORWARDED: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


@click.command(
    context_settings={"allow_interspersed_args": False},
    epilog="Exit status: the command's own; 124 timed out; 125 wisp could not run it; 126 denied by policy; "
    "128+N ended by signal N.",
)
@click.option("-c", "line", metavar="LINE", help="Run LINE by /bin/sh -c instead of a program and its words.")
@click.option("--cwd", metavar="DIR", help="Start in DIR. It never widens what the command may do.")
@click.option("--timeout", type=float, metavar="SECONDS", help="End the command after SECONDS.")
@click.option("--network", type=click.Choice(["on", "off"]), help="With or without a network (default: configured).")
@click.option("--writable", multiple=True, metavar="PATH", help="One more directory to write under; repeatable.")
@click.option("--read-only", is_flag=True, help="Write nowhere but in a scratch TMPDIR.")
@click.option(
    "--backend",
    metavar="NAME",
    help="What confines: auto, bubblewrap, landlock, seatbelt, or none (no sandbox at all).",
)
@click.option("--explain", is_flag=True, help="List each thing that the command was refused, also where it hid that.")
@click.option("--tty", is_flag=True, help="Give the command a terminal of its own.")
@click.option("--as-model", is_flag=True, help="Run it as a model's command and print what the model reads.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object with the captured output, nothing else.")
@click.option("--status-json", metavar="FILE", help="Write the outcome as JSON to FILE (or descriptor number).")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[--] COMMAND [WORDS]...")
def run(
    *,
    line: str | None,
    cwd: str | None,
    timeout: float | None,
    network: str | None,
    writable: tuple[str, ...],
    read_only: bool,
    backend: str | None,
    explain: bool,
    tty: bool,
    as_model: bool,
    as_json: bool,
    status_json: str | None,
    words: tuple[str, ...],
) -> int:
    """Run a command under the sandbox.

    Standard input is passed through, output comes as it is, signals are forwarded, and what wisp has to say
    follows on standard error when the command has ended.
    """
    try:
        _refuse_contradictions(
            line=line,
            words=words,
            read_only=read_only,
            writable=writable,
            timeout=timeout,
            tty=tty,
            as_model=as_model,
            as_json=as_json,
        )
        from wisp.config import load_settings

        settings = load_settings()
        confinement = _confinement(settings, network=network, writable=writable, read_only=read_only)
        status_file = StatusFile(status_json, confinement)
    except WispError as error:
        return _report_not_run(error, None, as_model=as_model, as_json=as_json)
    with status_file as status:
        try:
            from wisp.runner import Runner

            with Runner(confinement, settings=settings, backend=backend, observe=explain or None) as runner:
                if runner.backend == "none":
                    _say("wisp: no sandbox: this command can do whatever you can do (backend `none`)")
                outcome = _run(runner, line, words, cwd, timeout, tty=tty, as_model=as_model, capture=as_json)
        except WispError as error:
            return _report_not_run(error, status, as_model=as_model, as_json=as_json)
        code = _exit_code(outcome)
        facts = {**outcome.as_json(), "wispExitStatus": code}
        status.write(facts)
        if as_json:
            print_json(facts)
        elif as_model:
            click.echo(outcome.for_model())
        _print_notes(outcome, confinement.notes, timeout, only_notes=as_json or as_model)
        return code


def _refuse_contradictions(
    *,
    line: str | None,
    words: Sequence[str],
    read_only: bool,
    writable: Sequence[str],
    timeout: float | None,
    tty: bool,
    as_model: bool,
    as_json: bool,
) -> None:
    """Raise UsageError for options that cannot both hold."""
    if line is not None and words:
        raise UsageError("`-c LINE` is the whole command; words after it would be lost")
    if line is None and not words:
        raise UsageError("nothing to run; give `-- COMMAND` or `-c LINE`")
    if read_only and writable:
        raise UsageError("`--read-only` and `--writable` contradict each other")
    if timeout is not None and not 0 < timeout <= 86400 * 365:
        raise UsageError("`--timeout` is a number of seconds above 0")
    if as_json and as_model:
        raise UsageError("`--json` and `--as-model` contradict each other: each is all of the output")
    if tty and (as_json or as_model):
        raise UsageError("`--tty` gives the command a terminal of its own; `--json` and `--as-model` capture output")
    if tty and not os.isatty(0):
        raise UsageError("`--tty` needs a terminal on standard input")


def _confinement(settings: Settings, *, network: str | None, writable: Sequence[str], read_only: bool) -> Confinement:
    from wisp.sandbox.confinement import Confinement

    return Confinement.default(
        settings=settings.sandbox,
        writable=writable,
        network=None if network is None else network == "on",
        read_only=read_only,
    )


def _run(
    runner: Runner,
    line: str | None,
    words: Sequence[str],
    cwd: str | None,
    timeout: float | None,
    *,
    tty: bool,
    as_model: bool,
    capture: bool,
) -> Outcome:
    """Run it once, with signals forwarded for as long as it runs."""
    from wisp.sandbox.process import Stop

    stop = Stop(by_signals=True)
    terminal = own_terminal() if tty else nullcontext(None)
    with _forwarded_signals(stop), terminal as shared:
        passthrough = shared
        if passthrough is None and not as_model:
            passthrough = captured_streams() if capture else shared_streams()
        origin: Origin = "model" if as_model else "person"
        limit: float | Literal["default"] = "default" if timeout is None else timeout
        if line is not None:
            return runner.run(line, cwd=cwd, origin=origin, timeout=limit, stop=stop, passthrough=passthrough)
        return runner.run_argv(words, cwd=cwd, origin=origin, timeout=limit, stop=stop, passthrough=passthrough)


@contextmanager
def _forwarded_signals(stop: Stop) -> Iterator[None]:
    """Pass INT, TERM, HUP and QUIT on to the command while it runs; the third Ctrl-C ends it.

    A signal that wisp was started with ignored (nohup) stays ignored, for wisp and for the command.
    """
    interrupts = 0

    def forward(signum: int, _frame: FrameType | None) -> None:
        nonlocal interrupts
        interrupts += signum == signal.SIGINT
        if interrupts >= _PATIENCE:
            stop.kill()
        else:
            stop.forward(signum)

    before = {signum: signal.getsignal(signum) for signum in _FORWARDED}
    ours = [signum for signum, handler in before.items() if handler != signal.SIG_IGN]
    for signum in ours:
        signal.signal(signum, forward)
    try:
        yield
    finally:
        for signum in ours:
            signal.signal(signum, before[signum])


def _exit_code(outcome: Outcome) -> int:
    if outcome.timed_out:
        return _TIMED_OUT
    return outcome.exit_status if outcome.exit_status >= 0 else 128 - outcome.exit_status


def _print_notes(outcome: Outcome, notes: Sequence[str], timeout: float | None, *, only_notes: bool) -> None:
    """Say on standard error, after the end, what a person has to know; with `only_notes`, no more than `notes`.

    These are about the place and not about the command, so no form of the output holds them.
    """
    if (outcome.timed_out or outcome.stopped) and not _is_writable(2):
        return  # the time is up, and a reader that reads nothing must not hold wisp
    lines = [f"· {visible(note)}" for note in notes]
    if not only_notes:
        timed_out = f"· timed out after {timeout:g} s: the command was killed" if outcome.timed_out else ""
        left_behind = f"· {outcome.left_behind}" if outcome.left_behind and outcome.backend != "none" else ""
        lines = [timed_out, outcome.person_note, *_denials(outcome), *lines, left_behind]
    for line in lines:
        if line:
            _say(f"  {line}")


def _denials(outcome: Outcome) -> Iterator[str]:
    """Yield a line for each thing that the command was refused, as far as it was observed."""
    for one in outcome.denials:
        times = f", {one.count} times" if one.count > 1 else ""
        who = visible(f"{one.program}[{one.pid}]")
        yield f"· refused to {who}: {one.operation} {visible(one.target)} ({one.call}: {one.errno}{times})"
    if outcome.denials_lost:
        yield f"· {outcome.denials_lost} more were not kept, or could not be read"


def _is_writable(descriptor: int) -> bool:
    """Return whether a line can be written within a second."""
    watch = select.poll()
    watch.register(descriptor, select.POLLOUT)
    return bool(watch.poll(1000))


def _report_not_run(error: WispError, status: StatusFile | None, *, as_model: bool, as_json: bool) -> int:
    """Say why nothing was run, in the form that was asked for, and return the exit status."""
    code = _DENIED if isinstance(error, PolicyDenied) else _NOT_RUN
    facts = failure_as_json(type(error).__name__, str(error), code, ran=isinstance(error, StatusLost))
    if status is not None:
        status.write(facts)
    if as_json:
        print_json(facts)
    elif as_model:
        click.echo(f"error: {error}")
    else:
        _say(f"wisp: {visible(str(error))}")
    return code


def failure_as_json(error: str, reason: str, code: int, *, ran: bool = False) -> dict[str, object]:
    """Return the JSON-able object of a command that was not run, `schema` 1."""
    return {"schema": 1, "ran": ran, "error": error, "reason": reason, "wispExitStatus": code}


def wants_json(words: Sequence[str]) -> bool:
    """Return whether `--json` stands before the command in `words`, which follow `run` and may be wrong elsewhere."""
    takes_value = {name for one in run.params if isinstance(one, click.Option) and not one.is_flag for name in one.opts}
    rest = iter(words)
    for word in rest:
        if word == "--json":
            return True
        if word == "--" or not word.startswith("-"):
            return False
        if word in takes_value:
            next(rest, None)
    return False


def print_json(facts: Mapping[str, object]) -> None:
    """Print one JSON object on standard output."""
    click.echo(json.dumps(facts, ensure_ascii=True, sort_keys=True))


def _say(text: str) -> None:
    """Write a line to standard error; a reader that is gone is no reason to fail."""
    with suppress(OSError):
        click.echo(text, err=True)
