from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wisp.outcome import Cause, Refusal
from wisp.refusal.check import MOST_PATHS, can_write

if TYPE_CHECKING:
    from .conftest import Ground

EPERM = "Operation not permitted"
EACCES = "Permission denied"
EROFS = "Read-only file system"
EXDEV = "Invalid cross-device link"


def refused(*paths: str, cause: Cause = "outside", phrase: str = EPERM, shape: str = "field") -> Refusal:
    return Refusal("refused", cause, "path", paths, phrase, shape)


def not_the_sandbox(*paths: str, cause: Cause = "inside", phrase: str = EPERM, shape: str = "field") -> Refusal:
    return Refusal("not-the-sandbox", cause, "path", paths, phrase, shape)


def guess(phrase: str = EPERM, cause: Cause = "no-path") -> Refusal:
    return Refusal("guess", cause, "text", (), phrase)


# --- when there is something to say ---


def test_a_command_that_succeeded_was_not_refused(ground: Ground) -> None:
    said = f"touch: {ground.outside}/x: {EPERM}\n"
    assert ground.verdict(said, exit_status=0) is None
    assert ground.verdict(said, exit_status=1) == refused(f"{ground.outside}/x", shape="bsd-tool")


def test_a_command_ended_by_a_signal_may_have_been_refused(ground: Ground) -> None:
    said = f"touch: {ground.outside}/x: {EPERM}\n"
    assert ground.verdict(said, exit_status=-6) == refused(f"{ground.outside}/x", shape="bsd-tool")


@pytest.mark.parametrize(
    "said",
    [
        "",
        "touch: /etc/x: No such file or directory\n",
        "cp: /nowhere/x: No space left on device\n",
        "error: it failed\n",
    ],
)
def test_an_output_without_the_layers_text_says_nothing(said: str, ground: Ground) -> None:
    assert ground.verdict(said) is None
    assert ground.verdict(said, "landlock") is None


def test_each_layer_has_its_own_text(ground: Ground) -> None:
    path = f"{ground.outside}/x"
    for text, layers in ((EPERM, "seatbelt"), (EACCES, "landlock"), (EROFS, "mounts")):
        assert ground.verdict(f"touch: {path}: {text}", layers) == refused(path, phrase=text, shape="bsd-tool")
    assert ground.verdict(f"touch: {path}: {EACCES}", "seatbelt") is None
    assert ground.verdict(f"touch: {path}: {EROFS}", "landlock") is None


def test_a_text_is_known_in_any_case_and_reported_as_the_layer_words_it(ground: Ground) -> None:
    path = f"{ground.outside}/x"
    assert ground.verdict(f"open {path}: operation not permitted") == refused(path, shape="go")
    assert ground.verdict(f"open {path}: PERMISSION DENIED", "landlock") == refused(path, phrase=EACCES, shape="go")


@pytest.mark.parametrize(
    "line",
    [
        'run.c:2:9: note: puts("cp: /usr/bin/x: Operation not permitted\\n"); return 1;',
        "awk: cmd. line:1: /Operation not permitted/ { print $2",
        "cat: 'rm: /etc/x: Operation not permitted': No such file or directory",
        '  right: "touch: /etc/x: Operation not permitted"',
        "error: could not apply 3cd7223... handle EPERM: operation not permitted, mkdir '/opt/x'",
    ],
)
def test_a_text_that_is_quoted_and_not_said_is_no_error(line: str, ground: Ground) -> None:
    assert ground.verdict(line + "\n") is None


def test_a_server_that_turns_a_login_down_is_no_sandbox(ground: Ground) -> None:
    assert ground.verdict("git@example.invalid: Permission denied (publickey).\n", "landlock") is None
    assert ground.verdict("Permission denied, please try again.\n", "landlock") is None


# --- which paths are named ---


