"""Q2_K and Q3_K: 256 weights a block in two halves, of which a lane of `row` takes one.

Weight j has half ``j // 128``, group ``j % 128 // 32`` and place ``j % 32``. The two columns of a group, its first and
its second 16 weights, have scales of their own; their integers are added before they become a float.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from verify.contract.activations import Activations
from verify.contract.quants.contract import Floats

UNITS = 2


def sum_halves(terms: Floats, d8: Floats) -> Floats:
    """``(((d8 t)0 + (d8 t)1) + (d8 t)2) + (d8 t)3`` over the four groups of each half, t the sum of both columns.

    terms: an integer for each 16 weights, exact in float32 as their sums of two, ``[vectors, rows, 16 n]``. d8:
    ``[vectors, 1, 8 n]``. Returns ``[vectors, rows, 2 n]``.
    """
    products = (terms[..., 0::2] + terms[..., 1::2]) * d8
    groups = products.reshape(*products.shape[:2], -1, 4)
    total: Floats = groups[..., 0]
    for group in range(1, 4):
        total = total + groups[..., group]
    return total


def pack_halves(activations: Activations) -> npt.NDArray[np.uint8]:
    """Activations of ``256 n`` weights by halves of blocks; uint8 ``[304 n]``.

    Eight planes of 2 n items of 16 bytes, of group g and column c plane 2 g + c: quants. Then a plane of 8 int16 sums
    for each half, in the same order, and one of 4 fp16 scales.
    """
    quants = activations.quants.reshape(-1, 8, 16)  # half, group and column, weight
    planes = np.ascontiguousarray(quants.transpose(1, 0, 2)).view(np.uint8)
    sums = quants.sum(axis=-1, dtype=np.int16).astype("<i2").view(np.uint8)
    d8 = np.ascontiguousarray(activations.d8, "<f2").view(np.uint8)
    return np.concatenate((planes.reshape(-1), sums.reshape(-1), d8))
