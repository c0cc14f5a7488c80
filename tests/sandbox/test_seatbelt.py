"""The Seatbelt backend with stand-ins for `sandbox-exec`: real scripts that start what they are given, or fail as it does.

What Seatbelt itself does is not seen here; `tests/macos` asks a Mac.
"""

from __future__ import annotations

import errno
import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from wisp.errors import LaunchFailed, SandboxUnavailable
from wisp.sandbox import seatbelt_start
from wisp.sandbox.backend import Backend, RefusalTexts
from wisp.sandbox.capability import Capability
from wisp.sandbox.confinement import Confinement
from wisp.sandbox.launch import environment_of, launch
from wisp.sandbox.process import Finished
from wisp.sandbox.seatbelt import LAYERS, SeatbeltBackend, SeatbeltEnforcer
from wisp.sandbox.seatbelt_probe import Seen, describe
from wisp.sandbox.seatbelt_profile import profile_of
from wisp.sandbox.seatbelt_start import Said, why_not_started
from wisp.sandbox.stop import Stop
from wisp.sandbox.streams import Streams
from wisp.sandbox.tail import Tail

#: Does what the file `mode` beside it says, once it has read its options; `probed` is for the profile given as text.
_STAND_IN = """\
#!/bin/sh
here=${0%/*} kind=started
ulimit -c 0
while getopts f:p:D: option; do
  case $option in
  p) kind=probed ;;
  f) cat "$OPTARG" >"$here/profile" ;;
  D) printf '%s\\n' "$OPTARG" >>"$here/parameters" ;;
  esac
done
shift $((OPTIND - 1))
echo $kind >>"$here/log"
mode=; read -r mode victim <"$here/$kind"
case $mode in
data) echo "sandbox-exec: unbound variable: x at <input string>, line 1" >&2; exit 65 ;;
apply) echo "sandbox-exec: sandbox_apply: Operation not permitted" >&2; exit 71 ;;
abort) kill -ABRT $$ ;;
kill) kill -KILL $$ ;;
nothing) exit 0 ;;
hang) sleep 300 ;;
remove) rm "$victim" ;;
forbid) chmod a-x "$victim" ;;
setuid) chmod 4600 "$victim" ;;
esac
exec "$@"
"""


@dataclass
class StandIn:
    """A `sandbox-exec` in a directory of its own."""

    directory: Path
    made: list[SeatbeltEnforcer] = field(default_factory=list)

    @property
    def path(self) -> str:
        return str(self.directory / "sandbox-exec")

    def does(self, mode: str, *, when: str = "started") -> None:
        (self.directory / when).write_text(mode + "\n")

    def log(self) -> list[str]:
        return (self.directory / "log").read_text().split()

    def backend(self, nested: str = "refuse") -> SeatbeltBackend:
        return SeatbeltBackend("trust-outer" if nested == "trust-outer" else "refuse", sandbox_exec=self.path)

    def prepare(self, confinement: Confinement, nested: str = "refuse") -> SeatbeltEnforcer:
        self.made.append(self.backend(nested).prepare(confinement))
        return self.made[-1]


@pytest.fixture
def stand_in(tmp_path: Path) -> Iterator[StandIn]:
    directory = tmp_path.resolve() / "system"
    directory.mkdir()
    (directory / "sandbox-exec").write_text(_STAND_IN)
    (directory / "sandbox-exec").chmod(0o755)
    made = StandIn(directory)
    made.does("run")
    made.does("run", when="probed")
    yield made
    for enforcer in made.made:
        enforcer.close()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path.resolve() / "root"
    made.mkdir()
    return made


@pytest.fixture
def confinement(root: Path) -> Confinement:
    return Confinement(roots=(str(root),))


@dataclass(frozen=True)
class Ran:
    finished: Finished
    out: str
    err: str


def run(
    enforcer: SeatbeltEnforcer,
    argv: list[str] | str,
    directory: Path,
    *,
    env: dict[str, str] | None = None,
    timeout: float = 60.0,
    stop: Stop | None = None,
) -> Ran:
    out, err = Tail(1 << 16), Tail(1 << 16)
    finished = launch(
        enforcer,
        ["/bin/sh", "-c", argv] if isinstance(argv, str) else argv,
        str(directory),
        environment_of(env),
        Streams(out.feed, err.feed, None),
        timeout=timeout,
        stop=stop,
        announce=lambda: None,
    )
    return Ran(finished, out.text(), err.text())


