"""Types of 256 weights a block whose weights lie in two halves of four groups of 32.

Weight j has half ``j // 128``, group ``j % 128 // 32`` and place ``j % 32``. A lane of `row` takes a *quarter*: 16
columns of a half, that is the places 16 c to 16 c + 15 of all four groups, 64 weights.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from verify.contract.activations import Activations
from verify.contract.quants.contract import Floats

UNITS = 4


def two_bits(bytes_of_halves: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Two bits a weight, of group g at bit 2 g of byte l of a half; ``[rows, n, 64]`` to ``[rows, n, 256]``."""
    halves = bytes_of_halves.reshape(*bytes_of_halves.shape[:2], 2, 1, 32)
    shifts = np.arange(0, 8, 2, dtype=np.uint8).reshape(4, 1)
    return np.asarray(halves >> shifts & 3, np.uint8).reshape(*bytes_of_halves.shape[:2], 256)


def sum_groups(terms: Floats, d8: Floats) -> Floats:
    """``((d8 t)0 + (d8 t)1) + ...`` over the four groups of every quarter, in this order.

    terms: an integer for each 16 weights, exact in float32, ``[vectors, rows, 16 n]``. d8: ``[vectors, 1, 8 n]``.
    Returns ``[vectors, rows, 4 n]``.
    """
    vectors, rows, count = terms.shape
    n = count // 16
    t = terms.reshape(vectors, rows, n, 2, 4, 2)  # half, group, column
    products = t * d8.reshape(vectors, 1, n, 2, 4, 1)
    total = products[..., 0, :]
    for group in range(1, 4):
        total = total + products[..., group, :]
    return total.reshape(vectors, rows, UNITS * n)


def pack_quarters(activations: Activations) -> npt.NDArray[np.uint8]:
    """Activations of ``256 n`` weights: 5 planes of 4 n items of 16 bytes, an item a quarter; uint8 ``[320 n]``.

    Planes 0 to 3 hold the quants of one group each, plane 4 the fp16 scales of the four groups and the int16 sums of
    this quarter's 16 quants in each.
    """
    n = len(activations.quants) // 256
    quants = activations.quants.reshape(n, 2, 4, 2, 16)  # block, half, group, column, weight
    by_group = quants.transpose(2, 0, 1, 3, 4).reshape(4, 4 * n, 16)
    sums = quants.sum(axis=-1, dtype=np.int16).transpose(0, 1, 3, 2).reshape(4 * n, 4)
    d8 = np.repeat(activations.d8.reshape(2 * n, 4), 2, axis=0)
    packed = np.empty((5, 4 * n, 16), np.uint8)
    packed[:4] = by_group.view(np.uint8)
    packed[4, :, :8] = np.ascontiguousarray(d8, "<f2").view(np.uint8)
    packed[4, :, 8:] = np.ascontiguousarray(sums, "<i2").view(np.uint8)
    return packed.reshape(-1)
