"""Q5_1: 32 weights of five bits, a scale and a minimum (ggml's ``block_q5_1``).

Weight j is ``d * q + m``: four bits as in Q4_1, above them bit j of the 32 bits of qh.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from repack.layout import TYPES
from repack.rows import Bytes
from verify.contract.activations import Activations
from verify.contract.quants.blocks import fifth_bits, nibbles, pack_blocks, with_minimum
from verify.contract.quants.contract import Contract, Floats, fields_of

_TYPE = TYPES[7]


def dequantize(native: Bytes, n: int) -> npt.NDArray[np.float64]:
    """The format, weight by weight."""
    fields = fields_of(native, _TYPE, n)
    weights = np.empty((len(native), n, 32))
    for place in range(32):
        low = fields["qs"][..., place % 16] >> 4 * (place // 16) & 15
        bits = fields["qh"][..., place // 8] >> place % 8 & 1
        weights[..., place] = (low | bits << 4).astype(np.float64)
    dm = fields["dm"].astype(np.float64)
    with np.errstate(invalid="ignore"):  # Inf and NaN in the scales are the model's, and meant
        return (dm[..., :1] * weights + dm[..., 1:]).reshape(len(native), -1)


def values(native: Bytes, n: int, vectors: Sequence[Activations]) -> Floats:
    """One value a block."""
    fields = fields_of(native, _TYPE, n)
    return with_minimum(fields["dm"], _quants(fields), vectors)


def _quants(fields: dict[str, npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return nibbles(fields["qs"]) | fifth_bits(fields["qh"]) << 4


CONTRACT = Contract(_TYPE, dequantize, 1, values, pack_blocks)
