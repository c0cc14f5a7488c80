"""Reading the log back, whatever has become of it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wisp.audit import reader
from wisp.audit.log import AuditLog
from wisp.audit.reader import read


def _write(path: Path, *records: object) -> None:
    path.write_bytes(b"".join(json.dumps(record).encode() + b"\n" for record in records))


def _kinds(path: Path) -> list[object]:
    return [record["kind"] for record in read(path)]


def test_rotated_files_come_first_and_the_oldest_of_them_first(tmp_path: Path) -> None:
    for name, kind in [("audit", "newest"), ("audit.1", "c"), ("audit.2", "b"), ("audit.10", "a")]:
        _write(tmp_path / f"{name}.jsonl", {"kind": kind})
    assert _kinds(tmp_path) == ["a", "b", "c", "newest"]
    assert _kinds(tmp_path / "audit.2.jsonl") == ["b"]


def test_files_of_other_names_are_not_of_the_log(tmp_path: Path) -> None:
    for name in ["audit.jsonl", "audit.0.jsonl", "audit.01.jsonl", "audit.x.jsonl", "audit.1.jsonl.gz", "other.jsonl"]:
        _write(tmp_path / name, {"kind": name})
    assert _kinds(tmp_path) == ["audit.jsonl"]


def test_a_log_that_does_not_exist_has_no_records(tmp_path: Path) -> None:
    assert _kinds(tmp_path) == []
    assert _kinds(tmp_path / "missing") == []
    assert _kinds(tmp_path / "missing" / "audit.jsonl") == []


def test_the_current_file_may_be_missing(tmp_path: Path) -> None:
    _write(tmp_path / "audit.1.jsonl", {"kind": "a"})
    assert _kinds(tmp_path) == ["a"]


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b" ",
        b"{",
        b'{"kind": "torn", "det',
        b"\xff\xfe{}",
        b'{"kind": "x\xff"}',
        b"[]",
        b"3",
        b"null",
        b'"kind"',
        b"{}",
        b'{"kind": 3}',
        b"[" * 200_000,
        b'{"kind": "a"} {"kind": "b"}',
        b'{"n": ' + b"9" * 5000 + b', "kind": "a"}',
        '{"kind": "a"}'.encode("utf-16"),
    ],
)
def test_a_line_that_is_no_record_is_passed_over(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_bytes(b'{"kind": "before"}\n' + line.replace(b"\n", b"") + b'\n{"kind": "after"}\n')
    assert _kinds(tmp_path) == ["before", "after"]


def test_the_last_line_may_be_torn_or_only_lack_its_newline(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_bytes(b'{"kind": "a"}\n{"kind": "b"')
    assert _kinds(tmp_path) == ["a"]
    path.write_bytes(b'{"kind": "a"}\n{"kind": "b"}')
    assert _kinds(tmp_path) == ["a", "b"]


def test_a_record_of_an_unknown_kind_or_schema_is_kept_whole(tmp_path: Path) -> None:
    record = {"kind": "of.tomorrow", "schema": 9, "extra": [1, {"a": None}]}
    _write(tmp_path / "audit.jsonl", record)
    assert list(read(tmp_path)) == [record]


def test_a_line_without_end_is_passed_over_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_LONGEST", 64)
    path = tmp_path / "audit.jsonl"
    path.write_bytes(b'{"kind": "a"}\n' + b"x" * 1000 + b'\n{"kind": "b"}\n' + b"y" * 1000)
    assert _kinds(tmp_path) == ["a", "b"]


def test_a_fifo_or_a_directory_in_the_place_of_a_file_is_passed_over(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "audit.jsonl")
    (tmp_path / "audit.1.jsonl").mkdir()
    _write(tmp_path / "audit.2.jsonl", {"kind": "a"})
    assert _kinds(tmp_path) == ["a"]


def test_a_rotation_while_reading_neither_hides_nor_repeats_a_record(tmp_path: Path) -> None:
    for name, kind in [("audit", "c"), ("audit.1", "b"), ("audit.2", "a")]:
        _write(tmp_path / f"{name}.jsonl", {"kind": kind})
    records = read(tmp_path)
    first = next(records)
    for number in (2, 1):
        (tmp_path / f"audit.{number}.jsonl").rename(tmp_path / f"audit.{number + 1}.jsonl")
    (tmp_path / "audit.jsonl").rename(tmp_path / "audit.1.jsonl")
    _write(tmp_path / "audit.jsonl", {"kind": "d"})
    assert [first["kind"], *(record["kind"] for record in records)] == ["a", "b", "c"]
    assert _kinds(tmp_path) == ["a", "b", "c", "d"]


def test_a_rotation_between_two_opens_shows_a_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write(tmp_path / "audit.jsonl", {"kind": "b"})
    _write(tmp_path / "audit.1.jsonl", {"kind": "a"})
    real_open = reader._open

    def rotate_behind(path: str) -> object:
        file = real_open(path)
        if path.endswith("audit.jsonl"):
            (tmp_path / "audit.1.jsonl").rename(tmp_path / "audit.2.jsonl")
            (tmp_path / "audit.jsonl").rename(tmp_path / "audit.1.jsonl")
        return file

    monkeypatch.setattr(reader, "_open", rotate_behind)
    assert _kinds(tmp_path) == ["a", "b"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    _write(tmp_path / "audit.jsonl", {"kind": "a"})
    (tmp_path / "audit.jsonl").chmod(0)
    with pytest.raises(PermissionError):
        list(read(tmp_path))
    (tmp_path / "audit.jsonl").chmod(0o600)
    assert _kinds(tmp_path) == ["a"]


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="descriptors are counted in /proc")
def test_a_reader_that_is_left_early_keeps_no_file_open(tmp_path: Path) -> None:
    for number in range(1, 5):
        _write(tmp_path / f"audit.{number}.jsonl", {"kind": "a"}, {"kind": "b"})
    before = len(os.listdir("/proc/self/fd"))
    records = read(tmp_path)
    next(records)
    records.close()  # type: ignore[attr-defined]
    assert len(os.listdir("/proc/self/fd")) == before


@given(st.lists(st.binary(max_size=60), max_size=3))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_are_read(tmp_path: Path, files: list[bytes]) -> None:
    for number in range(3):
        name = f"audit.{number}.jsonl" if number else "audit.jsonl"
        (tmp_path / name).write_bytes(files[number] if number < len(files) else b"")
    for record in read(tmp_path):
        assert isinstance(record["kind"], str)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.fixed_dictionaries({"kind": st.text(), "details": JSON}), max_size=4), st.booleans())
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_appended_is_what_is_read(tmp_path: Path, records: list[dict[str, object]], rotate: bool) -> None:
    for left in tmp_path.iterdir():
        left.unlink()
    with AuditLog(str(tmp_path), max_file_bytes=1 if rotate else 10**6, keep_files=100) as log:
        for record in records:
            log.append(record)
    assert list(read(tmp_path)) == records
    for path in tmp_path.iterdir():
        data = path.read_bytes()
        assert data.endswith(b"\n")
        assert all(line.startswith(b'{"details":') for line in data.split(b"\n")[:-1])


def test_lone_surrogates_are_escaped_and_slashes_and_letters_are_not(tmp_path: Path) -> None:
    with AuditLog(str(tmp_path)) as log:
        log.append({"kind": "k", "z": "/a/ü\u2028", "b": "\udc80x\\\ud800"})
    assert (tmp_path / "audit.jsonl").read_bytes() == (
        b'{"b":"\\udc80x\\\\\\ud800","kind":"k","z":"/a/' + "ü\u2028".encode() + b'"}\n'
    )
    assert list(read(tmp_path)) == [{"kind": "k", "z": "/a/ü\u2028", "b": "\udc80x\\\ud800"}]


def test_reading_is_light_to_import() -> None:
    import subprocess

    code = "import sys, wisp.audit.reader; sys.exit(bool({'pydantic', 're2', 'rich', 'click'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", code], check=True)
