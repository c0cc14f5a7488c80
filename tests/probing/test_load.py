"""Reading probe files: what is right is read whole, what is wrong is named with its file and row."""

from __future__ import annotations

import os
import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wisp.errors import ProbeError
from wisp.probing.load import is_probe_file, load_file, load_files, load_text, packaged_files, packaged_rows
from wisp.probing.probe import DeclaredLimit, ExpectedRefusal, Probe, Sign

ROW = """
[[probe]]
id = "write.create-outside"
title = "a title"
why = "a reason"
run = 'touch "$OUTSIDE/probe"'
expect = "refused"
crossed = { exists = "$OUTSIDE/probe" }
layer = ["landlock"]
operations = [["file-write-create", "$OUTSIDE/probe"]]
"""
GOOD = "schema = 1\n" + ROW


def changed(key: str, line: str) -> str:
    """Return the good file with the line of `key` replaced."""
    return "".join(line + "\n" if one.startswith(f"{key} =") else one for one in GOOD.splitlines(keepends=True))


def with_line(line: str) -> str:
    return GOOD + line + "\n"


def test_a_row_with_only_what_is_required_is_read_whole() -> None:
    assert load_text(GOOD, path="p.toml") == (
        Probe(
            id="write.create-outside",
            title="a title",
            why="a reason",
            run='touch "$OUTSIDE/probe"',
            expect="refused",
            crossed=(Sign("exists", "$OUTSIDE/probe"),),
            layer=("landlock",),
            operations=(("file-write-create", "$OUTSIDE/probe"),),
            path="p.toml",
        ),
    )


def test_a_row_with_every_key_is_read_whole() -> None:
    text = """
schema = 1
[[probe]]
id = "a.b.c-1"
title = "t"
why = "w"
run = 'for NAME in a; do echo "$NAME" "${VICTIM}" "$HOME"; done'
expect = "refused"
crossed = { token = ["x", "y"], alive = "$ROOT/pid" }
layer = ["leftovers", "seatbelt"]
operations = []
no-operations = "none"
refusal = { verdict = "refused", paths = ["${ROOT}x/probe"] }
requires = ["symlinks", "tool.git"]
limits = [{ without = "confine.metadata", because = "b" }, { without = "confine.write", because = "c", sometimes = true }]
promise = false
network = "on"
slow = true
"""
    (row,) = load_text(text, path="p.toml")

    assert row == Probe(
        id="a.b.c-1",
        title="t",
        why="w",
        run='for NAME in a; do echo "$NAME" "${VICTIM}" "$HOME"; done',
        expect="refused",
        crossed=(Sign("token", "x"), Sign("token", "y"), Sign("alive", "$ROOT/pid")),
        layer=("leftovers", "seatbelt"),
        no_operations="none",
        refusal=ExpectedRefusal("refused", ("${ROOT}x/probe",)),
        requires=("symlinks", "tool.git"),
        limits=(DeclaredLimit("confine.metadata", "b"), DeclaredLimit("confine.write", "c", sometimes=True)),
        promise=False,
        network=True,
        slow=True,
        path="p.toml",
    )
    assert (row.family, row.seconds) == ("a", 60.0)