def test_a_command_runs_with_its_own_status_and_streams(
    stand_in: StandIn, confinement: Confinement, root: Path
) -> None:
    ran = run(stand_in.prepare(confinement), "echo out; echo err >&2; exit 3", root)

    assert (ran.finished.exit_status, ran.out, ran.err) == (3, "out\n", "err\n")


@pytest.mark.parametrize("status", [0, 1, 64, 65, 71, 126, 127, 134])
def test_a_status_of_the_commands_own_is_never_a_failed_start(
    stand_in: StandIn, confinement: Confinement, root: Path, status: int
) -> None:
    text = "sandbox-exec: sandbox_apply: Operation not permitted"

    ran = run(stand_in.prepare(confinement), f"echo '{text}' >&2; exit {status}", root)

    assert (ran.finished.exit_status, ran.err) == (status, text + "\n")


def test_an_abort_of_the_commands_own_is_never_a_failed_start(
    stand_in: StandIn, confinement: Confinement, root: Path
) -> None:
    assert (
        run(stand_in.prepare(confinement), "ulimit -c 0; kill -ABRT $$", root).finished.exit_status == -signal.SIGABRT
    )


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("data", "does not accept the profile"),
        ("apply", "another sandbox lies around"),
        ("abort", "aborted before the command started"),
        ("kill", "killed by signal 9 before the command started"),
        ("nothing", "ended with 0 before the command started"),
    ],
)
def test_a_sandbox_that_does_not_start_is_no_result_of_the_command(
    stand_in: StandIn, confinement: Confinement, root: Path, mode: str, words: str
) -> None:
    enforcer = stand_in.prepare(confinement)
    stand_in.does(mode)

    with pytest.raises(SandboxUnavailable, match=words):
        run(enforcer, "touch ran", root)

    assert not (root / "ran").exists()
    stand_in.does("run")
    assert run(enforcer, "touch ran", root).finished.exit_status == 0
    assert (root / "ran").exists()


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("data", "unbound variable: x"),
        ("apply", "sandbox_apply: Operation not permitted"),
        ("abort", "aborted"),
        ("nothing", "ended with 0"),
    ],
)
def test_a_profile_that_does_not_start_a_command_is_found_out_before_any(
    stand_in: StandIn, confinement: Confinement, mode: str, words: str
) -> None:
    stand_in.does(mode)

    with pytest.raises(SandboxUnavailable, match=words):
        stand_in.prepare(confinement)

    assert profiles() == []


def test_a_command_that_is_ended_while_its_sandbox_starts_was_ended_and_not_refused(
    stand_in: StandIn, confinement: Confinement, root: Path
) -> None:
    enforcer = stand_in.prepare(confinement)
    stand_in.does("hang")

    finished = run(enforcer, "touch ran", root, timeout=0.2).finished

    assert finished.timed_out
    assert finished.exit_status == -signal.SIGTERM
    assert not (root / "ran").exists()


@pytest.mark.parametrize(
    ("status", "output", "sent", "started"),
    [
        (65, b"\0started:", set(), True),
        (65, b"started:", set(), False),
        (65, b"", set(), False),
        (-15, b"", {15}, True),
        (-15, b"", {2}, False),
        (71, b"", {15}, False),
        (0, b"", set(), False),
        (-6, b"a warning\n\0started:", set(), True),
    ],
)
def test_the_mark_decides_and_the_status_only_chooses_the_words(
    status: int, output: bytes, sent: set[int], started: bool
) -> None:
    assert (why_not_started(status, Said.of(output), sent) == "") is started


def test_what_sandbox_exec_says_of_itself_is_the_reason_and_none_of_the_commands_output(
    stand_in: StandIn, confinement: Confinement, root: Path
) -> None:
    enforcer = stand_in.prepare(confinement)
    assert run(enforcer, "echo own >&2", root).err == "own\n"
    stand_in.does("apply")

    with pytest.raises(
        SandboxUnavailable, match=r"ended with 71.*: sandbox-exec: sandbox_apply: Operation not permitted$"
    ):
        run(enforcer, "echo own >&2", root)


def test_the_profile_and_the_paths_are_what_sandbox_exec_is_given(
    stand_in: StandIn, confinement: Confinement, root: Path
) -> None:
    enforcer = stand_in.prepare(confinement)
    (stand_in.directory / "parameters").unlink()

    run(enforcer, "true", root)

    profile = profile_of(confinement)
    assert (stand_in.directory / "profile").read_text() == profile.text
    given = (stand_in.directory / "parameters").read_text().splitlines()
    assert given == [f"{name}={path}" for name, path in profile.parameters]


