"""Rows of Q6_K super-blocks brought from one layout into another: exact copies of bytes, in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from repack.layout import BLOCK_BYTES, FIELDS, PADDED_BLOCK_BYTES, Field, pad_start, row_stride

Bytes = npt.NDArray[np.uint8]

# Each field as one opaque item: NumPy then moves whole fields (memcpy) instead of single bytes.
_BLOCK = np.dtype([(field.name, f"V{field.nbytes}") for field in FIELDS])


def plane(rows: Bytes, field: Field, n: int) -> npt.NDArray[Any]:
    """View one plane of dpl rows.

    rows: uint8 ``[..., row_stride(n)]``. Returns a view of the field's dtype: ql ``[..., 128 n]``, qh ``[..., 64 n]``,
    scales ``[..., 16 n]`` (int8), d ``[..., n]`` (float16).
    """
    return rows[..., field.offset * n : (field.offset + field.nbytes) * n].view(field.dtype)


def pack_rows(native: Bytes, out: Bytes, n: int) -> None:
    """Bring native rows into the dpl layout.

    native: uint8 ``[rows, 210 n]``. out: uint8 ``[rows, row_stride(n)]``, overwritten, padding zeroed. In both, the
    bytes of a row stand one after the other. Raises ValueError if a shape does not fit.
    """
    blocks, planes = _blocks(native, n), _planes(out, n)
    for field in FIELDS:
        planes[field.name][...] = blocks[field.name]
    out[:, pad_start(n) :] = 0


def unpack_rows(dpl: Bytes, out: Bytes, n: int) -> None:
    """The exact inverse of `pack_rows`; the padding is not looked at.

    dpl: uint8 ``[rows, row_stride(n)]``. out: uint8 ``[rows, 210 n]``, overwritten.
    """
    blocks, planes = _blocks(out, n), _planes(dpl, n)
    for field in FIELDS:
        blocks[field.name][...] = planes[field.name]


def pad_rows(native: Bytes, out: Bytes, n: int) -> None:
    """Bring native rows into the padded layout (224-byte blocks, 14 zero bytes after each).

    native: uint8 ``[rows, 210 n]``. out: uint8 ``[rows, 224 n]``, C-contiguous, overwritten.
    """
    _check(native, BLOCK_BYTES * n)
    _check(out, PADDED_BLOCK_BYTES * n)
    padded = out.reshape(len(out), n, PADDED_BLOCK_BYTES)
    padded[..., :BLOCK_BYTES] = native.reshape(len(native), n, BLOCK_BYTES)
    padded[..., BLOCK_BYTES:] = 0


def same_bytes(one: Bytes, other: Bytes) -> bool:
    """Whether two C-contiguous arrays of one shape hold the same bytes; compared eight at a time."""
    flat, words = (one.reshape(-1), other.reshape(-1)), one.size // 8 * 8
    head, head_of_other = (array[:words].view(np.uint64) for array in flat)
    return np.array_equal(head, head_of_other) and np.array_equal(flat[0][words:], flat[1][words:])


def _blocks(native: Bytes, n: int) -> npt.NDArray[Any]:
    """Native rows as a structured view ``[rows, n]``, one item a super-block."""
    _check(native, BLOCK_BYTES * n)
    return native.view(_BLOCK)


def _planes(dpl: Bytes, n: int) -> dict[str, npt.NDArray[Any]]:
    """The planes of dpl rows as views ``[rows, n]``, one opaque item a super-block."""
    _check(dpl, row_stride(n))
    return {
        field.name: dpl[:, field.offset * n : (field.offset + field.nbytes) * n].view(_BLOCK[field.name])
        for field in FIELDS
    }


def _check(rows: Bytes, width: int) -> None:
    if rows.dtype != np.uint8 or rows.ndim != 2 or rows.shape[1] != width:
        raise ValueError(f"expected uint8 [rows, {width}], found {rows.dtype} {list(rows.shape)}")


def count_unusual_d(dpl: Bytes, n: int) -> tuple[int, int]:
    """Count non-finite (NaN, Inf) and zero d in dpl rows; a fact about the model, never an error."""
    bits = plane(dpl, FIELDS[-1], n).view("<u2") & 0x7FFF
    return int(np.count_nonzero(bits >= 0x7C00)), int(bits.size - np.count_nonzero(bits))