def test_several_lines_name_their_paths_in_order_and_each_once(ground: Ground) -> None:
    first, second = f"{ground.outside}/b", f"{ground.outside}/a"
    said = f"cp: {first}: {EPERM}\nmake: *** [install] Error 1\nmkdir: {second}: {EPERM}\ncp: {first}: {EPERM}\n"
    assert ground.verdict(said) == refused(first, second, shape="bsd-tool")


def test_one_path_outside_is_enough_and_is_the_only_one_listed(ground: Ground) -> None:
    said = f"rm: {ground.root}/a: {EPERM}\nrm: {ground.outside}/b: {EPERM}\nrm: {ground.root}/c: {EPERM}\n"
    assert ground.verdict(said) == refused(f"{ground.outside}/b", shape="bsd-tool")


def test_at_most_eight_paths_are_kept_and_a_late_one_still_decides(ground: Ground) -> None:
    inside = "".join(f"rm: {ground.root}/{number}: {EPERM}\n" for number in range(20))
    kept = tuple(f"{ground.root}/{number}" for number in range(MOST_PATHS))
    assert ground.verdict(inside) == not_the_sandbox(*kept, shape="bsd-tool")
    assert ground.verdict(f"{inside}rm: {ground.outside}/x: {EPERM}\n") == refused(
        f"{ground.outside}/x", shape="bsd-tool"
    )
    outside = "".join(f"rm: {ground.outside}/{number}: {EPERM}\n" for number in range(20))
    verdict = ground.verdict(outside)
    assert verdict is not None
    assert len(verdict.paths) == MOST_PATHS


def test_colours_and_carriage_returns_do_not_hide_a_path(ground: Ground) -> None:
    path = f"{ground.outside}/x"
    said = f"  50%  \r\x1b[1m\x1b[91merror\x1b[0m: could not create file `{path}`: {EPERM} (os error 1)\x1b[0m\r\n"
    assert ground.verdict(said) == refused(path, shape="quoted")


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("'{}/two words'", "two words"),
        ("'{}/it'\\''s: old'", "it's: old"),
        ("\u2018{}/curly\u2019", "curly"),
        ("'{}/'$'\\303\\234''ber'", "\u00dcber"),
        ("'{}/a'$'\\n''b'", "a\nb"),
        ('"{}/it\'s"', "it's"),
    ],
)
def test_a_quoted_name_is_read_as_the_shell_would(written: str, name: str, ground: Ground) -> None:
    said = f"touch: cannot touch {written.format(ground.outside)}: {EPERM}\n"
    assert ground.verdict(said) == refused(f"{ground.outside}/{name}", shape="quoted")


def test_a_name_in_pythons_notation_is_read_as_python_would(ground: Ground) -> None:
    said = f"PermissionError: [Errno 1] {EPERM}: '{ground.outside}/a\\nb\\\\c'\n"
    assert ground.verdict(said) == refused(f"{ground.outside}/a\nb\\c", shape="python")


@pytest.mark.parametrize(
    "said",
    [
        "Error: Operation not permitted\n",
        "kill: (1) - Operation not permitted\n",
        "stop.rb:1:in `kill': Operation not permitted (Errno::EPERM)\n",
        "PermissionError: [Errno 1] Operation not permitted\n",
        "ssh: connect to host 127.0.0.1 port 22: Operation not permitted\n",
        "date: cannot set date: Operation not permitted\n",
        "renice: failed to set priority for 27342 (process ID): Operation not permitted\n",
        "Can't open the log file: Operation not permitted\n",
        "zsh:1: operation not permitted: ps\n",
        "Error: EPERM: operation not permitted, uv_cwd\n",
        "socat[13] E connect(5, AF=2 127.0.0.1:9, 16): Operation not permitted\n",
        "strace: ptrace(PTRACE_TRACEME, ...): Operation not permitted\n",
    ],
)
def test_an_error_that_names_no_file_is_a_guess(said: str, ground: Ground) -> None:
    assert ground.verdict(said) == guess()


