"""Q2_K: 256 weights of two bits, a scale and a minimum of four bits for every 16, and one of each for all.

ggml's ``block_q2_K``. Weight j has half ``h = j // 128``, group ``g = j % 128 // 32`` and place ``l = j % 32``. Its
quant q is the two bits ``qs[32 h + l] >> 2 g``; its value is ``d * (s & 15) * q - dmin * (s >> 4)`` with the byte
``s = scales[8 h + 2 g + l // 16]``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from repack.layout import TYPES
from repack.rows import Bytes
from verify.contract.activations import Activations
from verify.contract.quants import halves, quarters
from verify.contract.quants.contract import Contract, Floats, fields_of, group_dots, group_sums, scales_of

_TYPE = TYPES[10]


def dequantize(native: Bytes, n: int) -> npt.NDArray[np.float64]:
    """The format, weight by weight."""
    fields = fields_of(native, _TYPE, n)
    weights = np.empty((len(native), n, 256))
    dm = fields["dm"].astype(np.float64)
    with np.errstate(invalid="ignore"):  # Inf and NaN in the scales are the model's, and meant
        for j in range(256):
            half, group, place = j // 128, j % 128 // 32, j % 32
            scale = fields["scales"][..., 8 * half + 2 * group + place // 16].astype(np.float64)
            quant = fields["qs"][..., 32 * half + place] >> 2 * group & 3
            weights[..., j] = dm[..., 0] * (scale % 16) * quant - dm[..., 1] * (scale // 16)
        return weights.reshape(len(native), -1)


def values(native: Bytes, n: int, vectors: Sequence[Activations]) -> Floats:
    """``d * (((d8 t)0 + (d8 t)1) + ...) - dmin * (((d8 u)0 + (d8 u)1) + ...)`` for each half of a block.

    t is the sum of ``(s & 15) * sum(q x)``, and u of ``(s >> 4) * sum(x)``, over the two columns of a group: integers
    of at most 2^18.
    """
    fields = fields_of(native, _TYPE, n)
    rows, d8 = len(native), scales_of(vectors)
    packed = fields["scales"].reshape(rows, -1)
    dots = group_dots(quarters.two_bits(fields["qs"]).reshape(rows, -1), vectors, 16) * (packed & 15).astype(np.float32)
    minima = group_sums(vectors, 16) * (packed >> 4).astype(np.float32)
    d, dmin = (np.repeat(np.asarray(fields["dm"][..., at], np.float32), halves.UNITS, axis=-1) for at in (0, 1))
    return d * halves.sum_halves(dots, d8) - dmin * halves.sum_halves(minima, d8)


CONTRACT = Contract(_TYPE, dequantize, halves.UNITS, values, halves.pack_halves)
