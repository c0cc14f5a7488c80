"""Appending: every record whole, none lost, whoever else writes, rotates, forks or fills the disk."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import stat
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from wisp.audit import log as module
from wisp.audit.log import AuditLog
from wisp.audit.reader import read

DIGITS = 6


def _record(number: int, *, padding: int = 0) -> dict[str, object]:
    """Return a record whose line has 38 bytes and `padding` more."""
    return {"kind": "k", "number": f"{number:0{DIGITS}}", "padding": "x" * padding}


def _numbers(directory: Path) -> list[int]:
    return [int(str(record["number"])) for record in read(directory)]


def _names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


LINE = len(json.dumps(_record(0), separators=(",", ":"))) + 1


def test_the_directory_and_the_home_are_made_for_this_user_only(tmp_path: Path) -> None:
    directory = tmp_path / "home" / "logs"
    old = os.umask(0)
    try:
        with AuditLog(str(directory)) as log:
            log.append(_record(1))
    finally:
        os.umask(old)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (directory.parent, directory, directory / "audit.jsonl")]
    assert modes == [0o700, 0o700, 0o600]
    assert _numbers(directory) == [1]


def test_nothing_is_made_before_the_first_record(tmp_path: Path) -> None:
    AuditLog(str(tmp_path / "home" / "logs")).close()
    assert _names(tmp_path) == []


def test_a_home_in_a_place_that_is_missing_is_told_once_and_not_made(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = AuditLog(str(tmp_path / "missing" / "home" / "logs"))
    log.append(_record(1))
    log.append(_record(2))
    path = tmp_path / "missing" / "home" / "logs" / "audit.jsonl"
    assert [(entry.name, entry.levelno, entry.getMessage()) for entry in caplog.records] == [
        ("wisp.audit", logging.ERROR, f"audit log {path}: a record was lost: No such file or directory")
    ]
    assert _names(tmp_path) == []
    path.parents[2].mkdir()
    log.append(_record(3))
    log.close()
    assert _numbers(path.parent) == [3]


def test_the_mode_of_a_file_is_set_again_when_it_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_bytes(b"")
    path.chmod(0o666)
    with AuditLog(str(tmp_path)) as log:
        log.append(_record(1))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_relative_directory_stays_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with AuditLog("logs") as log:
        log.append(_record(1))
        monkeypatch.chdir("/")
        log.append(_record(2))
        log.close()
        log.append(_record(3))
    assert _numbers(tmp_path / "logs") == [1, 2, 3]


def test_a_closed_log_opens_again(tmp_path: Path) -> None:
    log = AuditLog(str(tmp_path))
    log.append(_record(1))
    log.close()
    log.close()
    log.append(_record(2))
    log.close()
    assert _numbers(tmp_path) == [1, 2]


def test_a_record_that_json_cannot_hold_is_the_callers_mistake(tmp_path: Path) -> None:
    with AuditLog(str(tmp_path)) as log:
        with pytest.raises(TypeError):
            log.append({"kind": b"bytes"})
        with pytest.raises(ValueError, match="not JSON compliant"):
            log.append({"kind": "k", "seconds": float("nan")})
        log.append(_record(1))
    assert _numbers(tmp_path) == [1]


def test_a_file_is_rotated_when_the_next_line_would_pass_the_limit(tmp_path: Path) -> None:
    with AuditLog(str(tmp_path), max_file_bytes=3 * LINE, keep_files=5) as log:
        for number in range(3):
            log.append(_record(number))
        assert _names(tmp_path) == ["audit.jsonl"]
        log.append(_record(3))
    assert _names(tmp_path) == ["audit.1.jsonl", "audit.jsonl"]
    assert _numbers(tmp_path / "audit.1.jsonl") == [0, 1, 2]
    assert _numbers(tmp_path / "audit.jsonl") == [3]


def test_only_the_configured_number_of_rotated_files_is_kept(tmp_path: Path) -> None:
    with AuditLog(str(tmp_path), max_file_bytes=LINE, keep_files=3) as log:
        for number in range(10):
            log.append(_record(number))
    assert _names(tmp_path) == ["audit.1.jsonl", "audit.2.jsonl", "audit.3.jsonl", "audit.jsonl"]
    assert _numbers(tmp_path) == [6, 7, 8, 9]
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}


def test_with_none_kept_a_full_file_is_deleted(tmp_path: Path) -> None:
    with AuditLog(str(tmp_path), max_file_bytes=2 * LINE, keep_files=0) as log:
        for number in range(5):
            log.append(_record(number))
    assert _names(tmp_path) == ["audit.jsonl"]
    assert _numbers(tmp_path) == [4]


def test_a_lower_number_takes_files_away_at_the_next_rotation(tmp_path: Path) -> None:
    with AuditLog(str(tmp_path), max_file_bytes=LINE, keep_files=5) as log:
        for number in range(6):
            log.append(_record(number))
    with AuditLog(str(tmp_path), max_file_bytes=LINE, keep_files=2) as log:
        log.append(_record(6))
    assert _names(tmp_path) == ["audit.1.jsonl", "audit.2.jsonl", "audit.jsonl"]
    assert _numbers(tmp_path) == [4, 5, 6]


def test_a_rotation_that_a_crash_cut_short_costs_no_file(tmp_path: Path) -> None:
    with AuditLog(str(tmp_path), max_file_bytes=LINE, keep_files=5) as log:
        for number in range(4):
            log.append(_record(number))
        (tmp_path / "audit.1.jsonl").rename(tmp_path / "audit.4.jsonl")  # as if it had been stopped half-way
        log.append(_record(4))
    assert _names(tmp_path) == [f"audit.{number}.jsonl" for number in (1, 2, 3, 4)] + ["audit.jsonl"]
    assert sorted(_numbers(tmp_path)) == [0, 1, 2, 3, 4]


def test_a_record_longer_than_the_limit_has_a_file_of_its_own(tmp_path: Path) -> None:
    with AuditLog(str(tmp_path), max_file_bytes=LINE, keep_files=5) as log:
        log.append(_record(0, padding=500))
        log.append(_record(1, padding=500))
    assert _names(tmp_path) == ["audit.1.jsonl", "audit.jsonl"]
    assert _numbers(tmp_path) == [0, 1]


def test_a_rotation_that_fails_is_told_once_and_loses_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "audit.1.jsonl").mkdir()
    with AuditLog(str(tmp_path), max_file_bytes=LINE, keep_files=1) as log:
        for number in range(4):
            log.append(_record(number))
    assert _numbers(tmp_path / "audit.jsonl") == [0, 1, 2, 3]
    assert [entry.getMessage().split(": ", 1)[1] for entry in caplog.records] == [
        "the file cannot be rotated: Is a directory"
    ]


@pytest.mark.parametrize("torn", [b'{"kind": "k", "num', b"x", b"\xff"])
def test_a_torn_last_line_does_not_take_the_next_record_with_it(tmp_path: Path, torn: bytes) -> None:
    with AuditLog(str(tmp_path)) as log:
        log.append(_record(1))
        with (tmp_path / "audit.jsonl").open("ab") as file:
            file.write(torn)
        log.append(_record(2))
    with (tmp_path / "audit.jsonl").open("ab") as file:
        file.write(torn)
    with AuditLog(str(tmp_path)) as log:
        log.append(_record(3))
    assert _numbers(tmp_path) == [1, 2, 3]
    assert (tmp_path / "audit.jsonl").read_bytes().count(b"\n") == 5


def test_a_log_that_another_has_rotated_or_removed_is_opened_again(tmp_path: Path) -> None:
    with AuditLog(str(tmp_path / "logs")) as log:
        log.append(_record(1))
        (tmp_path / "logs" / "audit.jsonl").rename(tmp_path / "logs" / "audit.1.jsonl")
        log.append(_record(2))
        assert _numbers(tmp_path / "logs") == [1, 2]
        for path in (tmp_path / "logs").iterdir():
            path.unlink()
        (tmp_path / "logs").rmdir()
        log.append(_record(3))
    assert _numbers(tmp_path / "logs") == [3]


def test_a_descriptor_that_became_somebody_elses_is_neither_written_nor_closed(tmp_path: Path) -> None:
    with AuditLog(str(tmp_path / "logs")) as log:
        log.append(_record(1))
        fd = log._fd
        other = os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT)
        os.dup2(other, fd)  # what happens after a daemon has closed every descriptor
        log.append(_record(2))
        assert (tmp_path / "other").read_bytes() == b""
        assert os.fstat(fd).st_ino == os.fstat(other).st_ino
        os.close(other)
        os.close(fd)
        os.close(log._fd)
        log.append(_record(3))
    assert _numbers(tmp_path / "logs") == [1, 2, 3]


@pytest.mark.parametrize("kind", ["link", "fifo", "directory"])
def test_what_is_no_plain_file_is_not_written_to(tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "audit.jsonl"
    target = tmp_path / "target"
    target.write_bytes(b"")
    reason = {
        "link": "Too many levels of symbolic links",
        "fifo": "it is not a plain file",
        "directory": "Is a directory",
    }[kind]
    if kind == "link":
        path.symlink_to(target)
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()
    with AuditLog(str(tmp_path)) as log:
        log.append(_record(1))
        log.append(_record(2))
    assert [entry.getMessage() for entry in caplog.records] == [f"audit log {path}: a record was lost: {reason}"]
    assert target.read_bytes() == b""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_not_written_to(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_bytes(b"")
    os.chown(path, 12345, 12345)
    with AuditLog(str(tmp_path)) as log:
        log.append(_record(1))
        assert "it belongs to another user (uid 12345)" in caplog.text
        os.chown(path, 0, 0)
        log.append(_record(2))
    assert _numbers(tmp_path) == [2]


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_directory_that_cannot_be_written_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tmp_path.chmod(0o500)
    with AuditLog(str(tmp_path)) as log:
        log.append(_record(1))
        log.append(_record(2))
        assert [entry.getMessage().rsplit(": ", 1)[1] for entry in caplog.records] == ["Permission denied"]
        tmp_path.chmod(0o700)
        log.append(_record(3))
    assert _numbers(tmp_path) == [3]


def test_a_lock_that_is_never_given_back_holds_nobody_up_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_PATIENCE", 0.1)
    with AuditLog(str(tmp_path), max_file_bytes=2 * LINE) as log:
        log.append(_record(0))
        holder = os.open(tmp_path / "audit.jsonl", os.O_RDONLY)
        fcntl.flock(holder, fcntl.LOCK_EX)
        started = time.monotonic()
        for number in range(1, 50):
            log.append(_record(number))
        assert time.monotonic() - started < 5
        assert _names(tmp_path) == ["audit.jsonl"]
        os.close(holder)
        log.append(_record(50))
        assert _names(tmp_path) == ["audit.1.jsonl", "audit.jsonl"]
    assert _numbers(tmp_path) == list(range(51))
    assert [entry.getMessage().split(": ", 1)[1] for entry in caplog.records] == [
        "another process holds the lock; the file is not rotated until it is free: Resource temporarily unavailable"
    ]


def test_several_threads_write_whole_records(tmp_path: Path) -> None:
    log = AuditLog(str(tmp_path), max_file_bytes=50 * LINE, keep_files=100)

    def write(first: int) -> None:
        for number in range(first, first + 500):
            log.append(_record(number))

    threads = [threading.Thread(target=write, args=(first,)) for first in range(0, 4000, 500)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.close()
    assert sorted(_numbers(tmp_path)) == list(range(4000))


WRITER = textwrap.dedent(
    """
    import sys
    from wisp.audit.log import AuditLog
    directory, first, count, limit, keep = sys.argv[1], *map(int, sys.argv[2:])
    sys.stdin.readline()
    with AuditLog(directory, max_file_bytes=limit, keep_files=keep) as log:
        for number in range(first, first + count):
            log.append({"kind": "k", "number": f"{number:06}", "padding": "x" * (number % 300)})
    """
)


def test_several_processes_write_and_rotate_at_once_and_every_record_is_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    count, processes = 1500, 4
    running = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), str(first), str(count), str(16384), str(100)],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for first in range(0, count * processes, count)
    ]
    for process in running:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    errors = [process.communicate()[1] for process in running]
    assert errors == [""] * processes
    assert sorted(_numbers(tmp_path)) == list(range(count * processes))
    names = _names(tmp_path)
    assert len(names) > 20
    longest = max(len(line) for path in tmp_path.iterdir() for line in path.read_bytes().splitlines(keepends=True))
    assert all(path.stat().st_size <= 16384 + (processes - 1) * longest for path in tmp_path.iterdir())
    assert all(len(path.read_bytes().splitlines()) == len(list(read(path))) for path in tmp_path.iterdir())


def test_a_process_that_is_killed_while_it_writes_costs_the_others_nothing(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", WRITER, str(tmp_path), "0", "1000000", "65536", "100"]
    victim = subprocess.Popen(argv, stdin=subprocess.PIPE, text=True)
    assert victim.stdin is not None
    victim.stdin.write("go\n")
    victim.stdin.flush()
    deadline = time.monotonic() + 30
    while not _numbers(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.01)
    victim.kill()
    victim.communicate()
    with AuditLog(str(tmp_path), max_file_bytes=65536, keep_files=100) as log:
        log.append(_record(999_999))
    numbers = _numbers(tmp_path)
    assert numbers[-1] == 999_999
    assert numbers[:-1] == list(range(len(numbers) - 1))


FORKER = textwrap.dedent(
    """
    import os, sys, threading
    from wisp.audit.log import AuditLog
    log = AuditLog(sys.argv[1], max_file_bytes=5000, keep_files=100)
    started, finished = threading.Event(), threading.Event()

    def write(number):
        log.append({"kind": "k", "number": f"{number:06}", "padding": ""})

    def keep_busy():
        number = 10_000
        while not finished.is_set():
            write(number)
            number += 1
            started.set()

    thread = threading.Thread(target=keep_busy)
    thread.start()
    started.wait(10)
    children = []
    for first in (1000, 2000, 3000):
        pid = os.fork()
        if pid == 0:
            for number in range(first, first + 200):
                write(number)
            os._exit(0)
        children.append(pid)
    statuses = [os.waitpid(pid, 0)[1] for pid in children]
    finished.set()
    thread.join()
    sys.exit(statuses != [0, 0, 0])
    """
)


def test_forked_children_of_a_process_with_threads_write_beside_it(tmp_path: Path) -> None:
    argv = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKER, str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr == ""
    numbers = sorted(_numbers(tmp_path))
    early = [number for number in numbers if number < 10_000]
    assert early == [number for first in (1000, 2000, 3000) for number in range(first, first + 200)]
    assert numbers[len(early) :] == list(range(10_000, 10_000 + len(numbers) - len(early)))


FULL_DISK = textwrap.dedent(
    """
    import ctypes, logging, os, sys
    from pathlib import Path
    from wisp.audit.log import AuditLog
    from wisp.audit.reader import read
    logging.basicConfig(format="%(message)s", stream=sys.stdout)
    libc = ctypes.CDLL(None, use_errno=True)
    disk = sys.argv[1]
    if libc.mount(b"none", disk.encode(), b"tmpfs", 0, b"size=16k,mode=700"):
        sys.exit(77)
    log = AuditLog(disk + "/logs", max_file_bytes=10**6)
    for number in range(40):
        log.append({"kind": "k", "number": f"{number:06}", "padding": "x" * 1000})
    before = [record["number"] for record in read(disk + "/logs")]
    path = Path(disk + "/logs/audit.jsonl")
    print("torn", not path.read_bytes().endswith(b"\\n"), len(before) < 20, before == sorted(before))
    os.truncate(path, path.stat().st_size - 4000)  # room again, and a torn last line
    log.append({"kind": "k", "number": "000099", "padding": ""})
    print("after", [record["number"] for record in read(disk + "/logs")][-1])
    """
)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
@pytest.mark.skipif(sys.platform != "linux", reason="mount namespaces are Linux's")
def test_a_full_disk_loses_only_what_did_not_fit_and_is_told_once(tmp_path: Path) -> None:
    unshare = next((path for path in ("/usr/bin/unshare", "/bin/unshare") if os.path.exists(path)), None)
    if unshare is None:
        pytest.skip("no unshare")
    argv = [unshare, "-m", sys.executable, "-c", FULL_DISK, str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode == 77 or "unshare failed" in done.stderr:
        pytest.skip("no mount in a mount namespace of its own")
    assert done.stderr == ""
    *told, torn, after = done.stdout.splitlines()
    assert torn == "torn True True True"
    assert after == "after 000099"
    assert {line.split(": ", 2)[1] for line in told} == {"a record was lost"}
    assert len(told) == len(set(told)) <= 2
    assert any("No space left on device" in line for line in told)


LIMITED = textwrap.dedent(
    """
    import logging, resource, sys
    from wisp.audit.log import AuditLog
    logging.basicConfig(format="%(message)s", stream=sys.stdout)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
    log = AuditLog(sys.argv[1])
    for number in range(20):
        log.append({"kind": "k", "number": f"{number:06}", "padding": "x" * 100})
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    log.append({"kind": "k", "number": "000099", "padding": ""})
    """
)


def test_a_limit_on_the_size_of_files_loses_only_what_did_not_fit_and_is_told(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", LIMITED, str(tmp_path), "1000"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    size = LINE + 100
    whole = 1000 // size
    path = tmp_path / "audit.jsonl"
    assert done.stdout.splitlines() == [
        f"audit log {path}: a record was lost: only {1000 - whole * size} of {size} bytes could be written",
        f"audit log {path}: a record was lost: File too large",
    ]
    assert _numbers(tmp_path) == [*range(whole), 99]


def test_a_log_that_is_dropped_gives_its_descriptor_back(tmp_path: Path) -> None:
    log = AuditLog(str(tmp_path))
    log.append(_record(1))
    fd = log._fd
    del log
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_a_handler_that_writes_to_the_log_itself_does_not_hang(tmp_path: Path) -> None:
    log = AuditLog(str(tmp_path / "missing" / "home" / "logs"))

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            log.append(_record(2))

    handler = Handler()
    logging.getLogger("wisp.audit").addHandler(handler)
    try:
        log.append(_record(1))
    finally:
        logging.getLogger("wisp.audit").removeHandler(handler)


def test_closing_leaves_a_descriptor_that_became_somebody_elses_open(tmp_path: Path) -> None:
    log = AuditLog(str(tmp_path / "logs"))
    log.append(_record(1))
    fd = log._fd
    other = os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT)
    os.dup2(other, fd)
    log.close()
    assert os.fstat(fd).st_ino == os.fstat(other).st_ino
    os.close(fd)
    os.close(other)


def _refuse(*_: object) -> None:
    raise OSError(95, "Operation not supported")


def test_a_file_system_without_modes_is_told_once_and_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "audit.jsonl").write_bytes(b"")
    (tmp_path / "audit.jsonl").chmod(0o644)
    monkeypatch.setattr("os.fchmod", _refuse)
    with AuditLog(str(tmp_path)) as log:
        log.append(_record(1))
        log.close()
        log.append(_record(2))
    assert _numbers(tmp_path) == [1, 2]
    assert [entry.getMessage().split(": ", 1)[1] for entry in caplog.records] == [
        "the file may be open to others: Operation not supported"
    ]


def test_a_file_system_without_locks_is_told_once_and_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("fcntl.flock", _refuse)
    with AuditLog(str(tmp_path), max_file_bytes=LINE) as log:
        for number in range(3):
            log.append(_record(number))
    assert _numbers(tmp_path / "audit.jsonl") == [0, 1, 2]
    assert [entry.getMessage().split(": ", 1)[1] for entry in caplog.records] == [
        "the file system has no locks; the file is not rotated: Operation not supported"
    ]


def test_a_file_that_is_always_rotated_away_ends_in_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(AuditLog, "_is_named", lambda *_: False)
    with AuditLog(str(tmp_path)) as log:
        log.append(_record(1))
    assert [entry.getMessage().split(": ", 1)[1] for entry in caplog.records] == [
        "a record was lost: the file is rotated away again and again"
    ]


def test_with_closed_streams_nothing_that_is_printed_lands_in_the_log(tmp_path: Path) -> None:
    code = textwrap.dedent(
        """
        import os, sys
        from wisp.audit.log import AuditLog
        for fd in (0, 1, 2):
            os.close(fd)
        log = AuditLog(sys.argv[1])
        log.append({"kind": "k", "number": "000001", "padding": ""})
        for fd in (0, 1, 2):
            try:
                os.write(fd, b"printed")
            except OSError:
                pass
        log.append({"kind": "k", "number": "000002", "padding": ""})
        os._exit(0)
        """
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    assert (tmp_path / "audit.jsonl").read_bytes().count(b"printed") == 0
    assert _numbers(tmp_path) == [1, 2]