def test_a_descriptor_of_the_command_cannot_be_looked_up_from_here(ground: Ground) -> None:
    # /dev/stderr leads to wherever the command's own stream goes, not wisp's.
    for name in ("/dev/stderr", "/dev/fd/3", "/proc/self/fd/1", "/dev/tcp/127.0.0.1/9"):
        assert ground.verdict(f"bash: line 1: {name}: {EACCES}\n", "landlock") == guess(EACCES)


# --- where a path is ---


def test_relative_names_are_seen_from_the_commands_directory(ground: Ground) -> None:
    below = f"{ground.root}/sub"
    Path(below).mkdir()
    for written, verdict in (
        ("./x", not_the_sandbox(f"{below}/x", shape="bsd-tool")),
        ("../x", not_the_sandbox(f"{ground.root}/x", shape="bsd-tool")),
        ("../../x", refused(f"{ground.home}/x", shape="bsd-tool")),
        ("../../project/x", not_the_sandbox(f"{ground.root}/x", shape="bsd-tool")),
        ("x", not_the_sandbox(f"{below}/x", shape="bsd-tool")),
    ):
        assert ground.verdict(f"touch: {written}: {EPERM}\n", directory=below) == verdict


def test_a_tilde_is_the_home_directory_and_only_in_front_of_a_slash(ground: Ground) -> None:
    assert ground.verdict(f"touch: ~/x: {EPERM}\n") == refused(f"{ground.home}/x", shape="bsd-tool")
    assert ground.verdict(f"touch: ~/project/x: {EPERM}\n") == not_the_sandbox(f"{ground.root}/x", shape="bsd-tool")
    assert ground.verdict(f"touch: ./~x: {EPERM}\n") == not_the_sandbox(f"{ground.root}/~x", shape="bsd-tool")


def test_a_name_that_begins_with_a_roots_name_is_not_inside_it(ground: Ground) -> None:
    assert ground.verdict(f"touch: {ground.root}2/x: {EPERM}\n") == refused(f"{ground.root}2/x", shape="bsd-tool")


def test_a_root_itself_is_inside(ground: Ground) -> None:
    assert ground.verdict(f"chmod: {ground.root}/: {EPERM}\n") == not_the_sandbox(ground.root, shape="bsd-tool")


def test_links_are_resolved_before_dots_as_the_kernel_does(ground: Ground) -> None:
    Path(f"{ground.outside}/deep").mkdir()
    Path(f"{ground.root}/out").symlink_to(f"{ground.outside}/deep")
    Path(f"{ground.outside}/in").symlink_to(ground.root)
    assert ground.verdict(f"touch: out/x: {EPERM}\n") == refused(f"{ground.outside}/deep/x", shape="bsd-tool")
    assert ground.verdict(f"touch: out/../x: {EPERM}\n") == refused(f"{ground.outside}/x", shape="bsd-tool")
    assert ground.verdict(f"touch: {ground.outside}/in/x: {EPERM}\n") == not_the_sandbox(
        f"{ground.root}/x", shape="bsd-tool"
    )


def test_a_root_given_by_a_link_is_compared_as_a_real_path(ground: Ground, tmp_path: Path) -> None:
    alias = tmp_path / "alias"
    alias.symlink_to(ground.root)
    assert ground.verdict(f"touch: {alias}/x: {EPERM}\n") == not_the_sandbox(f"{ground.root}/x", shape="bsd-tool")


def test_a_protected_path_inside_a_root_is_refused_for_that_reason(ground: Ground) -> None:
    said = f"touch: cannot touch '{ground.protected}/x': {EACCES}\n"
    expected = refused(f"{ground.protected}/x", cause="protected", phrase=EACCES, shape="quoted")
    assert ground.verdict(said, "landlock") == expected


