"""Every kernel of every type once: `compute-sanitizer --tool memcheck python -m tests.gpu.sanitize`.

Memory comes straight from cudaMalloc, so that a byte read behind a buffer is seen.
"""

from __future__ import annotations

import sys

import cupy
import numpy as np

from repack.layout import DEFAULT, QuantType, align
from tests.gpu.tensors import EXTRA_FORMS, KERNELS, extra_plans, rows_of, stored
from tests.support.rows import random_rows
from verify.contract.activations import seeded
from verify.contract.forms import forms_for
from verify.gpu.device import preflight
from verify.gpu.launch import can_stage, decoder, tool
from verify.gpu.speeds import READERS
from verify.gpu.tensor import check_tensor

ROWS = 37


def main() -> int:
    cupy.cuda.set_allocator(None)
    preflight()
    for quant in KERNELS:
        for n in (1, 3, 54, 74) if quant is DEFAULT else (1, 3, 33):
            if not proven(quant, n):
                return 1
    cupy.cuda.Device().synchronize()
    return 0


def proven(quant: QuantType, n: int) -> bool:
    """All forms over all layouts, staged rows, and the kernels that only read."""
    native, vector = random_rows(ROWS, n, quant=quant), seeded(quant.block_weights * n, 1)
    forms = [*forms_for(quant, n, ROWS), *EXTRA_FORMS, *extra_plans(quant, n)]
    result = check_tensor(rows_of(native, n, quant), [vector], forms, chunk_bytes=20 * quant.block_bytes * n)
    print(f"{quant.name} n = {n}: {result.proven}", result.difference, result.mismatches, result.unwritten, flush=True)
    staged = cupy.zeros(align(native.size), np.uint8)
    staged[: native.size].set(native.reshape(-1))
    out, activations = cupy.empty(ROWS, np.uint32), stored(vector, quant)
    for form in forms:
        if can_stage(quant, form, n):
            decoder(quant, form, "staged")(staged, activations, out, ROWS, n)
    for loads in (2, 4, 8):
        grid = -(-staged.nbytes // (16 * 256 * loads))
        words = cupy.zeros(grid + 4, np.uint32)
        for reader in READERS:
            kernel = tool(f"{reader}{loads}", quant)
            kernel((grid,), (256,), (staged, words, np.int64(staged.nbytes // 16), np.uint32(1)))
    return result.proven


if __name__ == "__main__":
    sys.exit(main())
