"""How the helper of a lane is started: by bubblewrap, by the interpreter alone, with nothing of the environment."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

from wisp.sandbox.bwrap import heeding_children

__all__ = ["LaneFailed", "start_helper"]

_DIRECTORY: Final = os.path.dirname(os.path.abspath(__file__))
_PROGRAM: Final = "import sys; sys.path.append(sys.argv.pop(1)); import lane_helper; lane_helper.main()"


class LaneFailed(Exception):
    """A lane could not be set up. `what` was refused, with `errno` where the kernel gave one, and `said` in words."""

    def __init__(self, what: str, code: int = 0, said: str = "") -> None:
        super().__init__(what, code, said)
        self.what, self.code, self.said = what, code, said

    def __str__(self) -> str:
        """Return all of it as one line."""
        why = os.strerror(self.code) if self.code else self.said
        return f"{self.what} ({why})" if why else self.what


def start_helper(
    wrap: Sequence[str], control: int, *, closes: bool, new_session: bool
) -> tuple[subprocess.Popen[bytes], int]:
    """Start the helper by `wrap`, with the descriptor `control` to be asked on, and no other unless not `closes`.

    Returns the process and a descriptor that gives what it prints until it is ready. Raises LaneFailed.
    """
    helper = [sys.executable, "-I", "-S", "-B", "-c", _PROGRAM, _DIRECTORY, str(control)]
    reader, writer = os.pipe()
    os.set_inheritable(control, True)
    try:
        process = subprocess.Popen(
            [*heeding_children(), *wrap, *helper],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=writer,
            cwd="/",
            env=_helper_environment(),
            close_fds=closes,
            pass_fds=(control,) if closes else (),
            start_new_session=new_session,  # what is typed at wisp's terminal is for wisp
        )
    except OSError as error:
        os.close(reader)
        raise LaneFailed(f"{wrap[0]} cannot be started", error.errno or 0) from None
    finally:
        os.close(writer)
    return process, reader


def _helper_environment() -> dict[str, str]:
    """Return what the helper's interpreter may need to start, and nothing that a command could learn from it."""
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    return {"PATH": os.defpath, **kept}