def test_devices_that_commands_may_use_are_not_the_sandboxs(ground: Ground) -> None:
    assert ground.verdict(f"sh: line 1: /dev/null: {EACCES}\n", "landlock") == not_the_sandbox(
        "/dev/null", phrase=EACCES, shape="shell-line"
    )
    assert ground.verdict(f"sh: line 1: /dev/mem: {EACCES}\n", "landlock") == refused(
        "/dev/mem", phrase=EACCES, shape="shell-line"
    )


# --- whose refusal it is, where mode bits share the error ---


@pytest.mark.parametrize(("text", "layers"), [(EACCES, "landlock"), (EROFS, "mounts")])
def test_a_path_that_wisp_could_not_write_either_is_not_the_sandboxs(text: str, layers: str, ground: Ground) -> None:
    path = f"{ground.outside}/x"
    said = f"touch: cannot touch '{path}': {text}\n"
    assert ground.verdict(said, layers, may_write=False) == not_the_sandbox(
        path, cause="own-permissions", phrase=text, shape="quoted"
    )
    assert ground.verdict(said, layers, may_write=True) == refused(path, phrase=text, shape="quoted")


def test_seatbelts_error_is_not_given_for_mode_bits(ground: Ground) -> None:
    said = f"touch: {ground.outside}/x: {EPERM}\n"
    assert ground.verdict(said, may_write=False) == refused(f"{ground.outside}/x", shape="bsd-tool")


@pytest.mark.parametrize(
    "line",
    [
        "cat: {}: {}",
        "ls: cannot open directory '{}': {}",
        "cp: cannot open '{}' for reading: {}",
        "cp: cannot stat '{}': {}",
        "find: \u2018{}\u2019: {}",
        "bash: line 1: cd: {}: {}",
        "sh: 1: {}: {}",
        "make: {}: {}",
        "fork/exec {}: {}",
    ],
)
def test_a_read_is_never_the_sandboxs(line: str, ground: Ground) -> None:
    path = f"{ground.outside}/x"
    verdict = ground.verdict(line.format(path, EACCES) + "\n", "landlock")
    assert verdict is not None
    assert (verdict.verdict, verdict.cause, verdict.paths) == ("not-the-sandbox", "read", (path,))


def test_a_write_beside_a_read_decides(ground: Ground) -> None:
    said = f"cat: {ground.outside}/a: {EACCES}\ntee: {ground.outside}/b: {EACCES}\n"
    assert ground.verdict(said, "landlock") == refused(f"{ground.outside}/b", phrase=EACCES, shape="bsd-tool")


def test_a_read_that_names_no_path_says_nothing(ground: Ground) -> None:
    assert ground.verdict(f"cat: notes: {EACCES}\n", "landlock", directory=ground.outside) is not None
    assert ground.verdict(f"bash: line 1: cd: secret: {EACCES}\n", "landlock") is None


def test_a_program_that_a_shell_could_not_run_is_told_from_a_redirection_by_the_exit_status(ground: Ground) -> None:
    said = f"bash: line 1: {ground.outside}/tool: {EACCES}\n"
    assert ground.verdict(said, "landlock", exit_status=126) == not_the_sandbox(
        f"{ground.outside}/tool", cause="read", phrase=EACCES, shape="shell-line"
    )
    assert ground.verdict(said, "landlock", exit_status=1) == refused(
        f"{ground.outside}/tool", phrase=EACCES, shape="shell-line"
    )


def test_a_script_without_its_execute_bit_is_not_the_sandboxs(ground: Ground) -> None:
    assert ground.verdict(f"sh: 1: ./build.sh: {EACCES}\n", "landlock", exit_status=126) == not_the_sandbox(
        f"{ground.root}/build.sh", phrase=EACCES, shape="dash-command"
    )


