"""Decode on a real GPU: `pytest -m gpu`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from repack.errors import EnvironmentFailure
from repack.layout import FIELDS, PADDED_BLOCK_BYTES, pad_start, row_stride
from repack.rows import Bytes
from tests.support.rows import EDGE_D, edge_rows, packed, random_rows, set_d
from verify import kernels
from verify.contract.activations import Activations, adversarial, pack_plain, pack_quarters, seeded
from verify.contract.emulation import as_bits, decode_digest, decode_forms
from verify.contract.forms import LOOP, PF, Form, forms_for, row_form
from verify.gpu.device import DeviceInfo, can_stage, decoder, preflight
from verify.gpu.findings import UNWRITTEN, ByteDifference, Output, Results, TensorResult, TensorRows
from verify.gpu.stage import Stage
from verify.gpu.tensor import check_tensor

cupy = pytest.importorskip("cupy")
pytestmark = pytest.mark.gpu

SIZES = [1, 2, 3, 5, 7, 8, 16, 20, 54, 56, 74]
EXTRA_FORMS = [Form("row", 16, 5, 64), Form("row", 256, 1, 256), Form("row", 4, 2, 128), Form("row", 96, 3, 384)]


def extra_forms(n: int) -> list[Form]:
    """Forms that the rule does not choose here, and its two other plans for rows of this length."""
    whole = row_form(n, 1)
    groups = max(1, 128 // whole.lanes)
    plans = [(2, "once"), (1, "walk")] if whole.quarters == 1 else []
    return EXTRA_FORMS + [Form("row", whole.lanes, 1, whole.lanes * groups, rows, 1, plan) for rows, plan in plans]


@pytest.fixture(scope="module", autouse=True)
def info() -> DeviceInfo:
    return preflight()


def rows_of(native: Bytes, n: int, dpl: Bytes | None = None) -> TensorRows:
    """A tensor that is read from arrays; where there are fewer rows than asked for they repeat."""
    dpl = packed(native, n) if dpl is None else dpl

    def read_native(row0: int, row1: int, out: Bytes) -> None:
        out[:] = native[row0:row1]

    def read_dpl(row0: int, row1: int, out: Bytes) -> None:
        out[:] = dpl[row0:row1]

    return TensorRows("t.weight", n, len(native), read_native, read_dpl)


def assert_same_as_cpu(
    result: TensorResult, native: Bytes, n: int, vectors: Sequence[Activations], forms: Sequence[Form]
) -> None:
    assert result.proven, (result.difference, result.mismatches, result.unwritten)
    expected = decode_forms(native, n, vectors, forms)
    for form in forms:
        np.testing.assert_array_equal(as_bits(result.bits[form]), as_bits(expected[form]), str(form))
        assert decode_digest([result.bits[form]]) == decode_digest([expected[form]])


@pytest.mark.parametrize("rows", [1, 3, 77])
@pytest.mark.parametrize("n", SIZES)
def test_bits_are_the_cpus(n: int, rows: int) -> None:
    native, vectors = random_rows(rows, n, n + rows), (seeded(n, 3), *adversarial(n))
    forms = [*forms_for(n, rows), *extra_forms(n)]
    assert_same_as_cpu(check_tensor(rows_of(native, n), vectors, forms), native, n, vectors, forms)


@pytest.mark.parametrize("n", [1, 3])
def test_65536_rows(n: int) -> None:
    native, vectors = random_rows(65_536, n), [seeded(n, 1)]
    forms = forms_for(n, len(native))
    assert_same_as_cpu(check_tensor(rows_of(native, n), vectors, forms), native, n, vectors, forms)


@pytest.mark.parametrize("n", [1, 5, 54])
def test_scales_at_the_edges_of_fp16(n: int) -> None:
    native, vectors = edge_rows(61, n), (seeded(n, 3), *adversarial(n))
    forms = [*forms_for(n, 61), *extra_forms(n)]
    assert_same_as_cpu(check_tensor(rows_of(native, n), vectors, forms), native, n, vectors, forms)


def test_experts_in_odd_chunks_are_the_experts_one_by_one() -> None:
    n, experts, rows = 8, 5, 33
    native, vectors = random_rows(experts * rows, n), (seeded(n, 1), seeded(n, 2))
    forms = forms_for(n, len(native))
    whole = check_tensor(rows_of(native, n), vectors, forms, chunk_bytes=7 * 210 * n)
    assert_same_as_cpu(whole, native, n, vectors, forms)
    for expert in range(experts):
        part = native[expert * rows : (expert + 1) * rows]
        one = check_tensor(rows_of(part, n), vectors, forms)
        for form in forms:
            np.testing.assert_array_equal(one.bits[form], whole.bits[form][:, expert * rows : (expert + 1) * rows])


def test_no_rows_and_no_vectors() -> None:
    result = check_tensor(rows_of(random_rows(0, 3), 3), [seeded(3, 1)], forms_for(3, 0))
    assert result.proven
    assert {bits.shape for bits in result.bits.values()} == {(1, 0)}


def test_beyond_2_to_31_bytes() -> None:
    """One chunk of 2.2 GB; the rows repeat, so that the expected outputs are cheap."""
    n, tile = 74, random_rows(1000, 74)
    rows, dpl_tile = 2**31 // (210 * n) + 2001, packed(tile, n)

    def repeat(source: Bytes, row0: int, row1: int, out: Bytes) -> None:
        for row in range(row0, row1, len(source)):
            part = out[row - row0 : row - row0 + len(source)]
            part[:] = source[: len(part)]

    tensor = TensorRows("big", n, rows, lambda *a: repeat(tile, *a), lambda *a: repeat(dpl_tile, *a))
    vectors, forms = [seeded(n, 1)], forms_for(n, rows)
    stage, results = Stage(tensor, vectors, forms, rows), Results(tensor, vectors, forms)
    stage.upload(0, rows)
    stage.compare()
    stage.decode()
    stage.collect(results)
    result = results.finish(0)
    assert result.proven
    expected = decode_forms(tile, n, vectors, forms)
    for form in forms:
        np.testing.assert_array_equal(result.bits[form], np.resize(expected[form].view(np.uint32), (1, rows)))
    poke(stage.rows["dpl"], (rows - 1) * row_stride(n) + 5)
    found = stage_again(stage, rows)
    assert found.difference == ByteDifference(rows - 1, 0, "ql", 4)
    assert {output.row for output in found.mismatches} == {rows - 1}


def poke(array: Any, byte: int) -> None:
    """Flip a bit on the device."""
    host = array[byte : byte + 1].get()
    array[byte : byte + 1].set(host ^ 0x40)


def stage_again(stage: Stage, rows: int) -> TensorResult:
    """Compare and decode what lies on the device now."""
    results = Results(stage.tensor, stage.vectors, stage.forms)
    stage.count = rows
    stage.compare()
    stage.decode()
    stage.collect(results)
    return results.finish(0)


def loaded(n: int, rows: int, spare: int = 0) -> Stage:
    """A stage with random rows on the device, and FF behind them."""
    tensor = rows_of(random_rows(rows, n), n)
    stage = Stage(tensor, [seeded(n, 1), seeded(n, 2)], forms_for(n, rows), rows + spare)
    with stage.stream:
        for array in stage.rows.values():
            array.data.memset_async(0xFF, array.nbytes, stage.stream)
    stage.upload(0, rows)
    stage.stream.synchronize()
    return stage


@pytest.mark.parametrize("n", [1, 3, 54])
def test_what_follows_the_tensor_does_not_matter(n: int) -> None:
    stage = loaded(n, 7, spare=3)
    result = stage_again(stage, 7)
    native = random_rows(7, n)
    assert_same_as_cpu(result, native, n, stage.vectors, stage.forms)


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.name)
def test_a_flipped_byte_on_the_device_is_found(field: Any) -> None:
    n, rows, row, block, byte = 54, 9, 6, 31, 1
    stage = loaded(n, rows)
    poke(stage.rows["dpl"], row * row_stride(n) + field.offset * n + field.nbytes * block + byte)
    result = stage_again(stage, rows)
    assert not result.proven
    assert result.difference == ByteDifference(row, block, field.name, 0)
    assert result.mismatches == tuple(Output(form, "dpl", "seeded-1", row) for form in stage.forms)


def test_a_flipped_byte_in_the_padding_is_found() -> None:
    n, rows = 54, 9
    stage = loaded(n, rows)
    poke(stage.rows["dpl"], 2 * row_stride(n) + pad_start(n) + 2)
    result = stage_again(stage, rows)
    assert result.difference == ByteDifference(2, -1, "padding", 2)
    assert not result.mismatches


@pytest.mark.parametrize("layout", ["native", "padded"])
def test_a_flipped_byte_in_another_layout_is_found(layout: str) -> None:
    n, rows, row = 33, 9, 8
    stage = loaded(n, rows)
    poke(stage.rows[layout], row * stage.widths[layout] + stage.widths[layout] - PADDED_BLOCK_BYTES)
    result = stage_again(stage, rows)
    assert not result.proven
    layouts = {"padded"} if layout == "padded" else {"padded", "dpl"}  # native is what the others are compared with
    assert {(output.form, output.layout, output.row) for output in result.mismatches} == {
        (form, other, row) for form in stage.forms for other in layouts
    }


def test_swapped_planes_are_found() -> None:
    n, native = 20, random_rows(11, 20)
    dpl = packed(native, n)
    swapped = dpl.copy()
    swapped[:, : 64 * n], swapped[:, 128 * n : 192 * n] = dpl[:, 128 * n : 192 * n], dpl[:, : 64 * n]
    forms = forms_for(n, 11)
    result = check_tensor(rows_of(native, n, swapped), [seeded(n, 1)], forms)
    assert result.difference == ByteDifference(0, 0, "ql", 0)
    assert {(output.form, output.layout, output.row) for output in result.mismatches} == {
        (form, "dpl", 0) for form in forms
    }


@pytest.mark.parametrize("layout", ["native", "padded", "dpl"])
def test_an_unwritten_row_is_found(layout: str) -> None:
    class Forgetful(Stage):
        def launch(self, form: Form, on: str, vector: int, out: Any) -> None:
            if (form, on, vector) == (PF, layout, 1):
                count, self.count = self.count, self.count - 1
                super().launch(form, on, vector, out)
                self.count = count
            else:
                super().launch(form, on, vector, out)

    n, rows = 54, 12
    tensor, vectors = rows_of(random_rows(rows, n), n), [seeded(n, 1), seeded(n, 2)]
    stage = Forgetful(tensor, vectors, forms_for(n, rows), rows)
    stage.upload(0, rows)
    result = stage_again(stage, rows)
    assert not result.proven
    assert result.unwritten == (Output(PF, layout, "seeded-2", rows - 1),)
    assert (result.bits[PF][1, -1] == UNWRITTEN) == (layout == "native")


@pytest.mark.parametrize("n", SIZES)
def test_staged_rows_give_the_same_bits(n: int) -> None:
    native, vector = edge_rows(45, n), seeded(n, 1)
    forms = [form for form in (*forms_for(n, 45), *extra_forms(n)) if can_stage(form, n)]
    assert forms
    for form in forms:
        weights, out = cupy.asarray(native.reshape(-1)), cupy.empty(45, np.uint32)
        decoder(form, "staged")(weights, cupy.asarray(pack_quarters(vector)), out, 45, n)
        expected = decode_forms(native, n, [vector], [form])[form]
        np.testing.assert_array_equal(as_bits(out.get()), as_bits(expected[0]), str(form))


@pytest.mark.parametrize(("name", "form"), [("loop.cu", LOOP), ("row.cu", Form("row", 32, 1, 128))], ids=str)
def test_flushing_to_zero_makes_no_difference(name: str, form: Form) -> None:
    """CuPy always compiles with -ftz=true; here the same source without it, on the smallest numbers there are."""
    n, rows = 5, 40
    native = random_rows(rows, n)
    set_d(native, n, np.random.default_rng(1).choice(EDGE_D[:6], (rows, n)))
    vector = Activations("smallest", seeded(n, 1).quants, np.full(8 * n, 2.0**-24, np.float16))
    weights = cupy.asarray(packed(native, n).reshape(-1))
    activations = cupy.asarray((pack_quarters if form.name == "row" else pack_plain)(vector))
    flushed, kept = cupy.empty(rows, np.uint32), cupy.empty(rows, np.uint32)
    decoder(form, "dpl")(weights, activations, flushed, rows, n)
    nvrtc = cupy.cuda.nvrtc
    program = nvrtc.createProgram(kernels.source(name), name, [], [])
    major_minor = cupy.cuda.Device().compute_capability
    options = (f"--gpu-architecture=sm_{major_minor}", "-ftz=false", *kernels.OPTIONS)
    nvrtc.compileProgram(program, options + (form.defines if form.name == "row" else ()))
    module = cupy.cuda.function.Module()
    module.load(nvrtc.getCUBIN(program) + b"\0")  # CuPy takes the last byte for a terminator
    arguments = (weights, activations, kept, np.int64(rows), np.int32(n))
    module.get_function(f"{form.name}_dpl")((form.grid(rows, 1),), (form.threads,), arguments)
    np.testing.assert_array_equal(flushed.get(), kept.get())
    expected = decode_forms(native, n, [vector], [form])[form]
    np.testing.assert_array_equal(flushed.get(), expected[0].view(np.uint32))
    assert np.count_nonzero(flushed.get()) > rows // 2


def test_little_memory_means_smaller_chunks_and_then_an_error_that_names_the_tensor() -> None:
    n, rows = 54, 4000
    native, vectors, forms = random_rows(rows, n), [seeded(n, 1)], forms_for(n, rows)
    pool = cupy.get_default_memory_pool()
    pool.free_all_blocks()
    try:
        pool.set_limit(pool.total_bytes() + (40 << 20))
        result = check_tensor(rows_of(native, n), vectors, forms)
        assert_same_as_cpu(result, native, n, vectors, forms)
        pool.free_all_blocks()
        pool.set_limit(pool.total_bytes() + 4096)
        with pytest.raises(EnvironmentFailure, match=r"^t\.weight: out of memory.*--device cpu"):
            check_tensor(rows_of(native, n), vectors, forms)
    finally:
        pool.set_limit(0)


def test_a_reader_that_fails_passes_through() -> None:
    def fail(row0: int, row1: int, out: Bytes) -> None:
        if row0 > 20:
            raise OSError("disk on fire")
        out[:] = 0

    tensor = TensorRows("t", 3, 1000, fail, fail)
    with pytest.raises(OSError, match="disk on fire"):
        check_tensor(tensor, [seeded(3, 1)], forms_for(3, 1000), chunk_bytes=7000)


def test_preflight_describes_the_device(info: DeviceInfo) -> None:
    assert info.index == 0
    assert info.name
    assert info.uuid.startswith("GPU-")
    assert len(info.uuid) == 40
    assert info.memory_bytes > 1 << 30
    assert info.l2_bytes > 1 << 20
    with pytest.raises(EnvironmentFailure, match="GPU 99: no such GPU"):
        preflight(99)


def test_seconds_are_measured() -> None:
    native, vectors = random_rows(4000, 20), [seeded(20, 1)]
    seconds = check_tensor(rows_of(native, 20), vectors, forms_for(20, 4000), chunk_bytes=1 << 20).seconds
    assert min(seconds.total, seconds.read, seconds.upload, seconds.compare, seconds.decode) > 0
    assert seconds.total > seconds.read
