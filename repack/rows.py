"""Rows of blocks brought from one layout into another: exact copies of bytes, in NumPy."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from repack.layout import QuantType, align

Bytes = npt.NDArray[np.uint8]


@cache
def _block(quant: QuantType) -> np.dtype[Any]:
    """A block with each field as one opaque item: NumPy then moves whole fields (memcpy) instead of single bytes."""
    fields = quant.planes
    return np.dtype(
        {
            "names": [field.name for field in fields],
            "formats": [f"V{field.nbytes}" for field in fields],
            "offsets": [field.offset for field in fields],
            "itemsize": quant.block_bytes,
        }
    )


def plane(dpl: Bytes, quant: QuantType, index: int, n: int) -> npt.NDArray[Any]:
    """View plane `index` of dpl rows.

    dpl: uint8 ``[..., row_stride(n)]``. Returns a view of the field's dtype, ``[..., nbytes * n / itemsize]``.
    """
    start, field = quant.plane_starts(n)[index], quant.planes[index]
    return dpl[..., start : start + field.nbytes * n].view(field.dtype)


def paddings(dpl: Bytes, quant: QuantType, n: int) -> list[tuple[int, Bytes]]:
    """The zeros that follow the planes: for each plane that has any, their byte offset in the row and a view of them.

    dpl: uint8 ``[rows, row_stride(n)]``; a view is uint8 ``[rows, bytes of padding]``.
    """
    found = []
    for start, field in zip(quant.plane_starts(n), quant.planes, strict=True):
        used, end = start + field.nbytes * n, start + align(field.nbytes * n)
        if used < end:
            found.append((used, dpl[:, used:end]))
    return found


def pack_rows(native: Bytes, out: Bytes, quant: QuantType, n: int) -> None:
    """Bring native rows of `n` blocks into the dpl layout.

    native: uint8 ``[rows, block_bytes * n]``. out: uint8 ``[rows, row_stride(n)]``, overwritten, padding zeroed. In
    both, the bytes of a row stand one after the other. Raises ValueError if a shape does not fit.
    """
    blocks = _blocks(native, quant, n)
    for name, items in _planes(out, quant, n):
        items[...] = blocks[name]
    for _, zeros in paddings(out, quant, n):
        zeros[...] = 0


def unpack_rows(dpl: Bytes, out: Bytes, quant: QuantType, n: int) -> None:
    """The exact inverse of `pack_rows`; the padding is not looked at.

    dpl: uint8 ``[rows, row_stride(n)]``. out: uint8 ``[rows, block_bytes * n]``, overwritten.
    """
    blocks = _blocks(out, quant, n)
    for name, items in _planes(dpl, quant, n):
        blocks[name][...] = items


def pad_rows(native: Bytes, out: Bytes, quant: QuantType, n: int) -> None:
    """Bring native rows into the padded layout: zeros after each block, up to the next multiple of 16 bytes.

    native: uint8 ``[rows, block_bytes * n]``. out: uint8 ``[rows, padded_block_bytes * n]``, C-contiguous, overwritten.
    """
    _check(native, quant.block_bytes * n)
    _check(out, quant.padded_block_bytes * n)
    padded = out.reshape(len(out), n, quant.padded_block_bytes)
    padded[..., : quant.block_bytes] = native.reshape(len(native), n, quant.block_bytes)
    padded[..., quant.block_bytes :] = 0


def same_bytes(one: Bytes, other: Bytes) -> bool:
    """Whether two C-contiguous arrays of one shape hold the same bytes; compared eight at a time."""
    flat, words = (one.reshape(-1), other.reshape(-1)), one.size // 8 * 8
    head, head_of_other = (array[:words].view(np.uint64) for array in flat)
    return np.array_equal(head, head_of_other) and np.array_equal(flat[0][words:], flat[1][words:])


def count_unusual(dpl: Bytes, quant: QuantType, n: int) -> tuple[int, int]:
    """Count unusual block scales in dpl rows: not finite, and zero. A fact about the model, never an error.

    Of fp16 scales NaN and infinities are not finite, +0 and -0 zero; of e8m0 scales 255 is NaN, and none is zero.
    dpl: uint8 ``[rows, row_stride(n)]``.
    """
    nonfinite = zero = 0
    for index, field in enumerate(quant.planes):
        if field.scale == "f16":
            bits = plane(dpl, quant, index, n).view("<u2") & 0x7FFF
            nonfinite += int(np.count_nonzero(bits >= 0x7C00))
            zero += int(bits.size - np.count_nonzero(bits))
        elif field.scale == "e8m0":
            nonfinite += int(np.count_nonzero(plane(dpl, quant, index, n) == 0xFF))
    return nonfinite, zero


def _blocks(native: Bytes, quant: QuantType, n: int) -> npt.NDArray[Any]:
    """Native rows as a structured view ``[rows, n]``, one item a block."""
    _check(native, quant.block_bytes * n)
    return native.view(_block(quant))


def _planes(dpl: Bytes, quant: QuantType, n: int) -> list[tuple[str, npt.NDArray[Any]]]:
    """The planes of dpl rows by name, as views ``[rows, n]``, one opaque item a block."""
    _check(dpl, quant.row_stride(n))
    return [
        (field.name, dpl[:, start : start + field.nbytes * n].view(f"V{field.nbytes}"))
        for start, field in zip(quant.plane_starts(n), quant.planes, strict=True)
    ]


def _check(rows: Bytes, width: int) -> None:
    if rows.dtype != np.uint8 or rows.ndim != 2 or rows.shape[1] != width:
        raise ValueError(f"expected uint8 [rows, {width}], found {rows.dtype} {list(rows.shape)}")