def test_a_relative_name_that_has_no_reason_to_be_refused_is_not_believed(ground: Ground) -> None:
    # `cd elsewhere && touch new`: the name is not under the directory the command was started in.
    said = f"touch: cannot touch 'new': {EACCES}\n"
    assert ground.verdict(said, "landlock") == guess(EACCES)
    assert ground.verdict(said, "landlock", may_write=False) == not_the_sandbox(
        f"{ground.root}/new", phrase=EACCES, shape="quoted"
    )
    assert ground.verdict(said, "landlock", directory=ground.outside) == refused(
        f"{ground.outside}/new", phrase=EACCES, shape="quoted"
    )


# --- links, pinned directories, calls ---


def linked(a: str, b: str, text: str = EXDEV) -> str:
    return f"ln: failed to create hard link '{a}' => '{b}': {text}\n"


def test_a_link_across_the_border_of_a_root_is_refused_for_the_end_outside(ground: Ground) -> None:
    said = linked(f"{ground.root}/a", f"{ground.outside}/b")
    assert ground.verdict(said, "landlock") == refused(f"{ground.outside}/b", phrase=EXDEV, shape="gnu-hard-link")


def test_a_link_between_two_roots_is_refused_only_where_roots_are_mounts(ground: Ground) -> None:
    a, b = f"{ground.root}/a", f"{ground.root2}/b"
    assert ground.verdict(linked(a, b), "mounts") == refused(
        a, b, cause="across-roots", phrase=EXDEV, shape="gnu-hard-link"
    )
    assert ground.verdict(linked(a, b), "landlock") == not_the_sandbox(a, b, phrase=EXDEV, shape="gnu-hard-link")


def test_a_link_within_one_root_is_never_across_roots(ground: Ground) -> None:
    a, b = f"{ground.root}/a", f"{ground.root}/b"
    assert ground.verdict(linked(a, b), "mounts") == not_the_sandbox(a, b, phrase=EXDEV, shape="gnu-hard-link")


def test_moving_a_directory_above_a_protected_path_is_refused_as_protected(ground: Ground) -> None:
    busy = "Device or resource busy"
    said = f"mv: cannot move '{ground.root}' to '{ground.root2}/away': {busy}\n"
    assert ground.verdict(said, "mounts") == refused(ground.root, cause="protected", phrase=busy, shape="gnu-move")


def test_any_other_busy_thing_says_nothing(ground: Ground) -> None:
    busy = "Device or resource busy"
    assert ground.verdict(f"rm: cannot remove '{ground.root}/mnt': {busy}\n", "mounts") is None
    assert ground.verdict(f"umount: {busy}\n", "mounts") is None


def test_a_call_text_beside_a_path_of_the_users_own_stays_a_guess(ground: Ground) -> None:
    # Under Landlock EPERM comes from seccomp, scopes or dropped capabilities: never for a plain write.
    said = f"chown: changing ownership of '{ground.root}/x': {EPERM}\n"
    assert ground.verdict(said, "landlock") == guess()


def test_a_call_text_beside_a_path_of_somebody_else_is_not_the_sandboxs(ground: Ground) -> None:
    path = f"{ground.outside}/x"
    assert ground.verdict(f"chown: changing ownership of '{path}': {EPERM}\n", "landlock", may_write=False) == (
        not_the_sandbox(path, cause="own-permissions", shape="quoted")
    )


@pytest.mark.parametrize(
    "said",
    [
        "bash: socket: Operation not permitted\n",
        'Get "https://10.0.0.1/": dial tcp 10.0.0.1:443: connect: operation not permitted\n',
        "    sock.connect(address)\nPermissionError: [Errno 1] Operation not permitted\n",
    ],
)
@pytest.mark.parametrize("layers", ["seatbelt", "landlock"])
def test_a_network_call_is_the_networks_only_while_it_is_off(said: str, layers: str, ground: Ground) -> None:
    assert ground.verdict(said, layers, network=False) == guess(cause="network")
    assert ground.verdict(said, layers, network=True) == guess()


# --- Homebrew's list ---


