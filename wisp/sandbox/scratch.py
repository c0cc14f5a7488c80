"""A scratch directory that commands may fill with anything, and that is gone afterwards."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from contextlib import suppress
from typing import Final

from wisp.realpath import real

__all__ = ["Scratch"]


class Scratch:
    """A new directory, 0700, in the temporary directory. Raises OSError where none can be made."""

    def __init__(self) -> None:
        self.path: Final = real(tempfile.mkdtemp(prefix="wisp-tmp-"))
        self._owner: Final = os.getpid()

    def remove(self) -> None:
        """Remove it with all that is in it; a child that a fork made leaves it to its parent."""
        if self._owner != os.getpid():
            return
        # A command may have nested directories deeper than Python recurses, or taken its own rights away.
        with suppress(RecursionError):
            shutil.rmtree(self.path, ignore_errors=True)
        if not os.path.lexists(self.path):
            return
        for words in (["/bin/chmod", "-R", "u+rwx", "--"], ["/bin/rm", "-rf", "--"]):
            with suppress(OSError):
                subprocess.run([*words, self.path], stdin=subprocess.DEVNULL, capture_output=True, check=False)
