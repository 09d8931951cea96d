"""The float64 reference: Q6_K dequantization written down from the format, apart from gguf's and from the kernels.

Weight j of a super-block (ggml's ``dequantize_row_q6_K``): h = j // 128 is its half, g = j % 128 // 32 its group and
l = j % 32 its place in the group. Its quant is the nibble ``ql[64 h + 32 (g & 1) + l] >> 4 (g >> 1)`` with the two bits
``qh[32 h + l] >> 2 g`` above it, minus 32; its value is ``d * scales[8 h + 2 g + l // 16] * quant``.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from repack import layout
from repack.rows import Bytes

TOLERANCE = 1e-5
"""Largest error of float32 against float64, relative to the norm of the row."""

_J = np.arange(layout.BLOCK_WEIGHTS)
_HALF, _GROUP, _PLACE = _J // 128, _J % 128 // 32, _J % 32
_QL = 64 * _HALF + 32 * (_GROUP & 1) + _PLACE
_QL_SHIFT = (4 * (_GROUP >> 1)).astype(np.uint8)
_QH = 128 + 32 * _HALF + _PLACE
_QH_SHIFT = (2 * _GROUP).astype(np.uint8)
_SCALE = 192 + 8 * _HALF + 2 * _GROUP + _PLACE // 16


def dequantize(native: Bytes, n: int) -> npt.NDArray[np.float64]:
    """Native rows, uint8 ``[rows, 210 n]``, as float64 ``[rows, 256 n]``."""
    blocks = np.ascontiguousarray(native).reshape(len(native), n, layout.BLOCK_BYTES)
    low = blocks[..., _QL] >> _QL_SHIFT & 15
    high = blocks[..., _QH] >> _QH_SHIFT & 3
    quants = (low | high << 4).astype(np.float64) - 32
    scales = blocks[..., _SCALE].view(np.int8).astype(np.float64)
    d = np.ascontiguousarray(blocks[..., 208:]).view("<f2").astype(np.float64)
    with np.errstate(invalid="ignore"):  # Inf and NaN in d are the model's, and meant
        return (d * scales * quants).reshape(len(native), -1)


def worst_error(values: npt.NDArray[np.float32], reference: npt.NDArray[np.float64]) -> tuple[int, float]:
    """The row that differs most, and by how much relative to its norm.

    Values that are not finite in the reference have to be the same there, else the error is infinite. Rows without
    any norm have to be exact.
    """
    finite = np.isfinite(reference)
    same = np.where(finite, np.isfinite(values), _same_special(values, reference))
    error = np.where(finite & same, values.astype(np.float64) - np.where(finite, reference, 0), 0)
    norms = np.linalg.norm(np.where(finite, reference, 0), axis=1)
    errors = np.linalg.norm(error, axis=1)
    relative = np.where(errors > 0, errors / np.where(norms > 0, norms, np.finfo(np.float64).tiny), 0)
    relative[~same.all(axis=1)] = np.inf
    row = int(np.argmax(relative))
    return row, float(relative[row])


def _same_special(values: npt.NDArray[np.float32], reference: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    return np.where(np.isnan(reference), np.isnan(values), values == reference)


def sample_rows(rows: int, wanted: int, seed: int) -> npt.NDArray[np.int64]:
    """Row numbers to look at closely: first, last, and others drawn by PCG64(seed); sorted, at most `wanted`."""
    if rows <= wanted:
        return np.arange(rows, dtype=np.int64)
    drawn = np.random.Generator(np.random.PCG64(seed)).integers(0, rows, max(wanted - 2, 0))
    return np.unique(np.concatenate((np.array([0, rows - 1][:wanted]), drawn))).astype(np.int64)
