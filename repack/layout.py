"""The Q6_K super-block and the three ways its rows are laid out in memory.

One table, `FIELDS`, fixes everything else in this project: sizes, plane offsets, strides, dtypes.

A super-block holds 256 weights in 210 bytes (ggml's ``block_q6_K``, see ``ggml-common.h`` in llama.cpp)::

    offset   0  ql      128 bytes  low 4 bits of each quant
           128  qh       64 bytes  high 2 bits of each quant
           192  scales   16 bytes  int8, one for every 16 weights
           208  d         2 bytes  fp16 little endian, scale of the super-block

A row of ``ne0`` weights is ``n = ne0 / 256`` super-blocks:

    native   210 n bytes, block after block, as in the GGUF; only 2-byte aligned
    padded   224 n bytes, 14 zero bytes after every block
    dpl      [ql: 128 n][qh: 64 n][scales: 16 n][d: 2 n][zeros], rounded up to 16 bytes

The fields stand in a dpl row in the order in which they stand in a block, so the offset of a plane is the
field's offset in the block times n: 0, 128 n, 192 n, 208 n. All are multiples of 16 by themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Field:
    """One field of the super-block."""

    name: str
    nbytes: int
    """Bytes in each super-block."""
    offset: int
    """Byte offset in the super-block; times n, the byte offset of the plane in a dpl row."""
    dtype: np.dtype[Any]
    """How the bytes are to be read."""


def _table(*rows: tuple[str, int, str]) -> tuple[Field, ...]:
    ends = accumulate(nbytes for _, nbytes, _ in rows)
    return tuple(
        Field(name, nbytes, end - nbytes, np.dtype(dtype))
        for (name, nbytes, dtype), end in zip(rows, ends, strict=True)
    )


FIELDS = _table(("ql", 128, "u1"), ("qh", 64, "u1"), ("scales", 16, "i1"), ("d", 2, "<f2"))

BLOCK_WEIGHTS = 256
BLOCK_BYTES = sum(field.nbytes for field in FIELDS)
ROW_ALIGNMENT = 16
PADDED_BLOCK_BYTES = -(-BLOCK_BYTES // ROW_ALIGNMENT) * ROW_ALIGNMENT

# Each field as one opaque item: NumPy then moves whole fields (memcpy) instead of single bytes.
_BLOCK = np.dtype([(field.name, f"V{field.nbytes}") for field in FIELDS])


def row_stride(n: int) -> int:
    """Bytes from one dpl row of `n` super-blocks to the next: ``210 n`` rounded up to 16."""
    return -(-BLOCK_BYTES * n // ROW_ALIGNMENT) * ROW_ALIGNMENT


def pad_start(n: int) -> int:
    """Byte offset in a dpl row at which the zero padding begins."""
    return BLOCK_BYTES * n


def plane(rows: Bytes, field: Field, n: int) -> npt.NDArray[Any]:
    """View one plane of dpl rows.

    rows: uint8 ``[..., row_stride(n)]``. Returns a view of the field's dtype: ql ``[..., 128 n]``, qh ``[..., 64 n]``,
    scales ``[..., 16 n]`` (int8), d ``[..., n]`` (float16).
    """
    return rows[..., field.offset * n : (field.offset + field.nbytes) * n].view(field.dtype)


def locate(byte: int, n: int) -> tuple[int, Field | None, int]:
    """Say what stands at byte offset `byte` of a dpl row: ``(super-block, field, byte in the field)``.

    In the padding the field is None and the super-block is -1.
    """
    for field in FIELDS:
        if byte < (field.offset + field.nbytes) * n:
            block, rest = divmod(byte - field.offset * n, field.nbytes)
            return block, field, rest
    return -1, None, byte - pad_start(n)


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
