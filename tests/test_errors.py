from __future__ import annotations

import copy
import pickle

import pytest

from wisp import errors
from wisp.errors import (
    ConfigError,
    ConfinementError,
    DirectoryMissing,
    LaunchFailed,
    PolicyDenied,
    ProbeError,
    SandboxUnavailable,
    StatusLost,
    UsageError,
    WispError,
)

EACH = [
    (UsageError("no such thing"), "no such thing"),
    (ConfigError("/h/config.json", 3, "sandbox.backend", "must be a text"), "/h/config.json:3: sandbox.backend: must be a text"),
    (ConfigError("/h/config.json", 0, "", "is a directory"), "/h/config.json: is a directory"),
    (ConfinementError("--writable", "/x", "does not exist"), "--writable: /x: does not exist"),
    (SandboxUnavailable("landlock", "too old"), "the landlock sandbox cannot hold this confinement here: too old"),
    (PolicyDenied("matches x", "sudo"), "command denied by policy: matches x"),
    (PolicyDenied("matches x"), "command denied by policy: matches x"),
    (DirectoryMissing("/x"), "working directory does not exist: /x"),
    (LaunchFailed("/bin/sh", "Permission denied"), "could not launch /bin/sh: Permission denied"),
    (
        StatusLost(12),
        (
            "the exit status of the command (process 12) was taken by this process itself: it ignores SIGCHLD or waits "
            "for any child; wait for your own children by pid instead"
        ),
    ),
    (ProbeError("p.toml", "write.x", "no such place"), "p.toml: write.x: no such place"),
    (ProbeError("p.toml", "", "is no TOML"), "p.toml: is no TOML"),
]  # fmt: skip
NAMES = [type(error).__name__ for error, _text in EACH]


@pytest.mark.parametrize(("error", "text"), EACH, ids=NAMES)
def test_the_message_says_everything_once(error: WispError, text: str) -> None:
    assert str(error) == text


@pytest.mark.parametrize(("error", "text"), EACH, ids=NAMES)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_an_error_is_the_same_on_the_other_side_of_a_pickle(error: WispError, text: str, protocol: int) -> None:
    again = pickle.loads(pickle.dumps(error, protocol))
    assert (type(again), str(again), vars(again)) == (type(error), text, vars(error))


@pytest.mark.parametrize(("error", "text"), EACH, ids=NAMES)
def test_an_error_can_be_copied(error: WispError, text: str) -> None:
    assert (str(copy.copy(error)), vars(copy.deepcopy(error))) == (text, vars(error))


def test_every_error_is_one_of_wisps_and_is_tested_here() -> None:
    classes = {name for name in errors.__all__ if name != "WispError"}
    assert classes == set(NAMES)
    assert all(issubclass(getattr(errors, name), WispError) for name in classes)


def test_a_wisp_error_is_no_os_error_that_a_caller_may_swallow_by_accident() -> None:
    assert not issubclass(WispError, OSError | ValueError)
