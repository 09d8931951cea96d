"""The examples in docs/consumers do what they say: on the real model, with the compilers and libraries that are there.

The CUDA launcher is compiled by nvcc where there is one and runs on the CPU, kernel and all, through a small shim; with
a GPU it runs as it is (`pytest -m gpu`).
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from repack import convert_file
from repack.layout import DEFAULT
from tests.golden import make
from tests.support.independent import TABLE
from tests.support.models import Model, T, q6_k_tensor
from tests.support.readers import CONSUMERS, compiled, load, reader
from tests.support.rows import EDGE_D, edge_rows
from tests.support.sidecars.forge import GOLDEN
from tests.support.sidecars.whole import pair_of_all_types
from verify.kernels import source

CPP = CONSUMERS / "cpp"
KERNELS = Path(__file__).parents[1] / "verify" / "kernels"
CONFIGURATION = ("-DDPL_LANES=32", "-DDPL_UNITS=1", "-DDPL_THREADS=64")
NVCC = shutil.which("nvcc")
KEYS = ("type", "rows", "row_stride")
needs_nvcc = pytest.mark.skipif(NVCC is None, reason="nvcc not found")


def manifest_of(path: Path) -> list[dict[str, Any]]:
    raw = path.read_bytes()
    (length,) = struct.unpack_from("<Q", raw)
    tensors: list[dict[str, Any]] = json.loads(json.loads(raw[8 : 8 + length])["__metadata__"]["dpl"])["tensors"]
    return tensors


LANGUAGES = pytest.mark.parametrize("language", ["cpp", "rust", "python"])


@LANGUAGES
def test_the_digests_of_the_real_model(language: str, gemma: Path, gemma_dpl: Path) -> None:
    compare_digests(language, gemma, gemma_dpl)


@LANGUAGES
def test_the_digests_of_the_golden_model(language: str) -> None:
    """With the command of README.md, too, and the place that is named there."""
    printed = compare_digests(language, GOLDEN / "tiny.gguf", GOLDEN / "tiny.dpl")
    readme = (CONSUMERS / "README.md").read_text()
    ((nbytes, offset),) = re.findall(r"the first one's (\d+) bytes stand at (\d+)\.", " ".join(readme.split()))
    (command,) = re.findall(r"^    (tail -c .*)$", readme, re.MULTILINE)
    line = command.replace("model.gguf", "tiny.gguf").replace("NBYTES", nbytes)
    done = subprocess.run(["sh", "-c", f"OFFSET={offset}; {line}"], cwd=GOLDEN, capture_output=True, check=True)
    assert done.stdout.decode().split()[0] == printed[0]


def compare_digests(language: str, model: Path, sidecar: Path) -> list[str]:
    """What each program prints is what the manifest says, and what the model's own bytes give; returns the latter."""
    program = [sys.executable, str(CONSUMERS / "python" / "reader.py")]
    if language != "python":
        program = [str(compiled(language, "-O2" if language == "cpp" else "-O"))]
    done = subprocess.run([*program, sidecar], capture_output=True, text=True, check=True)
    *lines, last = done.stdout.splitlines()
    entries, natives = manifest_of(sidecar), []
    assert last == f"{sidecar}: ok, {len(entries)} tensors"
    with model.open("rb") as file:
        for line, entry in zip(lines, entries, strict=True):
            file.seek(entry["offset"])
            natives.append(hashlib.sha256(file.read(entry["nbytes"])).hexdigest())
            facts = [entry["sha256"], natives[-1], *(str(entry[key]) for key in KEYS), json.dumps(entry["name"])]
            assert line == " ".join(facts)
    return natives


def cpp_program(text: str, folder: Path, *options: str) -> Path:
    """A program with the header, compiled with another file that has it too."""
    if shutil.which("g++") is None:
        pytest.skip("g++ not found")
    (folder / "other.cpp").write_text('#include "dpl.hpp"\n')
    (folder / "main.cpp").write_text(text)
    files = [folder / "main.cpp", folder / "other.cpp"]
    line: list[str | Path] = [
        "g++",
        "-std=c++17",
        "-Wall",
        "-Wextra",
        "-Werror",
        *options,
        f"-I{CPP}",
        *files,
        "-o",
        folder / "main",
    ]
    subprocess.run(line, check=True)
    return folder / "main"


def test_what_the_readme_shows_compiles_as_it_stands(tmp_path: Path) -> None:
    (example,) = re.findall(r"```cpp\n(.*?)```", (CONSUMERS / "README.md").read_text(), re.DOTALL)
    done = subprocess.run([cpp_program(example, tmp_path)], cwd=GOLDEN, capture_output=True, text=True, check=True)
    tensor = reader.Sidecar(str(GOLDEN / "tiny.dpl")).tensors["blk.0.ffn_down.weight"]
    d = np.frombuffer(tensor.row(1)[624:630], "<u2")
    assert done.stdout == f"2 rows of 3 blocks of Q6_K, d of row 1: {' '.join(f'{bits:04x}' for bits in d)}\n"


