"""Running rows: verdicts from a real sandbox and from none, many at once, and nothing left whatever happens."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from wisp.errors import SandboxUnavailable
from wisp.probing.load import load_text, packaged_rows
from wisp.probing.probe import Probe, Result
from wisp.probing.run import run_probe, run_probes
from wisp.probing.scratch import open_scratch
from wisp.sandbox.capability import Capability
from wisp.sandbox.unconfined import UnconfinedBackend

NONE = UnconfinedBackend()

ROWS = """
schema = 1
[[probe]]
id = "test.write"
title = "a file cannot be made outside"
why = "for the test"
run = 'touch "$OUTSIDE/probe"'
expect = "refused"
crossed = { exists = "$OUTSIDE/probe" }
layer = ["landlock", "seatbelt"]
operations = [["file-write-create", "$OUTSIDE/probe"]]
refusal = { verdict = "refused", paths = ["$OUTSIDE/probe"] }
[[probe]]
id = "test.inside"
title = "a file can be made inside"
why = "for the test"
run = 'touch "$ROOT/probe"'
expect = "allowed"
crossed = { exists = "$ROOT/probe" }
operations = [["file-write-create", "$ROOT/probe"]]
[[probe]]
id = "test.vacuous"
title = "a row whose control does nothing"
why = "for the test"
run = 'echo "not in $ROOT" >&2; exit 3'
expect = "refused"
crossed = { exists = "$OUTSIDE/probe" }
layer = ["landlock"]
operations = []
no-operations = "for the test"
[[probe]]
id = "test.needs"
title = "a row that needs what nobody has"
why = "for the test"
run = "true"
expect = "refused"
crossed = { exists = "$OUTSIDE/probe" }
layer = ["landlock"]
operations = []
no-operations = "for the test"
requires = ["symlinks", "tool.nobody-has-this"]
[[probe]]
id = "test.slow"
title = "a row that takes its time"
why = "for the test"
run = 'touch "$OUTSIDE/probe"; exec sleep 20'
expect = "refused"
crossed = { exists = "$OUTSIDE/probe" }
layer = ["landlock"]
operations = []
no-operations = "for the test"
"""
WRITE, INSIDE, VACUOUS, NEEDS, SLOW = load_text(ROWS)


class Unavailable(UnconfinedBackend):
    """A backend that cannot hold anything here."""

    name = "broken"

    def prepare(self, confinement: object) -> object:  # type: ignore[override]
        raise SandboxUnavailable("broken", "a layer is missing")


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a home directory of the test's own, outside the temporary directory, where scratch directories go."""
    made = Path(os.environ["WISP_HOME"] + "-home")
    made.mkdir(mode=0o700)
    monkeypatch.setenv("HOME", str(made))
    yield made
    shutil.rmtree(made)


@pytest.fixture
def scratch() -> Iterator[Path]:
    with open_scratch() as made:
        yield made


def without_times(result: Result) -> dict[str, object]:
    found = result.as_json()
    assert isinstance(found.pop("seconds"), float)
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]


def test_without_a_sandbox_a_refused_row_leaks(scratch: Path) -> None:
    crossed = {"crossed": True, "missing": [], "exitStatus": 0, "timedOut": False, "started": True, "output": ""}

    assert without_times(run_probe(WRITE, backend=NONE, scratch=scratch)) == {
        "id": "test.write",
        "family": "test",
        "title": "a file cannot be made outside",
        "expect": "refused",
        "verdict": "leaked",
        "reason": "it crossed: $OUTSIDE/probe was made",
        "control": crossed,
        "confined": crossed,
        "backend": "none",
        "layers": [],
        "refusalOk": None,
        "refusalSaid": "nothing",
        "repeat": "wisp doctor test.write",
    }
    assert [path.name for path in scratch.iterdir()] == ["lock"]


def test_without_a_sandbox_an_allowed_row_is_held(scratch: Path) -> None:
    assert run_probe(INSIDE, backend=NONE, scratch=scratch).verdict == "held"


@pytest.mark.linux
@pytest.mark.wisp_requires("landlock")
def test_under_the_sandbox_a_refused_row_is_held_and_the_refusal_check_agrees(scratch: Path) -> None:
    from wisp.sandbox.landlock import LandlockBackend

    result = run_probe(WRITE, backend=LandlockBackend(), scratch=scratch)

    assert (result.verdict, result.reason) == ("held", "it was stopped, and crosses without the sandbox")
    assert "landlock" in result.layers
    assert (result.refusal_ok, result.refusal_said) == (True, "refused $OUTSIDE/probe")
    assert result.confined is not None
    assert result.confined.output.endswith("'$OUTSIDE/probe': Permission denied")