def test_homebrews_list_of_directories_is_read_as_far_as_it_goes(ground: Ground) -> None:
    said = (
        f"Error: The following directories are not writable by your user:\n{ground.outside}\n{ground.outside}/etc\n\n"
        f"You should change the ownership of these directories to your user.\n  sudo chown -R me /not/listed\n"
    )
    assert ground.verdict(said) == refused(
        ground.outside, f"{ground.outside}/etc", phrase="not writable", shape="homebrew-list"
    )
    assert ground.verdict(said.replace(ground.outside, ground.root)) == not_the_sandbox(
        ground.root, f"{ground.root}/etc", phrase="not writable", shape="homebrew-list"
    )


@pytest.mark.parametrize("said", ["io.UnsupportedOperation: not writable\n", "WARN channel is not writable, waiting\n"])
def test_a_stream_that_is_not_writable_says_nothing(said: str, ground: Ground) -> None:
    assert ground.verdict(said) is None


# --- hostile output ---

FRAGMENTS = st.sampled_from(
    [
        EPERM,
        EACCES,
        EXDEV,
        "Device or resource busy",
        "not writable",
        ": ",
        "'",
        '"',
        "`",
        "\n",
        "/",
        "../",
        "~/",
        " -> ",
        " to ",
        "touch: cannot touch ",
        "[Errno 1] ",
        "EPERM: ",
        "sh: 1: ",
        "\0",
        "\udfff",
        "\ud800",
        "$'\\777\\xff\\u00e9'",
        "a" * 5000,
    ]
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    said=st.one_of(
        st.text(),
        st.binary().map(lambda raw: raw.decode("utf-8", "replace")),
        st.lists(FRAGMENTS, max_size=40).map("".join),
    )
)
def test_any_output_gets_a_verdict_and_never_an_error(said: str, ground: Ground) -> None:
    for layers in ("seatbelt", "landlock", "mounts"):
        verdict = ground.verdict(said, layers, network=False)
        assert verdict is None or (verdict.evidence == "text") == (verdict.paths == ())


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.text(
        st.characters(exclude_categories=["Cs", "Cc", "Z"], exclude_characters="'\"`\u2018\u2019\u201c\u201d\\/"),
        min_size=1,
        max_size=60,
    ).filter(lambda name: name not in {".", ".."})
)
def test_a_refused_path_is_outside_whatever_its_name(name: str, ground: Ground) -> None:
    path = f"{ground.outside}/{name}"
    assert ground.verdict(f"touch: cannot touch '{path}': {EPERM}\n") == refused(path, shape="quoted")


def test_a_flood_of_errors_is_read_at_both_ends(ground: Ground) -> None:
    flood = f"rm: {ground.root}/x: {EPERM}\n" * 5000
    late = f"{flood}rm: {ground.outside}/late: {EPERM}\n"
    assert ground.verdict(late) == refused(f"{ground.outside}/late", shape="bsd-tool")


# --- the default for may_write ---


def test_what_does_not_exist_yet_is_judged_by_where_it_would_be_made(tmp_path: Path) -> None:
    assert can_write(str(tmp_path / "not" / "yet"))
    assert can_write(str(tmp_path))


def test_the_effective_user_is_asked_and_not_the_real_one(tmp_path: Path) -> None:
    sealed = tmp_path / "sealed"
    sealed.mkdir(mode=0o500)
    tmp_path.chmod(0o500)
    program = (
        "import os, sys\n"
        "from wisp.refusal.check import can_write\n"
        "if os.geteuid() == 0: os.seteuid(65534)\n"
        "print(can_write(sys.argv[1]), can_write('/tmp/of-anyone'))\n"
    )
    try:
        ran = subprocess.run(
            [sys.executable, "-c", program, str(sealed / "new")],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
    finally:
        tmp_path.chmod(0o700)
    assert ran.stdout == "False True\n"
