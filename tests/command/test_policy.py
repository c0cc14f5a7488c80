"""What the policy denies and what it leaves alone."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wisp.command.policy import Decision, DenyRow, Policy, _matcher, default_rows
from wisp.errors import ConfigError, UsageError

ROWS = default_rows()
MATCHED = [(row, line) for row in ROWS for line in row.matched]
NOT_MATCHED = [(row, line) for row in ROWS for line in row.not_matched]


def _names(cases: list[tuple[DenyRow, str]]) -> list[str]:
    return [f"{row.name}: {line}" for row, line in cases]


@pytest.mark.parametrize(("row", "line"), MATCHED, ids=_names(MATCHED))
def test_a_default_row_denies_its_examples(row: DenyRow, line: str) -> None:
    assert Policy().decide(line) == Decision(False, f"command matches deny pattern {row.pattern}", row.name, row.reason)


@pytest.mark.parametrize(("row", "line"), NOT_MATCHED, ids=_names(NOT_MATCHED))
def test_a_default_row_leaves_its_lookalikes_alone(row: DenyRow, line: str) -> None:
    assert Policy().decide(line).rule != row.name


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_a_default_row_says_what_it_is_for(row: DenyRow) -> None:
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", row.name)
    assert row.scope in {"line", "command"}
    assert row.matched
    assert row.not_matched
    assert row.reason.startswith("it ")
    assert row.why.endswith((".", "purpose."))


def test_the_nine_default_rows_are_those_that_the_documents_name() -> None:
    assert [row.name for row in ROWS] == [
        "other-user",
        "delete-everything",
        "pipe-to-shell",
        "format-disk",
        "write-to-device",
        "answer-approval",
        "keep-fact",
        "nested-agent",
        "fetch-model",
    ]


STARTS_AN_AGENT = [
    "wisp respond",
    "wisp respond 'do it'",
    "wisp chat",
    "wisp mcp",
    'wisp "do it now"',
    "wisp 'do it now'",
    "wisp $'do it now'",
    'wisp -m system "do it now"',
    "wisp --model=system 'do it now'",
    "wisp -m system respond",
    "wisp --json --model system chat",
    "./wisp respond",
    "/usr/local/bin/wisp mcp",
    "~/bin/wisp chat",
    "$HOME/bin/wisp chat",
    "harness/.build/debug/wisp respond",
    "env wisp chat",
    "exec wisp chat",
    "nohup wisp respond x",
    "WISP_HOME=/tmp/x wisp chat",
    "A=1 B='two words' wisp chat",
    "WISP CHAT",
]

HIDDEN = [
    "nice wisp chat",
    "nice -n 5 wisp chat",
    "time wisp chat",
    "time -p wisp chat",
    "command wisp chat",
    "builtin wisp chat",
    "timeout 5s wisp chat",
    "timeout -s KILL 5 wisp chat",
    "env -i wisp chat",
    "env -u HOME A=1 wisp chat",
    "/usr/bin/env wisp chat",
    "caffeinate -i wisp chat",
    "stdbuf -oL wisp chat",
    "setsid wisp chat",
    "exec -a name wisp chat",
    "{ wisp chat; }",
    "! wisp chat",
    "if true; then wisp chat; fi",
    "while true; do wisp chat; done",
    "false || wisp chat",
    "ls | xargs wisp respond",
    "xargs -I {} wisp respond {}",
    '"wisp" chat',
    "'wisp' chat",
    '"/opt/my tools/wisp" chat',
    "\\wisp chat",
    "wisp\tchat",
    "wisp \\\n chat",
    "wisp 2>/dev/null chat",
    "wisp > log chat",
    ">log wisp chat",
    "wisp chat&",
    "wisp chat;",
    "python3 -m wisp chat",
    "/usr/bin/python3.12 -I -m wisp chat",
    "uvx --from wisp-sandbox wisp chat",
    "uv run wisp chat",
]

INSIDE_A_LINE = [
    "cd x && wisp respond",
    "cd x; wisp respond",
    "cd x\nwisp respond",
    "echo $(wisp chat)",
    "echo `wisp chat`",
    'echo "it\'s $(wisp chat)"',
    "yes | wisp chat",
    "(wisp chat)",
    "f() { wisp chat; }; f",
    "cat <<EOF\n$(wisp chat)\nEOF",
    "sh -c 'wisp chat'",
    "bash -lc 'cd x && wisp chat'",
    "eval wisp chat",
    "diff <(wisp chat) y",
    "case x in x) wisp chat;; esac",
    "echo 'unbalanced; wisp chat",
    "ls\r\nwisp chat",
    "ls \0; wisp chat",
    "ls; " * 5000 + "wisp chat",
]

NO_AGENT = [
    "wisp",
    "wisp --version",
    "wisp --help",
    "wisp doctor",
    "wisp doctor --json",
    "wisp run -- ls",
    "wisp run -c 'ls | wc'",
    "wisp verify -- sandbox-exec",
    "wisp profile",
    "wisp logs",
    'wisp logs --kind "policy.decision"',
    'wisp config set model "respond"',
    "wisp approvals list",
    "wisp facts list",
    "wisp hello",
    "wisp chatter",
    "wisps chat",
    "wisp-tui chat",
    "my-wisp chat",
    "grep wisp README.md",
    "grep -rn 'wisp chat' docs",
    "echo wisp chat",
    'echo "wisp chat"',
    "git commit -m 'wisp chat'",
    "cat wisp/chat.py",
    "cd wisp && ls chat",
    "ls wisp chat",
    "man wisp",
    "which wisp",
    "python3 -m pytest tests/chat",
    "cat <<'EOF' > notes\nwisp chat\nEOF",
]


@pytest.mark.parametrize("line", [*STARTS_AN_AGENT, *HIDDEN, *INSIDE_A_LINE], ids=lambda line: line[-40:])
def test_a_command_cannot_start_a_wisp_of_its_own(line: str) -> None:
    assert Policy().decide(line).rule == "nested-agent"


@pytest.mark.parametrize("line", NO_AGENT)
def test_other_uses_and_mentions_of_wisp_are_allowed(line: str) -> None:
    assert Policy().decide(line) == Decision(True)


@pytest.mark.parametrize(
    "line",
    [
        ":",
        "ls",
        "swift build",
        "ls | shasum",
        "rm -rf ./build",
        "rm -rf /tmp/x",
        "git push --force",
        "curl -fsS x -o y",
        "ddrescue",
        "echo sudoku",
        "for f in *; do wc $f; done | sort",
        "",
    ],
)
def test_ordinary_lines_are_allowed(line: str) -> None:
    assert Policy().decide(line) == Decision(True)


def test_the_reason_names_the_pattern_and_the_rule_names_the_setting() -> None:
    policy = Policy(["^make", "two$"])
    assert policy.decide("one && two") == Decision(False, "command matches deny pattern two$", "commandPolicy.deny[1]")
    assert policy.decide("one && two three") == Decision(True)


def test_the_first_row_that_matches_is_the_one_that_is_named() -> None:
    assert Policy(["b", "a", "ab"]).decide("ab").rule == "commandPolicy.deny[0]"


def test_the_whole_line_is_tried_before_its_commands() -> None:
    policy = Policy(["^two", "one.*two"])
    assert policy.decide("one; two").rule == "commandPolicy.deny[1]"


def test_own_patterns_replace_the_default_rows_and_none_is_none() -> None:
    assert Policy(["^make$"]).decide("sudo ls") == Decision(True)
    assert Policy([]).decide("sudo ls") == Decision(True)
    assert not Policy(None).decide("sudo ls").allowed


def test_an_allow_list_must_match_the_line_and_every_command_in_it() -> None:
    policy = Policy([], [r"^git (status|log)\b", "^cd "])
    no_match = Decision(False, "command matches no allow pattern", "commandPolicy.allow")
    assert policy.decide("git status") == Decision(True)
    assert policy.decide("cd x && git status") == Decision(True)
    assert policy.decide("git status; rm x") == no_match
    assert policy.decide("git log $(rm x)") == no_match
    assert policy.decide("git status 'unbalanced; rm x") == no_match
    assert policy.decide("make") == no_match
    assert policy.decide("") == no_match


def test_deny_wins_over_allow() -> None:
    policy = Policy(["status"], ["^git "])
    assert policy.decide("git log") == Decision(True)
    assert policy.decide("git status").reason == "command matches deny pattern status"


@pytest.mark.parametrize("pattern", ["(", "[", "(?=x)", r"(a)\1", "(?>a)", "a{2000}", "a**", ""])
@pytest.mark.parametrize("key", ["deny", "allow"])
def test_a_pattern_that_does_not_compile_is_an_error_that_names_it(
    pattern: str, key: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        Policy(**{key: ["fine", pattern]})
    assert (caught.value.path, caught.value.key) == ("the policy", f"commandPolicy.{key}[1]")
    assert repr(pattern) in caught.value.reason or "empty pattern" in caught.value.reason
    assert pickle.loads(pickle.dumps(caught.value)).reason == caught.value.reason
    assert capfd.readouterr() == ("", "")


def test_one_text_is_no_list_of_patterns() -> None:
    with pytest.raises(UsageError, match=r"commandPolicy\.deny is a list"):
        Policy("sudo")


def test_a_line_that_is_no_text_for_utf8_is_still_judged() -> None:
    assert Policy().decide("ls \udcff; sudo ls").rule == "other-user"
    assert Policy().decide("ls \udcff") == Decision(True)


def test_many_large_patterns_decide_as_few_do() -> None:
    patterns = [rf"\pL{{1,30}}x{number}y.{{0,40}}[a-z]+" for number in range(100)]
    policy = Policy([*patterns, "^make"])
    assert policy.decide("héllox17y abc").rule == "commandPolicy.deny[17]"
    assert policy.decide("make").rule == "commandPolicy.deny[100]"
    assert policy.decide("ls") == Decision(True)


@given(
    st.lists(
        st.sampled_from(["sudo", "rm", "-rf", "/", "wisp", "chat", "|", "sh", "'", '"', ";", " ", "x"]), max_size=12
    )
)
@settings(max_examples=200, deadline=None)
def test_the_set_of_patterns_answers_as_each_pattern_does(parts: list[str]) -> None:
    import re2

    text = "".join(parts)
    patterns = [row.pattern for row in ROWS]
    alone = [index for index, pattern in enumerate(patterns) if re2.search(pattern, text) is not None]
    assert sorted(_matcher(patterns)(text) or []) == alone


@given(st.text(max_size=60))
@settings(max_examples=60, deadline=None)
def test_any_text_gets_a_decision(line: str) -> None:
    assert isinstance(Policy().decide(line), Decision)


def test_a_denied_command_is_denied_wherever_it_stands_in_a_line() -> None:
    policy = Policy()
    for before, after in [
        ("ls; ", ""),
        ("ls && ", " || id"),
        ("(", ")"),
        ("echo $(", ")"),
        ("{ ", "; }"),
        ("ls | ", ""),
    ]:
        assert not policy.decide(f"{before}sudo x{after}").allowed
        assert policy.decide(f"{before}sudoku x{after}").allowed


def test_one_policy_serves_several_threads() -> None:
    policy = Policy()
    wrong: list[Decision] = []

    def judge() -> None:
        for number in range(200):
            decision = policy.decide("sudo ls" if number % 2 else f"ls {number}")
            if decision.allowed == bool(number % 2):
                wrong.append(decision)

    threads = [threading.Thread(target=judge) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_importing_the_policy_does_not_import_re2() -> None:
    code = "import sys, wisp.command.policy; sys.exit('re2' in sys.modules or 'pydantic' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_policy_without_patterns_allows_everything() -> None:
    assert Policy([], []).decide("sudo rm -rf /") == Decision(True)


def test_an_anchored_row_is_tried_on_commands_only() -> None:
    assert Policy().decide('xargs wisp "a"').rule == "nested-agent"
    assert Policy().decide('xargs\nwisp\n"a"') == Decision(True)
