"""The kernel sources themselves, run on the CPU through a small shim: their bits are the emulation's bits."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from repack.layout import DEFAULT, TYPES, QuantType
from repack.rows import Bytes
from tests.support.rows import edge_rows, packed, padded, random_rows
from verify.contract.activations import Activations, adversarial, pack_plain, seeded
from verify.contract.emulation import as_bits, decode
from verify.contract.forms import LAYOUTS, LOOP, PF, Form, pf_applies, row_form, units_of
from verify.contract.quants import contract_of
from verify.kernels import source

GXX = shutil.which("g++")
pytestmark = pytest.mark.skipif(GXX is None, reason="g++ not found")
MULTIPROCESSORS = 2  # so that a walking block has several rows
OTHERS = [quant for quant in TYPES.values() if quant is not DEFAULT and units_of(quant, 1)]
SHIM = Path(__file__).parent / "support" / "cuda" / "on_host.h"

DECODE = """
extern "C" void run(void (*kernel)(const u8*, const u8*, float*, long long, int), int grid, int block,
                    const u8* weights, const u8* activations, float* out, long long rows, int n) {
    gridDim.x = grid;
    launch(kernel, grid, block, weights, activations, out, rows, n);
}
"""
TOOLS = """
extern "C" void run_pad(const u8* native, u8* padded, int rows, int n) { launch(pad, rows, 96, native, padded, n); }
extern "C" void run_compare(const u8* native, const u8* dpl, u64* first, int rows, int n) {
    launch(compare, rows, 96, native, dpl, first, n);
}
extern "C" void run_check(const u32* found, const u32* expected, long long count, u32 filled, u64* first) {
    launch(check, (int)(count + 31) / 32, 32, found, expected, count, filled, first);
}
"""


WITH_ADDEND = """
extern "C" void run(int grid, int block, const u8* weights, const u8* activations, const float* addend, float* out,
                    long long rows, int n) {
    gridDim.x = grid;
    launch(row_dpl, grid, block, weights, activations, addend, out, rows, n);
}
"""


def build(folder: Path, kernels: str, harness: str, *defines: str, quant: QuantType = DEFAULT) -> ctypes.CDLL:
    text = source(kernels, quant).replace("extern __shared__ uint4 stage[];", "static uint4 stage[1 << 14];")
    code = folder / f"{quant.name}{kernels}{'_'.join(defines)}.cpp"
    library = code.with_suffix(".so")
    code.write_text(f'#include "{SHIM}"\n{text}\n{harness}')
    options = ["-std=c++20", "-O1", "-ffp-contract=off", "-w", "-shared", "-fPIC"]
    options += ["-fsanitize=alignment", "-fsanitize-undefined-trap-on-error"]  # no library to load into Python
    subprocess.run([str(GXX), *options, *defines, code, "-o", library], check=True)
    return ctypes.CDLL(str(library))


@pytest.fixture(scope="module")
def loop_kernels(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return build(tmp_path_factory.mktemp("loop"), "loop.cu", DECODE)


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return build(tmp_path_factory.mktemp("tools"), "tools.cu", TOOLS)


def aligned(array: np.ndarray[Any, Any]) -> Bytes:
    """A copy on a 16-byte boundary with room to read the last 16-byte item of the last row."""
    buffer = np.full(array.nbytes + 32, 0xFF, np.uint8)
    start = -buffer.ctypes.data % 16
    copy = buffer[start : start + array.nbytes]
    copy[:] = np.ascontiguousarray(array).view(np.uint8).reshape(-1)
    return copy


def bits_on_host(
    library: ctypes.CDLL,
    form: Form,
    layout: str,
    native: Bytes,
    n: int,
    plain: Bytes,
    quant: QuantType = DEFAULT,
) -> Any:
    rows = len(native)
    arrange = {"padded": padded, "dpl": packed}.get(layout)
    weights = native if arrange is None else arrange(native, n, quant)
    weights, vector = aligned(weights), aligned(plain)
    out = np.full(rows + 1, np.nan, np.float32)
    grid = -(-rows // form.groups) if layout == "staged" else form.grid(rows, MULTIPROCESSORS)
    library.run(
        ctypes.cast(getattr(library, f"{form.name}_{layout}"), ctypes.c_void_p),
        grid,
        form.threads,
        ctypes.c_void_p(weights.ctypes.data),
        ctypes.c_void_p(vector.ctypes.data),
        ctypes.c_void_p(out.ctypes.data),
        ctypes.c_longlong(rows),
        n,
    )
    assert np.isnan(out[rows])  # nothing is written behind the last row
    return as_bits(out[:rows])


def pack(vector: Activations, quant: QuantType = DEFAULT) -> Bytes:
    contract = contract_of(quant)
    assert contract is not None
    assert contract.pack is not None
    return contract.pack(vector)


def cases(n: int, quant: QuantType = DEFAULT) -> list[tuple[Bytes, Any]]:
    weights = n * quant.block_weights
    vectors = (seeded(weights, 7), *adversarial(weights))
    return [(random_rows(3, n, n, quant), vectors), (edge_rows(13, n, n, quant), vectors[:1])]


@pytest.mark.parametrize("n", [1, 2, 3, 5, 16, 20, 33, 38, 54, 64, 74])
def test_loop_and_pf(loop_kernels: ctypes.CDLL, n: int) -> None:
    for native, vectors in cases(n):
        expected = as_bits(decode(DEFAULT, native, n, vectors, LOOP))
        for form in (LOOP, PF) if pf_applies(n) else (LOOP,):
            for layout in LAYOUTS:
                for vector, bits in zip(vectors, expected, strict=True):
                    found = bits_on_host(loop_kernels, form, layout, native, n, pack_plain(vector))
                    np.testing.assert_array_equal(found, bits, f"{form} {layout} {vector.name}")


@pytest.mark.parametrize(
    ("form", "sizes"),
    [
        (row_form(DEFAULT, 1, 1), (1,)),
        (Form("row", 32, 1, 128), (1, 2, 3, 5, 7, 8)),
        (Form("row", 16, 5, 64), (20, 74)),
        (Form("row", 96, 1, 96, 2), (20, 3)),
        (Form("row", 64, 2, 128, 3), (16, 33)),
        (Form("row", 16, 1, 64, 2), (3, 16)),
        (Form("row", 64, 1, 128, 1, 1, "walk"), (16, 5)),
        (Form("row", 8, 1, 32, 1, 1, "walk"), (2, 1)),
        (Form("row", 224, 1, 224, 1, 2, "walk"), (54,)),
        (Form("row", 1, 2, 32), (3,)),
        (row_form(DEFAULT, 38, 2560), (38,)),
        (Form("row", 224, 1, 224), (54,)),
        (Form("row", 64, 1, 128, 2, 1, "once"), (16, 12)),
        (row_form(DEFAULT, 54, 5120), (54, 56)),
        (row_form(DEFAULT, 12, 128256), (12,)),
        (row_form(DEFAULT, 74, 3584), (74,)),
        (row_form(DEFAULT, 300, 4), (300,)),
    ],
    ids=str,
)
def test_row(tmp_path: Path, form: Form, sizes: tuple[int, ...]) -> None:
    library = build(tmp_path, "row.cu", DECODE, *form.defines)
    for n in sizes:
        for native, vectors in cases(n):
            expected = as_bits(decode(DEFAULT, native, n, vectors, form))
            for layout in (*LAYOUTS, "staged"):
                for vector, bits in zip(vectors, expected, strict=True):
                    found = bits_on_host(library, form, layout, native, n, pack(vector))
                    np.testing.assert_array_equal(found, bits, f"{form} {layout} {vector.name}")


@pytest.mark.parametrize("dependent", [False, True])
@pytest.mark.parametrize(("n", "rows"), [(16, 4096), (3, 16384), (54, 5120), (128, 8), (10, 262144)])
def test_row_for_one_shape_alone(tmp_path: Path, n: int, rows: int, dependent: bool) -> None:
    form = row_form(DEFAULT, n, rows, dependent)
    library = build(tmp_path, "row.cu", DECODE, *form.options(rows, n, dependent))
    native, vector = random_rows(16, n), seeded(256 * n, 7)  # whole, as the number that the kernel was compiled for
    (expected,) = as_bits(decode(DEFAULT, native, n, [vector], form))
    for layout in LAYOUTS:
        found = bits_on_host(library, form, layout, native, n, pack(vector))
        np.testing.assert_array_equal(found, expected, f"{form} {layout}")


@pytest.mark.parametrize("quant", OTHERS, ids=lambda quant: quant.name)
@pytest.mark.parametrize(
    ("form", "sizes"),
    [
        (Form("row", 32, 1, 128), (1, 2, 3, 5, 7)),
        (Form("row", 64, 2, 128, 2, 1), (33,)),
        (Form("row", 64, 1, 64, 1, 1, "walk"), (2, 16)),
        (Form("row", 8, 3, 32, 2), (7,)),
    ],
    ids=str,
)
def test_row_of_every_type(tmp_path: Path, quant: QuantType, form: Form, sizes: tuple[int, ...]) -> None:
    library = build(tmp_path, "row.cu", DECODE, *form.defines, quant=quant)
    for n in sizes:
        if not form.fits(units_of(quant, n)):
            continue
        for native, vectors in cases(n, quant):
            expected = as_bits(decode(quant, native, n, vectors, form))
            for layout in (*LAYOUTS, "staged"):
                for vector, bits in zip(vectors, expected, strict=True):
                    found = bits_on_host(library, form, layout, native, n, pack(vector, quant), quant)
                    np.testing.assert_array_equal(found, bits, f"{form} {layout} {vector.name} {n}")


@pytest.mark.parametrize(
    "form", [Form("row", 96, 1, 96, 2), Form("row", 64, 1, 128, 1, 1, "walk"), Form("row", 8, 5, 32)]
)
def test_an_addend_is_added_last(tmp_path: Path, form: Form) -> None:
    n, rows = 5, 7
    library = build(tmp_path, "row.cu", WITH_ADDEND, *form.defines, "-DDPL_ADD=1")
    native, vector = random_rows(rows, n), seeded(256 * n, 3)
    addend = np.random.default_rng(1).normal(0, 1, rows).astype(np.float32)
    weights, plain, out = aligned(packed(native, n)), aligned(pack(vector)), np.full(rows + 1, np.nan, np.float32)
    arrays = [ctypes.c_void_p(array.ctypes.data) for array in (weights, plain, addend, out)]
    library.run(form.grid(rows, MULTIPROCESSORS), form.threads, *arrays, ctypes.c_longlong(rows), n)
    expected = decode(DEFAULT, native, n, [vector], form)[0] + addend
    np.testing.assert_array_equal(out[:rows].view(np.uint32), expected.view(np.uint32))
    assert np.isnan(out[rows])


@pytest.mark.parametrize("quant", [DEFAULT, *OTHERS], ids=lambda quant: quant.name)
def test_pad_and_compare_of_every_type(tmp_path: Path, quant: QuantType) -> None:
    tools = build(tmp_path, "tools.cu", TOOLS, quant=quant)
    for n in (1, 3, 8, 33):
        native = random_rows(3, n, 0, quant)
        size, stride = quant.padded_block_bytes * n, quant.row_stride(n)
        rows, dpl, target = (
            aligned(native),
            aligned(packed(native, n, quant)),
            aligned(np.full(3 * size, 0xAA, np.uint8)),
        )
        tools.run_pad(ctypes.c_void_p(rows.ctypes.data), ctypes.c_void_p(target.ctypes.data), 3, n)
        np.testing.assert_array_equal(target.reshape(3, -1), padded(native, n, quant))
        first = np.empty(1, np.uint64)

        def compare(arrays: tuple[Any, ...] = (rows, dpl, first), n: int = n) -> int:
            arrays[2][:] = 2**64 - 1
            tools.run_compare(*(ctypes.c_void_p(array.ctypes.data) for array in arrays), 3, n)
            return int(arrays[2][0])

        assert compare() == 2**64 - 1
        for byte in [*range(0, len(dpl), 1 if n == 1 else 97), stride - 1, len(dpl) - 1]:
            dpl[byte] ^= 0x10
            assert compare() == byte
            dpl[byte] ^= 0x10


def test_check_finds_differences_and_unwritten(tools: ctypes.CDLL) -> None:
    found, expected = np.arange(100, dtype=np.uint32), np.arange(100, dtype=np.uint32)
    expected[[40, 70]] = 1
    found[[55, 90]] = 0xFFFFFFFF
    first = np.full(2, 2**64 - 1, np.uint64)
    pointers = [ctypes.c_void_p(array.ctypes.data) for array in (found, expected)]
    tools.run_check(*pointers, ctypes.c_longlong(100), ctypes.c_uint32(0xFFFFFFFF), ctypes.c_void_p(first.ctypes.data))
    assert first.tolist() == [40, 55]
