"""How a command is started by `sandbox-exec`, and how its own failures are told from the command's.

`sandbox-exec` ends with 65 or 71, or is killed by signal 6, where it cannot confine; so may any command. What the
command's output says proves nothing either, as it is the command's. So `sandbox-exec` gets a pipe for its errors, and
starts a shell that writes one mark to it and then becomes the command, which has its own descriptors and no pipe.

`bash`, because other shells close no descriptor above 9. It passes the environment on but for variables whose names are
none in a shell; it counts `SHLVL` and sets `PWD` and `_`, as every shell does.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import stat
import subprocess
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from wisp.errors import SandboxUnavailable
from wisp.sandbox.leader import Command, Leader
from wisp.sandbox.tree import TreeWatch

if TYPE_CHECKING:
    from wisp.sandbox.seatbelt_profile import Profile

__all__ = [
    "SHELL",
    "Said",
    "SeatbeltCommand",
    "find_program",
    "nesting",
    "prove",
    "start",
    "start_plainly",
    "why_not_started",
]

SHELL: Final = "/bin/bash"

#: Seconds for what takes milliseconds: a `sandbox-exec` inside another sandbox was seen to hang.
_PATIENCE: Final = 10.0

#: No error text of `sandbox-exec` holds a NUL byte.
_MARK: Final = b"\0started:"
_MOST_SAID: Final = 1 << 16


def _inner(stderr: int) -> str:
    """Return the shell's program: `$0` is the program's path, `$1` the name it is to be called by.

    Its standard error is the pipe, `stderr` the number of the command's. A shell keeps what a group's redirection hides
    to bring it back: for 0 to 2 every bash does so by a copy that the command does not inherit, for other numbers the
    one of macOS (3.2) does not. So only 2 is redirected for the group, and the rest is closed for good.
    """
    # `execfail`: else a shell without a person ends when `exec` fails. The group is over only if it did.
    started = 'shopt -s execfail; printf "\\0started:" >&2'
    become = f'{{ exec {stderr}>&-; exec -a "$1" -- "$0" "${{@:2}}"; }} 2>&{stderr}'
    return f"{started}; {become}; printf %s $? >&2; exit 126"


def _words(sandbox_exec: str, file: str, profile: Profile, stderr: int, program: str, argv: Sequence[str]) -> list[str]:
    # -p: no start-up file (`BASH_ENV`) and no function from the environment is read before the command is there.
    return [sandbox_exec, "-f", file, *profile.options(), SHELL, "-p", "-c", _inner(stderr), program, *argv]


def start(
    sandbox_exec: str,
    file: str,
    profile: Profile,
    argv: Sequence[str],
    *,
    cwd: str,
    env: Mapping[bytes, bytes],
    stdin: int,
    stdout: int,
    stderr: int,
) -> SeatbeltCommand:
    """Start `argv` under `profile`, whose text is in `file`. Raises OSError, and SandboxUnavailable without sandbox."""
    program = find_program(argv[0], cwd, env)
    with ExitStack() as stack:
        theirs = fcntl.fcntl(stderr, fcntl.F_DUPFD_CLOEXEC, 3)
        stack.callback(os.close, theirs)
        reader, writer = os.pipe()
        stack.callback(os.close, writer)
        try:
            process = Command(
                _words(sandbox_exec, file, profile, theirs, program, argv),
                cwd=cwd,
                env=env,
                stdin=stdin,
                stdout=stdout,
                stderr=writer,
                pass_fds=(theirs,),
                start_new_session=True,
            )
        except BaseException as error:
            os.close(reader)
            if isinstance(error, OSError) and error.filename == sandbox_exec:
                if error.errno == errno.E2BIG:  # the command's own words
                    raise OSError(error.errno, error.strerror, argv[0]) from None
                raise _no_sandbox_exec(sandbox_exec, error) from None
            raise
    return _watched(process, reader, argv[0], os.path.join(cwd, program))


def start_plainly(
    argv: Sequence[str], *, cwd: str, env: Mapping[bytes, bytes], stdin: int, stdout: int, stderr: int
) -> SeatbeltCommand:
    """Start `argv` under nothing but what lies around this process already."""
    process = Command(list(argv), cwd=cwd, env=env, stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=True)
    return _watched(process, -1, argv[0], "")


def _watched(process: Command, pipe: int, name: str, program: str) -> SeatbeltCommand:
    try:
        return SeatbeltCommand(process, pipe, name, program)
    except BaseException:  # nobody would see to its end
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if pipe >= 0:
            os.close(pipe)
        raise


def _no_sandbox_exec(path: str, error: OSError) -> SandboxUnavailable:
    return SandboxUnavailable("seatbelt", f"{path} cannot be started ({error.strerror})")


class SeatbeltCommand(Leader):
    """A command started by `sandbox-exec`, from its start until it is reaped.

    `pipe` is where the mark of its start is read, -1 where none is asked for; `name` is what it was asked for by, and
    `program` the path of that.
    """

    #: What may be left behind at best.
    guarantee: Final = (
        "the command's session and all that was seen of its tree are ended: a process that left both before it was "
        "seen may still run"
    )

    def __init__(self, process: subprocess.Popen[bytes], pipe: int, name: str, program: str) -> None:
        super().__init__(process, None, self.guarantee)
        self._pipe, self._name, self._program = pipe, name, program
        self._sent = set[int]()
        self._tree = TreeWatch(process.pid)
        self._tree.start()

    def close(self) -> None:
        """Give the descriptors back and watch no more."""
        super().close()
        self._tree.stop()
        pipe, self._pipe = self._pipe, -1
        if pipe >= 0:
            os.close(pipe)

    def signal_group(self, signum: int) -> None:
        """Signal everything in its process group; nothing when there is nothing left."""
        self._sent.add(signum)
        super().signal_group(signum)

    def signal_all(self, signum: int) -> None:
        """Signal its process group, and what was seen to leave it, once each. Raises nothing."""
        self.signal_group(signum)
        self._tree.look()
        self._tree.signal(signum, spared_group=self.pid)

    def end_leftovers(self) -> str:
        """End its group, its session and what was seen of its tree; return what may still run, in words."""
        return self._tree.end(lambda: super(SeatbeltCommand, self).signal_group(signal.SIGKILL)) or self.guarantee

    def reap(self) -> int:
        """Return the exit status of the command.

        Raises SandboxUnavailable where the sandbox did not start, OSError where the program did not, StatusLost.
        """
        pipe, status = self._pipe, super().reap()
        if pipe < 0:
            return status
        said = Said.of(_read(pipe))
        reason = why_not_started(status, said, self._sent)
        if reason:
            raise SandboxUnavailable("seatbelt", reason)
        if said.failed_with:
            code = _why_no_exec(self._program, said.failed_with)
            raise OSError(code, os.strerror(code), self._name)
        return status


@dataclass(frozen=True, slots=True)
class Said:
    """What came out of a start's pipe: whether the shell ran inside the sandbox, and what kept it from its program."""

    has_started: bool
    #: The status that `exec` gave, where it failed.
    failed_with: bytes = b""
    #: What `sandbox-exec` said of itself.
    errors: str = ""

    @classmethod
    def of(cls, output: bytes) -> Said:
        """Return what `output` means."""
        before, mark, after = output.rpartition(_MARK)
        errors = before if mark else after
        text = " ".join(errors.decode("utf-8", "replace").split())
        return cls(bool(mark), after if mark else b"", text)


