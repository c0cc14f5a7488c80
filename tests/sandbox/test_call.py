"""What was asked for, and what it comes to under the settings."""

from __future__ import annotations

import math

import pytest

from wisp.config import LimitSettings
from wisp.errors import UsageError
from wisp.outcome import Origin
from wisp.sandbox.call import Call, Timeout
from wisp.sandbox.environment import PassedOn

LIMITS = LimitSettings(command_timeout_seconds=7, command_max_output_bytes=300)


def _call(
    *,
    origin: Origin = "model",
    timeout: Timeout = "default",
    env: dict[str, str] | None = None,
    kept: int | None = None,
) -> Call:
    return Call(["true"], "true", None, origin, timeout, None, env, kept)


@pytest.mark.parametrize(
    ("origin", "timeout", "seconds"),
    [("model", "default", 7), ("person", "default", None), ("model", None, None), ("model", math.inf, None), ("person", 0.5, 0.5)],
)  # fmt: skip
def test_the_configured_time_is_a_models_and_any_other_is_the_callers(
    origin: Origin, timeout: Timeout, seconds: float | None
) -> None:
    assert _call(origin=origin, timeout=timeout).seconds(LIMITS) == seconds


@pytest.mark.parametrize("timeout", [0, -1, math.nan, -math.inf])
def test_a_time_that_is_none_is_a_usage_error(timeout: float) -> None:
    with pytest.raises(UsageError, match="`timeout`"):
        _call(timeout=timeout).seconds(LIMITS)


@pytest.mark.parametrize(("given", "kept"), [(None, 300), (0, 0), (10**9, 10**9)])
def test_what_is_kept_is_the_configured_number_unless_the_caller_says_otherwise(given: int | None, kept: int) -> None:
    assert _call(kept=given).kept_bytes(LIMITS) == kept


def test_a_number_of_bytes_below_zero_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="`max_output`"):
        _call(kept=-1).kept_bytes(LIMITS)


def test_the_settings_reduce_what_is_inherited_and_not_what_a_caller_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ONE", "OPENAI_API_KEY", "WISP_API_KEY"):
        monkeypatch.setenv(name, "1")
    own = {"ONE": "1", "OPENAI_API_KEY": "1", "WISP_API_KEY": "1"}
    inherited = _call().environment(PassedOn.of("all"))

    assert (inherited[b"ONE"], b"OPENAI_API_KEY" in inherited, b"WISP_API_KEY" in inherited) == (b"1", False, False)
    assert b"ONE" not in _call().environment(PassedOn.of("allow-list"))
    for passed_on in (PassedOn.of("all"), PassedOn.of("allow-list")):
        assert _call(env=own).environment(passed_on) == {b"ONE": b"1", b"OPENAI_API_KEY": b"1"}


def test_a_caller_s_environment_is_never_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"WISP_API_KEY": "1"}
    _call(env=own).environment(PassedOn.of("all"))[b"NEW"] = b"1"
    assert own == {"WISP_API_KEY": "1"}
