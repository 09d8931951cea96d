"""The quantization types whose blocks GPUs read badly, and the three ways in which their rows are laid out in memory.

One table, `TYPES`, fixes everything else in this project: block sizes, fields, planes, offsets, strides. It needs no
NumPy; rows.py brings rows from one layout into another.

A row of ``ne0`` weights is ``n = ne0 / block_weights`` blocks. A block consists of fields (ggml's ``block_*`` structs,
``ggml-common.h`` in llama.cpp)::

    native   block after block, as in the GGUF
    padded   every block followed by zeros up to the next multiple of 16 bytes
    dpl      field after field: one plane for each, in the order of the table; every plane begins at a multiple of 16
             bytes and is followed by zeros up to the next one

So plane k of a dpl row begins where the planes before it, each rounded up to 16 bytes, end. The largest planes come
first. Fields that are always read together (d and m, d and dmin) are one plane.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

ALIGNMENT = 16
"""Bytes. Planes, dpl rows and padded blocks begin at multiples of it: the widest load of a GPU thread."""


def align(nbytes: int) -> int:
    """Round a number of bytes up to a multiple of `ALIGNMENT`."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a block, and so one plane of a dpl row."""

    name: str
    nbytes: int
    """Bytes in each block."""
    offset: int
    """Byte offset in the block."""
    dtype: str = "u1"
    """How the bytes are to be read, in NumPy's terms."""
    scale: str = ""
    """`f16` or `e8m0` where the field holds scales of the block, whose unusual values are counted."""


@dataclass(frozen=True, slots=True)
class QuantType:
    """A quantization type: its block in the GGUF, and the planes of its dpl rows."""

    name: str
    """ggml's name."""
    number: int
    """ggml's type number."""
    block_weights: int
    planes: tuple[Field, ...]
    """All fields of the block, in the order in which their planes stand in a dpl row."""

    @property
    def block_scales(self) -> int:
        """Scales of a block, in the fields whose unusual values are counted."""
        return sum(field.nbytes // (2 if field.scale == "f16" else 1) for field in self.planes if field.scale)

    @property
    def block_bytes(self) -> int:
        """Bytes of a block in the GGUF."""
        return sum(field.nbytes for field in self.planes)

    @property
    def padded_block_bytes(self) -> int:
        """Bytes of a block in the padded layout."""
        return align(self.block_bytes)

    def plane_starts(self, n: int) -> tuple[int, ...]:
        """Byte offset of each plane in a dpl row of `n` blocks."""
        return tuple(accumulate((align(field.nbytes * n) for field in self.planes[:-1]), initial=0))

    def row_stride(self, n: int) -> int:
        """Bytes from one dpl row of `n` blocks to the next."""
        return sum(align(field.nbytes * n) for field in self.planes)

    def locate(self, byte: int, n: int) -> tuple[int, Field | None, int]:
        """Say what stands at byte offset `byte` of a dpl row: ``(block, field, byte in the field)``.

        In padding the field is None, the block -1, and the byte counts from where the padding begins.
        """
        start = 0
        for field in self.planes:
            if byte < start + field.nbytes * n:
                return (byte - start) // field.nbytes, field, (byte - start) % field.nbytes
            if byte < start + align(field.nbytes * n):
                return -1, None, byte - start - field.nbytes * n
            start += align(field.nbytes * n)
        raise ValueError(f"byte {byte} lies behind a row of {start} bytes")

    def locate_native(self, byte: int) -> tuple[int, Field, int]:
        """Say what stands at byte offset `byte` of a native row: ``(block, field, byte in the field)``."""
        block, rest = divmod(byte, self.block_bytes)
        field = next(field for field in self.planes if field.offset <= rest < field.offset + field.nbytes)
        return block, field, rest - field.offset


def _type(name: str, number: int, weights: int, *fields: tuple[str, int, int] | tuple[str, int, int, str]) -> QuantType:
    """A row of the table. Each field: name, bytes in a block, offset in the block, and what it holds if not bytes."""
    dtypes = {"": "u1", "i8": "i1", "f16": "<f2", "e8m0": "u1"}
    planes = []
    for field in fields:
        holds = field[3] if len(field) == 4 else ""
        planes.append(Field(field[0], field[1], field[2], dtypes[holds], holds if holds in {"f16", "e8m0"} else ""))
    return QuantType(name, number, weights, tuple(planes))


TYPES = {
    quant.number: quant
    for quant in (
        _type("Q4_0", 2, 32, ("qs", 16, 2), ("d", 2, 0, "f16")),
        _type("Q4_1", 3, 32, ("qs", 16, 4), ("dm", 4, 0, "f16")),
        _type("Q5_0", 6, 32, ("qs", 16, 6), ("qh", 4, 2), ("d", 2, 0, "f16")),
        _type("Q5_1", 7, 32, ("qs", 16, 8), ("qh", 4, 4), ("dm", 4, 0, "f16")),
        _type("Q8_0", 8, 32, ("qs", 32, 2, "i8"), ("d", 2, 0, "f16")),
        _type("Q2_K", 10, 256, ("qs", 64, 16), ("scales", 16, 0), ("dm", 4, 80, "f16")),
        _type("Q3_K", 11, 256, ("qs", 64, 32), ("hmask", 32, 0), ("scales", 12, 96), ("d", 2, 108, "f16")),
        _type("Q6_K", 14, 256, ("ql", 128, 0), ("qh", 64, 128), ("scales", 16, 192, "i8"), ("d", 2, 208, "f16")),
        _type("IQ4_NL", 20, 32, ("qs", 16, 2), ("d", 2, 0, "f16")),
        _type("IQ4_XS", 23, 256, ("qs", 128, 8), ("scales_l", 4, 4), ("scales_h", 2, 2), ("d", 2, 0, "f16")),
        _type("MXFP4", 39, 32, ("qs", 16, 1), ("e", 1, 0, "e8m0")),
    )
}
"""ggml's type number to type, ascending. Q4_K and Q5_K are not here: their blocks of 144 and 176 bytes are aligned."""

DEFAULT = TYPES[14]
"""What `repack` converts unless told otherwise: Q6_K."""

# Until every room takes the type as a value.
FIELDS = DEFAULT.planes
BLOCK_WEIGHTS, BLOCK_BYTES, PADDED_BLOCK_BYTES = DEFAULT.block_weights, DEFAULT.block_bytes, DEFAULT.padded_block_bytes
ROW_ALIGNMENT = ALIGNMENT
row_stride, locate = DEFAULT.row_stride, DEFAULT.locate


def pad_start(n: int) -> int:
    """Byte offset in a Q6_K dpl row at which the zero padding begins."""
    return BLOCK_BYTES * n