def why_not_started(status: int, said: Said, sent: Collection[int]) -> str:
    """Return why the sandbox did not start, or nothing where it did, or was ended by us before it could.

    `status` is how the process ended, `sent` the signals that it was sent. Only the mark decides; the status and the
    errors choose the words.
    """
    if said.has_started or -status in sent:
        return ""
    if status == 65:
        why = "sandbox-exec does not accept the profile (it ended with 65)"
    elif status == 71:
        why = "sandbox-exec may not confine here (it ended with 71): another sandbox lies around this process already"
    elif status in {-signal.SIGABRT, 128 + signal.SIGABRT}:
        why = "sandbox-exec was aborted before the command started (signal 6)"
    else:
        how = f"was killed by signal {-status}" if status < 0 else f"ended with {status}"
        why = f"sandbox-exec {how} before the command started"
    return f"{why}: {said.errors[:500]}" if said.errors else why


def _why_no_exec(program: str, shell_status: bytes) -> int:
    """Return the error number for a program that `exec` refused: the shell tells no more than 126 or 127."""
    if shell_status == b"127":
        return errno.ENOENT
    try:
        mode = os.stat(program).st_mode
    except OSError as error:
        return error.errno or errno.ENOENT
    if mode & (stat.S_ISUID | stat.S_ISGID):
        return errno.EPERM  # Seatbelt starts no program that runs as its owner
    return errno.ENOEXEC if os.access(program, os.X_OK) else errno.EACCES


