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

from repack.layout import QuantType
from repack.rows import Bytes
from verify.contract.activations import GROUP, Activations
from verify.contract.quants.contract import Contract, Floats, fields_of, group_dots, group_sums, scales_of, single

_TABLE_ORDER = np.arange(GROUP).reshape(2, 16).T.reshape(-1)
"""Which weight a table kernel multiplies next: byte after byte, of each the low and then the high four bits."""


def block_contract(quant: QuantType, offset: int) -> Contract:
    """The contract of a type of four bits, or five where it has a field qh; a minimum m, where it has dm, is added.

    Weight j is ``d * (q - offset)`` or ``d * (q - offset) + m``: q is the low (j < 16) or high four bits of byte
    ``j % 16`` of qs, above them bit j of the 32 bits of qh.
    """
    names = {field.name for field in quant.planes}
    five, minimum = "qh" in names, "dm" in names
    scale = "dm" if minimum else "d"

    def dequantize(native: Bytes, n: int) -> npt.NDArray[np.float64]:
        fields = fields_of(native, quant, n)
        weights = np.empty((len(native), n, GROUP))
        for j in range(GROUP):
            low = fields["qs"][..., j % 16] >> 4 * (j // 16) & 15
            above = fields["qh"][..., j // 8] >> j % 8 & 1 if five else 0
            weights[..., j] = (low + 16.0 * above) - offset
        scales = fields[scale].astype(np.float64)
        with np.errstate(invalid="ignore"):  # Inf and NaN in the scales are the model's, and meant
            values = scales[..., :1] * weights + (scales[..., 1:] if minimum else 0.0)
        return np.asarray(values.reshape(len(native), -1))

    def values(native: Bytes, n: int, vectors: Sequence[Activations]) -> Floats:
        fields = fields_of(native, quant, n)
        bits = nibbles(fields["qs"]) | (np.unpackbits(fields["qh"], axis=-1, bitorder="little") << 4 if five else 0)
        scaled_dots = scaled(single(fields[scale]), bits.astype(np.int8) - offset, vectors)
        if not minimum:
            return scaled_dots
        m = np.asarray(fields[scale][..., 1], np.float32)
        return scaled_dots + (m * scales_of(vectors)) * group_sums(vectors, GROUP)

    return Contract(quant, dequantize, 1, values, pack_blocks)


def nibbles(qs: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """The four bits of each weight: ``[rows, n, 16]`` bytes to ``[rows, n, 32]``."""
    return np.concatenate((qs & 15, qs >> 4), axis=-1)


def scaled(d: npt.NDArray[Any], quants: npt.NDArray[Any], vectors: Sequence[Activations]) -> Floats:
    """``(d * d8) * sum(q x)``: the integer is below 2^24 and d d8 has 22 bits, so only the last product rounds.

    d: float32 ``[rows, n]``. quants: integers ``[rows, n, 32]``. Returns ``[vectors, rows, n]``.
    """
    dots = group_dots(quants.reshape(len(quants), -1), vectors, GROUP)
    return (d * scales_of(vectors)) * dots


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
