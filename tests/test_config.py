"""`config.json`: what it may say, and that anything else is an error with file, line and key."""

from __future__ import annotations

import json
import os
import pwd
import socket
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wisp.config import (
    AuditSettings,
    LimitSettings,
    PolicySettings,
    SandboxSettings,
    Settings,
    home_directory,
    load_settings,
)
from wisp.errors import ConfigError
from wisp.sandbox.choose import BACKENDS

FULL: dict[str, dict[str, object]] = {
    "commandPolicy": {"deny": ["^rm "], "allow": ["^git ", "^ls"]},
    "sandbox": {
        "enabled": True,
        "backend": "landlock",
        "allowNetwork": False,
        "writablePaths": ["~/.cache/x", "/srv/y"],
        "protectedPaths": ["/srv/y/keys", "guard-project"],
        "requireTier": "B",
        "nested": "trust-outer",
        "observe": True,
        "environment": "allow-list",
        "environmentAllow": ["EDITOR", "CARGO_*"],
    },
    "audit": {"enabled": False, "maxFileBytes": 4096, "keepFiles": 0},
    "limits": {"commandTimeoutSeconds": 1.5, "commandMaxOutputBytes": 256},
}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    directory = tmp_path / "home"
    directory.mkdir(mode=0o700)
    return directory


def _write(home: Path, text: str | bytes | object) -> Path:
    path = home / "config.json"
    if isinstance(text, bytes):
        path.write_bytes(text)
    else:
        path.write_text(text if isinstance(text, str) else json.dumps(text), encoding="utf-8")
    path.chmod(0o600)
    return path


def _error(home: Path, text: str | bytes | object) -> tuple[int, str, str]:
    """Load what was written and return line, key and reason of the error, which must name the file."""
    path = _write(home, text)
    with pytest.raises(ConfigError) as caught:
        load_settings(str(home))
    assert caught.value.path == str(path)
    return caught.value.line, caught.value.key, caught.value.reason


def test_without_a_file_the_defaults_hold(home: Path) -> None:
    assert load_settings(str(home)) == Settings()
    assert load_settings(str(home / "missing")) == Settings()


def test_the_defaults_are_those_of_the_documents() -> None:
    assert Settings() == Settings(
        PolicySettings(deny=None, allow=()),
        SandboxSettings(True, "auto", True, None, (), None, "refuse", False, "all", ()),
        AuditSettings(True, 10_485_760, 5),
        LimitSettings(60, 4096),
    )


def test_every_key_can_be_set(home: Path) -> None:
    _write(home, FULL)
    assert load_settings(str(home)) == Settings(
        PolicySettings(("^rm ",), ("^git ", "^ls")),
        SandboxSettings(
            True,
            "landlock",
            False,
            ("~/.cache/x", "/srv/y"),
            ("/srv/y/keys", "guard-project"),
            "B",
            "trust-outer",
            True,
            "allow-list",
            ("EDITOR", "CARGO_*"),
        ),
        AuditSettings(False, 4096, 0),
        LimitSettings(1.5, 256),
    )


def test_the_test_above_names_every_key_of_the_table() -> None:
    count = sum(len(fields(getattr(Settings(), section.name))) for section in fields(Settings))
    assert sum(len(section) for section in FULL.values()) == count


def test_an_empty_object_is_the_defaults_and_a_partial_one_keeps_the_others(home: Path) -> None:
    _write(home, "{}")
    assert load_settings(str(home)) == Settings()
    _write(home, {"sandbox": {"allowNetwork": False}, "audit": {}})
    assert load_settings(str(home)) == Settings(sandbox=SandboxSettings(allow_network=False))


def test_an_empty_deny_list_really_is_empty_and_null_is_the_default(home: Path) -> None:
    _write(home, {"commandPolicy": {"deny": []}, "sandbox": {"writablePaths": []}})
    assert load_settings(str(home)) == Settings(PolicySettings(deny=()), SandboxSettings(writable_paths=()))
    _write(home, {"commandPolicy": {"deny": None}, "sandbox": {"writablePaths": None, "requireTier": None}})
    assert load_settings(str(home)) == Settings()


