"""Types of 32 weights a block whose main plane has 16 bytes a block: two weights a byte, and what belongs to them.

Byte i holds weight i in its low four bits and weight 16 + i in its high ones. A lane of `row` takes a whole block. Its
activations stand in three planes over the n blocks: 16 bytes of quants, the other 16, and 4 bytes with the fp16 scale
and the int16 sum of the 32 quants.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from verify.contract.activations import GROUP, Activations
from verify.contract.quants.contract import Floats, group_dots, group_sums, scales_of, single

_TABLE_ORDER = np.arange(GROUP).reshape(2, 16).T.reshape(-1)
"""Which weight a table kernel multiplies next: byte after byte, of each the low and then the high four bits."""


def nibbles(qs: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """The four bits of each weight: ``[rows, n, 16]`` bytes to ``[rows, n, 32]``."""
    return np.concatenate((qs & 15, qs >> 4), axis=-1)


def fifth_bits(qh: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Bit j of the four bytes for weight j: ``[rows, n, 4]`` to ``[rows, n, 32]``, each 0 or 1."""
    return np.unpackbits(qh, axis=-1, bitorder="little")


def scaled(d: npt.NDArray[Any], quants: npt.NDArray[Any], vectors: Sequence[Activations]) -> Floats:
    """``(d * d8) * sum(q x)``: the integer is below 2^24 and d d8 has 22 bits, so only the last product rounds.

    d: float32 ``[rows, n]``. quants: integers ``[rows, n, 32]``. Returns ``[vectors, rows, n]``.
    """
    dots = group_dots(quants.reshape(len(quants), -1), vectors, GROUP)
    return (d * scales_of(vectors)) * dots


def with_minimum(dm: npt.NDArray[Any], quants: npt.NDArray[Any], vectors: Sequence[Activations]) -> Floats:
    """``(d * d8) * sum(q x) + (m * d8) * sum(x)`` for fields of d and m, ``[rows, n, 2]``; ``[vectors, rows, n]``."""
    minimum = (np.asarray(dm[..., 1], np.float32) * scales_of(vectors)) * group_sums(vectors, GROUP)
    return scaled(single(dm), quants, vectors) + minimum


def pack_blocks(activations: Activations) -> npt.NDArray[np.uint8]:
    """Activations of ``32 n`` weights in the order of the weights; uint8 ``[36 n]``."""
    return _pack(activations, np.arange(GROUP))


def pack_table(activations: Activations) -> npt.NDArray[np.uint8]:
    """Activations of ``32 n`` weights for kernels that look quants up in a table; uint8 ``[36 n]``."""
    return _pack(activations, _TABLE_ORDER)


def _pack(activations: Activations, order: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    quants = activations.quants.reshape(-1, GROUP)
    meta = np.empty((len(quants), 2), "<i2")
    meta[:, 0] = np.ascontiguousarray(activations.d8, "<f2").view("<i2")
    meta[:, 1] = quants.sum(axis=1, dtype=np.int16)
    halves = quants[:, order].reshape(-1, 2, 16).transpose(1, 0, 2)
    return np.concatenate((np.ascontiguousarray(halves).view(np.uint8).reshape(-1), meta.view(np.uint8).reshape(-1)))
