from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wisp.sandbox import syscalls
from wisp.sandbox.notify import Kernel
from wisp.sandbox.observer_paths import Resolver, descriptor_path, directory_path

pytestmark = pytest.mark.linux


def never(path: str, *, follow: bool) -> int:
    """Say of no path that it is without links, so that each is walked."""
    return errno.ELOOP


def kernel() -> Kernel:
    table = syscalls.numbers()
    assert table is not None
    return Kernel(table.audit_arch)


ME = threading.get_native_id()

RESOLVERS = pytest.mark.parametrize("resolver", [Resolver(never), Resolver(kernel().look)], ids=["walk", "kernel"])


@pytest.fixture(scope="module")
def tree() -> Iterator[str]:
    """Directories, files and links of every kind, in one directory."""
    top = os.path.realpath(tempfile.mkdtemp(prefix="wisp-paths-", dir="/var/tmp"))
    os.makedirs(f"{top}/a/b")
    os.makedirs(f"{top}/c")
    for name in ("a/f", "c/f"):
        Path(top, name).touch()
    for name, target in {
        "l": "a/b", "a/up": "..", "a/b/abs": f"{top}/c", "file": "a/f", "gone": "c/none", "loop": "loop",
        "a/chain": "../l/../up/file", "c/self": "/proc/self/cwd",
    }.items():  # fmt: skip
        os.symlink(target, f"{top}/{name}")
    yield top
    shutil.rmtree(top)


NAMES = st.sampled_from(
    ["a", "b", "c", "f", "f/", "l/", "l", "up", "abs", "file", "gone", "chain", "loop", "none", ".", "..", ""]
)


@RESOLVERS
@given(names=st.lists(NAMES, min_size=1, max_size=7))
def test_a_path_leads_where_the_kernel_leads_it(resolver: Resolver, tree: str, names: list[str]) -> None:
    """What open(2) with O_CREAT makes, or opens, is compared: its own path as the kernel gives it."""
    path = f"{tree}/" + "/".join(names)
    found = resolver.resolve(ME, path, follow=True)
    try:
        descriptor = os.open(path, syscalls.O_PATH)
    except FileNotFoundError:
        assert found is None or not found[1]
        if found is not None:
            parent = os.path.dirname(found[0])
            assert os.path.realpath(parent) == parent
            assert os.path.isdir(parent)
            assert not os.path.lexists(found[0])
    except OSError:
        assert found is None
    else:
        assert found == (os.readlink(f"/proc/self/fd/{descriptor}"), True)
        os.close(descriptor)


@RESOLVERS
def test_a_link_at_the_end_is_followed_only_on_request(resolver: Resolver, tree: str) -> None:
    assert resolver.resolve(ME, f"{tree}/l", follow=False) == (f"{tree}/l", True)
    assert resolver.resolve(ME, f"{tree}/l", follow=True) == (f"{tree}/a/b", True)
    assert resolver.resolve(ME, f"{tree}/gone", follow=True) == (f"{tree}/c/none", False)
    assert resolver.resolve(ME, f"{tree}/l/../f", follow=False) == (f"{tree}/a/f", True)


@RESOLVERS
def test_what_is_an_error_anyway_leads_nowhere(resolver: Resolver, tree: str) -> None:
    for path in ("none/x", "a/f/x", "loop", "loop/x", "gone/x"):
        assert resolver.resolve(ME, f"{tree}/{path}", follow=True) is None


@RESOLVERS
def test_a_new_name_lies_in_the_real_directory(resolver: Resolver, tree: str) -> None:
    assert resolver.resolve(ME, f"{tree}/l/abs/new", follow=True) == (f"{tree}/c/new", False)
    assert resolver.resolve(ME, f"{tree}/c/new/", follow=False) == (f"{tree}/c/new", False)


@RESOLVERS
def test_self_is_the_process_that_asks(resolver: Resolver, tree: str) -> None:
    with open(f"{tree}/c/f", "rb") as file:
        child = subprocess.Popen(
            [sys.executable, "-S", "-c", "import sys; print(flush=True); sys.stdin.read()"],
            cwd=f"{tree}/a", stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=(file.fileno(),),
        )  # fmt: skip
        assert child.stdout is not None
        child.stdout.readline()
        try:
            pid, number = child.pid, file.fileno()
            expected = {
                "/proc/self/comm": (f"/proc/{pid}/comm", True),
                "/proc/thread-self/comm": (f"/proc/{pid}/task/{pid}/comm", True),
                "/proc/self/cwd/new": (f"{tree}/a/new", False),
                f"{tree}/c/self/f": (f"{tree}/a/f", True),
                f"/proc/self/fd/{number}": (f"{tree}/c/f", True),
                f"/dev/fd/{number}": (f"{tree}/c/f", True),
                "/dev/stdout": None,  # a pipe
                "/proc/self/fd/999": (f"/proc/{pid}/fd/999", False),
            }
            assert {path: resolver.resolve(pid, path, follow=True) for path in expected} == expected
            assert descriptor_path(pid, number) == f"{tree}/c/f"
            assert descriptor_path(pid, 1) is None
            assert descriptor_path(pid, 999) is None
            assert directory_path(pid) == f"{tree}/a"
        finally:
            child.communicate()


@RESOLVERS
def test_within_a_root_links_and_dots_end_there(resolver: Resolver, tree: str) -> None:
    assert resolver.resolve(ME, "/b/../../../f", follow=True, root=f"{tree}/a") == (f"{tree}/a/f", True)
    assert resolver.resolve(ME, "up/up/f", follow=True, root=f"{tree}/a") == (f"{tree}/a/f", True)


def test_memory_is_read_up_to_what_is_there() -> None:
    import ctypes
    import mmap

    reader = kernel()
    text = ctypes.create_string_buffer(b"x" * 300 + b"\0more")
    assert reader.read_text(ME, ctypes.addressof(text)) == b"x" * 300
    assert reader.read_text(ME, 1) is None
    pages = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    pages[mmap.PAGESIZE - 2 : mmap.PAGESIZE + 2] = b"ab\0c"
    held = ctypes.c_char.from_buffer(pages)
    start = ctypes.addressof(held)
    assert reader.read_text(ME, start + mmap.PAGESIZE - 2) == b"ab"
    # The second page is taken away: what lies in the first is read all the same.
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(start + mmap.PAGESIZE), ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    assert reader.read(ME, start + mmap.PAGESIZE - 2, 24) == b"ab"
    assert reader.read_text(ME, start + mmap.PAGESIZE - 2) is None
    assert libc.mprotect(ctypes.c_void_p(start + mmap.PAGESIZE), ctypes.c_size_t(mmap.PAGESIZE), 3) == 0
    del held
    pages.close()


@RESOLVERS
@pytest.mark.parametrize("path", ["a/f/", "a/f/.", "a/f/..", "file/", "file/.", "file/../f", "l/../f/."])
def test_only_a_directory_is_gone_through(resolver: Resolver, tree: str, path: str) -> None:
    assert resolver.resolve(ME, f"{tree}/{path}", follow=True) is None