def test_settings_are_read_from_the_home_by_default(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WISP_HOME", str(home))
    _write(home, {"audit": {"keepFiles": 7}})
    assert load_settings() == Settings(audit=AuditSettings(keep_files=7))


@pytest.mark.parametrize("content", [None, "{}"])
def test_a_file_that_says_nothing_costs_no_import(home: Path, content: str | None) -> None:
    if content is not None:
        _write(home, content)
    code = "import sys, wisp.config; wisp.config.load_settings(sys.argv[1]); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, str(home)], capture_output=True, text=True, check=True)
    assert {"pydantic", "re2", "rich", "click"}.isdisjoint(done.stdout.split())


WRONG_VALUES = [
    ({"commandPolicy": []}, "commandPolicy", "must be an object of settings"),
    ({"sandbox": None}, "sandbox", "must be an object of settings"),
    ({"commandPolicy": {"deny": "rm"}}, "commandPolicy.deny", "must be a list of patterns, or null for the default ones"),
    ({"commandPolicy": {"deny": ["x", 3]}}, "commandPolicy.deny[1]", "must be a text"),
    ({"commandPolicy": {"allow": None}}, "commandPolicy.allow", "must be a list of patterns"),
    ({"commandPolicy": {"allow": [["x"]]}}, "commandPolicy.allow[0]", "must be a text"),
    ({"commandPolicy": {"deny": [""]}}, "commandPolicy.deny[0]", "an empty pattern matches every line; remove it"),
    ({"sandbox": {"enabled": 1}}, "sandbox.enabled", "must be true or false"),
    ({"sandbox": {"enabled": "true"}}, "sandbox.enabled", "must be true or false"),
    ({"sandbox": {"backend": "Landlock"}}, "sandbox.backend", 'must be "auto", "bubblewrap", "landlock", "seatbelt" or "none"'),
    ({"sandbox": {"requireTier": "C"}}, "sandbox.requireTier", 'must be "A", "B" or null'),
    ({"sandbox": {"writablePaths": ["/x", "y"]}}, "sandbox.writablePaths[1]", "a path must be absolute or start with ~/, not 'y'"),
    ({"sandbox": {"writablePaths": ["~"]}}, "sandbox.writablePaths[0]", "a path must be absolute or start with ~/, not '~'"),
    ({"sandbox": {"protectedPaths": ["~bob/x"]}}, "sandbox.protectedPaths[0]", "a path must be absolute or start with ~/, not '~bob/x'"),
    ({"sandbox": {"protectedPaths": [""]}}, "sandbox.protectedPaths[0]", "a path must be absolute or start with ~/, not ''"),
    ({"sandbox": {"protectedPaths": ["/a\0b"]}}, "sandbox.protectedPaths[0]", "a path cannot hold a NUL character"),
    ({"sandbox": {"protectedPaths": "guard-project"}}, "sandbox.protectedPaths", "must be a list of paths and presets: guard-project"),
    ({"sandbox": {"protectedPaths": ["guard-home"]}}, "sandbox.protectedPaths[0]", "'guard-home' is no path (absolute or starting with ~/) and no preset; presets: guard-project"),
    ({"sandbox": {"protectedPaths": ["guard-project", ".git"]}}, "sandbox.protectedPaths[1]", "'.git' is no path (absolute or starting with ~/) and no preset; presets: guard-project"),
    ({"sandbox": {"protectedPaths": ["x/guard-project"]}}, "sandbox.protectedPaths[0]", "a path must be absolute or start with ~/, not 'x/guard-project'"),
    ({"sandbox": {"writablePaths": ["guard-project"]}}, "sandbox.writablePaths[0]", "a path must be absolute or start with ~/, not 'guard-project'"),
    ({"sandbox": {"nested": "trust"}}, "sandbox.nested", 'must be "refuse" or "trust-outer"'),
    ({"sandbox": {"observe": "no"}}, "sandbox.observe", "must be true or false"),
    ({"sandbox": {"environment": ["PATH"]}}, "sandbox.environment", 'must be "all" or "allow-list"'),
    ({"sandbox": {"environmentAllow": "PATH"}}, "sandbox.environmentAllow", "must be a list of names and beginnings of names, like CARGO_*"),
    ({"sandbox": {"environmentAllow": ["X", "*"]}}, "sandbox.environmentAllow[1]", 'every variable is what "environment": "all" passes on; name some, like CARGO_*'),
    ({"sandbox": {"environmentAllow": [""]}}, "sandbox.environmentAllow[0]", "a variable's name is wanted, or the beginning of names like CARGO_*, not ''"),
    ({"sandbox": {"environmentAllow": ["*_KEY"]}}, "sandbox.environmentAllow[0]", "a variable's name is wanted, or the beginning of names like CARGO_*, not '*_KEY'"),
    ({"sandbox": {"environmentAllow": ["A=1"]}}, "sandbox.environmentAllow[0]", "a variable's name is wanted, or the beginning of names like CARGO_*, not 'A=1'"),
    ({"audit": {"maxFileBytes": 4095}}, "audit.maxFileBytes", "must be a whole number, 4096 or more"),
    ({"audit": {"maxFileBytes": 5000.5}}, "audit.maxFileBytes", "must be a whole number, 4096 or more"),
    ({"audit": {"maxFileBytes": True}}, "audit.maxFileBytes", "must be a whole number, 4096 or more"),
    ({"audit": {"keepFiles": -1}}, "audit.keepFiles", "must be a whole number from 0 to 100"),
    ({"audit": {"keepFiles": 101}}, "audit.keepFiles", "must be a whole number from 0 to 100"),
    ({"limits": {"commandTimeoutSeconds": 0}}, "limits.commandTimeoutSeconds", "must be a number above 0 and at most 86400"),
    ({"limits": {"commandTimeoutSeconds": 86401}}, "limits.commandTimeoutSeconds", "must be a number above 0 and at most 86400"),
    ({"limits": {"commandTimeoutSeconds": "60"}}, "limits.commandTimeoutSeconds", "must be a number above 0 and at most 86400"),
    ({"limits": {"commandMaxOutputBytes": 255}}, "limits.commandMaxOutputBytes", "must be a whole number from 256 to 1048576"),
    ({"limits": {"commandMaxOutputBytes": 1048577}}, "limits.commandMaxOutputBytes", "must be a whole number from 256 to 1048576"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "key", "reason"), WRONG_VALUES, ids=[f"{key} {value}" for value, key, _ in WRONG_VALUES]
)
def test_a_wrong_value_is_an_error_that_says_what_is_allowed(home: Path, value: object, key: str, reason: str) -> None:
    assert _error(home, value) == (1, key, reason)


@pytest.mark.parametrize("value", [4096, 10**17])
def test_values_at_the_bounds_are_allowed(home: Path, value: int) -> None:
    _write(home, {"audit": {"maxFileBytes": value, "keepFiles": 100}, "limits": {"commandTimeoutSeconds": 86400}})
    assert load_settings(str(home)) == Settings(audit=AuditSettings(True, value, 100), limits=LimitSettings(86400))


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend_can_be_configured(home: Path, backend: str) -> None:
    _write(home, {"sandbox": {"backend": backend}})
    assert load_settings(str(home)).sandbox.backend == backend


UNKNOWN = [
    ({"sandbox": {"allowNetwrok": True}}, "sandbox.allowNetwrok", "unknown key; did you mean sandbox.allowNetwork?"),
    ({"sandbox": {"allow_network": True}}, "sandbox.allow_network", "unknown key; did you mean sandbox.allowNetwork?"),
    ({"sandbox": {"environmentAllowed": []}}, "sandbox.environmentAllowed", "unknown key; did you mean sandbox.environmentAllow?"),
    ({"sandbox": {"protectedPath": []}}, "sandbox.protectedPath", "unknown key; did you mean sandbox.protectedPaths?"),
    ({"allowNetwork": False}, "allowNetwork", "unknown key; did you mean sandbox.allowNetwork?"),
    ({"sandbx": {}}, "sandbx", "unknown key; did you mean sandbox?"),
    ({"command_policy": {}}, "command_policy", "unknown key; did you mean commandPolicy?"),
    ({"zzz": 1}, "zzz", "unknown key; known here: commandPolicy, sandbox, audit, limits"),
    ({"audit": {"zzz": 1}}, "audit.zzz", "unknown key; known here: enabled, maxFileBytes, keepFiles"),
    ({"audit": {"\x1b[2J": 1}}, "audit.\\x1b[2J", "unknown key; known here: enabled, maxFileBytes, keepFiles"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "key", "reason"), UNKNOWN, ids=[key for _, key, _ in UNKNOWN])
def test_an_unknown_key_is_an_error_that_names_the_nearest(home: Path, value: object, key: str, reason: str) -> None:
    assert _error(home, value) == (1, key, reason)


def test_a_pattern_that_does_not_compile_is_an_error_with_its_line(home: Path) -> None:
    text = '{"commandPolicy": {\n  "deny": [\n    "fine",\n    "("\n  ]}}'
    line, key, reason = _error(home, text)
    assert (line, key) == (4, "commandPolicy.deny[1]")
    assert reason == "the pattern '(' does not compile: missing ): ( (google-re2 syntax is wanted)"


def test_the_line_is_that_of_the_key_and_the_first_mistake_counts(home: Path) -> None:
    text = '{\n "audit": {\n  "enabled": true,\n  "keepFiles":\n    -1\n },\n "sandbox": {"enabled": 3},\n "x": 1}'
    assert _error(home, text)[:2] == (7, "sandbox.enabled")
    assert _error(home, text.replace("3", "false"))[:2] == (8, "x")
    assert _error(home, text.replace("3", "false").replace(',\n "x": 1', ""))[:2] == (4, "audit.keepFiles")


NO_JSON = [
    ("", 0, "", "is empty; write {} in it, or remove it"),
    (" \n\t\n", 0, "", "is empty; write {} in it, or remove it"),
    ("[]", 1, "", "one object in braces is wanted, like {}"),
    ("null", 1, "", "one object in braces is wanted, like {}"),
    ("{", 1, "", "a key in double quotes is wanted here, not the end of the file"),
    ("{\n// why\n}", 2, "", "a key in double quotes is wanted here, not a comment: JSON has none"),
    ("{'a': 1}", 1, "", "a key in double quotes is wanted here, not \"'\""),
    ('{"audit" {}}', 1, "audit", "a colon is wanted after the key, not '{'"),
    ('{"audit": {},}', 1, "", "no comma may stand before }"),
    ('{"audit": {}\n"x": 1}', 2, "", "a comma or } is wanted here, not '\"'"),
    ('{"audit":\n}', 2, "audit", "a value is wanted here, not '}'"),
    ('{"a": [1, 2,]}', 1, "a", "no comma may stand before ]"),
    ('{"a": [1 2]}', 1, "a", "a comma or ] is wanted here, not '2'"),
    ('{"a": "x\n"}', 1, "a", "invalid control character"),
    ('{"a": "x', 1, "a", "unterminated string"),
    ("{} {}", 1, "", "the file ends after its closing brace, not with '{'"),
    ('{"a": 01}', 1, "", "a comma or } is wanted here, not '1'"),
    ('{"a": NaN}', 1, "a", "NaN is no number in JSON"),
    ('{"a": -Infinity}', 1, "a", "-Infinity is no number in JSON"),
    ('{"a": 1e999}', 1, "a", "the number is too large"),
    ('{"a": 1234567890123456789}', 1, "a", "a number of at most 18 digits is wanted"),
    ('{"a": ' + "9" * 5000 + "}", 1, "a", "a number of at most 18 digits is wanted"),
    ('{"a": "\\ud800"}', 1, "a", "the text holds half of a surrogate pair, which is no character"),
    ('{"\\udc00": 1}', 1, "", "the text holds half of a surrogate pair, which is no character"),
    ('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", 1, "a[0]", "nested deeper than 32 levels"),
    ('{"a":' * 100_000, 1, "a.a", "nested deeper than 32 levels"),
    ('{"audit": {\n"enabled": true,\n"enabled": false}}', 3, "audit.enabled", "the key is there twice; the first is in line 2"),
    ('{"audit": {}, "\\u0061udit": {}}', 1, "audit", "the key is there twice; the first is in line 1"),
    ('{"a": "\0"}', 1, "", "holds a NUL byte"),
    (b"\xef\xbb\xbf{}", 1, "", "starts with a byte order mark; save it as UTF-8 without one"),
    ("{}".encode("utf-16"), 1, "", "starts with a byte order mark; save it as UTF-8 without one"),
    (b'{"a":\n"\xff"}', 2, "", "byte 7 is not UTF-8; save the file as UTF-8"),
    ("{}".encode("utf-16-le"), 1, "", "holds a NUL byte"),
    (b" " * (1024 * 1024 + 1), 0, "", "is longer than 1048576 bytes"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "line", "key", "reason"),
    NO_JSON,
    ids=[f"{number} {str(case[0])[:20]!r}" for number, case in enumerate(NO_JSON)],
)
def test_what_is_not_one_json_object_is_an_error_with_its_line(
    home: Path, text: str | bytes, line: int, key: str, reason: str
) -> None:
    assert _error(home, text) == (line, key, reason)


def _make_directory(path: Path) -> None:
    path.mkdir()


def _make_fifo(path: Path) -> None:
    os.mkfifo(path)


def _make_socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # a socket's name may have 107 bytes at most
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(path.name)
    os.chdir(here)


def _make_link(path: Path) -> None:
    path.with_name("target").write_text("{}")
    path.symlink_to("target")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (_make_directory, "is a directory; a plain file is wanted here"),
        (_make_fifo, "is no plain file; a plain file is wanted here"),
        (_make_socket, "cannot be read: No such device or address"),
        (_make_link, "is a symbolic link; put the file itself here: what a link leads to is not protected from commands"),
        (lambda path: path.symlink_to("nowhere"), "is a symbolic link; put the file itself here: what a link leads to is not protected from commands"),
    ],
    ids=["directory", "fifo", "socket", "link", "dangling link"],
)  # fmt: skip
@pytest.mark.skipif(sys.platform != "linux", reason="the words for a socket are the kernel's")
def test_what_is_no_plain_file_is_an_error_and_no_default(home: Path, make: object, reason: str) -> None:
    path = home / "config.json"
    make(path)  # type: ignore[operator]
    with pytest.raises(ConfigError) as caught:
        load_settings(str(home))
    assert (caught.value.path, caught.value.line, caught.value.reason) == (str(path), 0, reason)


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_may_write_is_an_error_that_says_chmod(home: Path, mode: int) -> None:
    path = _write(home, "{}")
    path.chmod(mode)
    with pytest.raises(ConfigError) as caught:
        load_settings(str(home))
    assert caught.value.reason == f"others may write it; run: chmod go-w {path}"
    path.chmod(0o644)
    assert load_settings(str(home)) == Settings()


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o1777])
def test_a_home_that_others_may_write_is_an_error_even_without_a_file(home: Path, mode: int) -> None:
    home.chmod(mode)
    with pytest.raises(ConfigError) as caught:
        load_settings(str(home))
    assert (caught.value.path, caught.value.reason) == (str(home), f"others may write it; run: chmod go-w {home}")
    home.chmod(0o755)
    assert load_settings(str(home)) == Settings()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize("what", ["home", "file"])
