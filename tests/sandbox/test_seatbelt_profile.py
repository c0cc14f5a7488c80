"""The profile, line by line: read by a small reader of its own, and judged by both ways in which rules are said to win."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wisp.errors import SandboxUnavailable
from wisp.sandbox.confinement import Confinement
from wisp.sandbox.seatbelt_profile import RULE_BYTES, Profile, profile_of

if TYPE_CHECKING:
    from pathlib import Path

    Confine = Callable[..., Confinement]


def _confinement(
    roots: tuple[str, ...], protected: tuple[str, ...], *, network: bool = True, **more: tuple[str, ...]
) -> Confinement:
    """Return a confinement of paths that need not exist: only its values matter here."""
    made = object.__new__(Confinement)
    values = {"notes": (), "left_out": (), "scratch_tmpdir": False, "protected_links": (), **more}
    for name, value in {"roots": roots, "protected": protected, "network": network, **values}.items():
        object.__setattr__(made, name, value)
    return made


HOME = "/Users/me/.wisp"
PROJECT = "/Users/me/project"
TEMPORARY = "/private/tmp"


def test_a_usual_confinement_is_these_lines() -> None:
    profile = profile_of(_confinement((PROJECT, TEMPORARY), (HOME, f"{PROJECT}/.git/hooks"), network=False))

    assert profile.text.splitlines() == [
        "(version 1)",
        "(allow default)",
        "(deny file-write*)",
        '(allow file-write* (subpath (param "ROOT_0")) (subpath (param "ROOT_1")))',
        (
            '(allow file-write* (literal "/dev/null") (literal "/dev/zero") (literal "/dev/full") (literal "/dev/tty") '
            '(literal "/dev/ptmx") (regex #"^/dev/(tty|fd/)"))'
        ),
        "(deny file-link)",
        '(allow file-link (subpath (param "ROOT_0")) (subpath (param "ROOT_1")))',
        "(allow file-clone)",
        "(deny file-write-setugid)",
        "; note: PROTECTED_1 lie inside a root, and stay closed",
        (
            '(deny file-write* file-link (literal (param "PROTECTED_0")) (subpath (param "PROTECTED_0")) '
            '(literal (param "PROTECTED_1")) (subpath (param "PROTECTED_1")))'
        ),
        '(deny file-write-create file-write-unlink (literal (param "ABOVE_0")) (literal (param "ABOVE_1")))',
        "; Unix sockets are part of it: one that has a path can be neither bound nor connected to, in a root or not;",
        "; pairs (socketpair) and pipes are not.",
        "(deny network*)",
    ]
    assert profile.parameters == (
        ("ROOT_0", PROJECT),
        ("ROOT_1", TEMPORARY),
        ("PROTECTED_0", HOME),
        ("PROTECTED_1", f"{PROJECT}/.git/hooks"),
        ("ABOVE_0", PROJECT),
        ("ABOVE_1", f"{PROJECT}/.git"),
    )


def test_a_network_is_no_line_at_all() -> None:
    assert "network" not in profile_of(_confinement((PROJECT,), (HOME,))).text


def test_without_roots_nothing_but_devices_is_allowed_again() -> None:
    text = profile_of(_confinement((), (HOME,))).text

    assert [line for line in text.splitlines() if line.startswith("(allow file-")] == [
        line for line in text.splitlines() if "/dev/null" in line or line == "(allow file-clone)"
    ]


def test_parameters_are_words_of_a_command_line() -> None:
    assert Profile(
        "",
        (("ROOT_0", "/a b=c"), ("HOME", '/"')),
    ).options() == ["-D", "ROOT_0=/a b=c", "-D", 'HOME=/"']


def test_the_place_of_a_link_to_a_protected_path_is_closed_with_what_leads_to_it() -> None:
    confinement = _confinement((PROJECT,), (HOME, "/elsewhere/hooks"), protected_links=(f"{PROJECT}/a/link",))

    _each_reading_refuses(profile_of(confinement), "file-write-unlink", f"{PROJECT}/a/link")
    _each_reading_refuses(profile_of(confinement), "file-write-create", f"{PROJECT}/a/link")
    _each_reading_refuses(profile_of(confinement), "file-write-unlink", f"{PROJECT}/a")
    _each_reading_allows(profile_of(confinement), "file-write-create", f"{PROJECT}/a/link2")


@pytest.mark.parametrize(
    ("operation", "path"),
    [
        ("file-write-create", "/Users/me/new"),
        ("file-write-data", "/etc/hosts"),
        ("file-write-create", f"{PROJECT}2/new"),
        ("file-write-mode", "/Users/me/file"),
        ("file-write-times", "/Users/me/file"),
        ("file-write-xattr", "/Users/me/file"),
        ("file-write-data", "/dev/disk0"),
        ("file-link", "/Users/me/file"),
        ("file-link", f"{PROJECT}/deep/.git/hooks/x"),
        ("file-write-setugid", f"{PROJECT}/x"),
        ("file-write-create", f"{PROJECT}/deep/.git/hooks"),
        ("file-write-create", f"{PROJECT}/deep/.git/hooks/new"),
        ("file-write-unlink", f"{PROJECT}/deep/.git/hooks"),
        ("file-write-unlink", f"{PROJECT}/deep/.git"),
        ("file-write-create", f"{PROJECT}/deep/.git"),
        ("file-write-unlink", f"{PROJECT}/deep"),
        ("file-write-unlink", PROJECT),
        ("file-write-data", f"{HOME}/config.json"),
        ("network-outbound", ""),
        ("network-bind", ""),
    ],
)
def test_what_must_be_refused_is_refused_by_either_reading(operation: str, path: str) -> None:
    confinement = _confinement((PROJECT, TEMPORARY), (HOME, f"{PROJECT}/deep/.git/hooks"), network=False)

    _each_reading_refuses(profile_of(confinement), operation, path)


@pytest.mark.parametrize(
    ("operation", "path"),
    [
        ("file-write-create", f"{PROJECT}/new"),
        ("file-write-data", f"{PROJECT}/deep/.git/config"),
        ("file-write-create", f"{PROJECT}/deep/.git/hooks2"),
        ("file-write-mode", f"{PROJECT}/deep"),
        ("file-write-unlink", f"{PROJECT}/deep/other"),
        ("file-write-create", f"{TEMPORARY}/new"),
        ("file-link", f"{PROJECT}/file"),
        ("file-clone", "/Users/me/file"),
        ("file-write-data", "/dev/null"),
        ("file-write-data", "/dev/tty"),
        ("file-write-data", "/dev/ttys001"),
        ("file-write-data", "/dev/fd/1"),
        ("file-read-data", "/etc/hosts"),
        ("signal", ""),
        ("network-outbound", ""),
    ],
)
def test_what_must_work_is_allowed_by_either_reading(operation: str, path: str) -> None:
    confinement = _confinement((PROJECT, TEMPORARY), (HOME, f"{PROJECT}/deep/.git/hooks"))

    _each_reading_allows(profile_of(confinement), operation, path)


@pytest.mark.parametrize(
    "path", ["/a\nb", "/a\x00b", "/a\x7fb", "/a\x1b[0m", "/a\x85b", "${HOME}/a", "relative", "", "/\ud800"]
)
def test_a_path_that_may_be_read_as_another_is_refused(path: str) -> None:
    with pytest.raises(SandboxUnavailable, match="seatbelt"):
        profile_of(_confinement((path,), (HOME,)))
    with pytest.raises(SandboxUnavailable, match="seatbelt"):
        profile_of(_confinement((PROJECT,), (path,)))


@pytest.mark.parametrize("path", ['/a"b', "/a\\b", "/a)(allow default)", "/größe", "/a;b", "/a ${HOME}", "/a\udcffb"])
def test_a_strange_path_is_no_part_of_the_text(path: str) -> None:
    profile = profile_of(_confinement((path,), (HOME,)))

    assert profile.text == profile_of(_confinement(("/plain",), (HOME,))).text
    assert ("ROOT_0", path) in profile.parameters


def test_a_new_rule_is_begun_every_16_kibibytes() -> None:
    roots = tuple(f"/roots/{number:0200}" for number in range(1000))

    profile = profile_of(_confinement(roots, (HOME,)))

    rules = [line for line in profile.text.splitlines() if line.startswith("(allow file-write* (subpath")]
    assert len(rules) > 10
    assert [name for rule in rules for name in re.findall(r'"(ROOT_\d+)"', rule)] == [f"ROOT_{n}" for n in range(1000)]
    for rule in rules:
        assert sum(len(os.fsencode(path)) for path in _paths_of(rule, profile)) <= RULE_BYTES


def test_a_real_confinement_protects_the_home_of_wisp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path.resolve() / "root"
    root.mkdir()
    monkeypatch.setenv("WISP_HOME", str(root / "a" / "home"))

    profile = profile_of(Confinement(roots=(str(root),)))

    _each_reading_refuses(profile, "file-write-create", f"{root}/a/home/config.json")
    _each_reading_refuses(profile, "file-write-create", f"{root}/a")
    _each_reading_allows(profile, "file-write-create", f"{root}/b")


_NAMES = st.text(
    st.characters(exclude_characters="/", exclude_categories=["Cc", "Cs"]), min_size=1, max_size=300
).filter(lambda name: name not in {".", ".."})
_PATHS = st.lists(_NAMES, min_size=1, max_size=4).map(lambda names: "/" + "/".join(names))


@given(
    roots=st.lists(_PATHS, max_size=8, unique=True),
    protected=st.lists(_PATHS, max_size=8, unique=True),
    links=st.lists(_PATHS, max_size=3, unique=True),
    network=st.booleans(),
)
def test_any_paths_give_text_that_reads_back_and_parameters_that_are_the_paths(
    roots: list[str], protected: list[str], links: list[str], network: bool
) -> None:
    inside = [f"{root}/{number}/guarded" for number, root in enumerate(roots)]
    confinement = _confinement(
        tuple(roots), tuple(dict.fromkeys((*protected, *inside))), network=network, protected_links=tuple(links)
    )

    profile = profile_of(confinement)

    assert profile.text.isascii()
    assert all(character.isprintable() or character == "\n" for character in profile.text)
    rules = list(_rules(profile))
    assert len(rules) == sum(not line.startswith(";") for line in profile.text.splitlines()) - 1
    values = dict(profile.parameters)
    assert len(values) == len(profile.parameters)
    assert set(re.findall(r'\(param "([A-Z]+_\d+)"\)', profile.text)) == values.keys()
    assert all(f"-D {name}={path}" in " ".join(profile.options()) for name, path in values.items())
    assert {path for name, path in values.items() if name.startswith("ROOT_")} == set(roots)
    for path in (*protected, *inside, *links):
        _each_reading_refuses(profile, "file-write-create", path)
        _each_reading_refuses(profile, "file-write-data", f"{path}/below")
        _each_reading_refuses(profile, "file-link", path)


@given(roots=st.lists(_PATHS, min_size=1, max_size=60, unique=True), times=st.integers(1, 4))
def test_no_rule_is_larger_than_its_bound_unless_one_path_is(roots: list[str], times: int) -> None:
    many = tuple(dict.fromkeys(root + suffix * 200 for root in roots for suffix in ("a", "b", "c", "d")[:times]))

    profile = profile_of(_confinement(many, (HOME,)))

    for line in profile.text.splitlines():
        paths = _paths_of(line, profile)
        assert sum(len(os.fsencode(path)) for path in paths) <= RULE_BYTES or len(set(paths)) == 1


def _paths_of(rule: str, profile: Profile) -> list[str]:
    values = dict(profile.parameters)
    return [values[name] for name in re.findall(r'\(param "([A-Z]+_\d+)"\)', rule)]


@dataclass(frozen=True)
class _Rule:
    """One rule as it was read: does it allow, which operations, which filters."""

    allows: bool
    operations: tuple[str, ...]
    filters: tuple[tuple[str, str], ...]

    def concerns(self, operation: str) -> bool:
        return any(
            name in {operation, "default"} or (name.endswith("*") and operation.startswith(name[:-1] + "-"))
            for name in self.operations
            if not (name == "file-write*" and operation == "file-write-setugid")
        )

    def matches(self, path: str) -> bool:
        for kind, value in self.filters:
            if kind == "literal" and path == value:
                return True
            if kind == "subpath" and (path == value or path.startswith(value.rstrip("/") + "/")):
                return True
            if kind == "regex" and re.search(value, path):
                return True
        return not self.filters


def _rules(profile: Profile) -> Iterator[_Rule]:
    """Read the text, of which every line is one list or a comment; whatever else it holds fails the test."""
    first, *lines = (line for line in profile.text.splitlines() if not line.startswith(";"))
    assert first == "(version 1)"
    values = dict(profile.parameters)
    filters = r'\((literal|subpath) (?:\(param "(\w+)"\)|"([^"\\]+)")\)|\((regex) #"([^"]+)"\)'
    for line in lines:
        whole = re.fullmatch(rf"\((allow|deny)((?: [a-z*-]+)+)((?: (?:{filters}))*)\)", line)
        assert whole is not None, line
        found = []
        for kind, name, text, regex, pattern in re.findall(filters, whole[3]):
            found.append((kind or regex, values[name] if name else text or pattern))
        yield _Rule(whole[1] == "allow", tuple(whole[2].split()), tuple(found))


def _decisions(profile: Profile, operation: str, path: str) -> tuple[bool, bool]:
    """Return what the last rule that matches says, and what it says where a rule without a filter is only a default."""
    rules = [rule for rule in _rules(profile) if rule.concerns(operation)]
    by_order = [rule.allows for rule in rules if rule.matches(path)]
    filtered = [rule.allows for rule in rules if rule.filters and rule.matches(path)]
    defaults = [rule.allows for rule in rules if not rule.filters]
    return by_order[-1], (filtered or defaults)[-1]


def _each_reading_refuses(profile: Profile, operation: str, path: str) -> None:
    assert _decisions(profile, operation, path) == (False, False), (operation, path)


def _each_reading_allows(profile: Profile, operation: str, path: str) -> None:
    assert _decisions(profile, operation, path) == (True, True), (operation, path)
