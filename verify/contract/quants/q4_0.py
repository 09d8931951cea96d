"""Q4_0: 32 weights of four bits and one scale (ggml's ``block_q4_0``).

Weight j is ``d * (q - 8)``, q the low (j < 16) or high four bits of byte ``j % 16``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from repack.layout import TYPES
from repack.rows import Bytes
from verify.contract.activations import Activations
from verify.contract.quants.blocks import nibbles, pack_blocks, scaled
from verify.contract.quants.contract import Contract, Floats, fields_of, single

_TYPE = TYPES[2]


def dequantize(native: Bytes, n: int) -> npt.NDArray[np.float64]:
    """The format, weight by weight."""
    fields = fields_of(native, _TYPE, n)
    weights = np.empty((len(native), n, 32))
    for place in range(32):
        weights[..., place] = (fields["qs"][..., place % 16] >> 4 * (place // 16) & 15).astype(np.float64) - 8
    d = fields["d"].astype(np.float64)
    with np.errstate(invalid="ignore"):  # Inf and NaN in d are the model's, and meant
        return (d * weights).reshape(len(native), -1)


def values(native: Bytes, n: int, vectors: Sequence[Activations]) -> Floats:
    """One value a block."""
    fields = fields_of(native, _TYPE, n)
    return scaled(single(fields["d"]), _quants(fields), vectors)


def _quants(fields: dict[str, npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return nibbles(fields["qs"]).astype(np.int8) - 8


CONTRACT = Contract(_TYPE, dequantize, 1, values, pack_blocks)