@pytest.mark.parametrize("more", [0, 40])  # a number of one digit, and of two
def test_the_pipe_of_the_start_does_not_reach_the_command(
    stand_in: StandIn, confinement: Confinement, root: Path, more: int
) -> None:
    code = """
import os
def is_open(number):
    try:
        os.fstat(number)
    except OSError:
        return False
    return True
print([number for number in range(3, 400) if is_open(number)])
"""
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(more)]
    try:
        ran = run(stand_in.prepare(confinement), [sys.executable, "-I", "-S", "-c", code], root)
    finally:
        for descriptor in held:
            os.close(descriptor)

    assert (ran.out, ran.err) == ("[]\n", "")


def test_a_command_gets_its_words_and_its_environment_as_they_are(
    stand_in: StandIn, confinement: Confinement, root: Path
) -> None:
    words = ["-x", "", "a b", "'\"$HOME`", "\n", "--", "ü\udcff"]
    code = "import os, sys; print(sys.argv[1:]); print(sorted(i for i in os.environ.items() if i[0][:2] == 'T_'))"
    (root / "start-up").write_text("echo read")
    env = {"PATH": os.environ["PATH"], "T_A": "1 \n 2", "T_B": "", "BASH_ENV": str(root / "start-up")}

    ran = run(stand_in.prepare(confinement), [sys.executable, "-I", "-c", code, *words], root, env=env)

    assert ran.out == f"{words!r}\n{[('T_A', env['T_A']), ('T_B', '')]!r}\n"


def test_a_program_is_found_by_its_name_and_called_by_it(
    stand_in: StandIn, confinement: Confinement, root: Path
) -> None:
    (root / "own").mkdir()
    (root / "own" / "my-sh").symlink_to("/bin/sh")
    enforcer = stand_in.prepare(confinement)

    found = [
        run(enforcer, [name, "-c", 'echo "$0"'], root, env={"PATH": f"/nowhere:own:{os.defpath}"}).out
        for name in ("my-sh", "own/my-sh", f"{root}/own/my-sh")
    ]

    assert found == ["my-sh\n", "own/my-sh\n", f"{root}/own/my-sh\n"]


@pytest.mark.parametrize(
    ("name", "code"),
    [("no-such-program", errno.ENOENT), ("./plain", errno.EACCES), ("./directory", errno.EACCES), ("", errno.ENOENT)],
)
def test_a_program_that_cannot_be_started_is_an_error_and_no_status(
    stand_in: StandIn, confinement: Confinement, root: Path, name: str, code: int
) -> None:
    (root / "plain").write_text("")
    (root / "directory").mkdir()
    enforcer = stand_in.prepare(confinement)

    with pytest.raises(LaunchFailed) as caught:
        run(enforcer, [name], root)

    assert caught.value.reason == os.strerror(code)


@pytest.mark.parametrize(
    ("mode", "code"), [("remove", errno.ENOENT), ("forbid", errno.EACCES), ("setuid", errno.EPERM)]
)
def test_a_program_that_is_refused_inside_the_sandbox_is_an_error_and_no_status(
    stand_in: StandIn, confinement: Confinement, root: Path, mode: str, code: int
) -> None:
    program = root / "program"
    program.write_text("#!/bin/sh\nexit 7\n")
    program.chmod(0o755)
    enforcer = stand_in.prepare(confinement)
    assert run(enforcer, ["./program"], root).finished.exit_status == 7
    stand_in.does(f"{mode} {program}")

    with pytest.raises(LaunchFailed) as caught:
        run(enforcer, ["./program"], root)

    assert caught.value.reason == os.strerror(code)


def test_a_missing_directory_is_told_from_a_missing_program(
    stand_in: StandIn, confinement: Confinement, root: Path
) -> None:
    with pytest.raises(LaunchFailed, match=r"No such file or directory: .*/gone"):
        run(stand_in.prepare(confinement), ["true"], root / "gone")


def test_without_sandbox_exec_nothing_runs(stand_in: StandIn, confinement: Confinement, root: Path) -> None:
    enforcer = stand_in.prepare(confinement)
    (stand_in.directory / "sandbox-exec").unlink()

    with pytest.raises(SandboxUnavailable, match="cannot be started"):
        run(enforcer, "touch ran", root)
    with pytest.raises(SandboxUnavailable, match="cannot be started"):
        SeatbeltBackend(sandbox_exec=str(stand_in.directory / "none")).prepare(confinement)

    assert not (root / "ran").exists()


