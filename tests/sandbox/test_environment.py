"""What a command is given of the environment: never wisp's own keys, and on the allow-list no more than it names."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wisp.errors import ConfigError
from wisp.sandbox.environment import ALLOWED, OWN_KEYS, PassedOn, is_own_key, without_wisp_keys

NAMES = st.sampled_from([*OWN_KEYS, "PATH", "LC_ALL", "LC_", "WISP_HOME", "WISP_X_TOKEN", "EDITOR"]) | st.builds(
    "{}{}{}".format, st.sampled_from(["", "WISP_", "wisp_", "LC_", "CARGO_"]), st.text("AB_", max_size=4),
    st.sampled_from(["", "KEY", "_TOKEN", "SECRET", "_KEYS"]),
).filter(bool)  # fmt: skip
ENVIRONMENTS = st.dictionaries(NAMES.map(os.fsencode), st.binary(max_size=4))
MODES = st.sampled_from(
    [PassedOn.of("all"), PassedOn.of("allow-list"), PassedOn.of("allow-list", ["CARGO_*", "EDITOR"]), PassedOn.of("allow-list", ["WISP_*"])]
)  # fmt: skip


@pytest.mark.parametrize("name", [*OWN_KEYS, "WISP_KEY", "WISP_OTHER_KEY", "WISP_AUTH_TOKEN", "WISP_X_SECRET"])
@pytest.mark.parametrize("passed_on", [PassedOn.of("all"), PassedOn.of("allow-list", ["WISP_*", "OPENAI_*"])])
def test_a_key_of_wisps_own_reaches_no_command_and_its_neighbour_does(name: str, passed_on: PassedOn) -> None:
    environment = {name.encode(): b"secret", b"WISP_HOME": b"/w", b"OPENAI_BASE_URL": b"u"}

    assert passed_on.inherited(environment) == {b"WISP_HOME": b"/w", b"OPENAI_BASE_URL": b"u"}


@pytest.mark.parametrize(
    "name", ["WISP_HOME", "WISP_SANDBOX", "WISP_KEYS", "MY_WISP_KEY", "wisp_api_key", "API_KEY", "OPENAI_API_KEY_2"]
)
def test_what_only_looks_like_a_key_of_wisps_is_passed_on(name: str) -> None:
    assert PassedOn.of("all").inherited({name.encode(): b"1"}) == {name.encode(): b"1"}


def test_a_callers_own_choice_loses_only_what_is_wisps_by_its_name() -> None:
    environment = {b"WISP_API_KEY": b"1", b"WISP_A_TOKEN": b"2", b"OPENAI_API_KEY": b"3", b"X": b"4"}

    assert without_wisp_keys(environment) == {b"OPENAI_API_KEY": b"3", b"X": b"4"}


def test_the_allow_list_passes_on_its_names_and_those_that_are_added() -> None:
    environment = {b"PATH": b"1", b"LC_ALL": b"2", b"CARGO_HOME": b"3", b"EDITOR": b"4", b"AWS_SECRET": b"5"}

    assert PassedOn.of("allow-list").inherited(environment) == {b"PATH": b"1", b"LC_ALL": b"2"}
    assert PassedOn.of("allow-list", ["CARGO_*", "EDITOR"]).inherited(environment) == {
        b"PATH": b"1", b"LC_ALL": b"2", b"CARGO_HOME": b"3", b"EDITOR": b"4",
    }  # fmt: skip


def test_what_is_added_to_the_allow_list_says_nothing_where_all_is_passed_on() -> None:
    assert PassedOn.of("all", ["EDITOR"]).inherited({b"X": b"1"}) == {b"X": b"1"}


@pytest.mark.parametrize("mode", ["all", "allow-list"])
def test_a_key_of_wisps_own_on_the_allow_list_is_an_error_that_names_it(mode: str) -> None:
    with pytest.raises(ConfigError) as caught:
        PassedOn.of(mode, ["EDITOR", "OPENAI_API_KEY"])  # type: ignore[arg-type]

    assert caught.value.key == "sandbox.environmentAllow[1]"
    assert caught.value.reason == "OPENAI_API_KEY holds a key of wisp's own, which no command is given"


def test_names_that_are_no_text_are_names_like_others() -> None:
    environment = {b"\xff": b"\xfe", b"LC_\xff": b"1"}

    assert PassedOn.of("all").inherited(environment) == environment
    assert PassedOn.of("allow-list").inherited(environment) == {b"LC_\xff": b"1"}
    assert PassedOn.of("allow-list", [os.fsdecode(b"\xff")]).inherited(environment) == environment


@pytest.mark.parametrize("name", ALLOWED)
def test_nothing_on_the_list_is_a_key_or_leads_to_a_daemon(name: str) -> None:
    assert not is_own_key(name)
    assert not name.endswith(("KEY", "TOKEN", "SECRET", "PASSWORD", "SOCK", "HOST", "PROXY", "RUNTIME_DIR"))


def test_the_documents_name_the_whole_list_and_every_key(checkout: Path) -> None:
    page = (checkout / "docs" / "configuration.md").read_text(encoding="utf-8")
    _, _, rest = page.partition("`allow-list` is")
    listed, _, keys = rest.partition("and what `environmentAllow` adds")

    assert re.findall(r"`([^`]+)`", listed) == list(ALLOWED)
    assert [name for name in OWN_KEYS if f"`{name}`" not in keys] == []


@given(MODES, ENVIRONMENTS)
def test_a_command_gets_what_is_there_unchanged_and_never_a_key(
    passed_on: PassedOn, environment: dict[bytes, bytes]
) -> None:
    before = dict(environment)

    kept = passed_on.inherited(environment)

    assert environment == before
    assert kept.items() <= environment.items()
    assert not any(is_own_key(os.fsdecode(name)) for name in kept)
    assert passed_on.inherited(kept) == kept


@given(ENVIRONMENTS)
def test_what_is_taken_away_is_a_key_or_not_on_the_list(environment: dict[bytes, bytes]) -> None:
    everything = PassedOn.of("all").inherited(environment)
    listed = PassedOn.of("allow-list").inherited(environment)

    assert {os.fsdecode(name) for name in environment if name not in everything} == {
        os.fsdecode(name) for name in environment if is_own_key(os.fsdecode(name))
    }
    assert all(os.fsdecode(name) in ALLOWED or name.startswith(b"LC_") for name in listed)
    assert all(name in listed for name in everything if os.fsdecode(name) in ALLOWED)