WRONG = [
    ("not TOML", "schema = ", "", "is not TOML"),
    ("nested too deeply", "schema = " + "[" * 100_000, "", "is nested too deeply"),
    ("empty", "", "", "the first key must be schema = 1"),
    ("schema not first", "x = 1\nschema = 1\n", "", "the first key must be schema = 1"),
    ("another schema", "schema = 2\n" + ROW, "", "this wisp reads schema = 1"),
    ("schema as a text", 'schema = "1"\n' + ROW, "", "this wisp reads schema = 1"),
    ("schema as a truth value", "schema = true\n" + ROW, "", "this wisp reads schema = 1"),
    ("no row", "schema = 1\n", "", "there is no [[probe]] table"),
    ("rows as a number", "schema = 1\nprobe = 3\n", "", "there is no [[probe]] table"),
    ("a row that is no table", "schema = 1\nprobe = [3]\n", "probe 1", "is not a table"),
    ("another table", GOOD + "[other]\n", "", "unknown key 'other'"),
    ("an unknown key", with_line('tilte = "x"'), "write.create-outside", "unknown key 'tilte'"),
    ("an id twice", GOOD + ROW, "write.create-outside", "this id is already used in this file"),
    ("an id without a family", changed("id", 'id = "write"'), "probe 1", "must be dotted lower case"),
    ("an id in capitals", changed("id", 'id = "Write.x"'), "probe 1", "must be dotted lower case"),
    ("an id with an underscore", changed("id", 'id = "write.x_y"'), "probe 1", "must be dotted lower case"),
    ("an id with a line end", changed("id", 'id = "write.x\\n"'), "probe 1", "must be dotted lower case"),
    ("no id", changed("id", ""), "probe 1", "the key id is missing"),
    ("no title", changed("title", ""), "write.create-outside", "the key title is missing"),
    ("an empty title", changed("title", 'title = " "'), "write.create-outside", "title must be a text"),
    ("no why", changed("why", ""), "write.create-outside", "the key why is missing"),
    ("a why that is a number", changed("why", "why = 1"), "write.create-outside", "why must be a text"),
    ("another expectation", changed("expect", 'expect = "denied"'), "write.create-outside", "expect is 'denied'"),
    ("an expectation that is a list", changed("expect", "expect = []"), "write.create-outside", "expect is []"),
    ("an unknown variable", changed("run", "run = 'echo $HOMEDIR'"), "write.create-outside", "run names $HOMEDIR"),
    ("a NUL byte", changed("run", 'run = "a\\u0000"'), "write.create-outside", "run holds a NUL byte"),
    ("no oracle", changed("crossed", "crossed = {}"), "write.create-outside", "at least one oracle"),
    ("an oracle that is a text", changed("crossed", 'crossed = "x"'), "write.create-outside", "at least one oracle"),
    ("an unknown oracle", changed("crossed", 'crossed = { size = "x" }'), "write.create-outside", "oracle 'size'"),
    ("an oracle of a number", changed("crossed", "crossed = { exists = 1 }"), "write.create-outside", "must be a text"),
    ("an oracle of nothing", changed("crossed", "crossed = { exists = [] }"), "write.create-outside", "must be a text"),
    ("an oracle far away", changed("crossed", 'crossed = { exists = "/etc/x" }'), "write.create-outside", "a path under"),
    ("an oracle near a root", changed("crossed", 'crossed = { mode = "$ROOTS" }'), "write.create-outside", "a path under"),
    ("an unknown receiver", changed("crossed", 'crossed = { received = "sctp" }'), "write.create-outside", "there are tcp"),
    ("another victim", changed("crossed", 'crossed = { signalled = "1" }'), "write.create-outside", "only be $VICTIM"),
    ("an unknown layer", changed("layer", 'layer = ["landlok"]'), "write.create-outside", "'landlok' is not a layer"),
    ("a layer twice", changed("layer", 'layer = ["seccomp", "seccomp"]'), "write.create-outside", "something twice"),
    ("a layer that is a text", changed("layer", 'layer = "seccomp"'), "write.create-outside", "must be a list of texts"),
    ("no layer", changed("layer", ""), "write.create-outside", "layer is missing"),
    ("a layer for what is allowed", changed("expect", 'expect = "allowed"'), "write.create-outside", "layer is given"),
    ("a reason beside some", with_line('no-operations = "x"'), "write.create-outside", "not for some"),
    ("an operation alone", changed("operations", 'operations = [["a"]]'), "write.create-outside", "must be pairs"),
    ("an operation in capitals", changed("operations", 'operations = [["A", ""]]'), "write.create-outside", "must be pairs"),
    ("an unknown ability", with_line('requires = ["linux"]'), "write.create-outside", "'linux' is not something"),
    ("a tool without a name", with_line('requires = ["tool."]'), "write.create-outside", "'tool.' is not something"),
    ("an unknown capability", with_line('limits = [{ without = "x", because = "y" }]'), "write.create-outside", "'x' is not"),
    ("a limit without a reason", with_line('limits = [{ without = "confine.write" }]'), "write.create-outside", "because"),
    ("a limit for nothing", with_line('limits = [{ without = "confine.write", because = "" }]'), "write.create-outside", "say why"),
    ("a limit of a number", with_line("limits = [1]"), "write.create-outside", "limits must be a list"),
    ("a doubtful promise", with_line('promise = "no"'), "write.create-outside", "promise must be true or false"),
    ("a network of another kind", with_line("network = true"), "write.create-outside", "network is True"),
    ("a refusal of a list", with_line("refusal = []"), "write.create-outside", "refusal must be a table"),
    ("a refusal of another verdict", with_line('refusal = { verdict = "denied" }'), "write.create-outside", "'denied'"),
    ("a refusal of a verdict that is a list", with_line("refusal = { verdict = [] }"), "write.create-outside", "verdict is []"),
    ("a refusal without paths", with_line('refusal = { verdict = "refused" }'), "write.create-outside", "refused names paths"),
    ("a guess with paths", with_line('refusal = { verdict = "guess", paths = ["$ROOT"] }'), "write.create-outside", "nothing else"),
    ("a refusal far away", with_line('refusal = { verdict = "refused", paths = ["/x"] }'), "write.create-outside", "paths that start"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "where", "reason"), [one[1:] for one in WRONG], ids=[one[0] for one in WRONG])