def test_inside_another_sandbox_nothing_runs(stand_in: StandIn, confinement: Confinement) -> None:
    stand_in.does("apply", when="probed")

    with pytest.raises(SandboxUnavailable, match=r"nested: .*trust-outer"):
        stand_in.prepare(confinement)

    assert stand_in.log() == ["probed"]


def test_an_outer_sandbox_is_trusted_only_by_choice_and_that_is_said(
    stand_in: StandIn, confinement: Confinement, root: Path
) -> None:
    stand_in.does("apply", when="probed")

    enforcer = stand_in.prepare(confinement, "trust-outer")

    assert run(enforcer, "exit 71", root).finished.exit_status == 71
    assert enforcer.layers == ("outer",)
    assert enforcer.texts == RefusalTexts()
    assert "wisp holds nothing" in enforcer.notes[0]
    assert stand_in.log() == ["probed"]
    capability = stand_in.backend("trust-outer").capability()
    assert (capability.tier, capability.confines) == (None, frozenset())
    assert "wisp holds nothing" in capability.reason
    assert {layer.state for layer in capability.layers} == {"nested"}


def test_trust_changes_nothing_where_there_is_no_outer_sandbox(
    stand_in: StandIn, confinement: Confinement, root: Path
) -> None:
    enforcer = stand_in.prepare(confinement, "trust-outer")

    assert (enforcer.layers, enforcer.notes) == (LAYERS, ())
    run(enforcer, "true", root)
    assert stand_in.log() == ["probed", "started", "started"]


@pytest.mark.parametrize("mode", ["data", "abort", "kill", "hang"])
@pytest.mark.parametrize("nested", ["refuse", "trust-outer"])
def test_whatever_else_goes_wrong_is_no_reason_to_trust_an_outer_sandbox(
    stand_in: StandIn, confinement: Confinement, mode: str, nested: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seatbelt_start, "_PATIENCE", 0.5)
    stand_in.does(mode, when="probed")

    with pytest.raises(SandboxUnavailable) as caught:
        stand_in.prepare(confinement, nested)

    assert "nested:" not in caught.value.reason
    assert stand_in.log() == ["probed"]


def test_nesting_is_decided_once_and_never_by_what_a_command_says(
    stand_in: StandIn, confinement: Confinement, root: Path
) -> None:
    for _ in range(2):
        enforcer = stand_in.prepare(confinement, "trust-outer")
        ran = run(enforcer, "echo 'sandbox-exec: sandbox_apply: Operation not permitted' >&2; exit 71", root)
        assert ran.finished.exit_status == 71

    assert stand_in.log() == ["probed", "started", "started", "started", "started"]


def test_a_word_for_nested_that_is_none_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="trust-outer"):
        SeatbeltBackend("always")  # type: ignore[arg-type]


def profiles() -> list[Path]:
    directory = Path(os.environ["WISP_HOME"]) / "seatbelt"
    return sorted(directory.iterdir()) if directory.exists() else []


def test_the_profile_lies_in_the_home_for_this_user_alone_until_it_is_closed(
    stand_in: StandIn, confinement: Confinement
) -> None:
    enforcer = stand_in.prepare(confinement)

    (file,) = profiles()
    assert file.read_text() == profile_of(confinement).text
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    other = stand_in.prepare(confinement)
    assert len(profiles()) == 2
    other.close()
    other.close()
    assert profiles() == [file]
    enforcer.close()
    assert profiles() == []


@pytest.mark.parametrize("how", ["changed", "gone", "opened"])
def test_a_profile_that_somebody_changed_is_not_used(
    stand_in: StandIn, confinement: Confinement, root: Path, how: str
) -> None:
    enforcer = stand_in.prepare(confinement)
    (file,) = profiles()
    if how == "changed":
        file.write_text(file.read_text() + "(allow file-write*)\n")
    elif how == "opened":
        file.chmod(0o666)
    else:
        file.unlink()

    with pytest.raises(SandboxUnavailable, match="start wisp again"):
        run(enforcer, "touch ran", root)

    assert not (root / "ran").exists()


