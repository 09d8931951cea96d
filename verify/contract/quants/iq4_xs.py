"""IQ4_XS: 256 weights of four bits that are looked up in a table, a scale of six bits for every 32, one for all.

ggml's ``block_iq4_xs``. Weight j has group ``g = j // 32`` and place ``l = j % 32``; its value is ``d * (s - 32) *
table[q]`` with q the low (l < 16) or high four bits of ``qs[16 g + l % 16]``, and s the low four bits
``scales_l[g // 2] >> 4 (g % 2)`` with the two bits ``scales_h >> 2 g`` above them. A lane of `row` takes a group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from repack.layout import TYPES
from repack.rows import Bytes
from verify.contract.activations import GROUP, Activations
from verify.contract.quants.blocks import nibbles, pack_table
from verify.contract.quants.contract import Contract, Floats, fields_of, group_dots, scales_of, single

_TYPE = TYPES[23]
_UNITS = 8
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


def values(native: Bytes, n: int, vectors: Sequence[Activations]) -> Floats:
    """``(d * d8) * ((s - 32) * sum(q x))`` for each group: an integer below 2^24, so only the last product rounds."""
    fields = fields_of(native, _TYPE, n)
    rows = len(native)
    quants = _TABLE[nibbles(fields["qs"].reshape(rows, n * _UNITS, 16))]
    dots = group_dots(quants.reshape(rows, -1), vectors, GROUP) * _scales(fields).reshape(rows, -1)
    return (np.repeat(single(fields["d"]), _UNITS, axis=-1) * scales_of(vectors)) * dots


def _scales(fields: dict[str, npt.NDArray[Any]]) -> Floats:
    """``s - 32`` for each group, float32 ``[rows, n, 8]``."""
    low, high = (np.repeat(fields[name], count, axis=-1) for name, count in (("scales_l", 2), ("scales_h", 4)))
    group = np.arange(_UNITS, dtype=np.uint8)
    scales: Floats = (low >> 4 * (group % 2) & 15 | (high >> 2 * (group % 4) & 3) << 4).astype(np.float32) - 32
    return scales


CONTRACT = Contract(_TYPE, dequantize, _UNITS, values, pack_table)
