"""What a row acts on instead of the person's own things: a process, listeners, a terminal, an open descriptor.

They are this process's, so they end with it: the process reads from a pipe that only this one writes to, and sockets
close with their descriptors. Nothing is answered; the kernel completes a connection or keeps a datagram by itself, so
what arrived is still there to be asked for after the command is over.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from wisp.probing.probe import Probe
from wisp.sandbox.process import proc_stat

__all__ = ["StandIns", "mentions"]

#: How long a signal that was sent may take to show in the process that it was sent to, in seconds.
_GRACE: Final = 0.1


def mentions(probe: Probe, name: str) -> bool:
    """Return whether the command of `probe` names the variable `name`, in sh or in the Python that it runs."""
    text = probe.run
    return f"${name}" in text or f"${{{name}" in text or f'"{name}"' in text or f"'{name}'" in text


class StandIns(contextlib.AbstractContextManager["StandIns"]):
    """The stand-ins that one trial of one row needs, and no others; all gone when the context is left.

    `port` and `victim` are what `$PORT` and `$VICTIM` say; 0 where the row names neither. `kept` is a descriptor open
    for writing on `$OUTSIDE/victim` that children would inherit, or None.
    """

    def __init__(self, probe: Probe, outside: Path) -> None:
        self.port = 0
        self.victim = 0
        self.kept: int | None = None
        self._sockets = dict[str, list[socket.socket]]()
        self._terminal: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._stack = contextlib.ExitStack()
        try:
            self._start(probe, outside)
        except BaseException:
            self._stack.close()
            raise

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start(self, probe: Probe, outside: Path) -> None:
        wanted = {sign.target for sign in probe.crossed if sign.oracle == "received"}
        if mentions(probe, "PORT") or wanted & {"tcp", "udp", "abstract"}:
            self._listen(abstract="abstract" in probe.run or "abstract" in wanted)
        if "unix" in wanted or "OUTSIDE/socket" in probe.run:
            self._keep("unix", _bound(socket.AF_UNIX, socket.SOCK_STREAM, str(outside / "socket")))
        if "terminal" in wanted:
            self._open_terminal(outside / "terminal")
        if mentions(probe, "VICTIM"):
            self._process = self._stack.enter_context(_cat())
            self.victim = self._process.pid
        if "descriptors" in probe.layer:
            self.kept = os.open(outside / "victim", os.O_RDWR)
            self._stack.callback(os.close, self.kept)
            os.set_inheritable(self.kept, True)

    def _keep(self, name: str, one: socket.socket) -> None:
        self._sockets.setdefault(name, []).append(self._stack.enter_context(one))

    def _listen(self, *, abstract: bool) -> None:
        """Listen on one port number for TCP and UDP, on the loopback addresses that the machine has."""
        for _ in range(20):
            with contextlib.ExitStack() as attempt:
                try:
                    found = self._bound_everywhere(attempt, abstract=abstract)
                except OSError as error:
                    if error.errno != errno.EADDRINUSE:
                        raise
                    continue
                self._stack.push(attempt.pop_all())
                self._sockets.update(found)
                return
        raise OSError(errno.EADDRINUSE, "no port that is free for TCP and UDP was found")

    def _bound_everywhere(self, stack: contextlib.ExitStack, *, abstract: bool) -> dict[str, list[socket.socket]]:
        tcp = stack.enter_context(_bound(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)))
        self.port = int(tcp.getsockname()[1])
        udp = stack.enter_context(_bound(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", self.port)))
        found = {"tcp": [tcp], "udp": [udp]}
        for name, kind in (("tcp", socket.SOCK_STREAM), ("udp", socket.SOCK_DGRAM)):
            try:
                found[name].append(stack.enter_context(_bound(socket.AF_INET6, kind, ("::1", self.port))))
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    raise
                break  # a machine without IPv6: the rows that need it are skipped
        if abstract:
            name = f"\0wisp-probe-{self.port}"
            found["abstract"] = [stack.enter_context(_bound(socket.AF_UNIX, socket.SOCK_STREAM, name))]
        return found

    def _open_terminal(self, link: Path) -> None:
        self._terminal, theirs = os.openpty()
        self._stack.callback(os.close, self._terminal)
        self._stack.callback(os.close, theirs)
        os.set_blocking(self._terminal, False)
        link.symlink_to(os.ttyname(theirs))

    def received(self, name: str) -> bool:
        """Return whether a connection or a datagram reached the stand-in `name` (`tcp`), or text the terminal."""
        if name == "terminal":
            return self._terminal is not None and _readable(self._terminal)
        return any(_readable(one.fileno()) for one in self._sockets.get(name, ()))

    def signalled(self) -> bool:
        """Return whether the process `$VICTIM` was ended or stopped by a signal."""
        if self._process is None:
            return False
        deadline = time.monotonic() + _GRACE
        while time.monotonic() < deadline:
            if self._process.poll() is not None or _is_stopped(self._process.pid):
                return True
            time.sleep(0.005)
        return False

    def variables(self) -> Mapping[str, str]:
        """Return `PORT` and `VICTIM` for the command's environment."""
        return {"PORT": str(self.port), "VICTIM": str(self.victim)}


def _readable(descriptor: int) -> bool:
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return any(event & select.POLLIN for _, event in poller.poll(0))


def _bound(family: int, kind: int, address: tuple[str, int] | str) -> socket.socket:
    """Return a socket bound to `address`, listening if it is one that can."""
    one = socket.socket(family, kind)
    try:
        if family == socket.AF_INET6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        one.bind(address)
        if kind == socket.SOCK_STREAM:
            one.listen(8)
    except BaseException:
        one.close()
        raise
    one.setblocking(False)
    return one


@contextlib.contextmanager
def _cat() -> Iterator[subprocess.Popen[bytes]]:
    """Run a process that only waits; it ends when its pipe does, so also when this process is killed.

    In a group of its own, so that Ctrl-C at the terminal does not reach it, but in this process's session.
    """
    process = subprocess.Popen(
        ["/bin/cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, process_group=0
    )
    try:
        yield process
    finally:
        if process.stdin is not None:
            process.stdin.close()
        # A row may have stopped it, and then it does not see the end of its pipe.
        process.kill()
        process.wait()


def _is_stopped(pid: int) -> bool:
    found = proc_stat(pid)
    return found is not None and found.state in {"T", "t"}
