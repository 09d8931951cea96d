"""Run every kernel once, for compute-sanitizer: `compute-sanitizer --tool memcheck python -m tests.gpu.sanitize`.

Memory comes straight from cudaMalloc, so that a byte read behind a buffer is seen.
"""

from __future__ import annotations

import sys

import cupy
import numpy as np

from tests.gpu.test_decode import extra_forms, rows_of
from tests.support.rows import random_rows
from verify.contract.activations import pack_quarters, seeded
from verify.contract.forms import forms_for
from verify.gpu.device import can_stage, decoder, preflight, tool
from verify.gpu.speeds import READERS
from verify.gpu.tensor import check_tensor


def main() -> int:
    cupy.cuda.set_allocator(None)
    preflight()
    for n in (1, 3, 54, 74):
        rows = 37
        native, vector = random_rows(rows, n), seeded(n, 1)
        forms = [*forms_for(n, rows), *extra_forms(n)]
        result = check_tensor(rows_of(native, n), [vector], forms, chunk_bytes=20 * 210 * n)
        print(f"n = {n}: proven {result.proven}", result.difference, result.mismatches, result.unwritten, flush=True)
        if not result.proven:
            return 1
        staged = cupy.zeros(-(-native.size // 16) * 16, np.uint8)
        staged[: native.size].set(native.reshape(-1))
        out, activations = cupy.empty(rows, np.uint32), cupy.asarray(pack_quarters(vector))
        for form in forms:
            if can_stage(form, n):
                decoder(form, "staged")(staged, activations, out, rows, n)
        for loads in (2, 4, 8):
            grid = -(-staged.nbytes // (16 * 256 * loads))
            words = cupy.zeros(grid + 4, np.uint32)
            for reader in READERS:
                tool(f"{reader}{loads}")((grid,), (256,), (staged, words, np.int64(staged.nbytes // 16), np.uint32(1)))
    cupy.cuda.Device().synchronize()
    return 0


if __name__ == "__main__":
    sys.exit(main())
