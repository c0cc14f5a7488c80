"""The `wisp` command: finds the subcommand, and turns every error into one line and an exit status.

Imports stay lazy: `wisp --version` loads nothing but this.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from wisp._version import __version__

if TYPE_CHECKING:
    import click

__all__ = ["COMMANDS", "main"]

#: Each subcommand and the module that holds it, under the name of the subcommand.
COMMANDS: Final = {
    "doctor": "wisp.cli.doctor",
    "profile": "wisp.cli.profile",
    "run": "wisp.cli.run",
}

_INTERRUPTED: Final = 130
_BROKEN_PIPE: Final = 128 + 13
_USAGE: Final = 2
_HINT: Final = "\n  hint: "
#: What writing to a standard stream fails with: a reader that is gone, a full disk, a terminal that is gone.
_OUTPUT_ERRORS: Final = frozenset({errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line (without the program's own name) and return the exit status."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    _open_missing_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):  # a file name may hold bytes, and a locale lack letters
        sys.stdout.reconfigure(errors="backslashreplace")
    failed = _failure_status(words)
    try:
        status = _print_version() if words == ["--version"] else _run_command(words, failed)
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        if error.errno not in _OUTPUT_ERRORS:
            raise
        _forget_stdout()
        if error.errno == errno.EPIPE:
            return _BROKEN_PIPE
        return _complain(f"the output could not be written: {error.strerror}", failed or 1)
    except KeyboardInterrupt:
        return _INTERRUPTED
    return status


def _run_command(words: Sequence[str], failed: int) -> int:
    """Run the subcommand in `words` and return its exit status; `failed` is the status of every failure, or 0."""
    import click

    from wisp.errors import UsageError, WispError

    _heed_children()
    try:
        status = _group().main(args=list(words), prog_name="wisp", standalone_mode=False)
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.exceptions.Abort:
        return _INTERRUPTED
    except click.ClickException as error:
        if failed and _is_json_wanted(words):
            return _print_failure(error, failed)
        return _complain(_usage_text(error), failed or error.exit_code)
    except UsageError as error:
        return _complain(str(error), failed or _USAGE)
    except WispError as error:
        return _complain(str(error), failed or 1)
    except SystemExit:  # click's own way out when a reader of its output is gone
        _forget_stdout()
        return _BROKEN_PIPE
    return status if isinstance(status, int) else 0


def _heed_children() -> None:
    """Take the statuses of children, which a parent that ignores SIGCHLD (it is inherited) would have thrown away."""
    import signal

    if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def _is_json_wanted(words: Sequence[str]) -> bool:
    """Return whether `wisp run` was asked for JSON by words that may be wrong elsewhere."""
    from wisp.cli.run import wants_json

    return wants_json(words[list(words).index("run") + 1 :])


def _print_failure(error: click.ClickException, status: int) -> int:
    """Say as one JSON object that `wisp run` was misused."""
    from wisp.cli.run import failure_as_json, print_json

    print_json(failure_as_json("UsageError", error.format_message(), status))
    return status


def _print_version() -> int:
    print(f"wisp {__version__}")
    return 0


def _failure_status(words: Sequence[str]) -> int:
    """Return 125 for `wisp run`, whose other statuses are the command's own, else 0."""
    return 125 if next((word for word in words if not word.startswith("-")), "") == "run" else 0


def _open_missing_streams() -> None:
    """Give a standard stream that is closed the null device: its number must not go to another file."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, so this one
            os.set_inheritable(number, True)


def _forget_stdout() -> None:
    """Point stdout at the null device, so that the interpreter's last flush has nothing to complain of."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)


def _complain(text: str, status: int) -> int:
    """Say on standard error what went wrong, in one line and perhaps a hint, and return `status`."""
    from wisp.refusal.note import visible

    if sys.stderr is not None:  # `print` would fall back to standard output
        text, _, hint = text.partition(_HINT)
        with suppress(OSError, ValueError):
            print(f"wisp: {visible(text)}{_HINT + hint if hint else ''}", file=sys.stderr, flush=True)
    return status


def _usage_text(error: click.ClickException) -> str:
    """Return one line (and a hint) for a usage error."""
    import click

    text = error.format_message()
    if isinstance(error, click.UsageError) and error.ctx is not None:
        return f"{text}{_HINT}`{error.ctx.command_path} --help` lists what it takes"
    return text


def _group() -> click.Group:
    import difflib
    from importlib import import_module

    import click

    class Group(click.Group):
        """Loads a subcommand's module when it is used."""

        def list_commands(self, ctx: click.Context) -> list[str]:
            return sorted(COMMANDS)

        def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
            if cmd_name not in COMMANDS:
                return None
            command: click.Command = getattr(import_module(COMMANDS[cmd_name]), cmd_name)
            return command

        def resolve_command(
            self, ctx: click.Context, args: list[str]
        ) -> tuple[str | None, click.Command | None, list[str]]:
            if args and args[0] not in COMMANDS and not args[0].startswith("-"):
                near = difflib.get_close_matches(args[0], COMMANDS, n=1, cutoff=0.4)
                known = f"did you mean `wisp {near[0]}`?" if near else f"it has {', '.join(sorted(COMMANDS))}"
                raise click.UsageError(f"wisp has no command {args[0]!r}; {known}", ctx)
            return super().resolve_command(ctx, args)

    @click.group(
        cls=Group,
        invoke_without_command=True,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    @click.version_option(__version__, message="wisp %(version)s")
    @click.pass_context
    def wisp(ctx: click.Context) -> None:
        """Run a command under the operating system's own sandbox, and prove that the sandbox holds."""
        if ctx.invoked_subcommand is None:
            click.echo(ctx.get_help())

    return wisp
