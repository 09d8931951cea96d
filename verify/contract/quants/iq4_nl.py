"""IQ4_NL: 32 weights of four bits that are looked up in a table, and one scale (ggml's ``block_iq4_nl``).

Weight j is ``d * table[q]``, q the low (j < 16) or high four bits of byte ``j % 16``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from repack.layout import TYPES
from repack.rows import Bytes
from verify.contract.activations import Activations
from verify.contract.quants.blocks import nibbles, pack_table, scaled
from verify.contract.quants.contract import Contract, Floats, fields_of, single

_TYPE = TYPES[20]
_TABLE = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)


def dequantize(native: Bytes, n: int) -> npt.NDArray[np.float64]:
    """The format, weight by weight."""
    fields = fields_of(native, _TYPE, n)
    weights = np.empty((len(native), n, 32))
    for place in range(32):
        weights[..., place] = _TABLE[fields["qs"][..., place % 16] >> 4 * (place // 16) & 15]
    with np.errstate(invalid="ignore"):  # Inf and NaN in the scales are the model's, and meant
        return (fields["d"].astype(np.float64) * weights).reshape(len(native), -1)


def values(native: Bytes, n: int, vectors: Sequence[Activations]) -> Floats:
    """One value a block."""
    fields = fields_of(native, _TYPE, n)
    return scaled(single(fields["d"]), _TABLE[nibbles(fields["qs"])], vectors)


CONTRACT = Contract(_TYPE, dequantize, 1, values, pack_table)