def test_a_home_that_commands_may_write_holds_no_profile(
    stand_in: StandIn, confinement: Confinement, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WISP_HOME", str(root / "home"))

    with pytest.raises(SandboxUnavailable, match="could change the profile"):
        stand_in.prepare(confinement)

    stand_in.prepare(Confinement(roots=(str(root),)))  # protected: the variable was set when it was made


def test_a_link_in_place_of_the_directory_is_not_followed(
    stand_in: StandIn, confinement: Confinement, tmp_path: Path
) -> None:
    home = Path(os.environ["WISP_HOME"])
    home.mkdir(parents=True, exist_ok=True)
    (home / "seatbelt").symlink_to(tmp_path)

    with pytest.raises(SandboxUnavailable, match="not a directory of this user's own"):
        stand_in.prepare(confinement)


def test_what_killed_processes_left_is_swept_and_nothing_else(stand_in: StandIn, confinement: Confinement) -> None:
    directory = Path(os.environ["WISP_HOME"]) / "seatbelt"
    directory.mkdir(parents=True)
    ended = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(ended, 0)
    yesterday = time.time() - 2 * 86400
    names = [f"{ended}-old.sb", f"{ended}-half.sb.new", f"{ended}-young.sb", f"{os.getpid()}-live.sb", "note", "x-1.sb"]
    for name in names:
        (directory / name).write_text("")
        if "young" not in name:
            os.utime(directory / name, (yesterday, yesterday))

    stand_in.prepare(confinement).close()

    assert sorted(path.name for path in directory.iterdir()) == sorted(names[2:])


def test_a_child_that_a_fork_made_leaves_the_profile_to_its_parent(stand_in: StandIn, confinement: Confinement) -> None:
    enforcer = stand_in.prepare(confinement)

    child = os.fork()
    if child == 0:
        try:
            enforcer.close()
        finally:
            os._exit(0)
    os.waitpid(child, 0)

    assert len(profiles()) == 1


def test_a_root_that_leads_elsewhere_now_stops_the_command(
    stand_in: StandIn, confinement: Confinement, root: Path, tmp_path: Path
) -> None:
    enforcer = stand_in.prepare(confinement)
    root.rename(tmp_path / "away")
    root.symlink_to(tmp_path / "away")

    with pytest.raises(SandboxUnavailable, match="no longer the directory"):
        run(enforcer, "true", tmp_path)


def test_a_background_job_does_not_outlive_its_command(stand_in: StandIn, confinement: Confinement, root: Path) -> None:
    line = "trap '' TERM HUP; (sleep 300; :) >/dev/null 2>&1 & echo $!"

    ran = run(stand_in.prepare(confinement), line, root)

    assert is_over(int(ran.out))
    assert "before it was seen" in ran.finished.left_behind


_DAEMON = "import os, time\nos.setsid()\nopen('pid.new', 'w').write(str(os.getpid()))\nos.rename('pid.new', 'pid')\ntime.sleep(300)"


def test_what_left_the_session_is_ended_with_its_command_when_it_was_seen(
    stand_in: StandIn, confinement: Confinement, root: Path
) -> None:
    line = f'"{sys.executable}" -c "{_DAEMON}" & while ! test -e pid; do sleep 0.05; done; sleep 0.6'

    run(stand_in.prepare(confinement), line, root)

    assert is_over(int((root / "pid").read_text()))


def test_a_time_out_ends_what_left_the_session_too(stand_in: StandIn, confinement: Confinement, root: Path) -> None:
    line = f'"{sys.executable}" -c "{_DAEMON}" & sleep 300'

    ran = run(stand_in.prepare(confinement), line, root, timeout=1.5)

    assert ran.finished.timed_out
    assert is_over(int((root / "pid").read_text()))


def test_commands_run_at_the_same_time(stand_in: StandIn, confinement: Confinement, root: Path) -> None:
    enforcer = stand_in.prepare(confinement)
    results: dict[int, int] = {}

    def work(number: int) -> None:
        results[number] = run(enforcer, f"exit {number}", root).finished.exit_status

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert results == {number: number for number in range(8)}


def test_no_descriptor_and_no_thread_is_left(stand_in: StandIn, confinement: Confinement, root: Path) -> None:
    enforcer = stand_in.prepare(confinement)
    run(enforcer, "true", root)
    before = count_descriptors()

    for mode in ("run", "data", "abort", "nothing"):
        stand_in.does(mode)
        try:
            run(enforcer, "true", root)
        except SandboxUnavailable:
            assert mode != "run"
    with pytest.raises(LaunchFailed):
        run(enforcer, ["no-such-program"], root)

    assert count_descriptors() == before
    until = time.monotonic() + 20
    while any(thread.name.startswith("wisp-tree-") for thread in threading.enumerate()) and time.monotonic() < until:
        time.sleep(0.01)
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("wisp-tree-")] == []


