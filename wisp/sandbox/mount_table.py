"""Whether the machine's mounts have changed since the last look."""

from __future__ import annotations

import os
import select
from contextlib import suppress

__all__ = ["MountTable"]


class MountTable:
    """Tells whether anything was mounted or unmounted since the last look (proc(5), /proc/self/mountinfo)."""

    def __init__(self) -> None:
        self._descriptor = -1
        self._watch = select.poll()

    def _open(self) -> None:
        with suppress(OSError):
            self._descriptor = os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
            self._watch.register(self._descriptor, select.POLLPRI)
            self._watch.poll(0)

    def has_changed(self) -> bool:
        """Return whether the table has changed; also true where that cannot be told."""
        if self._descriptor < 0:
            self._open()
            return True
        return bool(self._watch.poll(0))

    def forget(self) -> None:
        """Close the descriptor that a fork copied."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def close(self) -> None:
        """Give the descriptor back; it is opened again when it is needed."""
        if self._descriptor >= 0:
            self._watch.unregister(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1
