"""Synthetic rows of any type for the tests; of Q6_K unless said otherwise."""

from __future__ import annotations

import numpy as np

from repack.layout import DEFAULT, QuantType
from repack.rows import Bytes, pack_rows, pad_rows

# fp16 bits at the edges: zeros, the smallest and largest subnormal, the smallest and largest normal, Inf, NaN
EDGE_D = np.array(
    [0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x0400, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00, 0xFE01], "<u2"
)
EDGE_E = np.array([0, 1, 2, 127, 254, 255], np.uint8)


def random_rows(rows: int, n: int, seed: int = 0, quant: QuantType = DEFAULT) -> Bytes:
    """Random bytes with finite scales of model-like size: random bits as fp16 would be NaN now and then."""
    generator = np.random.default_rng(seed)
    native = generator.integers(0, 256, (rows, quant.block_bytes * n), dtype=np.uint8)
    if quant.planes[-1].scale == "e8m0":
        set_scales(native, n, generator.integers(112, 120, (rows, n), dtype=np.uint8), quant)
    else:
        values = generator.normal(0, 2e-4, (rows, n * quant.block_scales)).astype("<f2")
        set_scales(native, n, values.view("<u2"), quant)
    return native


def edge_rows(rows: int, n: int, seed: int = 0, quant: QuantType = DEFAULT) -> Bytes:
    """Random bytes with scales at the edges, one kind a row, and a row with all kinds mixed at the end."""
    native = random_rows(rows, n, seed, quant)
    edges = EDGE_E if quant.planes[-1].scale == "e8m0" else EDGE_D
    scales = np.repeat(np.resize(edges, rows)[:, None], n * quant.block_scales, axis=1)
    scales[-1] = np.resize(edges, n * quant.block_scales)
    set_scales(native, n, scales, quant)
    return native


def set_scales(native: Bytes, n: int, bits: np.ndarray, quant: QuantType = DEFAULT) -> None:
    """Overwrite the blocks' scales with `bits`, uint16 (or uint8 for e8m0) ``[rows, n * block_scales]``."""
    field = quant.planes[-1]
    blocks = native.reshape(len(native), n, quant.block_bytes)
    raw = np.ascontiguousarray(bits, bits.dtype.newbyteorder("<")).view(np.uint8)
    blocks[..., field.offset : field.offset + field.nbytes] = raw.reshape(len(native), n, field.nbytes)


def packed(native: Bytes, n: int, quant: QuantType = DEFAULT) -> Bytes:
    """The same rows in the dpl layout."""
    out = np.empty((len(native), quant.row_stride(n)), np.uint8)
    pack_rows(native, out, quant, n)
    return out


def padded(native: Bytes, n: int, quant: QuantType = DEFAULT) -> Bytes:
    """The same rows in the padded layout."""
    out = np.empty((len(native), quant.padded_block_bytes * n), np.uint8)
    pad_rows(native, out, quant, n)
    return out
