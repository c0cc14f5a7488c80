from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wisp.realpath import is_inside
from wisp.sandbox.mounts import Plan, mount_options, unmountable_root

NAMES = st.sampled_from(["a", "b", "c d", "ä", "-x"])
PATHS = st.lists(NAMES, min_size=1, max_size=4).map(lambda names: "/" + "/".join(names))


def mounts(options: list[str]) -> list[tuple[str, str]]:
    """What is mounted where, in order: the kind and the place."""
    found, rest = [], iter(options)
    for option in rest:
        if option in {"--bind", "--ro-bind"}:
            source, place = next(rest), next(rest)
            found.append((option if source == place else f"{option} {source}", place))
        elif option in {"--dev", "--proc", "--tmpfs", "--remount-ro"}:
            found.append((option, next(rest)))
        elif option == "--perms":
            next(rest)
        else:
            raise AssertionError(option)
    return found


def test_all_is_read_only_but_the_roots_and_what_is_the_lanes_own() -> None:
    assert mounts(mount_options(Plan(("/work/a", "/tmp")))) == [
        ("--ro-bind", "/"),
        ("--dev", "/dev"),
        ("--tmpfs", "/dev/shm"),
        ("--remount-ro", "/dev"),
        ("--proc", "/proc"),
        ("--bind", "/work/a"),
        ("--bind", "/tmp"),
    ]


def test_what_lies_between_a_root_and_a_protected_path_is_pinned_before_it() -> None:
    plan = Plan(("/work",), pins=("/work/a/b", "/work/a"), protected=("/work/a/b/safe",))
    assert mounts(mount_options(plan))[-4:] == [
        ("--bind", "/work"),
        ("--bind", "/work/a"),
        ("--bind", "/work/a/b"),
        ("--ro-bind", "/work/a/b/safe"),
    ]


def test_hidden_places_lie_over_roots_and_under_roots_that_lie_in_them() -> None:
    plan = Plan(
        ("/tmp", "/run/user/5/work"),
        hidden_files=("/run/docker.sock", "/run/user/5/bus", "/tmp/agent"),
        hidden_directories=("/run/user/5", "/tmp/tmux-5"),
    )
    assert mounts(mount_options(plan))[5:] == [
        ("--tmpfs", "/run/user/5"),
        ("--bind", "/tmp"),
        ("--bind", "/run/user/5/work"),
        ("--remount-ro", "/run/user/5"),
        ("--tmpfs", "/tmp/tmux-5"),
        ("--remount-ro", "/tmp/tmux-5"),
        ("--ro-bind /dev/null", "/run/docker.sock"),
        ("--ro-bind /dev/null", "/tmp/agent"),
    ]


def test_everything_is_writable_only_where_that_was_asked_for() -> None:
    assert mounts(mount_options(Plan(("/",))))[0] == ("--bind", "/")
    assert mount_options(Plan(("/work",), sealed=False))[:6] == ["--bind", "/", "/", "--dev-bind", "/dev", "/dev"]
    assert mounts(mount_options(Plan(("/work",))))[0] == ("--ro-bind", "/")


def test_a_root_in_a_tree_of_the_lanes_own_is_none() -> None:
    for root in ("/proc", "/proc/self/cwd", "/dev", "/dev/pts", "/dev/mqueue"):
        assert unmountable_root(["/work", root]) == root
    assert unmountable_root(["/work", "/dev/shm/here", "/device", "/process", "/"]) == ""


@given(st.lists(PATHS, min_size=1, max_size=4, unique=True), st.lists(PATHS, max_size=3, unique=True))
def test_the_last_mount_at_or_above_a_path_says_whether_it_can_be_written(
    roots: list[str], protected: list[str]
) -> None:
    roots = [root for root in roots if not any(is_inside(root, one) for one in protected)]
    outer = tuple(one for one in roots if not any(one != other and is_inside(one, other) for other in roots))
    inside = tuple(one for one in protected if any(is_inside(one, root) for root in outer))
    placed = mounts(mount_options(Plan(outer, protected=inside)))
    for path in (*roots, *protected, "/elsewhere"):
        for below in (path, f"{path}/file"):
            covers = [kind for kind, place in placed if is_inside(below, place)]
            allowed = any(is_inside(below, root) for root in outer) and not any(is_inside(below, one) for one in inside)
            assert (covers[-1] == "--bind") is allowed
