"""Sockets that a confined command could reach: real ones, in scratch directories."""

from __future__ import annotations

import os
import secrets
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wisp.doctor.exposed import find_exposed, is_reachable
from wisp.doctor.report import Exposure
from wisp.sandbox.capability import Capability
from wisp.sandbox.sockets import SocketKind, Viewpoint, named_paths, socket_kinds

_KINDS = socket_kinds()


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory whose path is short: that of a socket may have about a hundred bytes."""
    with tempfile.TemporaryDirectory(prefix="w", dir="/tmp") as directory:
        yield Path(directory).resolve()


@contextmanager
def listening(address: str | Path, kind: socket.SocketKind = socket.SOCK_STREAM) -> Iterator[None]:
    with socket.socket(socket.AF_UNIX, kind) as server:
        server.bind(str(address))
        if kind != socket.SOCK_DGRAM:
            server.listen(1)
        yield


def _kind(*paths: Path, abstract: tuple[str, ...] = (), variables: tuple[str, ...] = ()) -> SocketKind:
    return SocketKind("made-up", "Made up", tuple(map(str, paths)), abstract, variables, "do things", "end it")


def _open_capability(*, holds: frozenset[str] = frozenset({"confine.abstract-sockets"})) -> Capability:
    return Capability("landlock", "B", "", (), holds, ())


_NOWHERE = Viewpoint((), (), (), ())


def _paths(kind: SocketKind, capability: Capability | None = None, **environment: str) -> tuple[str, ...]:
    found = find_exposed(
        capability or _open_capability(),
        kinds=[kind],
        viewpoint=replace(_NOWHERE, runtimes=("/run/user/0",)),
        environment=environment,
    )
    return found[0].paths if found else ()


def test_a_socket_that_accepts_a_connection_is_exposed_with_what_it_allows(place: Path) -> None:
    with listening(place / "control"):
        found = find_exposed(_open_capability(), kinds=[_kind(place / "*")], viewpoint=_NOWHERE, environment={})

    assert found == (Exposure("made-up", "Made up", (str(place / "control"),), "do things", "end it"),)


def test_a_socket_whose_program_is_gone_is_not(place: Path) -> None:
    with listening(place / "control"):
        pass

    assert (place / "control").is_socket()
    assert _paths(_kind(place / "*")) == ()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may connect to every socket")
def test_a_socket_that_this_user_may_not_connect_to_is_not(place: Path) -> None:
    with listening(place / "control"):
        (place / "control").chmod(0)
        closed = _paths(_kind(place / "*"))
        (place / "control").chmod(0o600)

        assert (closed, _paths(_kind(place / "*"))) == ((), (str(place / "control"),))


def test_nothing_but_a_socket_is_tried(place: Path) -> None:
    (place / "file").touch()
    os.mkfifo(place / "fifo")
    (place / "dangling").symlink_to("nowhere")

    assert _paths(_kind(place / "*")) == ()


def test_a_sandbox_that_holds_unix_sockets_leaves_none_exposed(place: Path) -> None:
    holding = _open_capability(holds=frozenset({"confine.unix-sockets", "confine.abstract-sockets"}))
    with listening(place / "control"):
        assert _paths(_kind(place / "*")) == (str(place / "control"),)
        assert _paths(_kind(place / "*"), holding) == ()


def test_a_socket_is_counted_once_however_many_names_lead_to_it(place: Path) -> None:
    (place / "alias").symlink_to("control")
    with listening(place / "control"):
        found = find_exposed(
            _open_capability(),
            kinds=[_kind(place / "*"), replace(_kind(place / "alias"), id="again")],
            viewpoint=_NOWHERE,
            environment={"MADE_UP": str(place / "alias")},
        )

    assert [(one.id, one.paths) for one in found] == [("made-up", (str(place / "control"),))]


def test_a_variable_names_a_socket_that_no_pattern_does(place: Path) -> None:
    with listening(place / "control"):
        assert _paths(_kind(variables=("MADE_UP",)), MADE_UP=f"{place}/control,123,0") == (str(place / "control"),)


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_SEQPACKET, socket.SOCK_DGRAM], ids=["s", "q", "d"])
@pytest.mark.linux
def test_a_socket_of_each_type_is_reached(place: Path, kind: socket.SocketKind) -> None:
    with listening(place / "control", kind):
        assert is_reachable(str(place / "control"))


def test_a_socket_whose_queue_is_full_is_reached_without_waiting(place: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server, ExitStack() as clients:
        server.bind(str(place / "control"))
        server.listen(0)
        for _ in range(3):
            client = clients.enter_context(socket.socket(socket.AF_UNIX))
            client.setblocking(False)
            if client.connect_ex(str(place / "control")) != 0:
                break

        assert is_reachable(str(place / "control"))


def test_nothing_is_sent(place: Path) -> None:
    received = list[bytes]()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(place / "control"))
        server.listen(1)

        def accept() -> None:
            connection, _ = server.accept()
            with connection:
                received.append(connection.recv(100))

        thread = threading.Thread(target=accept)
        thread.start()
        reached = is_reachable(str(place / "control"))
        thread.join(10)

    assert (reached, received) == (True, [b""])


@pytest.mark.linux
def test_a_path_that_is_too_long_for_an_address_is_reached_all_the_same(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = place / ("d" * 60) / ("e" * 60)
    deep.mkdir(parents=True)
    monkeypatch.chdir(deep)
    with listening("control"):
        assert _paths(_kind(deep / "control")) == (str(deep / "control"),)
    assert not is_reachable(str(deep / "control"))


@pytest.mark.linux
def test_an_abstract_socket_is_exposed_where_the_sandbox_does_not_hold_them() -> None:
    name = f"wisp-test-{secrets.token_hex(8)}"
    kind = _kind(abstract=(f"{name}*",))
    with listening(f"\0{name}-control"):
        assert _paths(kind, _open_capability(holds=frozenset())) == (f"@{name}-control",)
        assert _paths(kind, _open_capability()) == ()


@pytest.mark.parametrize(
    ("value", "paths"),
    [
        ("/tmp/tmux-1000/default,123,0", ("/tmp/tmux-1000/default",)),
        ("unix:///run/docker.sock", ("/run/docker.sock",)),
        ("tcp://127.0.0.1:2375", ()),
        ("ssh://host", ()),
        ("unix:path=/run/user/1000/bus,guid=00;unix:path=/tmp/other", ("/run/user/1000/bus", "/tmp/other")),
        ("unix:abstract=/tmp/dbus-1", ()),
        ("wayland-1", ("/run/user/0/wayland-1",)),
        ("unix:/tmp/kitty-1", ("/tmp/kitty-1",)),
        ("", ()),
        ("a/b", ()),
    ],
)
def test_the_paths_that_a_variable_names(value: str, paths: tuple[str, ...]) -> None:
    assert named_paths(value, "/run/user/0") == paths


@given(value=st.text(), runtime=st.sampled_from(["", "/run/user/0"]))
def test_whatever_a_variable_says_is_a_list_of_absolute_paths(value: str, runtime: str) -> None:
    assert all(path.startswith("/") or "path=" in value for path in named_paths(value, runtime))


def test_an_ordinary_user_is_shown_what_is_his_and_root_what_is_everybodys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/mine")
    mine = Viewpoint.mine()

    assert mine.runtimes[0] == "/run/mine"
    if os.geteuid() == 0:
        assert (mine.uids, mine.users, mine.runtimes[-1]) == (("*",), ("*",), "/run/user/*")
    else:
        assert (mine.uids, mine.runtimes) == ((str(os.geteuid()),), ("/run/mine", f"/run/user/{os.geteuid()}"))


def test_every_way_to_fill_a_pattern_in_is_tried() -> None:
    view = Viewpoint(homes=("/home/a", "/home/b"), runtimes=("/run/user/1",), uids=("1",), users=("a",))

    assert list(view.expand("{home}/x-{uid}")) == ["/home/a/x-1", "/home/b/x-1"]
    assert list(view.expand("/run/plain")) == ["/run/plain"]


@pytest.mark.parametrize("kind", _KINDS, ids=[kind.id for kind in _KINDS])
def test_each_row_of_the_table_finds_its_socket_and_says_what_it_means(place: Path, kind: SocketKind) -> None:
    view = Viewpoint(homes=("/h",), runtimes=("/r",), uids=("7",), users=("ada",))
    assert kind.paths
    for pattern in kind.paths:
        (filled,) = view.expand(pattern)
        assert "{" not in filled
        there = place / filled.lstrip("/").replace("*", "x")
        there.parent.mkdir(parents=True, exist_ok=True)
        moved = replace(kind, paths=(f"{place}{filled}",), variables=(), abstract=())
        with listening(there):
            assert _paths(moved) == (str(there),)
    for sentence in (kind.allows, kind.closes):
        assert not sentence.endswith(".")
        assert len(sentence) > 10


def test_ids_of_the_table_are_unique() -> None:
    ids = [kind.id for kind in _KINDS]

    assert len(ids) == len(set(ids))


def test_a_directory_full_of_sockets_is_not_tried_to_its_end(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = list[str]()

    def count(address: str) -> bool:
        tried.append(address)
        return True

    monkeypatch.setattr("wisp.doctor.exposed.is_reachable", count)
    with ExitStack() as servers:
        for number in range(80):
            servers.enter_context(listening(place / f"s{number}"))
        found = _paths(_kind(place / "*"))

    assert len(found) == len(tried) == 64