@pytest.mark.linux
@pytest.mark.wisp_requires("landlock")
def test_a_refusal_check_that_says_something_else_is_told(scratch: Path) -> None:
    from dataclasses import replace

    from wisp.probing.probe import ExpectedRefusal
    from wisp.sandbox.landlock import LandlockBackend

    row = replace(WRITE, refusal=ExpectedRefusal("refused", ("$OUTSIDE/other",)))

    assert run_probe(row, backend=LandlockBackend(), scratch=scratch).refusal_ok is False


def test_a_control_that_does_not_cross_is_inconclusive_with_what_it_did(scratch: Path) -> None:
    result = run_probe(VACUOUS, backend=NONE, scratch=scratch)

    assert (result.verdict, result.confined) == ("inconclusive", None)
    assert result.reason == (
        "the control did not cross: not that $OUTSIDE/probe was made; exit status 3, it printed 'not in $ROOT'"
    )


def test_a_row_that_needs_what_is_missing_is_skipped_by_its_name(scratch: Path) -> None:
    result = run_probe(NEEDS, backend=NONE, scratch=scratch)

    assert (result.verdict, result.control) == ("skipped", None)
    assert result.reason == "needs tool.nobody-has-this: nobody-has-this is not installed, or not on PATH"


def test_a_sandbox_that_is_not_available_is_inconclusive_with_its_reason(scratch: Path) -> None:
    result = run_probe(WRITE, backend=Unavailable(), scratch=scratch)  # type: ignore[arg-type]

    assert (result.verdict, result.confined) == ("inconclusive", None)
    assert result.control is not None
    assert result.reason == (
        "nothing was run confined: the broken sandbox cannot hold this confinement here: a layer is missing"
    )


def test_a_scratch_directory_that_takes_nothing_is_inconclusive_with_the_reason(tmp_path: Path) -> None:
    result = run_probe(WRITE, backend=NONE, scratch=tmp_path / "missing")

    assert result.verdict == "inconclusive"
    assert result.reason.startswith("the row could not be set up: [Errno 2] No such file or directory")


