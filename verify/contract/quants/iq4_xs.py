"""IQ4_XS: 256 weights of four bits that are looked up in a table, a scale of six bits for every 32, one for all.

ggml's ``block_iq4_xs``. Weight j has group ``g = j // 32`` and place ``l = j % 32``; its value is ``d * (s - 32) *
table[q]`` with q the low (l < 16) or high four bits of ``qs[16 g + l % 16]``, and s the low four bits
``scales_l[g // 2] >> 4 (g % 2)`` with the two bits ``scales_h >> 2 g`` above them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from repack.layout import TYPES
from repack.rows import Bytes
from verify.contract.quants.contract import Contract, fields_of

_TYPE = TYPES[23]
_TABLE = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)


def dequantize(native: Bytes, n: int) -> npt.NDArray[np.float64]:
    """The format, weight by weight."""
    fields = fields_of(native, _TYPE, n)
    weights = np.empty((len(native), n, 256))
    above = fields["scales_h"].astype(np.int64)
    above = above[..., 0] + 256 * above[..., 1]
    for j in range(256):
        group, place = j // 32, j % 32
        scale = (fields["scales_l"][..., group // 2].astype(np.int64) >> 4 * (group % 2) & 15) - 32
        scale += 16 * (above >> 2 * group & 3)
        weights[..., j] = scale * _TABLE[fields["qs"][..., 16 * group + place % 16] >> 4 * (place // 16) & 15]
    with np.errstate(invalid="ignore"):  # Inf and NaN in d are the model's, and meant
        return (fields["d"].astype(np.float64) * weights).reshape(len(native), -1)


CONTRACT = Contract(_TYPE, dequantize)
