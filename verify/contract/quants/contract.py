"""What a type has to say about decoding, and the arithmetic that several types share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from repack.layout import QuantType
from repack.rows import Bytes
from verify.contract.activations import Activations

Floats = npt.NDArray[np.float32]
Values = Callable[[Bytes, int, Sequence[Activations]], Floats]


@dataclass(frozen=True, slots=True)
class Contract:
    """How one type is decoded."""

    quant: QuantType
    dequantize: Callable[[Bytes, int], npt.NDArray[np.float64]]
    """Native rows, uint8 ``[rows, block_bytes * n]``, as float64 ``[rows, ne0]``: the format written down once more."""
    units: int = 0
    """Units of a block: what lanes of `row` take; 0 for a type without a kernel."""
    values: Values | None = None
    """``values(native, n, vectors)``: what `row` makes of each unit, float32 ``[vectors, rows, units * n]``."""
    pack: Callable[[Activations], npt.NDArray[np.uint8]] | None = None
    """Activations as the kernels of the type read them, uint8."""
    loop_values: Values | None = None
    """The same for the forms `loop` and `pf` and their units of 32 weights; Q6_K alone has them."""

    @property
    def has_kernel(self) -> bool:
        """Whether the type can be decoded by this project's kernels and their emulation."""
        return self.values is not None


def fields_of(native: Bytes, quant: QuantType, n: int) -> dict[str, npt.NDArray[Any]]:
    """The fields of native rows by name, each ``[rows, n, items]`` in the field's dtype."""
    blocks = np.ascontiguousarray(native).reshape(len(native), n, quant.block_bytes)
    return {
        field.name: np.ascontiguousarray(blocks[..., field.offset : field.offset + field.nbytes]).view(field.dtype)
        for field in quant.planes
    }


def group_dots(quants: npt.NDArray[Any], vectors: Sequence[Activations], size: int) -> Floats:
    """Integer sums of quants times activations over groups of `size` weights, held exactly in float32.

    quants: integers ``[rows, groups * size]`` of at most 127 in size; size: at most 32. Returns ``[vectors, rows,
    groups]``. Every partial sum is an integer below 2^24, so any order is exact. Not by BLAS: OpenBLAS ends a process
    that is short of memory, with 1, which is our code for "differs".
    """
    shape = (len(quants), -1, size)
    x = np.stack([vector.quants.reshape(-1, size) for vector in vectors], axis=1).astype(np.float32)
    dots: Floats = np.einsum("rgk,gvk->vrg", quants.astype(np.float32).reshape(shape), x)
    return dots


def group_sums(vectors: Sequence[Activations], size: int) -> Floats:
    """Sums of the activations' quants over groups of `size`, ``[vectors, 1, groups]``."""
    sums = [vector.quants.reshape(-1, size).sum(axis=1, dtype=np.int32) for vector in vectors]
    return np.stack(sums)[:, None, :].astype(np.float32)


def scales_of(vectors: Sequence[Activations]) -> Floats:
    """The activations' scales, ``[vectors, 1, weights / 32]``."""
    return np.stack([vector.d8.astype(np.float32) for vector in vectors])[:, None, :]


def single(field: npt.NDArray[Any]) -> Floats:
    """A field of one fp16 a block, ``[rows, n, 1]``, as float32 ``[rows, n]``."""
    return np.asarray(field[..., 0], np.float32)
