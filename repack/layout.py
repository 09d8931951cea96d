"""The Q6_K super-block and the three ways its rows are laid out in memory.

One table, `FIELDS`, fixes everything else in this project: sizes, plane offsets, strides, dtypes. It needs no NumPy, so
that a header can be looked at before that is loaded; rows.py rearranges rows.

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


@dataclass(frozen=True, slots=True)
class Field:
    """One field of the super-block."""

    name: str
    nbytes: int
    """Bytes in each super-block."""
    offset: int
    """Byte offset in the super-block; times n, the byte offset of the plane in a dpl row."""
    dtype: str
    """How the bytes are to be read, in NumPy's terms."""


def _table(*rows: tuple[str, int, str]) -> tuple[Field, ...]:
    ends = accumulate(nbytes for _, nbytes, _ in rows)
    return tuple(
        Field(name, nbytes, end - nbytes, dtype) for (name, nbytes, dtype), end in zip(rows, ends, strict=True)
    )


FIELDS = _table(("ql", 128, "u1"), ("qh", 64, "u1"), ("scales", 16, "i1"), ("d", 2, "<f2"))

BLOCK_WEIGHTS = 256
BLOCK_BYTES = sum(field.nbytes for field in FIELDS)
ROW_ALIGNMENT = 16
PADDED_BLOCK_BYTES = -(-BLOCK_BYTES // ROW_ALIGNMENT) * ROW_ALIGNMENT


def row_stride(n: int) -> int:
    """Bytes from one dpl row of `n` super-blocks to the next: ``210 n`` rounded up to 16."""
    return -(-BLOCK_BYTES * n // ROW_ALIGNMENT) * ROW_ALIGNMENT


def pad_start(n: int) -> int:
    """Byte offset in a dpl row at which the zero padding begins."""
    return BLOCK_BYTES * n


def locate(byte: int, n: int) -> tuple[int, Field | None, int]:
    """Say what stands at byte offset `byte` of a dpl row: ``(super-block, field, byte in the field)``.

    In the padding the field is None and the super-block is -1.
    """
    for field in FIELDS:
        if byte < (field.offset + field.nbytes) * n:
            block, rest = divmod(byte - field.offset * n, field.nbytes)
            return block, field, rest
    return -1, None, byte - pad_start(n)
