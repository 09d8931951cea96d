"""What the GPU must find, for every type: a byte in any plane or padding, an output that is not written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from repack.layout import DEFAULT, TYPES, QuantType
from repack.rows import unpack_rows
from tests.gpu.tensors import KERNELS, assert_same_as_cpu, poke, rows_of
from tests.support.rows import packed, random_rows
from verify.contract.activations import seeded
from verify.contract.emulation import as_bits, decode_forms
from verify.contract.forms import PF, Form, forms_for
from verify.gpu.device import preflight
from verify.gpu.findings import UNWRITTEN, ByteDifference, Output, Results, TensorResult
from verify.gpu.tensor import ChunkOnDevice, check_tensor

pytest.importorskip("cupy")
pytestmark = pytest.mark.gpu

N, ROWS = 33, 9
every_type = pytest.mark.parametrize("quant", KERNELS, ids=lambda quant: quant.name)


@pytest.fixture(scope="module", autouse=True)
def _gpu() -> None:
    preflight()


def again(chunk: ChunkOnDevice, rows: int = ROWS) -> TensorResult:
    """Compare and decode what lies on the device now."""
    results = Results(chunk.tensor, chunk.vectors, chunk.forms)
    chunk.count = rows
    chunk.compare()
    chunk.decode()
    chunk.collect(results)
    return results.finish(0)


def loaded(quant: QuantType, n: int = N, rows: int = ROWS, spare: int = 0) -> ChunkOnDevice:
    """Random rows on the device, and FF behind them."""
    tensor = rows_of(random_rows(rows, n, quant=quant), n, quant)
    vectors = [seeded(quant.block_weights * n, seed) for seed in (1, 2)]
    chunk = ChunkOnDevice(tensor, vectors, forms_for(quant, n, rows), rows + spare)
    with chunk.stream:
        for array in chunk.rows.values():
            array.data.memset_async(0xFF, array.nbytes, chunk.stream)
    chunk.upload(0, rows)
    chunk.stream.synchronize()
    return chunk


def changed_outputs(chunk: ChunkOnDevice, row: int, byte: int) -> set[Output]:
    """What the CPU says of a flipped bit in a dpl row: for each form the first vector whose output changes."""
    quant, n = chunk.tensor.quant, chunk.tensor.n
    native = random_rows(ROWS, n, quant=quant)
    dpl = packed(native, n, quant)
    dpl[row, byte] ^= 0x40
    changed = np.empty_like(native)
    unpack_rows(dpl, changed, quant, n)
    before, after = (decode_forms(quant, rows, n, chunk.vectors, chunk.forms) for rows in (native, changed))
    found = set()
    for form in chunk.forms:
        different = np.argwhere(as_bits(before[form]) != as_bits(after[form]))
        found |= {Output(form, "dpl", chunk.vectors[vector].name, int(at)) for vector, at in different[:1].tolist()}
    return found


@pytest.mark.parametrize("n", [1, 3, N])
@every_type
def test_what_follows_the_tensor_does_not_matter(quant: QuantType, n: int) -> None:
    chunk = loaded(quant, n, 7, spare=3)
    native = random_rows(7, n, quant=quant)
    assert_same_as_cpu(again(chunk, 7), native, chunk.tensor, chunk.vectors, chunk.forms)


@every_type
def test_a_flipped_bit_in_any_plane_is_found(quant: QuantType) -> None:
    chunk, row, block = loaded(quant), 6, 31
    assert again(chunk).proven
    for start, field in zip(quant.plane_starts(N), quant.planes, strict=True):
        at = field.nbytes - 1
        byte = start + field.nbytes * block + at
        place = row * quant.row_stride(N) + byte
        poke(chunk.rows["dpl"], place)
        result = again(chunk)
        assert result.difference == ByteDifference(row, block, field.name, at)
        assert set(result.mismatches) == changed_outputs(chunk, row, byte)
        assert result.mismatches, "the test's own choice: this bit has to matter"
        poke(chunk.rows["dpl"], place)
    assert again(chunk).proven


@pytest.mark.parametrize("n", [1, 2, 3, 5, 7, N])
@every_type
def test_a_flipped_bit_in_any_padding_is_found(quant: QuantType, n: int) -> None:
    chunk, row = loaded(quant, n), 2
    ends = (*quant.plane_starts(n)[1:], quant.row_stride(n))
    for end, field in zip(ends, quant.planes, strict=True):
        padding = -field.nbytes * n % 16
        for byte in {0, padding - 1} if padding else set():
            place = row * quant.row_stride(n) + end - padding + byte
            poke(chunk.rows["dpl"], place)
            result = again(chunk)
            assert result.difference == ByteDifference(row, -1, "padding", byte)
            assert not result.mismatches
            poke(chunk.rows["dpl"], place)
    assert again(chunk).proven


@pytest.mark.parametrize("layout", ["native", "padded"])
@every_type
def test_a_flipped_bit_in_another_layout_is_found(quant: QuantType, layout: str) -> None:
    chunk = loaded(quant)
    width = chunk.widths[layout]
    block = width // N
    scale = quant.planes[-1].offset + quant.planes[-1].nbytes - 1
    poke(chunk.rows[layout], ROWS * width - block + scale)
    result = again(chunk)
    assert not result.proven
    layouts = {"padded"} if layout == "padded" else {"padded", "dpl"}  # native is what the others are compared with
    assert {(output.form, output.layout, output.row) for output in result.mismatches} == {
        (form, other, ROWS - 1) for form in chunk.forms for other in layouts
    }


def test_swapped_planes_are_found() -> None:
    n, native = 20, random_rows(11, 20)
    dpl = packed(native, n)
    swapped = dpl.copy()
    swapped[:, : 64 * n], swapped[:, 128 * n : 192 * n] = dpl[:, 128 * n : 192 * n], dpl[:, : 64 * n]
    forms = forms_for(DEFAULT, n, 11)
    result = check_tensor(rows_of(native, n, dpl=swapped), [seeded(256 * n, 1)], forms)
    assert result.difference == ByteDifference(0, 0, "ql", 0)
    assert {(output.form, output.layout, output.row) for output in result.mismatches} == {
        (form, "dpl", 0) for form in forms
    }


@pytest.mark.parametrize("layout", ["native", "padded", "dpl"])
@pytest.mark.parametrize(("quant", "n"), [(DEFAULT, 54), (TYPES[8], 7)], ids=["Q6_K", "Q8_0"])
def test_an_unwritten_row_is_found(quant: QuantType, n: int, layout: str) -> None:
    lazy = PF if quant is DEFAULT else forms_for(quant, n, 12)[0]

    class Forgetful(ChunkOnDevice):
        def launch(self, form: Form, on: str, vector: int, out: Any) -> None:
            count = self.count
            self.count -= (form, on, vector) == (lazy, layout, 1)
            super().launch(form, on, vector, out)
            self.count = count

    tensor = rows_of(random_rows(12, n, quant=quant), n, quant)
    vectors = [seeded(quant.block_weights * n, seed) for seed in (1, 2)]
    chunk = Forgetful(tensor, vectors, forms_for(quant, n, 12), 12)
    chunk.upload(0, 12)
    result = again(chunk, 12)
    assert not result.proven
    assert result.unwritten == (Output(lazy, layout, "seeded-2", 11),)
    assert (result.bits[lazy][1, -1] == UNWRITTEN) == (layout == "native")
