"""Synthetic Q6_K rows for the tests."""

from __future__ import annotations

import numpy as np

from repack.layout import BLOCK_BYTES, DEFAULT, row_stride
from repack.rows import Bytes, pack_rows, pad_rows

# fp16 bits at the edges: zeros, the smallest and largest subnormal, the smallest and largest normal, Inf, NaN
EDGE_D = np.array(
    [0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x0400, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00, 0xFE01], "<u2"
)


def random_rows(rows: int, n: int, seed: int = 0) -> Bytes:
    """Random bytes with finite d of model-like size: random bits as fp16 would be NaN now and then."""
    generator = np.random.default_rng(seed)
    native = generator.integers(0, 256, (rows, BLOCK_BYTES * n), dtype=np.uint8)
    d = generator.normal(0, 2e-4, (rows, n)).astype("<f2")
    set_d(native, n, d.view("<u2"))
    return native


def edge_rows(rows: int, n: int, seed: int = 0) -> Bytes:
    """Random bytes with d at the edges of fp16, one kind a row, and a row with all kinds mixed at the end."""
    native = random_rows(rows, n, seed)
    d = np.repeat(np.resize(EDGE_D, rows)[:, None], n, axis=1)
    d[-1] = np.resize(EDGE_D, n)
    set_d(native, n, d)
    return native


def set_d(native: Bytes, n: int, bits: np.ndarray) -> None:
    """Overwrite the fp16 scales with `bits`, uint16 ``[rows, n]``."""
    native.reshape(len(native), n, BLOCK_BYTES)[..., 208:] = np.ascontiguousarray(bits, "<u2")[..., None].view(np.uint8)


def packed(native: Bytes, n: int) -> Bytes:
    """The same rows in the dpl layout."""
    out = np.empty((len(native), row_stride(n)), np.uint8)
    pack_rows(native, out, DEFAULT, n)
    return out


def padded(native: Bytes, n: int) -> Bytes:
    """The same rows in the padded layout."""
    out = np.empty((len(native), 224 * n), np.uint8)
    pad_rows(native, out, DEFAULT, n)
    return out
