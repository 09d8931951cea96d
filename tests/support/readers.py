"""The readers of sidecars that exist: the project's own, and those of docs/consumers in three languages.

A reader takes files and says of each whether it accepts it; the compiled ones take all files in one run.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext, redirect_stdout
from functools import cache
from io import StringIO
from pathlib import Path
from tempfile import mkdtemp
from types import ModuleType

import pytest

from repack import Damaged, open_sidecar
from repack.restore import restore
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


@cache
def compiled(language: str, *options: str) -> Path:
    """The program that checks files and prints their digests; skips the test where there is no compiler for it."""
    compiler = shutil.which({"cpp": "g++", "rust": "rustc"}[language])
    if compiler is None:
        pytest.skip(f"no compiler for {language}")
    program = Path(mkdtemp()) / "digests"
    if language == "cpp":
        line: list[str | Path] = [
            compiler,
            "-std=c++17",
            *WARNINGS,
            *options,
            CONSUMERS / "cpp" / "digests.cpp",
            "-o",
            program,
        ]
    else:
        source = CONSUMERS / "rust" / "digests.rs"
        line = [
            compiler,
            "--edition",
            "2021",
            "-D",
            "warnings",
            "-C",
            "overflow-checks",
            *options,
            source,
            "-o",
            program,
        ]
    subprocess.run(line, check=True)
    return program


def run(program: Path, files: Sequence[Path]) -> list[bool]:
    """What a compiled reader says; it must neither crash nor print anything to stderr."""
    done = subprocess.run([program, *files], capture_output=True, text=True, check=False, errors="replace")
    assert done.returncode in {0, 3}, f"{done.returncode}: {done.stderr[-3000:]}"
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    verdicts = [line.split(": ", 1)[1] for line in lines if line.startswith(tuple(f"{file}: " for file in files))]
    assert len(verdicts) == len(files)
    return [verdict.startswith("ok, ") for verdict in verdicts]


def by_reference(files: Sequence[Path]) -> list[bool]:
    """docs/consumers/python/reader.py, data included."""
    with redirect_stdout(StringIO()):
        return [reader.main([str(file)]) == 0 for file in files]


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
    """`verify` without a model, and `repack --restore`."""

    def restored(file: Path) -> bool:
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
    return run(compiled("cpp", *SANITIZED), files)


def by_rust(files: Sequence[Path]) -> list[bool]:
    """Rust with overflow checks."""
    return run(compiled("rust", "-O"), files)


HEADER_READERS: dict[str, Accepts] = {
    "project": by_project,
    "python": by_reference,
    "cpp": by_cpp,
    "rust": by_rust,
}
DATA_READERS: dict[str, Accepts] = {**HEADER_READERS, "project": by_project_with_data}
