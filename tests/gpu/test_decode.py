"""Decode on a real GPU, every type: `pytest -m gpu`. The bits are the CPU's."""

from __future__ import annotations

import numpy as np
import pytest

from repack.errors import EnvironmentFailure
from repack.layout import DEFAULT, TYPES, QuantType
from repack.rows import Bytes
from tests.gpu.tensors import EXTRA_FORMS, KERNELS, assert_same_as_cpu, extra_plans, poke, rows_of, stored
from tests.support.rows import EDGE_D, edge_rows, packed, random_rows, set_scales
from verify import kernels
from verify.contract.activations import Activations, adversarial, seeded
from verify.contract.emulation import as_bits, decode_forms
from verify.contract.forms import LOOP, Form, forms_for
from verify.gpu.device import DeviceInfo, preflight
from verify.gpu.findings import ByteDifference, Results, TensorRows
from verify.gpu.launch import can_stage, decoder
from verify.gpu.tensor import ChunkOnDevice, check_tensor

cupy = pytest.importorskip("cupy")
pytestmark = pytest.mark.gpu

SIZES = [1, 2, 3, 5, 7, 33, 56]
"""Blocks in a row; all but the last leave planes of most types with padding."""
every_type = pytest.mark.parametrize("quant", KERNELS, ids=lambda quant: quant.name)


def vectors_for(quant: QuantType, n: int) -> tuple[Activations, ...]:
    return (seeded(quant.block_weights * n, 3), *adversarial(quant.block_weights * n))


@pytest.fixture(scope="module", autouse=True)
def info() -> DeviceInfo:
    return preflight()


@pytest.mark.parametrize("n", SIZES)
@every_type
def test_bits_are_the_cpus(quant: QuantType, n: int) -> None:
    """Odd numbers of rows, rows of one block, rows whose planes need padding."""
    for rows in (1, 3, 77):
        native, vectors = random_rows(rows, n, n + rows, quant), vectors_for(quant, n)
        forms = forms_for(quant, n, rows)
        tensor = rows_of(native, n, quant)
        assert_same_as_cpu(check_tensor(tensor, vectors, forms), native, tensor, vectors, forms)


@pytest.mark.parametrize("n", [1, 5, 33])
@every_type
def test_forms_that_no_rule_chooses(quant: QuantType, n: int) -> None:
    native, vectors = random_rows(45, n, n, quant), [seeded(quant.block_weights * n, 3)]
    forms = [*EXTRA_FORMS, *extra_plans(quant, n)]
    tensor = rows_of(native, n, quant)
    assert_same_as_cpu(check_tensor(tensor, vectors, forms), native, tensor, vectors, forms)


@pytest.mark.parametrize("n", [8, 16, 20, 54, 74, 300])
def test_lengths_of_real_models(n: int) -> None:
    """Q6_K: all its forms and plans, and rows of more units than lanes."""
    native, vectors = random_rows(77, n, n), vectors_for(DEFAULT, n)
    forms = [*forms_for(DEFAULT, n, 77), *EXTRA_FORMS, *extra_plans(DEFAULT, n)]
    tensor = rows_of(native, n)
    assert_same_as_cpu(check_tensor(tensor, vectors, forms), native, tensor, vectors, forms)