def test_what_belongs_to_another_user_is_an_error(home: Path, what: str) -> None:
    path = _write(home, "{}")
    given = home if what == "home" else path
    os.chown(given, 12345, 12345)
    with pytest.raises(ConfigError) as caught:
        load_settings(str(home))
    assert caught.value.path == str(given)
    assert caught.value.reason == (
        "belongs to another user (uid 12345), who could widen it; chown it, or name a directory of your own in WISP_HOME"
    )


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_cannot_be_read_is_an_error(home: Path) -> None:
    path = _write(home, "{}")
    path.chmod(0o000)
    with pytest.raises(ConfigError) as caught:
        load_settings(str(home))
    assert caught.value.reason == "cannot be read: Permission denied"
    path.chmod(0o600)
    assert load_settings(str(home)) == Settings()


def test_a_home_that_is_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"file: is not a directory"):
        load_settings(str(tmp_path / "file"))
    with pytest.raises(ConfigError, match=r"is not a directory"):
        load_settings(str(tmp_path / "file" / "deeper"))


def test_a_home_with_a_nul_byte_is_an_error() -> None:
    with pytest.raises(ConfigError, match="NUL byte"):
        load_settings("/tmp/a\0b")


KEYS = st.sampled_from(["commandPolicy", "sandbox", "audit", "limits", "deny", "enabled", "keepFiles", "backend", "x"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@given(JSON | st.dictionaries(KEYS, JSON, max_size=4))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_json_gives_settings_or_an_error_that_names_the_file(home: Path, value: object) -> None:
    path = _write(home, value)
    loaded: Settings | None = None
    wrong = ConfigError(str(path), 0, "", "none")
    try:
        loaded = load_settings(str(home))
    except ConfigError as error:
        wrong = error
    assert loaded is None or isinstance(value, dict)
    assert wrong.path == str(path)
    assert wrong.line >= 0
    assert wrong.reason


@given(st.binary(max_size=80) | st.text(alphabet='{}[]":,\\ntruefalsnu0123456789.eE+- \n', max_size=40).map(str.encode))
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_give_settings_or_an_error(home: Path, data: bytes) -> None:
    _write(home, data)
    try:
        load_settings(str(home))
    except ConfigError:
        return
    assert isinstance(json.loads(data), dict)


@pytest.mark.parametrize("value", [None, ""])
def test_the_home_is_a_directory_in_the_users_own(
    value: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WISP_HOME", raising=False)
    if value is not None:
        monkeypatch.setenv("WISP_HOME", value)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert home_directory() == f"{tmp_path}/.wisp"


@pytest.mark.parametrize("value", [None, "", "relative"])
def test_without_a_usable_home_the_password_database_answers(
    value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WISP_HOME", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    if value is not None:
        monkeypatch.setenv("HOME", value)
    assert home_directory() == os.path.realpath(pwd.getpwuid(os.getuid()).pw_dir) + "/.wisp"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a user without an entry")
def test_a_user_without_any_home_is_told_to_name_one() -> None:
    code = (
        "import os\n"
        "from wisp.config import home_directory\n"
        "from wisp.errors import ConfigError\n"
        "os.setuid(54321)\n"  # after the imports: this Python may lie in root's own home
        "try: home_directory()\n"
        "except ConfigError as error: print(error)\n"
    )
    environment = {key: value for key, value in os.environ.items() if key not in {"HOME", "WISP_HOME"}}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout == (
        "the environment: HOME: is not set, and uid 54321 is not in the password database; set WISP_HOME\n"
    )


def test_wisp_home_is_the_home_as_a_real_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.setenv("WISP_HOME", f"{tmp_path}/link/../link/not-there/")
    assert home_directory() == f"{tmp_path}/real/not-there"


@pytest.mark.parametrize("value", ["relative", "./x", "~/x", "\x1b[2J"])
def test_a_relative_wisp_home_is_an_error(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WISP_HOME", value)
    with pytest.raises(ConfigError, match="the environment: WISP_HOME: must be an absolute path") as caught:
        home_directory()
    assert "\x1b" not in str(caught.value)
