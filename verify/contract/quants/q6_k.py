"""Q6_K: 256 weights of six bits, a scale for every 16, and one for all (ggml's ``block_q6_K``).

Weight j has half ``h = j // 128``, group ``g = j % 128 // 32`` and place ``l = j % 32``. Its quant is the four bits
``ql[64 h + 32 (g & 1) + l] >> 4 (g >> 1)`` with the two bits ``qh[32 h + l] >> 2 g`` above them, minus 32; its value is
``d * scales[8 h + 2 g + l // 16] * quant``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from repack.layout import TYPES
from repack.rows import Bytes
from verify.contract.activations import Activations
from verify.contract.quants import quarters
from verify.contract.quants.contract import Contract, Floats, fields_of, group_dots, scales_of, single

_TYPE = TYPES[14]
_J = np.arange(_TYPE.block_weights)
_HALF, _GROUP, _PLACE = _J // 128, _J % 128 // 32, _J % 32


def dequantize(native: Bytes, n: int) -> npt.NDArray[np.float64]:
    """The format, weight by weight."""
    fields = fields_of(native, _TYPE, n)
    low = fields["ql"][..., 64 * _HALF + 32 * (_GROUP & 1) + _PLACE] >> (4 * (_GROUP >> 1)).astype(np.uint8) & 15
    high = fields["qh"][..., 32 * _HALF + _PLACE] >> (2 * _GROUP).astype(np.uint8) & 3
    quants = (low | high << 4).astype(np.float64) - 32
    scales = fields["scales"][..., 8 * _HALF + 2 * _GROUP + _PLACE // 16].astype(np.float64)
    with np.errstate(invalid="ignore"):  # Inf and NaN in d are the model's, and meant
        return (fields["d"].astype(np.float64) * scales * quants).reshape(len(native), -1)


def values(native: Bytes, n: int, vectors: Sequence[Activations]) -> Floats:
    """``d * (((d8 t)0 + (d8 t)1) + ...)`` for each quarter, t the integers of `_terms`."""
    d, terms = _terms(native, n, vectors)
    return np.repeat(d, quarters.UNITS, axis=-1) * quarters.sum_groups(terms, scales_of(vectors))


def loop_values(native: Bytes, n: int, vectors: Sequence[Activations]) -> Floats:
    """``(d * d8) * (t0 + t1)`` for each 32 weights: integers up to 2^24, exact; ``[vectors, rows, 8 n]``."""
    d, terms = _terms(native, n, vectors)
    scale = np.repeat(d, 8, axis=-1) * scales_of(vectors)
    product: Floats = scale * (terms[..., 0::2] + terms[..., 1::2])
    return product


def _terms(native: Bytes, n: int, vectors: Sequence[Activations]) -> tuple[Floats, Floats]:
    """d, ``[rows, n]``, and for each 16 weights ``scale * sum((q - 32) x)``: integers of at most 2^23."""
    fields = fields_of(native, _TYPE, n)
    ql = fields["ql"].reshape(len(native), n, 2, 2, 32)
    low = np.concatenate((ql & 15, ql >> 4), axis=3).reshape(len(native), n, 256)
    quants = (low | quarters.two_bits(fields["qh"]) << 4).astype(np.int8) - 32
    scales = fields["scales"].reshape(len(native), -1).astype(np.float32)
    return single(fields["d"]), group_dots(quants.reshape(len(native), -1), vectors, 16) * scales


CONTRACT = Contract(_TYPE, dequantize, quarters.UNITS, values, quarters.pack_quarters, loop_values)
