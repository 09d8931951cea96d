"""Dependent launches: the same bits as ordinary ones, also while the kernel before still writes the activations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from repack.layout import DEFAULT, QuantType
from tests.gpu.tensors import KERNELS, stored
from tests.support.rows import packed, random_rows
from verify.contract.activations import seeded
from verify.contract.forms import Form, row_form
from verify.gpu.dependent import can_launch_dependent
from verify.gpu.device import preflight
from verify.gpu.launch import decoder
from verify.gpu.speeds import READERS
from verify.gpu.timing import measure

cupy = pytest.importorskip("cupy")
pytest.importorskip("cuda.bindings.driver")
pytestmark = pytest.mark.gpu

CHAIN, REPLAYS = 24, 100
# Lets its successor start at once, dawdles, and writes the activations only then.
LATE_WRITER = """
extern "C" __global__ void late_writer(const int4* from, int4* to, int count, long long cycles) {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    for (const long long start = clock64(); clock64() - start < cycles;) {}
    for (int i = threadIdx.x; i < count; i += blockDim.x) to[i] = from[i];
}
"""
CASES = [
    (DEFAULT, 2000, row_form(DEFAULT, 54, 5120, dependent=True), 54),
    (DEFAULT, 2000, row_form(DEFAULT, 54, 5120), 54),
    (DEFAULT, 3001, row_form(DEFAULT, 16, 4096, dependent=True), 16),
    (DEFAULT, 777, Form("row", 16, 1, 256, 2, 3, "once"), 3),
    (DEFAULT, 777, Form("row", 32, 1, 64), 20),
    *(
        (quant, 1501, row_form(quant, n, 1501, dependent=True), n)
        for quant in KERNELS
        for n in [5120 // quant.block_weights]
    ),
]


@pytest.mark.parametrize(("quant", "rows", "form", "n"), CASES, ids=lambda value: getattr(value, "name", str(value)))
def test_a_chain_gives_the_bits_of_ordinary_launches(quant: QuantType, rows: int, form: Form, n: int) -> None:
    preflight()
    if not can_launch_dependent():
        pytest.skip("needs compute capability 9.0")
    stream = cupy.cuda.Stream(non_blocking=True)
    late_writer = cupy.RawModule(code=LATE_WRITER, options=("--std=c++17",)).get_function("late_writer")
    with stream:
        weights = cupy.asarray(packed(random_rows(rows, n, quant=quant), n, quant).reshape(-1))
        vectors = [stored(seeded(quant.block_weights * n, seed), quant) for seed in range(CHAIN)]
        expected, found = cupy.empty((CHAIN, rows), np.uint32), cupy.empty((CHAIN, rows), np.uint32)
        for vector, out in zip(vectors, expected, strict=True):
            decoder(quant, form, "dpl")(weights, vector, out, rows, n)
        written = cupy.empty_like(vectors[0])
        launch = decoder(quant, form, "dpl", dependent=True)

        def chain() -> None:
            for vector, out in zip(vectors, found, strict=True):
                arguments = (vector, written, np.int32(vector.nbytes // 16), np.int64(20_000))
                late_writer((1,), (256,), arguments)
                launch(weights, written, out, rows, n)
                launch(weights, written, out, rows, n)

        chain()
        stream.synchronize()
        stream.begin_capture()
        chain()
        graph = stream.end_capture()
        wrong: Any = cupy.zeros((), np.int64)
        for _ in range(REPLAYS):
            found.data.memset_async(0xFF, found.nbytes, stream)
            graph.launch(stream)
            wrong += cupy.count_nonzero(found != expected)
        assert int(wrong.get(stream=stream)) == 0


@pytest.mark.parametrize("quant", KERNELS, ids=lambda quant: quant.name)
def test_the_report_of_dependent_launches(quant: QuantType) -> None:
    info = preflight()
    if not can_launch_dependent():
        pytest.skip("needs compute capability 9.0")
    rows, n = 2048, 13824 // quant.block_weights
    result = measure(quant, rows, n, info.l2_bytes, replays=3, dependent=True)
    assert result.identical
    assert result.dependent
    assert {timing.layout for timing in result.timings} == {"padded", "dpl"}
    assert {timing.form for timing in result.timings} == {str(row_form(quant, n, rows, dependent=True)), *READERS}
    assert all(timing.median > 0 for timing in result.timings)
