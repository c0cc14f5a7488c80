"""`wisp doctor`: what this machine can enforce, proven row by row."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, TextIO

import click

if TYPE_CHECKING:
    from types import FrameType

    from wisp.doctor.page import Page, Role
    from wisp.probing.probe import Probe, Result

__all__ = ["doctor"]

_FAILED: Final = 1
_STYLES: Final[dict[Role, str]] = {
    "plain": "",
    "head": "bold",
    "good": "green",
    "bad": "bold red",
    "warn": "yellow",
    "dim": "dim",
}
#: A wider text is harder to read, not easier.
_WIDEST: Final = 100


@click.command(
    epilog="Exit status: 0 each probe that must hold held; 1 a probe leaked or was overblocked, a check failed, or "
    "nothing can confine here; 2 usage; 3 nothing worse, but a probe that must hold proved nothing; 130 interrupted.",
)
@click.option("--family", "families", multiple=True, metavar="F", help="The probes of one family; repeatable.")
@click.option("--all", "everything", is_flag=True, help="Also the probes that are slow or not promised.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
@click.option("--list", "as_list", is_flag=True, help="Name the probes instead of running them.")
@click.option("--strict", is_flag=True, help="Exit with 3 for every probe that is inconclusive or skipped.")
@click.option("--backend", metavar="NAME", help="What confines: auto, bubblewrap, landlock, seatbelt or none.")
@click.option(
    "--pretend-abi", type=click.IntRange(0, 99), metavar="N", help="As on a kernel with Landlock interface N."
)
@click.option("--jobs", type=click.IntRange(1, 64), default=2, show_default=True, help="Probes to run side by side.")
@click.argument("ids", nargs=-1, metavar="[ID]...")
def doctor(
    *,
    families: tuple[str, ...],
    everything: bool,
    as_json: bool,
    as_list: bool,
    strict: bool,
    backend: str | None,
    pretend_abi: int | None,
    jobs: int,
    ids: tuple[str, ...],
) -> int:
    """Look at this machine, put harmless probes under its sandbox, and say what held.

    With an ID (write.create-outside) that probe alone is run and shown in full. Nothing is changed or repaired; probes
    act in scratch directories that are gone at the end.
    """
    from wisp.doctor.redact import Redactor, redacted
    from wisp.doctor.render_text import render_text
    from wisp.doctor.run import collect, load_rows
    from wisp.doctor.selection import select_rows

    rows, readable = load_rows()
    if readable.status == "failed":
        wanted: tuple[Probe, ...] = ()
        selection = select_rows((), everything=everything)[1]
    elif as_list and not ids and not families:
        return _print_list(rows, as_json=as_json)
    else:
        wanted, selection = select_rows(rows, ids=ids, named_families=families, everything=everything or as_list)
    if as_list:
        return _print_list(wanted, as_json=as_json)
    ended = list[int]()
    with _stopping_on_signals(ended) as stop, _progress(len(wanted), stop) as tell:
        try:
            report = collect(
                wanted,
                selection=selection,
                backend=backend,
                abi=pretend_abi,
                more_checks=(readable,),
                jobs=jobs,
                on_result=tell,
                stop=stop,
            )
        except KeyboardInterrupt:
            ended.append(signal.SIGINT)
    if ended:
        return _say_interrupted(ended[0])
    shown = redacted(report, Redactor.of_this_process())
    if as_json:
        text = json.dumps(shown.as_json(strict=strict), indent=2) + "\n"
        return _print(lambda: _write(text), shown.exit_status(strict=strict))
    page = render_text(shown, width=_width(), strict=strict)
    return _print(lambda: _show(page), shown.exit_status(strict=strict))


def _print_list(rows: tuple[Probe, ...], *, as_json: bool) -> int:
    from wisp.doctor.render_text import render_list
    from wisp.doctor.report import rows_as_json

    if as_json:
        text = json.dumps(rows_as_json(rows), indent=2) + "\n"
        return _print(lambda: _write(text), 0)
    page = render_list(rows, width=_width())
    return _print(lambda: _show(page), 0)


def _say_interrupted(signum: int) -> int:
    with suppress(OSError, ValueError):
        print("wisp: doctor was interrupted; its scratch directories are removed", file=sys.stderr, flush=True)
    return 128 + signum


@contextmanager
def _stopping_on_signals(ended: list[int]) -> Iterator[threading.Event]:
    """Have the first INT, TERM or HUP end the rows in good order; INT once more is an ordinary KeyboardInterrupt.

    The signal's number is put into `ended`. A signal that was ignored stays so (`nohup`).
    """
    stop = threading.Event()
    before: dict[signal.Signals, Callable[[int, FrameType | None], object] | int | None] = {}

    def end(signum: int, _frame: FrameType | None) -> None:
        ended.append(signum)
        stop.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            handler = signal.getsignal(number)
            if handler is signal.SIG_IGN or threading.current_thread() is not threading.main_thread():
                continue
            before[number] = handler
            signal.signal(number, end)
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


@contextmanager
def _progress(total: int, stop: threading.Event) -> Iterator[Callable[[Result], None]]:
    """Show how many rows are done on one line of a terminal's error output, and take it away again."""
    stream = sys.stderr
    is_shown = _is_terminal(stream) and os.environ.get("TERM", "") not in {"", "dumb"}
    done = 0

    def show(text: str) -> None:
        if is_shown:
            with suppress(OSError, ValueError):
                room = shutil.get_terminal_size().columns - 1
                stream.write(f"\r\x1b[2K{text[:room]}")
                stream.flush()

    def tell(result: Result) -> None:
        nonlocal done
        done += 1
        show("stopping" if stop.is_set() else f"{done}/{total} {result.id}: {result.verdict}")

    show("looking at this machine")
    try:
        yield tell
    finally:
        show("")


def _width() -> int:
    """Return the columns of the terminal, at most 100; 80 for anything else."""
    return min(shutil.get_terminal_size((80, 24)).columns, _WIDEST)


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False


def _show(page: Page) -> None:
    """Print a page: with colour on a terminal that has it, unless the person set NO_COLOR."""
    if not _is_terminal(sys.stdout) or os.environ.get("NO_COLOR") or os.environ.get("TERM", "") in {"", "dumb"}:
        _write(page.plain())
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, markup=False, emoji=False, force_terminal=True)
    with console.capture() as captured:
        for line in page.lines:
            console.print(Text.assemble(*((piece.text, _STYLES[piece.role]) for piece in line)), soft_wrap=True)
    _write(captured.get())


def _write(text: str) -> None:
    """Write all of `text`; what the output's encoding has no character for is written as an escape."""
    stream: TextIO | None = sys.stdout
    if stream is None:  # it was closed before wisp was started
        return
    encoding = stream.encoding or "utf-8"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
    stream.flush()


def _print(write: Callable[[], None], status: int) -> int:
    """Return `status` after writing; an output that nobody reads any more is no failure, one that is full is."""
    try:
        write()
    except BrokenPipeError:
        _forget_stdout()
    except OSError as error:
        _forget_stdout()
        with suppress(OSError, ValueError):
            print(f"wisp: the report could not be written: {error.strerror}", file=sys.stderr, flush=True)
        return status or _FAILED
    return status


def _forget_stdout() -> None:
    """Point stdout at the null device, so that the interpreter's last flush has nothing to complain of."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)
