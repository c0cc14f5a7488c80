"""The program inside a lane: it restricts itself once, then starts commands on request, one at a time.

It is process 1 of the lane's PID namespace. So what a command leaves behind becomes its child, "everything else" is
exactly what the namespace holds, no command can signal it (pid_namespaces(7)), and its end is the end of everything.

Run as a program of its own by the interpreter alone (`-I -S -B`), with little imported and nothing of wisp but
`lane_setup`; all that it needs to know arrives in the first message. It speaks over one SOCK_SEQPACKET socket; replies
are plain bytes, so that nothing read from here is ever decoded as more than numbers and a path:

    setup     `marshal` of a mapping, see `restrict`             →  "k", or "f", errno, what
    command   "c", its number, and `marshal` of (argv, cwd, env or None: as the last time),
              with three descriptors        →  "e", wait status, the number, all gone; or "r", errno, the number, path
    signal    "s", whether to all or to its group, number         →  nothing
"""

# `socket` and `signal` are imported by the names of their C modules: their Python halves cost as much time as the
# whole rest of the start.

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # typeshed has no stub for it
import _socket
import gc
import marshal
import os
import select
import sys
import time

assert sys.platform == "linux"  # noqa: S101 - for the type checker; nothing else starts this

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` itself costs more than this program
    from collections.abc import Iterable

    from wisp.sandbox.lane_setup import Failed, Setup, restrict
else:
    from lane_setup import Failed, restrict

_MOST_MESSAGE = 1 << 18
#: Seconds in which what a command left has to be gone; what waits in the kernel longer than that is told.
_SECONDS = 2.0

#: Milliseconds after which orphans that have ended are reaped while a command runs on.
_REAPING = 200
#: Signals that this interpreter ignores.
_IGNORED = (_signal.SIGPIPE, _signal.SIGXFSZ)


class _Lane:
    """Serves one socket until it is closed, which is the end of the lane."""

    def __init__(self, control: _socket.socket, setup: Setup) -> None:
        self._control = control
        self._is_own = setup["pid_namespace"] is not None
        self._ends_leftovers = setup["ends_leftovers"]
        self._clears_shm = setup["clears_shm"]
        self._new_session = setup["new_session"]
        self._shm_changed = _changed("/dev/shm") if self._clears_shm else 0  # noqa: S108
        self._watched = -1
        self._env: dict[bytes, bytes] = {}
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)

    def serve(self) -> None:
        """Run what is asked for, in order, for ever."""
        while True:
            data, descriptors = self._receive()
            if data[:1] != b"c":  # a signal for a command that has ended
                continue
            if len(descriptors) != 3:  # none were left to receive them with
                _close(descriptors)
                self._send(b"r" + _packed(24) + data[1:5])
            else:
                self._send(self._run(data, descriptors))
                self._forget()

    def _send(self, reply: bytes) -> None:
        try:
            self._control.send(reply)
        except OSError:
            os._exit(0)

    def _receive(self) -> tuple[bytes, list[int]]:
        """Return the next message and its descriptors; ends the lane when nobody is there to send one."""
        try:
            data, ancillary, _flags, _address = self._control.recvmsg(
                _MOST_MESSAGE, _socket.CMSG_SPACE(16), _socket.MSG_CMSG_CLOEXEC
            )
        except OSError:
            os._exit(0)
        if not data:
            os._exit(0)
        descriptors: list[int] = []
        for _level, _kind, held in ancillary:
            descriptors += memoryview(held[: len(held) // 4 * 4]).cast("i").tolist()
        if len(descriptors) == 4:  # too long for one message
            large = descriptors.pop()
            data += os.pread(large, os.fstat(large).st_size, 0)
            os.close(large)
        return data, descriptors

    def _run(self, data: bytes, descriptors: list[int]) -> bytes:
        try:
            argv, directory, env = marshal.loads(data[5:])  # noqa: S302 - from wisp, which is trusted more than this
            self._env = self._env if env is None else env
            pid = self._start(argv, directory, self._env, descriptors)
        except OSError as error:
            return b"r" + _packed(error.errno or 0) + data[1:5] + os.fsencode(error.filename or b"")
        except ValueError:  # a NUL byte, or a name of the environment that holds "="
            return b"r" + _packed(22) + data[1:5]
        finally:
            _close(descriptors)
        status, gone = self._wait(pid)
        gone = gone or self._end_rest(pid)
        if self._clears_shm and _changed("/dev/shm") != self._shm_changed:  # noqa: S108
            _clear_shm()
            self._shm_changed = _changed("/dev/shm")  # noqa: S108
        return b"e" + _packed(status) + data[1:5] + (b"y" if gone else b"n")

    def _start(self, argv: list[bytes], directory: bytes, env: dict[bytes, bytes], descriptors: list[int]) -> int:
        os.chdir(directory)
        actions = [(os.POSIX_SPAWN_DUP2, one, number) for number, one in enumerate(descriptors)]
        refusal: OSError | None = None
        for program in _candidates(argv[0], env):
            try:
                if not self._new_session:
                    return os.posix_spawn(
                        program, argv, env, file_actions=actions, setpgroup=0, setsigmask=(), setsigdef=_IGNORED
                    )
                return os.posix_spawn(
                    program, argv, env, file_actions=actions, setsid=True, setsigmask=(), setsigdef=_IGNORED
                )
            except (FileNotFoundError, NotADirectoryError) as error:
                refusal = refusal or OSError(error.errno, error.strerror, argv[0])
            except OSError as error:
                refusal = OSError(error.errno, error.strerror, argv[0])
        raise refusal or FileNotFoundError(2, "", argv[0])

    def _wait(self, leader: int) -> tuple[int, bool]:
        """Serve signals, and reap what the command orphans, until `leader` has ended.

        Returns its wait status, and whether it is known that it left nothing.
        """
        self._watched = os.pidfd_open(leader)
        self._poll.register(self._watched, select.POLLIN)
        while True:
            ready = [one for one, _event in self._poll.poll(_REAPING)]
            if self._control.fileno() in ready:
                self._pass_on(leader)
            if self._watched in ready or not ready:
                status, is_last = _reap(leader)
                if status is not None:
                    return status, is_last and self._is_own

    def _forget(self) -> None:
        """Give back what watched the last command: after its end was told, as nobody waits for this."""
        if self._watched >= 0:
            self._poll.unregister(self._watched)
            os.close(self._watched)
            self._watched = -1

    def _pass_on(self, leader: int) -> None:
        data, descriptors = self._receive()
        _close(descriptors)
        if data[:1] != b"s":  # a second command: its caller does not keep to the protocol
            return
        self._signal(leader, data[2], to_all=bool(data[1]))

    def _signal(self, leader: int, signum: int, *, to_all: bool) -> None:
        try:
            if to_all and self._is_own:
                os.kill(-1, signum)  # all of this PID namespace, which holds the command and nothing else
            else:
                os.killpg(leader, signum)
        except OSError:
            return

    def _end_rest(self, leader: int) -> bool:
        """End everything but this process; return whether it is gone."""
        if not self._ends_leftovers:
            return True
        if not self._is_own:
            self._signal(leader, 9, to_all=False)
            return False
        until, pause = 0.0, 0.0002
        while True:
            try:
                # Whatever lost its parent is a child of this process: no child means that nothing is left.
                if os.waitpid(-1, os.WNOHANG)[0]:
                    continue
            except ChildProcessError:
                return True
            now = time.monotonic()
            until = until or now + _SECONDS
            if now > until:
                return False
            self._signal(leader, 9, to_all=True)
            time.sleep(pause)
            pause = min(pause * 2, 0.02)


def _packed(number: int) -> bytes:
    return number.to_bytes(4, "little", signed=True)


def _close(descriptors: Iterable[int]) -> None:
    for one in descriptors:
        os.close(one)


def _reap(leader: int) -> tuple[int | None, bool]:
    """Take the status of every child that has ended.

    Returns that of `leader` when it is among them, and whether no child is left: in a PID namespace of its own, where
    whatever lost its parent is a child of this process, that means that nothing is left.
    """
    found = None
    try:
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == leader:
                found = status
            elif pid == 0:
                return found, False
    except ChildProcessError:
        return found, True


def _candidates(program: bytes, env: dict[bytes, bytes]) -> list[bytes]:
    """Return where `program` may lie, as a shell looks for it: in the `PATH` of the command."""
    if b"/" in program:
        return [program]
    path = env.get(b"PATH", os.fsencode(os.defpath))
    return [os.path.join(directory, program) for directory in path.split(b":")]


def _changed(directory: str) -> int:
    return os.stat(directory).st_mtime_ns


def _clear_shm() -> None:
    """Remove what a command left in the lane's shared memory, which is nobody else's."""
    pending = [
        entry.path
        for entry in os.scandir("/dev/shm")  # noqa: S108
    ]
    directories = []
    while pending:
        path = pending.pop()
        try:
            os.unlink(path)
        except OSError:
            try:
                pending += [entry.path for entry in os.scandir(path)]
                directories.append(path)
            except OSError:
                continue
    for path in reversed(directories):
        try:
            os.rmdir(path)
        except OSError:
            continue


def main() -> None:
    """Serve the socket whose descriptor is the first argument."""
    gc.disable()  # nothing here is a cycle, and a pause would be the next command's
    if _signal.getsignal(_signal.SIGINT) != _signal.SIG_IGN:
        # What process 1 handles, a command can send it; what it leaves to the kernel never arrives.
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    control = _socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(control.fileno(), False)
    setup: Setup = marshal.loads(control.recv(_MOST_MESSAGE))  # noqa: S302 - from wisp
    try:
        listener = restrict(setup)
        lane = _Lane(control, setup)
    except Failed as failure:
        what, code = failure.args
        control.send(b"f" + _packed(code) + os.fsencode(what))
        return
    except OSError as error:
        control.send(b"f" + _packed(error.errno or 0) + b"the setup")
        return
    os.dup2(0, 2)  # what is said from now on has no reader
    if listener is None:
        control.send(b"k")
    else:
        control.sendmsg([b"k"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, _packed(listener))])
        os.close(listener)
    lane.serve()


if __name__ == "__main__":
    main()