def test_what_is_wrong_is_an_error_that_names_file_and_row(text: str, where: str, reason: str) -> None:
    with pytest.raises(ProbeError) as raised:
        load_text(text, path="p.toml")

    assert (raised.value.path, raised.value.where) == ("p.toml", where)
    assert reason in raised.value.reason
    assert "\n" not in raised.value.reason.split("is not TOML")[0]


def test_an_id_that_two_files_use_is_an_error_that_names_both(tmp_path: Path) -> None:
    one, two = tmp_path / "one.toml", tmp_path / "two.toml"
    one.write_text(GOOD)
    two.write_text(GOOD)

    with pytest.raises(ProbeError, match=f"{two}: write.create-outside: this id is already used in {one}"):
        load_files([one, two])


@pytest.mark.parametrize("data", [b"\xff\xfe", b"schema = 1\n# \xff"], ids=["no text", "half a text"])
def test_a_file_that_is_not_utf8_is_an_error(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.toml"
    path.write_bytes(data)

    with pytest.raises(ProbeError, match="is not UTF-8"):
        load_file(path)


def test_a_file_that_cannot_be_read_is_an_error_with_the_systems_reason(tmp_path: Path) -> None:
    with pytest.raises(ProbeError, match="cannot be read: No such file or directory"):
        load_file(tmp_path / "missing.toml")


def test_a_file_without_end_is_not_read_to_its_end() -> None:
    with pytest.raises(ProbeError, match="is longer than"):
        load_file("/dev/zero")


PIECES = st.sampled_from([
    "schema = 1\n", "[[probe]]\n", "[probe]\n", "[", "]", "{", "}", "=", '"', "'''", ",", "\n", "# x\n", "\x00", "\ud800",
    'id = "a.b"\n', 'title = "t"\n', 'why = "w"\n', "run = 'true $ROOT'\n", 'expect = "refused"\n', "crossed = {}\n",
    'crossed = { exists = "$ROOT/x" }\n', 'layer = ["seccomp"]\n', "operations = []\n", 'no-operations = "n"\n', "1e400",
    "limits = [{}]\n", "refusal = { verdict = [] }\n", "requires = [[]]\n", "1979-05-27", "true", "9" * 5000, "probe.x.y = 1\n",
])  # fmt: skip


@given(st.lists(PIECES, max_size=20).map("".join) | st.text(st.sampled_from(string.printable), max_size=200))
def test_no_text_raises_anything_but_a_probe_error(text: str) -> None:
    try:
        rows = load_text(text)
    except ProbeError:
        return
    assert all(isinstance(row, Probe) for row in rows)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.text("ab$ROT./", max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3),
    max_leaves=5,
)


