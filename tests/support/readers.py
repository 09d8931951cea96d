"""The readers of sidecars that exist: the project's own, those of docs/consumers in three languages, and one by hand.

A reader takes files and says of each whether it accepts it; the compiled ones take all files in one run.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType

import pytest

from repack import Damaged, open_sidecar
from repack.layout import TYPES
from repack.restore import restore
from tests.support import shared
from tests.support.sidecars import strict
from verify.run import Options, verify

CONSUMERS = Path(__file__).parents[2] / "docs" / "consumers"
SANITIZED = ("-O0", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror")

Accepts = Callable[[Sequence[Path]], list[bool]]


def load(name: str) -> ModuleType:
    """An example in docs/consumers/python as a module."""
    spec = importlib.util.spec_from_file_location(name, CONSUMERS / "python" / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


reader = load("reader")


def compiled(language: str, *options: str) -> Path:
    """The program that checks files and prints their digests; skips the test where there is no compiler for it."""
    compiler = shutil.which({"cpp": "g++", "rust": "rustc"}[language])
    if compiler is None:
        pytest.skip(f"no compiler for {language}")
    if language == "cpp":
        line: list[str | Path] = [compiler, "-std=c++17", *WARNINGS, *options, CONSUMERS / "cpp" / "digests.cpp"]
    else:
        line = [compiler, "--edition", "2021", "-D", "warnings", "-C", "overflow-checks", *options]
        line.append(CONSUMERS / "rust" / "digests.rs")

    def make(folder: Path) -> Path:
        subprocess.run([*line, "-o", folder / "digests"], check=True)
        return folder / "digests"

    return shared.once("-".join([language, *options]).replace("/", ""), make)


def printed(program: Sequence[str | Path], files: Sequence[Path]) -> bytes:
    """What a reader of docs/consumers prints, reasons aside. It must not crash, and says why it refuses a file."""
    out = b""
    for at in range(0, len(files), 4000):
        part = files[at : at + 4000]
        done = subprocess.run([*program, *part], capture_output=True, check=False)
        refused = done.stdout.count(b": refused\n")
        assert done.returncode == (3 if refused else 0), f"{done.returncode}: {done.stderr[-3000:]!r}"
        assert done.stderr.count(b"\n") == refused, done.stderr[-3000:]
        out += done.stdout
    return out


def verdicts(out: bytes, files: Sequence[Path]) -> list[bool]:
    """Of each file whether it was accepted."""
    lines = [line for line in out.splitlines() if line.startswith(b"/")]  # the others are digests
    assert [line.rsplit(b": ", 1)[0] for line in lines] == [bytes(file) for file in files]
    return [line.rsplit(b": ", 1)[1].startswith(b"ok, ") for line in lines]


PYTHON = (sys.executable, CONSUMERS / "python" / "reader.py")


def by_reference(files: Sequence[Path]) -> list[bool]:
    """docs/consumers/python/reader.py, data included."""
    return verdicts(printed(PYTHON, files), files)


def by_hand(files: Sequence[Path]) -> list[bool]:
    """The tests' own, data included."""
    return [strict.accepts(file) for file in files]


def by_project(files: Sequence[Path]) -> list[bool]:
    """`open_sidecar`, which looks at the header only."""

    def accepts(file: Path) -> bool:
        try:
            with open_sidecar(file):
                return True
        except Damaged:
            return False

    return [accepts(file) for file in files]


def by_project_with_data(files: Sequence[Path]) -> list[bool]:
    """`verify` without a model, and `repack --restore` where gguf knows the types."""

    def restored(file: Path) -> bool:
        with open_sidecar(file) as sidecar:
            if any(tensor.entry.quant.number not in TYPES for tensor in sidecar.values()):
                return True
        try:
            restore(file, file.with_suffix(".restored"), force=True)
        except Damaged:
            return False
        return True

    def proven(file: Path) -> bool:
        return verify(None, file, Options(device="cpu"), lambda *_: nullcontext(lambda _: None)).exit_code in {0, 5}

    return [header and proven(file) and restored(file) for file, header in zip(files, by_project(files), strict=True)]


def by_cpp(files: Sequence[Path]) -> list[bool]:
    """C++ under the address and undefined-behaviour sanitizers."""
    return verdicts(printed([compiled("cpp", *SANITIZED)], files), files)


def by_rust(files: Sequence[Path]) -> list[bool]:
    """Rust with overflow checks."""
    return verdicts(printed([compiled("rust", "-O")], files), files)


HEADER_READERS: dict[str, Accepts] = {
    "project": by_project,
    "python": by_reference,
    "cpp": by_cpp,
    "rust": by_rust,
    "by hand": by_hand,
}
DATA_READERS: dict[str, Accepts] = {**HEADER_READERS, "project": by_project_with_data}