def test_python_as_the_readme_shows_it(gemma_dpl: Path, tmp_path: Path) -> None:
    (tmp_path / "model.dpl").symlink_to(gemma_dpl)
    blocks = re.findall(r"```python\n(.*?)```", (CONSUMERS / "README.md").read_text(), re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        code = block.replace('framework="pt"', 'framework="np"')  # without PyTorch
        subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)


BEYOND = """
#include <cstdio>
#include "dpl.hpp"

template <class Call>
void expect(Call call) {
    try {
        call();
        std::puts("answered");
    } catch (const std::out_of_range&) {
        std::puts("out of range");
    }
}

int main() {
    const dpl::Sidecar file("tiny.dpl");
    const dpl::Tensor& first = file.tensors[0];
    dpl::u8 row[640];
    expect([&] { first.row(1); });
    expect([&] { first.row(2); });
    expect([&] { first.row(dpl::u64(-1)); });
    expect([&] { first.plane(0, "d"); });
    expect([&] { first.plane(2, "d"); });
    expect([&] { first.plane(0, "dm"); });
    expect([&] { first.plane(0, 4); });
    expect([&] { first.native_row(2, row); });
    std::printf("%s %d\\n", file.shards[first.shard].name.c_str(), int(first.offset));
}
"""


def test_no_row_of_the_next_tensor_in_cpp(tmp_path: Path) -> None:
    program = cpp_program(BEYOND, tmp_path, "-fsanitize=address,undefined")
    done = subprocess.run([program], cwd=GOLDEN, capture_output=True, text=True, check=True)
    answers = ["answered", *["out of range"] * 2, "answered", *["out of range"] * 4]
    assert done.stdout.splitlines() == [*answers, "tiny.gguf 832"]


BEYOND_IN_RUST = """
#[allow(dead_code)]
mod dpl;
#[allow(dead_code)]
mod json;
mod layout;
mod sha256;

fn main() {
    let file = dpl::Sidecar::open(std::path::Path::new("tiny.dpl")).ok().unwrap();
    let first = &file.tensors[0];
    for r in [1, 2, u64::MAX] {
        println!("{}", file.row(first, r).is_ok());
    }
    let row = file.row(first, 1).ok().unwrap();
    for k in [3, 4, usize::MAX] {
        println!("{}", first.plane(&row, k).is_ok());
    }
    println!("{}", first.native(&row[1..]).is_ok());
    let shard = &file.shards[first.shard];
    println!("{} {} {} {}", shard.name, shard.size, shard.header_sha256.len(), first.offset);
}
"""