def count_descriptors() -> int:
    def is_open(number: int) -> bool:
        try:
            os.fstat(number)
        except OSError:
            return False
        return True

    return sum(is_open(number) for number in range(512))


def is_over(pid: int) -> bool:
    import psutil

    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


HELD = dict.fromkeys(("create", "mode", "link", "guarded", "moved", "internet", "terminal", "descriptor"), "refused")
PLAIN = dict.fromkeys((*HELD, "inside", "null"), "yes")
GOOD = Seen(plain=PLAIN, confined={**HELD, "inside": "yes", "null": "yes"}, left=False)


def states(capability: Capability) -> dict[str, str]:
    return {layer.name: layer.state for layer in capability.layers}


def test_a_mac_where_all_is_refused_that_must_be_is_tier_a() -> None:
    capability = describe(GOOD)

    assert (capability.tier, capability.reason) == ("A", "")
    assert states(capability) == dict.fromkeys(LAYERS, "yes")
    assert {"confine.write", "confine.metadata", "confine.protected-inside-root"} <= capability.confines
    assert {"confine.leftovers", "confine.signals"} <= {limit.name for limit in capability.limits}
    assert not capability.confines & {limit.name for limit in capability.limits}


@pytest.mark.parametrize("name", ["create", "mode", "link", "guarded", "moved", "internet"])
def test_one_action_that_is_not_refused_is_no_sandbox(name: str) -> None:
    capability = describe(replace(GOOD, confined={**GOOD.confined, name: "yes"}))

    assert (capability.tier, states(capability)["seatbelt"]) == (None, "refused")


@pytest.mark.parametrize("name", ["inside", "null"])
def test_an_action_that_must_work_and_does_not_proves_nothing(name: str) -> None:
    capability = describe(replace(GOOD, confined={**GOOD.confined, name: "Operation not permitted"}))

    assert (capability.tier, states(capability)["seatbelt"]) == (None, "inconclusive")


@pytest.mark.parametrize("name", [*HELD, "inside", "null"])
def test_a_control_that_does_not_work_proves_nothing(name: str) -> None:
    capability = describe(replace(GOOD, plain={**PLAIN, name: "Permission denied"}))

    expected = "yes" if name in {"terminal", "descriptor"} else "inconclusive"
    assert states(capability)["seatbelt"] == expected


@pytest.mark.parametrize("layer", ["session", "descriptors", "leftovers"])
def test_each_other_layer_has_an_attempt_of_its_own(layer: str) -> None:
    crossed = {"session": "terminal", "descriptors": "descriptor"}.get(layer)
    seen = replace(GOOD, left=True) if crossed is None else replace(GOOD, confined={**GOOD.confined, crossed: "yes"})

    capability = describe(seen)

    assert (capability.tier, [name for name, state in states(capability).items() if state != "yes"]) == (None, [layer])


def test_a_sandbox_exec_that_confines_nothing_is_caught(stand_in: StandIn) -> None:
    capability = stand_in.backend().capability()

    assert capability.tier is None
    assert states(capability) == {**dict.fromkeys(LAYERS, "yes"), "seatbelt": "refused"}
    assert profiles() == []


@pytest.mark.parametrize(("mode", "state"), [("apply", "nested"), ("data", "refused"), ("abort", "refused")])
def test_why_there_is_no_sandbox_is_said(stand_in: StandIn, mode: str, state: str) -> None:
    stand_in.does(mode, when="probed")

    capability = stand_in.backend().capability()

    assert capability.tier is None
    assert set(states(capability).values()) == {state}
    assert (mode == "apply") is capability.reason.startswith("nested: ")


def test_a_machine_without_sandbox_exec_says_so(tmp_path: Path) -> None:
    capability = SeatbeltBackend(sandbox_exec=str(tmp_path / "none")).capability()

    assert set(states(capability).values()) == {"not-built"}
    assert "No such file or directory" in capability.reason


def test_it_is_a_backend_like_the_others(stand_in: StandIn, confinement: Confinement) -> None:
    as_backend: Callable[[], Backend] = stand_in.backend
    enforcer = as_backend().prepare(confinement)
    refused = (os.strerror(errno.EPERM),)

    assert as_backend().name == "seatbelt"
    assert enforcer.layers == LAYERS
    assert enforcer.texts == RefusalTexts(write=refused, link=refused, call=refused)
    assert "may still run" in enforcer.ends_leftovers
    enforcer.close()
