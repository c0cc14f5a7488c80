"""What a runner holds until it is closed: a prepared sandbox, a scratch directory, threads that wait for commands."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from wisp.errors import SandboxUnavailable
from wisp.sandbox.scratch import Scratch

if TYPE_CHECKING:
    from wisp.sandbox.backend import Backend, Enforcer
    from wisp.sandbox.confinement import Confinement

__all__ = ["Held"]

#: Commands that may be waited for at once; further ones wait their turn.
_MOST_WAITING: Final = 64


class Held:
    """Nothing at first; what is set up stays until `release`. Its owner keeps threads apart."""

    def __init__(self) -> None:
        self.enforcer: Enforcer | None = None
        self.scratch: Scratch | None = None
        self._pool: ThreadPoolExecutor | None = None

    def prepare(self, backend: Backend, given: Confinement) -> tuple[Enforcer, Confinement]:
        """Return the enforcer of `given`, and the confinement that it holds: the scratch directory is a root in it.

        Raises SandboxUnavailable.
        """
        if given.scratch_tmpdir:
            self.scratch = self.scratch or _make_scratch(backend.name)
            given = replace(given, roots=(*given.roots, self.scratch.path), scratch_tmpdir=False)
        self.enforcer = backend.prepare(given)
        return self.enforcer, given

    def pool(self) -> ThreadPoolExecutor:
        """Return the threads."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_MOST_WAITING, thread_name_prefix="wisp-run")
        return self._pool

    def forget_threads(self) -> None:
        """Begin without threads in a forked child: none of its parent's are there."""
        self._pool = None

    def release(self) -> None:
        """Give all of it back."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        if self.enforcer is not None:
            self.enforcer.close()
        if self.scratch is not None:
            self.scratch.remove()


def _make_scratch(backend: str) -> Scratch:
    try:
        return Scratch()
    except OSError as error:
        raise SandboxUnavailable(backend, f"no scratch TMPDIR can be made ({error})") from None