@pytest.mark.parametrize("ne0", [2880, 5120, 13824, 49152])
@every_type
def test_long_rows(quant: QuantType, ne0: int) -> None:
    """Up to more units than all lanes of a thread block take at once."""
    n = -(-ne0 // quant.block_weights)
    native, vectors = random_rows(32, n, 1, quant), [seeded(quant.block_weights * n, 3)]
    forms = forms_for(quant, n, 32)
    tensor = rows_of(native, n, quant)
    assert_same_as_cpu(check_tensor(tensor, vectors, forms), native, tensor, vectors, forms)


@every_type
def test_65536_rows(quant: QuantType) -> None:
    n = 3
    native, vectors = random_rows(65_536, n, 1, quant), [seeded(quant.block_weights * n, 1)]
    forms = forms_for(quant, n, len(native))
    tensor = rows_of(native, n, quant)
    assert_same_as_cpu(check_tensor(tensor, vectors, forms), native, tensor, vectors, forms)


@pytest.mark.parametrize("n", [1, 5])
@every_type
def test_scales_at_the_edges(quant: QuantType, n: int) -> None:
    """fp16: zeros, subnormals, the largest, Inf, NaN; powers of two: the smallest, the largest, NaN."""
    native, vectors = edge_rows(61, n, quant=quant), vectors_for(quant, n)
    forms = [*forms_for(quant, n, 61), EXTRA_FORMS[0]]
    tensor = rows_of(native, n, quant)
    assert_same_as_cpu(check_tensor(tensor, vectors, forms), native, tensor, vectors, forms)


@every_type
def test_experts_in_odd_chunks_are_the_experts_one_by_one(quant: QuantType) -> None:
    n, experts, rows = 7, 5, 33
    native = random_rows(experts * rows, n, quant=quant)
    vectors = [seeded(quant.block_weights * n, seed) for seed in (1, 2)]
    forms = forms_for(quant, n, len(native))
    tensor = rows_of(native, n, quant)
    whole = check_tensor(tensor, vectors, forms, chunk_bytes=7 * quant.block_bytes * n)
    assert_same_as_cpu(whole, native, tensor, vectors, forms)
    for expert in range(experts):
        part = native[expert * rows : (expert + 1) * rows]
        one = check_tensor(rows_of(part, n, quant), vectors, forms)
        for form in forms:
            np.testing.assert_array_equal(one.bits[form], whole.bits[form][:, expert * rows : (expert + 1) * rows])


def test_no_rows() -> None:
    result = check_tensor(rows_of(random_rows(0, 3), 3), [seeded(768, 1)], forms_for(DEFAULT, 3, 0))
    assert result.proven
    assert {bits.shape for bits in result.bits.values()} == {(1, 0)}


@pytest.mark.parametrize("quant", [TYPES[14], TYPES[39]], ids=lambda quant: quant.name)
def test_beyond_2_to_31_bytes(quant: QuantType) -> None:
    """One chunk of 2.2 GB; the rows repeat, so that the expected outputs are cheap."""
    n = 74 if quant is DEFAULT else 931
    tile = random_rows(1000, n, quant=quant)
    rows, dpl_tile = 2**31 // (quant.block_bytes * n) + 2001, packed(tile, n, quant)

    def repeat(source: Bytes, row0: int, row1: int, out: Bytes) -> None:
        for row in range(row0, row1, len(source)):
            part = out[row - row0 : row - row0 + len(source)]
            part[:] = source[: len(part)]

    tensor = TensorRows("big", quant, n, rows, lambda *a: repeat(tile, *a), lambda *a: repeat(dpl_tile, *a))
    vectors, forms = [seeded(quant.block_weights * n, 1)], forms_for(quant, n, rows)
    chunk, results = ChunkOnDevice(tensor, vectors, forms, rows), Results(tensor, vectors, forms)
    chunk.upload(0, rows)
    for poked in (False, True):
        if poked:
            poke(chunk.rows["dpl"], (rows - 1) * quant.row_stride(n) + 5)
            results, chunk.count = Results(tensor, vectors, forms), rows
        chunk.compare()
        chunk.decode()
        chunk.collect(results)
        result = results.finish(0)
        assert result.proven != poked
    expected = decode_forms(quant, tile, n, vectors, forms)
    for form in forms:
        np.testing.assert_array_equal(result.bits[form], np.resize(expected[form].view(np.uint32), (1, rows)))
    assert result.difference == ByteDifference(rows - 1, 0, quant.planes[0].name, 5)
    assert {output.row for output in result.mismatches} == {rows - 1}


@pytest.mark.parametrize("n", SIZES)
@every_type
def test_staged_rows_give_the_same_bits(quant: QuantType, n: int) -> None:
    native, vector = edge_rows(45, n, quant=quant), seeded(quant.block_weights * n, 1)
    forms = [form for form in (*forms_for(quant, n, 45), EXTRA_FORMS[0]) if can_stage(quant, form, n)]
    assert forms
    for form in forms:
        weights, out = cupy.zeros(native.nbytes + 16, np.uint8), cupy.empty(45, np.uint32)
        weights[: native.nbytes].set(native.reshape(-1))
        decoder(quant, form, "staged")(weights, stored(vector, quant), out, 45, n)
        expected = decode_forms(quant, native, n, [vector], [form])[form]
        np.testing.assert_array_equal(as_bits(out.get()), as_bits(expected[0]), str(form))


@every_type
def test_flushing_to_zero_makes_no_difference(quant: QuantType) -> None:
    """CuPy always compiles with -ftz=true; here the same source without it, on the smallest numbers there are."""
    n, rows, generator = 5, 40, np.random.default_rng(1)
    native = random_rows(rows, n, quant=quant)
    smallest = np.arange(6, dtype=np.uint8) if quant.planes[-1].scale == "e8m0" else EDGE_D[:6]
    set_scales(native, n, generator.choice(smallest, (rows, n * quant.block_scales)), quant)
    weights_of_a_row = quant.block_weights * n
    scales = np.full(weights_of_a_row // 32, 2.0**-24, np.float16)
    vector = Activations("smallest", seeded(weights_of_a_row, 1).quants, scales)
    weights = cupy.asarray(packed(native, n, quant).reshape(-1))
    forms = [Form("row", 32, 1, 128), *([LOOP] if quant is DEFAULT else [])]
    for form in forms:
        name = "row.cu" if form.name == "row" else "loop.cu"
        activations = stored(vector, quant, form.name)
        flushed, kept = cupy.empty(rows, np.uint32), cupy.empty(rows, np.uint32)
        decoder(quant, form, "dpl")(weights, activations, flushed, rows, n)
        nvrtc = cupy.cuda.nvrtc
        program = nvrtc.createProgram(kernels.source(name, quant), name, [], [])
        major_minor = cupy.cuda.Device().compute_capability
        options = (f"--gpu-architecture=sm_{major_minor}", "-ftz=false", *kernels.OPTIONS)
        nvrtc.compileProgram(program, options + (form.defines if form.name == "row" else ()))
        module = cupy.cuda.function.Module()
        module.load(nvrtc.getCUBIN(program) + b"\0")  # CuPy takes the last byte for a terminator
        arguments = (weights, activations, kept, np.int64(rows), np.int32(n))
        module.get_function(f"{form.name}_dpl")((form.grid(rows, 1),), (form.threads,), arguments)
        np.testing.assert_array_equal(flushed.get(), kept.get())
        expected = decode_forms(quant, native, n, [vector], [form])[form]
        np.testing.assert_array_equal(flushed.get(), expected[0].view(np.uint32))
        assert np.count_nonzero(flushed.get()) > rows // 4


def test_little_memory_means_smaller_chunks_and_then_an_error_that_names_the_tensor() -> None:
    n, rows = 54, 4000
    native, vectors, forms = random_rows(rows, n), [seeded(256 * n, 1)], forms_for(DEFAULT, n, rows)
    tensor = rows_of(native, n)
    pool = cupy.get_default_memory_pool()
    pool.free_all_blocks()
    try:
        pool.set_limit(pool.total_bytes() + (40 << 20))
        result = check_tensor(tensor, vectors, forms)
        assert_same_as_cpu(result, native, tensor, vectors, forms)
        pool.free_all_blocks()
        pool.set_limit(pool.total_bytes() + 4096)
        with pytest.raises(EnvironmentFailure, match=r"^t\.weight: out of memory.*--device cpu"):
            check_tensor(tensor, vectors, forms)
    finally:
        pool.set_limit(0)


def test_a_reader_that_fails_passes_through() -> None:
    def fail(row0: int, row1: int, out: Bytes) -> None:
        if row0 > 20:
            raise OSError("disk on fire")
        out[:] = 0

    tensor = TensorRows("t", DEFAULT, 3, 1000, fail, fail)
    with pytest.raises(OSError, match="disk on fire"):
        check_tensor(tensor, [seeded(768, 1)], forms_for(DEFAULT, 3, 1000), chunk_bytes=7000)


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
    native, vectors = random_rows(4000, 20), [seeded(5120, 1)]
    seconds = check_tensor(rows_of(native, 20), vectors, forms_for(DEFAULT, 20, 4000), chunk_bytes=1 << 20).seconds
    assert min(seconds.total, seconds.read, seconds.upload, seconds.compare, seconds.decode) > 0
    assert seconds.total > seconds.read