def _read(pipe: int) -> bytes:
    """Return what is in the pipe. Its writers are gone, or write nothing more."""
    os.set_blocking(pipe, False)
    try:
        return os.read(pipe, _MOST_SAID)
    except BlockingIOError:
        return b""


def find_program(name: str, cwd: str, env: Mapping[bytes, bytes]) -> str:
    """Return the path of the program that exec(3) would start as `name` from `cwd`.

    Looked for before the sandbox is there, so that a missing program is the same error as everywhere. Raises OSError.
    """
    if "/" in name:
        candidates = [name]
    else:
        searched = os.fsdecode(env.get(b"PATH", os.fsencode(os.defpath))).split(os.pathsep)
        candidates = [f"{directory or '.'}/{name}" for directory in searched]
    code = errno.ENOENT
    for candidate in candidates if name else ():
        seen = os.path.join(cwd, candidate)
        if os.path.isfile(seen) and os.access(seen, os.X_OK):
            return candidate
        if os.path.lexists(seen):
            code = errno.EACCES if os.path.exists(seen) else code
    if not os.path.isdir(cwd):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), cwd)
    raise OSError(code, os.strerror(code), name)


def prove(sandbox_exec: str, file: str, profile: Profile) -> None:
    """Raise SandboxUnavailable unless a command starts under `profile`: what every command will go through."""
    try:
        with open(os.devnull, "wb") as null:
            theirs = fcntl.fcntl(null.fileno(), fcntl.F_DUPFD_CLOEXEC, 3)
        try:
            words = _words(sandbox_exec, file, profile, theirs, "/usr/bin/true", ["true"])
            done = _run(words, pass_fds=(theirs,))
        finally:
            os.close(theirs)
    except subprocess.TimeoutExpired:
        raise SandboxUnavailable("seatbelt", f"sandbox-exec did not start a command in {_PATIENCE:g} seconds") from None
    except OSError as error:
        raise _no_sandbox_exec(sandbox_exec, error) from None
    said = Said.of(done.stderr)
    reason = why_not_started(done.returncode, said, ())
    if not reason and done.returncode != 0:
        reason = f"/usr/bin/true ended with {done.returncode} under the profile"
    if reason:
        raise SandboxUnavailable("seatbelt", reason)


@lru_cache(maxsize=8)
def nesting(sandbox_exec: str) -> tuple[str, str]:
    """Return `free`, `nested` or `broken`, and why; found out once in the life of this process, never by a command.

    The profile is one that no other sandbox uses: an identical one may be applied twice. Only 71 is the answer of a
    kernel that has a sandbox around this process already; whatever else goes wrong is no reason to trust one. Raises
    SandboxUnavailable where sandbox-exec cannot be started now.
    """
    token = os.urandom(12).hex()
    text = f'(version 1)(allow default)(deny file-write* (subpath "/nonexistent/wisp/{token}"))'
    try:
        done = _run([sandbox_exec, "-p", text, "/usr/bin/true"])
    except subprocess.TimeoutExpired:
        return "broken", f"sandbox-exec did not answer in {_PATIENCE:g} seconds, as inside some other sandboxes"
    except OSError as error:
        raise _no_sandbox_exec(sandbox_exec, error) from None  # not remembered: it may be short of descriptors
    if done.returncode == 0:
        return "free", ""
    if done.returncode == 71:
        return "nested", "another sandbox lies around this process already, and Seatbelt adds no second one"
    return "broken", why_not_started(done.returncode, Said.of(done.stderr), ())


def _run(words: list[str], pass_fds: tuple[int, ...] = ()) -> subprocess.CompletedProcess[bytes]:
    """Run `words` in a session of its own and return how it ended. Raises OSError, and TimeoutExpired."""
    with subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        cwd="/",
        env={"PATH": os.defpath},
        pass_fds=pass_fds,
        start_new_session=True,
    ) as process:
        try:
            _out, err = process.communicate(timeout=_PATIENCE)
        except BaseException:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            raise
        return subprocess.CompletedProcess(words, process.returncode, b"", err)
