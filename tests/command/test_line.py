"""A line's simple commands, as the shell that runs it would see them."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wisp.command import line as module
from wisp.command.line import crude_pieces, simple_commands

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

READ = [
    ("ls -la", ("ls -la",)),
    ("  ls -la\t", ("ls -la",)),
    ("", ()),
    ("# only a comment", ()),
    ("make && ./deploy.sh; rm -rf build", ("make", "./deploy.sh", "rm -rf build")),
    ("ls\nrm x\n", ("ls", "rm x")),
    ("sleep 1 & curl x || true", ("sleep 1", "curl x", "true")),
    ("make |& tee log", ("make", "tee log")),
    ("echo 'a; b' \"c && d\"", ("echo 'a; b' \"c && d\"",)),
    ("ls 2>&1 x | wc", ("ls 2>&1 x", "wc")),
    ("> out rm -rf x > y", ("rm -rf x",)),
    ("FOO=1 BAR=$(id) env", ("FOO=1 BAR=$(id) env", "id")),
    ("FOO=1", ("FOO=1",)),
    ("export FOO=$(id)", ("export FOO=$(id)", "id")),
    ('echo "it\'s $(wisp chat)"', ('echo "it\'s $(wisp chat)"', "wisp chat")),
    ("echo $(echo $(id))", ("echo $(echo $(id))", "echo $(id)", "id")),
    ("echo `id`", ("echo `id`", "id")),
    ("(cd x; ls)", ("cd x", "ls")),
    ("{ id; whoami; }", ("id", "whoami")),
    ("f() { rm -rf /; }; f", ("rm -rf /", "f")),
    ("if test -f x; then rm x; else id; fi", ("test -f x", "rm x", "id")),
    ("for i in $(ls); do rm $i; done", ("ls", "rm $i")),
    ("while read l; do curl $l; done < f", ("read l", "curl $l")),
    ("case $1 in a|b) rm x;; *) id;; esac", ("rm x", "id")),
    ("cat <<EOF\n$(id)\nEOF\nwhoami", ("cat", "id", "whoami")),
    ("cat <<'EOF'\n$(id)\nEOF", ("cat",)),
    ("diff <(ls a) <(ls b)", ("diff <(ls a) <(ls b)", "ls a", "ls b", "diff <", "a", "<", "b")),
    ("echo ${x:-$(rm y)}", ("echo ${x:-$(rm y)}", "rm y")),
    ("echo 'é'; rm ü", ("echo 'é'", "rm ü")),
    ("time rm x", ("time rm x", "rm x")),
    ("coproc rm x", ("coproc rm x", "rm x")),
    ("((rm x))", ("rm x",)),
    ("[[ a && b ]]", ("[[ a", "b ]]", "[[ a && b ]]")),
    ("rm \\\n -rf x", ("rm \\\n -rf x",)),
]


@pytest.mark.parametrize(("line", "commands"), READ, ids=[line for line, _ in READ])
def test_every_command_that_the_shell_would_run_is_found(line: str, commands: tuple[str, ...]) -> None:
    if line.startswith("diff"):
        # Not POSIX: the crude pieces are there as well, because a plain /bin/sh reads it otherwise.
        assert set(simple_commands(line)) >= {"diff <(ls a) <(ls b)", "ls a", "ls b"}
    else:
        assert simple_commands(line) == commands


SCRIPTS = [
    "sh -c 'rm x'",
    'sh -c "rm x"',
    "sh -ec 'rm x'",
    "sh -c -e 'rm x' name",
    "bash -o pipefail -c 'rm x'",
    "bash --rcfile f -c 'rm x'",
    "/bin/sh -c 'rm x'",
    "env -i sh -c 'rm x'",
    "nice -n 5 sh -c 'rm x'",
    "find . -exec sh -c 'rm x' ';'",
    "xargs sh -c 'rm x'",
    "busybox sh -c 'rm x'",
    "eval rm x",
    "eval 'rm x'",
    "eval $'rm\\x20x'",
    "eval $'\\162m x'",
    "eval r''m x",
    "command eval rm x",
    "trap 'rm x' EXIT",
    "trap -- 'rm x' EXIT",
    "sh -c 'sh -c \"rm x\"'",
    'sh -c "$y; rm x"',
]


@pytest.mark.parametrize("line", SCRIPTS)
def test_a_literal_script_given_to_a_shell_is_read_as_well(line: str) -> None:
    commands = simple_commands(line)
    assert commands[0] == line
    assert "rm x" in commands


@pytest.mark.parametrize(
    "line",
    ["echo sh -c 'rm x'", "sh script -c 'rm x'", "grep -e eval 'rm x'", "sh -e 'rm x'", "sh", "sh -c --", "trap"],
)
def test_the_words_of_a_script_elsewhere_are_only_words(line: str) -> None:
    assert simple_commands(line) == (line,)


def test_a_script_that_is_not_well_formed_is_kept_whole_and_in_pieces() -> None:
    assert simple_commands("sh -c 'if; rm x'") == ("sh -c 'if; rm x'", "if; rm x", "if", "rm x")


def test_scripts_nested_past_the_limit_are_kept_whole() -> None:
    line = "eval " * 20 + "rm x"
    commands = simple_commands(line)
    assert commands[0] == line
    assert commands[-1].endswith("rm x")
    assert len(commands) == 10


def test_a_line_of_very_many_scripts_is_read_in_bounded_time() -> None:
    line = ";".join(f"eval a{number}" for number in range(500))
    commands = simple_commands(line)
    assert {f"a{number}" for number in range(500)} <= set(commands)


UNREAD = {
    "nul": "ls \0 x",
    "carriage return": "ls\r\nrm x",
    "escape": "ls \x1b[2J",
    "right to left": "ls \u202ex",
    "surrogate": "ls \udc80;",
    "unbalanced quote": "ls 'x",
    "unbalanced paren": "ls )",
    "no command": "&& ls",
    "unfinished": "if id; then whoami",
    "too long": "ls; " * 5000,
    "too deep": "(" * 6000 + ")" * 6000,
}


@pytest.mark.parametrize("line", UNREAD.values(), ids=UNREAD)
def test_an_unread_line_has_no_commands(line: str) -> None:
    assert simple_commands(line) == ()


def test_crude_pieces_miss_no_operator() -> None:
    line = 'a;b&c|d\ne(f)g`h$(i"j'
    assert crude_pieces(line) == ("a", "b", "c", "d", "e", "f", "g", "h", 'i"j')


@given(st.text(alphabet="ab/.-_:@%+,= \t", max_size=40))
@settings(max_examples=60, deadline=None)
def test_the_fast_path_gives_what_shfmt_gives(line: str) -> None:
    if module._is_plain(line):
        assert simple_commands(line) == module._commands.__wrapped__(line)
        tree = subprocess.run(
            [module._shfmt(), "-ln", "posix", "--to-json"], input=line.encode(), capture_output=True, check=True
        )
        assert tree.stdout.count(b'"CallExpr"') == 1


@given(st.lists(st.sampled_from([*module._SPECIAL_FIRST, "sh", "eval", "a", "-c", "./b"]), min_size=1, max_size=4))
@settings(max_examples=60, deadline=None)
def test_words_that_mean_something_to_a_shell_do_not_take_the_fast_path(words: list[str]) -> None:
    special = words[0] in module._SPECIAL_FIRST or not {"sh", "eval"}.isdisjoint(words)
    assert module._is_plain(" ".join(words)) is not special


def test_white_space_that_is_none_to_a_shell_is_a_name() -> None:
    assert simple_commands("\xa0; ls") == ("\xa0", "ls")


@given(st.text(alphabet="ab '\"\\$(){}`;|&<>\n#=*!-", max_size=30) | st.text(max_size=30))
@settings(max_examples=150, deadline=None)
def test_any_line_is_read_or_unread_and_its_commands_stand_in_it(line: str) -> None:
    for command in simple_commands(line):
        assert command
        assert isinstance(command, str)


@pytest.fixture
def other_shfmt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give a place for a stand-in of shfmt, and take every other away."""
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    monkeypatch.setattr("sysconfig.get_path", lambda *_: str(tmp_path / "none"))
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    module._shfmt.cache_clear()
    module._commands.cache_clear()
    yield tmp_path / "shfmt"
    module._shfmt.cache_clear()
    module._commands.cache_clear()


