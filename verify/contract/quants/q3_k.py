"""Q3_K: 256 weights of three bits, a scale of six bits for every 16, and one for all (ggml's ``block_q3_K``).

Weight j has half ``h = j // 128``, group ``g = j % 128 // 32`` and place ``l = j % 32``. Its quant is the two bits
``qs[32 h + l] >> 2 g``, minus 4 unless bit ``4 h + g`` of ``hmask[l]`` is set; its value is ``d * (s - 32) * quant``
with scale number ``i = 8 h + 2 g + l // 16``: low four bits in ``scales[i % 8] >> 4 (i // 8)``, the two above them in
``scales[8 + i % 4] >> 2 (i // 4)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from repack.layout import TYPES
from repack.rows import Bytes
from verify.contract.activations import Activations
from verify.contract.quants import halves, quarters
from verify.contract.quants.contract import Contract, Floats, fields_of, group_dots, scales_of, single

_TYPE = TYPES[11]


def dequantize(native: Bytes, n: int) -> npt.NDArray[np.float64]:
    """The format, weight by weight."""
    fields = fields_of(native, _TYPE, n)
    weights = np.empty((len(native), n, 256))
    packed = fields["scales"].astype(np.int64)
    for j in range(256):
        half, group, place = j // 128, j % 128 // 32, j % 32
        i = 8 * half + 2 * group + place // 16
        scale = (packed[..., i % 8] >> 4 * (i // 8) & 15) + 16 * (packed[..., 8 + i % 4] >> 2 * (i // 4) & 3) - 32
        bits = fields["qs"][..., 32 * half + place].astype(np.int64) >> 2 * group & 3
        set_bit = fields["hmask"][..., place].astype(np.int64) >> 4 * half + group & 1
        weights[..., j] = scale * (bits - 4 * (1 - set_bit))
    with np.errstate(invalid="ignore"):  # Inf and NaN in d are the model's, and meant
        return (fields["d"].astype(np.float64) * weights).reshape(len(native), -1)


def values(native: Bytes, n: int, vectors: Sequence[Activations]) -> Floats:
    """``d * (((d8 t)0 + (d8 t)1) + ...)`` for each half of a block.

    t is the sum of ``(s - 32) * sum(quant x)`` over the two columns of a group, an integer of at most 2^19.
    """
    fields = fields_of(native, _TYPE, n)
    rows = len(native)
    third = np.unpackbits(fields["hmask"], axis=-1, bitorder="little").reshape(rows, n, 32, 8).transpose(0, 1, 3, 2)
    quants = (quarters.two_bits(fields["qs"]) | third.reshape(rows, n, 256) << 2).astype(np.int8) - 4
    terms = group_dots(quants.reshape(rows, -1), vectors, 16) * _scales(fields["scales"]).reshape(rows, -1)
    return np.repeat(single(fields["d"]), halves.UNITS, axis=-1) * halves.sum_halves(terms, scales_of(vectors))


def _scales(packed: npt.NDArray[Any]) -> Floats:
    """The 16 scales of each block, ``[rows, n, 12]`` to float32 ``[rows, n, 16]``."""
    low = np.concatenate((packed[..., :8] & 15, packed[..., :8] >> 4), axis=-1)
    high = np.concatenate([packed[..., 8:] >> shift & 3 for shift in (0, 2, 4, 6)], axis=-1)
    scales: Floats = (low | high << 4).astype(np.float32) - 32
    return scales


CONTRACT = Contract(_TYPE, dequantize, halves.UNITS, values, halves.pack_halves)