def test_no_row_of_the_next_tensor_in_rust(tmp_path: Path) -> None:
    """And it says where the native bytes stand, which docs/engine.md needs."""
    if shutil.which("rustc") is None:
        pytest.skip("rustc not found")
    for source_file in (CONSUMERS / "rust").glob("*.rs"):
        shutil.copy(source_file, tmp_path)
    (tmp_path / "main.rs").write_text(BEYOND_IN_RUST)
    line: list[str | Path] = [
        "rustc",
        "--edition",
        "2021",
        "-D",
        "warnings",
        tmp_path / "main.rs",
        "-o",
        tmp_path / "main",
    ]
    subprocess.run(line, check=True)
    done = subprocess.run([tmp_path / "main"], cwd=GOLDEN, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [
        "true",
        "false",
        "false",
        "true",
        "false",
        "false",
        "false",
        "tiny.gguf",
        "4896",
        "64",
        "832",
    ]


def test_no_row_of_the_next_tensor_in_python() -> None:
    tensor = reader.Sidecar(str(GOLDEN / "tiny.dpl")).tensors["blk.0.ffn_down.weight"]
    assert len(tensor.row(1)) == 640
    for r in (-1, 2, True, 1.0):
        with pytest.raises(IndexError):
            tensor.row(r)
    with pytest.raises(ValueError, match="dm"):
        tensor.plane(0, "dm")


@pytest.mark.parametrize("tensor", [tensor for tensor in make.TENSORS if tensor.type], ids=lambda tensor: tensor.name)
def test_weights_in_python(tensor: make.Tensor) -> None:
    found, kind = reader.Sidecar(str(GOLDEN / "tiny.dpl")).tensors[tensor.name], TABLE[tensor.type]
    native = np.frombuffer(tensor.native(), np.uint8).reshape(-1, 3 * kind.size)
    with np.errstate(over="ignore"):  # an exponent of 255
        expected = gguf.dequantize(native, gguf.GGMLQuantizationType(tensor.type))
        for r, row in enumerate(expected):
            assert found.native_row(r) == native[r].tobytes()
            assert found.dequantize(r).tobytes() == row.tobytes()


@pytest.fixture(scope="module")
def launcher_on_host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """launch.cu and the kernel compiled for the CPU: the same source but for how a kernel is launched."""
    if shutil.which("g++") is None:
        pytest.skip("g++ not found")
    folder = tmp_path_factory.mktemp("launch")
    launch, count = re.subn(r"(\w+)<<<(\w+), (\w+)>>>\(", r"launch(\1, \2, (int)\3, ", (CPP / "launch.cu").read_text())
    assert count == 1
    kernel = source("row.cu", DEFAULT).replace("extern __shared__ uint4 stage[];", "static uint4 stage[1 << 14];")
    (folder / "row.cu").write_text(kernel)
    shim = Path(__file__).parent / "support" / "cuda" / "runtime_on_host.h"
    (folder / "cuda_runtime.h").write_text(f'#include "{shim}"\n')
    return build_on_host(launch, folder, folder)


def build_on_host(text: str, headers: Path, folder: Path) -> Path:
    (folder / "launch.cpp").write_text(text)
    line = ["g++", "-std=c++20", "-O1", "-w", "-ffp-contract=off", *CONFIGURATION, f"-I{headers}", f"-I{CPP}"]
    subprocess.run([*line, folder / "launch.cpp", "-o", folder / "launch"], check=True)
    return folder / "launch"


def edge_model(folder: Path) -> Path:
    """Rows of one to nine super-blocks, an expert stack, infinite and NaN d, and tensors with nothing to multiply."""
    edges = edge_rows(len(EDGE_D) + 1, 3).tobytes()
    stack = q6_k_tensor("stack", (2304, 3, 2), 4)
    tensors = [
        q6_k_tensor("row", (256,), 2),
        T("edges", (768, len(EDGE_D) + 1), data=edges),
        stack,
        T("none", (256, 0)),
    ]
    Model(tensors).write(folder / "model.gguf")
    convert_file(folder / "model.gguf", folder / "model.dpl")
    return folder / "model.dpl"


def test_the_launcher_agrees_bit_for_bit(launcher_on_host: Path, tmp_path: Path) -> None:
    done = subprocess.run([launcher_on_host, edge_model(tmp_path)], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == "20 rows compared, 0 differ", done.stdout
    assert done.returncode == 0


def test_nothing_compared_is_no_success(launcher_on_host: Path, gemma_dpl: Path, tmp_path: Path) -> None:
    assert subprocess.run([launcher_on_host], capture_output=True, check=False).returncode == 1
    (tmp_path / "cut.dpl").write_bytes(gemma_dpl.read_bytes()[:-1])
    assert subprocess.run([launcher_on_host, tmp_path / "cut.dpl"], capture_output=True, check=False).returncode == 3


WRONG = {"nibble": ("ql[32 * (group % 2) + i]", "ql[32 * (group / 2) + i]"), "order": ("lanes[k % LANES]", "lanes[0]")}


@pytest.mark.parametrize("what", WRONG)
def test_the_launcher_sees_a_wrong_bit(launcher_on_host: Path, tmp_path: Path, what: str) -> None:
    """With the CPU's computation changed it reports that rows differ."""
    text = (launcher_on_host.parent / "launch.cpp").read_text()
    assert text.count(WRONG[what][0]) == 1
    program = build_on_host(text.replace(*WRONG[what]), launcher_on_host.parent, tmp_path)
    done = subprocess.run([program, edge_model(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout


@needs_nvcc
@pytest.mark.parametrize("kernel", ["row.cu", "loop.cu", "launch.cu"])
def test_nvcc_takes_the_kernels_as_they_are(kernel: str, tmp_path: Path) -> None:
    """For Ampere, Hopper, and both kinds of Blackwell; no include path of ours but the kernels' own folder."""
    targets = [f"-gencode=arch=compute_{sm},code=sm_{sm}" for sm in (80, 90, 100, 120)]
    options: list[str | Path] = ["-std=c++17", "--fmad=false", "-Werror", "all-warnings", "-I", KERNELS, *CONFIGURATION]
    options += ['-DDPL_QUANT="quants/q6_k.cuh"'] if kernel != "launch.cu" else []
    file = (CPP if kernel == "launch.cu" else KERNELS) / kernel
    output: list[str | Path] = ["-fatbin", "-o", tmp_path / "kernel.fatbin"]
    done = subprocess.run([str(NVCC), *options, *targets, *output, file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "kernel.fatbin").stat().st_size > 10_000


@needs_nvcc
@pytest.mark.gpu
def test_the_launcher_on_the_gpu(gemma_dpl: Path, tmp_path: Path) -> None:
    options: list[str | Path] = [
        "-std=c++17",
        "-O3",
        "--fmad=false",
        "-Xcompiler",
        "-ffp-contract=off",
        "-arch=native",
        "-I",
        KERNELS,
    ]
    subprocess.run([str(NVCC), *options, *CONFIGURATION, CPP / "launch.cu", "-o", tmp_path / "launch"], check=True)
    for sidecar, rows in ((edge_model(tmp_path), 20), (gemma_dpl, 9 * 640)):
        done = subprocess.run([tmp_path / "launch", sidecar], capture_output=True, text=True, check=False)
        assert done.stdout.splitlines()[-1] == f"{rows} rows compared, 0 differ", done.stdout + done.stderr
        assert done.returncode == 0


@pytest.mark.gpu
def test_the_cupy_example(gemma_dpl: Path, tmp_path: Path) -> None:
    """On the real model, and on tensors of every type."""
    pytest.importorskip("cupy")
    assert load("cupy_rows").main([str(gemma_dpl), str(pair_of_all_types(tmp_path)[1])]) == 0