def _write_program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)


def test_without_shfmt_a_line_is_unread_and_plain_words_are_not(other_shfmt: Path) -> None:
    assert simple_commands("ls && id") == ()
    assert simple_commands("ls -la") == ("ls -la",)


def test_a_shfmt_that_is_too_slow_leaves_the_line_unread_and_is_asked_again(
    other_shfmt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_SECONDS", 0.2)
    _write_program(other_shfmt, "#!/bin/sh\nexec /bin/sleep 30\n")
    assert simple_commands("ls && id") == ()
    _write_program(other_shfmt, "#!/bin/sh\nexit 1\n")
    assert simple_commands("ls && id") == ()


@pytest.mark.parametrize("output", ["[]", "nonsense", '{"Type": "CallExpr"}', "[" * 100_000, ""])
def test_a_shfmt_that_answers_nonsense_leaves_the_line_unread(other_shfmt: Path, output: str) -> None:
    answer = other_shfmt.with_name("answer")
    answer.write_text(output)
    _write_program(other_shfmt, f"#!/bin/sh\nexec /bin/cat {answer}\n")
    assert simple_commands("ls && id") == ()


def test_a_relative_entry_of_the_path_gives_no_shfmt(
    other_shfmt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "work"
    (work / "bin").mkdir(parents=True)
    _write_program(work / "bin" / "shfmt", f"#!/bin/sh\n: > {tmp_path}/ran\n")
    monkeypatch.chdir(work)
    monkeypatch.setenv("PATH", "bin")
    assert simple_commands("ls && id") == ()
    assert not (tmp_path / "ran").exists()
    monkeypatch.setenv("PATH", f"{work}/bin")
    assert simple_commands("ls && id") == ()
    assert (tmp_path / "ran").exists()


def test_reading_a_line_starts_nothing_of_it(tmp_path: Path) -> None:
    line = f"touch {tmp_path}/x; echo $(touch {tmp_path}/x) | eval 'touch {tmp_path}/x'"
    assert len(simple_commands(line)) == 3
    assert os.listdir(tmp_path) == []


def test_the_first_lines_may_come_from_several_threads_at_once() -> None:
    code = (
        "import threading\n"
        "from wisp.command.line import simple_commands\n"
        "gate, found = threading.Barrier(8), []\n"
        "def read(): gate.wait(); found.append(simple_commands('ls && id'))\n"
        "threads = [threading.Thread(target=read) for _ in range(8)]\n"
        "[one.start() for one in threads]; [one.join() for one in threads]\n"
        "print(found == [('ls', 'id')] * 8)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("True\n", "")
