"""MXFP4: 32 weights of four bits, floats of one exponent and a sign, and one power of two (ggml's ``block_mxfp4``).

Weight j is ``2^(e - 128) * table[q]``, q the low (j < 16) or high four bits of byte ``j % 16``. The table holds twice
the floats 0, 0.5, 1, 1.5, 2, 3, 4, 6, so the power of two is half of what e stands for.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from repack.layout import TYPES
from repack.rows import Bytes
from verify.contract.activations import Activations
from verify.contract.quants.blocks import nibbles, pack_table
from verify.contract.quants.contract import Contract, Floats, fields_of, group_dots, scales_of

_TYPE = TYPES[39]
_TABLE = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)


def dequantize(native: Bytes, n: int) -> npt.NDArray[np.float64]:
    """The format, weight by weight."""
    fields = fields_of(native, _TYPE, n)
    weights = np.empty((len(native), n, 32))
    for place in range(32):
        weights[..., place] = _TABLE[fields["qs"][..., place % 16] >> 4 * (place // 16) & 15]
    with np.errstate(invalid="ignore"):  # Inf and NaN in the scales are the model's, and meant
        return (np.ldexp(1.0, fields["e"].astype(np.int32) - 128) * weights).reshape(len(native), -1)


def values(native: Bytes, n: int, vectors: Sequence[Activations]) -> Floats:
    """``d * (d8 * sum(q x))`` for each block: the product with d, a power of two, is exact unless it is subnormal.

    In this order nothing overflows before the value itself does, and so 0 never meets Inf.
    """
    fields = fields_of(native, _TYPE, n)
    dots = group_dots(_TABLE[nibbles(fields["qs"])].reshape(len(native), -1), vectors, 32)
    power: Floats = np.ldexp(np.float32(1), fields["e"][..., 0].astype(np.int32) - 128)
    return power * (scales_of(vectors) * dots)


CONTRACT = Contract(_TYPE, dequantize, 1, values, pack_table)