def as_toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{" + ", ".join(f'"{key}" = {as_toml(one)}' for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(as_toml, value)) + "]"
    return f'"{value}"' if isinstance(value, str) else "0" if value is None else str(value)


KEYS = ["id", "title", "why", "run", "expect", "crossed", "layer", "operations", "no-operations", "refusal", "requires",
        "limits", "promise", "network", "slow"]  # fmt: skip


@given(st.sampled_from(KEYS), VALUES)
def test_no_value_of_a_key_raises_anything_but_a_probe_error(key: str, value: object) -> None:
    line = f"{key} = {as_toml(value)}"
    text = changed(key, line) if f"\n{key} =" in GOOD else with_line(line)

    try:
        load_text(text)
    except ProbeError as error:
        found = error
    else:
        return
    assert found.where in {"write.create-outside", "probe 1"}


def test_a_probe_file_begins_with_its_schema_and_a_row(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text("\n# a comment\nschema  =  1 # the first\n\n# another\n[[ probe ]] # the row\nid = 3\n")

    assert is_probe_file(path)


FOREIGN = [
    ("a project file", '[project]\nname = "x"\n'),
    ("another schema", "schema = 2\n[[probe]]\n"),
    ("a row without a schema", "[[probe]]\nid = 1\n"),
    ("another table first", "schema = 1\n[other]\n[[probe]]\n"),
    ("one probe table", "schema = 1\n[probe]\n"),
    ("another key first", "version = 1\nschema = 1\n[[probe]]\n"),
    ("broken", "schema = \n[[["),
    ("empty", ""),
    ("only comments", "# schema = 1\n# [[probe]]\n"),
    ("a text that looks like it", 'x = """\nschema = 1\n[[probe]]\n"""\n'),
]


@pytest.mark.parametrize("text", [one[1] for one in FOREIGN], ids=[one[0] for one in FOREIGN])
def test_a_foreign_toml_file_is_no_probe_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.toml"
    path.write_text(text)

    assert not is_probe_file(path)


def test_only_a_toml_file_that_is_a_file_is_a_probe_file(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text(GOOD)
    (tmp_path / "directory.toml").mkdir()
    os.mkfifo(tmp_path / "fifo.toml")
    (tmp_path / "dangling.toml").symlink_to("nowhere")
    (tmp_path / "binary.toml").write_bytes(bytes(range(256)))

    names = [*(path.name for path in tmp_path.iterdir()), "missing.toml", "nul\0.toml"]

    assert [name for name in names if is_probe_file(tmp_path / name)] == []


@given(st.binary(max_size=300))
def test_no_content_makes_the_question_raise(data: bytes) -> None:
    path = Path(os.environ["WISP_HOME"] + "-x.toml")
    path.write_bytes(data)
    try:
        is_probe_file(path)
    finally:
        path.unlink()


def test_the_packaged_files_are_probe_files_with_one_family_each() -> None:
    for path in packaged_files():
        assert is_probe_file(path)
        assert {row.family for row in load_file(path)} == {path.stem}


def test_the_packaged_rows_promise_enough_and_pair_what_they_refuse() -> None:
    rows = packaged_rows()
    promised = [row for row in rows if row.promise]

    assert len(promised) >= 60
    assert len({row.run for row in promised}) >= 60
    assert {row.expect for row in promised} == {"refused", "allowed"}


def test_every_seccomp_or_landlock_row_says_what_seatbelt_would_decide_or_why_it_cannot() -> None:
    for row in packaged_rows():
        assert bool(row.operations) != bool(row.no_operations), row.id
