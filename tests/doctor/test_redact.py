"""What identifies a person or a machine does not leave it in a report."""

from __future__ import annotations

import json
import os
import pwd
import re
import socket
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wisp.doctor.page import clean
from wisp.doctor.redact import Redactor, redacted
from wisp.doctor.render_text import render_text
from wisp.doctor.report import Check, Exposure, Surrounding

REDACTOR = Redactor(homes=("/home/ada", "/srv/people/ada.l"), users=("ada", "ada.l"), hosts=("engine", "engine.local"))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/home/ada/.wisp", "~/.wisp"),
        ("/home/ada", "~"),
        ("-I/home/ada/include", "-I~/include"),
        ("/home/adamant/x", "/home/USER/x"),
        ("/Users/grace/x and /run/screen/S-grace/1.tty", "/Users/USER/x and /run/screen/S-USER/1.tty"),
        ("/srv/people/ada.l/x", "~/x"),
        ("/tmp/ada/x", "/tmp/USER/x"),
        ("ada@engine:~$", "USER@HOST:~$"),
        ("at engine.local.", "at HOST."),
        ("uid=1000(ada)", "uid=1000(USER)"),
        ("adagio in canada", "adagio in canada"),
        ("engineering", "engineering"),
    ],
)
def test_homes_users_and_hosts_are_replaced_where_they_stand_alone(text: str, shown: str) -> None:
    assert REDACTOR.text(text) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a write outside the root", "a write outside the root"),
        ("/home/write/x", "/home/USER/x"),
        ("write@machine", "USER@HOST"),
        ("uid=5(write)", "uid=5(USER)"),
    ],
)
def test_a_name_that_is_a_word_of_wisp_is_replaced_only_in_paths_and_addresses(text: str, shown: str) -> None:
    assert Redactor(homes=(), users=("write",), hosts=("machine",)).text(text) == shown


def test_the_home_of_root_is_not_seen_in_other_paths() -> None:
    redactor = Redactor(homes=("/root",), users=(), hosts=())

    assert redactor.text("/root/.wisp, /scratch/root/file, /rootfs") == "~/.wisp, /scratch/root/file, /rootfs"


def test_bytes_that_were_no_text_become_escapes() -> None:
    home, name = os.fsdecode(b"/home/\xff"), os.fsdecode(b"n\xfe")

    assert Redactor(homes=(home,), users=(), hosts=()).text(f"{home}/x and {name}") == "~/x and n\\udcfe"


# Two digits, so that none is a word of wisp's own.
_NAMES = st.text("abcdefghijklmnopqrstuvwxyz", min_size=1, max_size=9).map(lambda name: f"{name}47")
_BETWEEN = st.text("/ :@(),.'\"\n\t-=", min_size=1, max_size=4)


@given(user=_NAMES, host=_NAMES, parent=_NAMES, between=st.lists(_BETWEEN, min_size=4, max_size=4), rest=st.text())
def test_no_text_keeps_a_home_a_user_or_a_host(
    user: str, host: str, parent: str, between: list[str], rest: str
) -> None:
    home = f"/{parent}/{user}"
    redactor = Redactor(homes=(home,), users=(user,), hosts=(host,))

    shown = redactor.text(between[0].join(["x", home, between[1].join([user, host]), home + "/file", rest]))

    assert home not in shown
    for name in (user, host):
        assert not re.search(rf"(?<!\w){name}(?!\w)", shown)
    assert redactor.text(shown) == shown


@given(st.text())
def test_a_text_without_any_of_the_names_is_left_as_it_is(text: str) -> None:
    assert Redactor(homes=("/home/zqzqzq",), users=("zqzqzq",), hosts=("xqxqxq",)).text(text) == text


def test_a_report_keeps_nothing_in_text_or_json_and_its_fixed_words_stay(made: Any) -> None:
    said = "/home/ada/x of ada on engine"
    report = made.report(
        [made.row("leaked", reason=said, output=said), made.row("inconclusive", name="ada.engine", reason=said)],
        checks=[Check("home", "failed", said, said)],
        exposed=[Exposure("tmux", "tmux", ("/home/ada/tmux",), "type", "end it")],
        inside=[Surrounding("wisp", said)],
        reason=said,
        not_run=said,
    )

    shown = redacted(report, REDACTOR)

    assert [row.result.id for row in shown.rows] == ["write.create-outside", "ada.engine"]
    fixed = json.dumps(shown.as_json()).replace("ada.engine", "").replace('"family": "ada"', "")
    text = render_text(shown).plain().replace("ada.engine", "")
    named = render_text(redacted(made.report([report.rows[0]], selection="named"), REDACTOR)).plain()
    for output in (fixed, text, named):
        assert not re.search(r"(?<!\w)(ada|engine)(?!\w)", re.sub(r"(?m)^  ada +.*$", "", output))
    assert "~/x of USER on HOST" in text


def test_this_process_is_known_by_its_home_its_user_and_its_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/made/up/home/")
    monkeypatch.setenv("SUDO_USER", "somebody-behind-sudo")

    redactor = Redactor.of_this_process()

    assert "/made/up/home" in redactor.homes
    assert "somebody-behind-sudo" in redactor.users
    assert "root" not in redactor.users
    own = pwd.getpwuid(os.getuid()).pw_name
    assert own == "root" or own in redactor.users
    assert socket.gethostname() in {*redactor.hosts, "localhost"}


def test_a_home_that_is_the_root_directory_hides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/")

    assert not {"", "/"} & set(Redactor.of_this_process().homes)


@given(st.text())
def test_what_is_cleaned_acts_on_no_terminal(text: str) -> None:
    assert clean(text).isprintable()
