"""The memory that verify takes follows from the length of a row, by the formula of the modules, whatever the model."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np

from repack import convert_file
from repack.files.pipeline import BUFFER_BYTES
from repack.gguf.dequantize import dequantize
from repack.layout import TYPES
from repack.plan import MAX_ROW_BYTES
from tests.support.independent import TABLE, Kind, blocks
from tests.support.judging import failures, judge
from tests.support.models import Model, T
from verify.contract.emulation import CHUNK_WEIGHTS
from verify.run import Options
from verify.stages.oracle import STEP_WEIGHTS

VECTORS = 8


def bound(kind: Kind, n: int) -> int:
    """Bytes: the buffers of the contents, and one tensor's decode (verify/stages/decode.py) with all that it needs."""
    weights, row = kind.weights * n, kind.size * n
    vectors = 4 * weights
    piece = (30 + 5 * VECTORS) * CHUNK_WEIGHTS + 60 * STEP_WEIGHTS
    units = 3 * 4 * VECTORS * (weights // 32)
    return BUFFER_BYTES + vectors + 4 * row + piece + units + (4 << 20)


def peak(folder: Path, kind: Kind, n: int, tensors: int) -> int:
    one = blocks(kind, 1000)
    row = (one * (n // 1000 + 1))[: n * kind.size]
    model = Model([T(f"t{at}", (n * kind.weights,), kind.number, row) for at in range(tensors)]).write(folder / "m")
    convert_file(model, folder / "m.dpl", types=["all"], force=True)
    dequantize(np.zeros((1, 34), np.uint8), TYPES[8])  # imports what is imported late
    tracemalloc.start()
    try:
        verdict = judge(model, folder / "m.dpl", Options(device="cpu", threads=4))
        assert verdict.exit_code == 0, failures(verdict)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_rows_of_ten_million_weights(tmp_path: Path) -> None:
    """The longest that are converted. More tensors take no more, four threads or not."""
    kind = TABLE[14]
    n = MAX_ROW_BYTES // kind.size
    assert peak(tmp_path, kind, n, 2) < bound(kind, n) < 180 << 20


def test_rows_of_a_million_weights(tmp_path: Path) -> None:
    """Shorter ones are decoded on all threads at once, and still take less than the longest."""
    assert peak(tmp_path, TABLE[14], 4000, 4) < bound(TABLE[14], MAX_ROW_BYTES // 210)