def test_a_row_does_not_find_the_persons_home_or_settings(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_DIR", "/somewhere")
    (row,) = load_text("""
schema = 1
[[probe]]
id = "test.environment"
title = "the environment"
why = "for the test"
run = 'echo "home ${HOME#"$ROOT2"} tmp ${TMPDIR#"$ROOT2"}"; [ "$(pwd)" = "$ROOT" ] && env | grep -c GIT_'
expect = "allowed"
crossed = { token = "home  tmp \\n0" }
operations = []
no-operations = "for the test"
""")

    assert run_probe(row, backend=NONE, scratch=scratch).verdict == "held"


def test_results_come_in_the_order_of_the_rows_and_are_told_as_they_end(home: Path) -> None:
    rows = [NEEDS, WRITE, VACUOUS, INSIDE]
    told = list[Result]()

    results = run_probes(rows, backend=NONE, jobs=3, on_result=told.append)

    assert [result.id for result in results] == [row.id for row in rows]
    assert [result.verdict for result in results] == ["skipped", "leaked", "inconclusive", "held"]
    assert sorted(told, key=lambda one: one.id) == sorted(results, key=lambda one: one.id)
    assert list(home.iterdir()) == []


def test_no_rows_are_no_results(home: Path) -> None:
    assert run_probes([], backend=NONE) == []


def test_the_backend_is_asked_once_what_it_can_do(home: Path) -> None:
    asked = list[int]()

    class Counting(UnconfinedBackend):
        def capability(self) -> Capability:
            asked.append(1)
            return super().capability()

    run_probes([WRITE, INSIDE], backend=Counting())

    assert len(asked) == 1


def test_stopping_ends_what_runs_and_says_what_did_not(home: Path) -> None:
    stop = threading.Event()
    threading.Timer(0.5, stop.set).start()
    started = time.monotonic()

    results = run_probes([SLOW, WRITE], backend=NONE, jobs=1, stop=stop)

    assert [(one.verdict, one.reason) for one in results] == [
        ("inconclusive", "it was stopped before its end"),
        ("inconclusive", "it was stopped before it ran"),
    ]
    assert time.monotonic() - started < 10
    assert list(home.iterdir()) == []


def test_an_error_of_who_is_told_ends_and_removes_everything(home: Path) -> None:
    def complain(result: Result) -> None:
        raise ValueError(result.id)

    with pytest.raises(ValueError, match=r"test\.write"):
        run_probes([WRITE, SLOW], backend=NONE, on_result=complain)

    assert list(home.iterdir()) == []


PROGRAM = """
import sys
from wisp.probing.load import load_file
from wisp.probing.run import run_probes
from wisp.sandbox.choose import backend_named
rows = load_file(sys.argv[1])
print("running", flush=True)
try:
    run_probes([row for row in rows if row.id in sys.argv[3:]], backend=backend_named(sys.argv[2]))
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""

LONG = """
[[probe]]
id = "test.daemon"
title = "a row that leaves a daemon"
why = "for the test"
run = '''
setsid sleep 20 < /dev/null > /dev/null 2>&1 &
echo "$VICTIM" > "$ROOT/victim"
exec sleep 20
'''
expect = "refused"
crossed = { token = "never" }
layer = ["leftovers"]
operations = []
no-operations = "for the test"
[[probe]]
id = "test.long-when-confined"
title = "a row whose confined run takes its time"
why = "for the test"
run = '''
if env | grep -q ^WISP_SANDBOX; then
    setsid sleep 20 < /dev/null > /dev/null 2>&1 &
    touch "$ROOT/victim"
    exec sleep 20
fi
touch "$OUTSIDE/probe"
'''
expect = "refused"
crossed = { exists = "$OUTSIDE/probe" }
layer = ["leftovers"]
operations = []
no-operations = "for the test"
"""


def start_runner(path: Path, backend: str, *ids: str) -> subprocess.Popen[str]:
    path.write_text(ROWS + LONG)
    return subprocess.Popen([sys.executable, "-c", PROGRAM, path, backend, *ids], stdout=subprocess.PIPE, text=True)


def wait_for(question: object, what: str) -> None:
    for _ in range(1000):
        if question():  # type: ignore[operator]
            return
        time.sleep(0.01)
    pytest.fail(f"not within ten seconds: {what}")


def of_the_run(name: str) -> list[int]:
    """Return the processes that belong to the scratch directory `name`."""
    from wisp.probing.leftovers import carries, is_running

    pids = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
    return [pid for pid in pids if carries(pid, name) and is_running(pid)]


linux = pytest.mark.skipif(sys.platform != "linux", reason="processes are known by /proc")


@linux
@pytest.mark.parametrize(
    ("backend", "row"),
    [
        ("none", "test.daemon"),
        ("none", "test.long-when-confined"),
        pytest.param("landlock", "test.long-when-confined", marks=pytest.mark.wisp_requires("landlock")),
    ],
)
def test_after_ctrl_c_nothing_is_left(home: Path, tmp_path: Path, backend: str, row: str) -> None:
    with start_runner(tmp_path / "rows.toml", backend, row, "test.slow") as runner:
        wait_for(lambda: [*home.glob(".wisp-probe-*/*/root/victim")], "the row runs")
        (name,) = (path.name for path in home.iterdir())
        assert len(of_the_run(name)) >= 2

        runner.send_signal(signal.SIGINT)

        assert runner.communicate(timeout=20)[0] == "running\ninterrupted\n"
    assert list(home.iterdir()) == []
    assert of_the_run(name) == []


@linux
def test_what_a_killed_runner_leaves_is_gone_after_the_next_run(home: Path, tmp_path: Path) -> None:
    with start_runner(tmp_path / "rows.toml", "none", "test.daemon") as runner:
        wait_for(lambda: [*home.glob(".wisp-probe-*/*/root/victim")], "the row runs")
        (left,) = home.iterdir()
        (said,) = left.glob("*/root/victim")
        wait_for(said.read_text, "the stand-in is named")
        victim = int(said.read_text())
        runner.kill()
    wait_for(lambda: not is_alive(victim), "the stand-in ends with its runner")
    assert of_the_run(left.name)

    run_probes([], backend=NONE)

    assert list(home.iterdir()) == []
    wait_for(lambda: not of_the_run(left.name), "what the row started ends")


def is_alive(pid: int) -> bool:
    from wisp.probing.leftovers import is_running

    return is_running(pid)


def test_every_packaged_row_has_a_reason_whatever_its_verdict(home: Path) -> None:
    rows: list[Probe] = [row for row in packaged_rows() if row.family in {"write", "rename"}]

    for result in run_probes(rows, backend=NONE):
        assert result.reason
        assert not result.reason.endswith(".")
        assert str(home) not in json.dumps(result.as_json())
