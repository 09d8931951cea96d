"""The decode contract on the CPU: NumPy float32, operation for operation what the kernels do, so the same bits.

See docs/decode.md for the contract. What a type makes of a unit of weights stands in quants/; here is what all types
share: which lane takes which unit, and in which order lanes and their values are added. All NumPy calls on floats are
element-wise, hence rounded once each, except sums of products that are exact in any order because all of them are
integers below 2^24.

Rows are decoded in pieces of `CHUNK_WEIGHTS` weights: memory is some 30 bytes for each weight of a piece and 5 for each
of its weights and vectors, and 4 bytes for each unit and vector of one row, whatever the tensor.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from repack.layout import QuantType
from repack.rows import Bytes
from verify.contract.activations import Activations
from verify.contract.forms import WARP, Form
from verify.contract.quants import contract_of
from verify.contract.quants.contract import Floats, Values

Bits = npt.NDArray[np.uint32]
CANONICAL_NAN = 0x7FC00000
CHUNK_WEIGHTS = 1 << 18
"""Weights of all rows in a piece: some MB for each vector."""


def decode(quant: QuantType, native: Bytes, n: int, vectors: Sequence[Activations], form: Form) -> Floats:
    """Multiply rows with activations exactly as the kernels of `form` do.

    native: uint8 ``[rows, block_bytes * n]``. Returns float32 ``[len(vectors), rows]``.
    """
    return decode_forms(quant, native, n, vectors, [form])[form]


def decode_forms(
    quant: QuantType, native: Bytes, n: int, vectors: Sequence[Activations], forms: Iterable[Form]
) -> dict[Form, Floats]:
    """`decode` for several forms; forms that share their units share the work. Raises ValueError without a kernel."""
    contract = contract_of(quant)
    if contract is None or contract.values is None:
        raise ValueError(f"{quant.name} has no kernel")
    rows = len(native)
    outputs = {form: np.empty((len(vectors), rows), np.float32) for form in forms}
    step = max(1, CHUNK_WEIGHTS // max(n * quant.block_weights, 1))
    for values in (contract.values, contract.loop_values):
        mine = [form for form in outputs if (form.name == "row") == (values is contract.values)]
        if values is None or not mine:
            continue
        for start in range(0, rows, step):
            with np.errstate(invalid="ignore", over="ignore"):  # d may be Inf or NaN
                units = _units(quant, native[start : start + step], n, vectors, values)
                for form in mine:
                    outputs[form][:, start : start + step] = _sum_lanes(units, form.lanes)
    return outputs


def _units(quant: QuantType, native: Bytes, n: int, vectors: Sequence[Activations], values: Values) -> Floats:
    """The values of all units of some rows, made of pieces of their blocks; ``[vectors, rows, units]``."""
    piece = max(1, CHUNK_WEIGHTS // quant.block_weights)
    size, weights = quant.block_bytes, quant.block_weights
    parts = []
    for first in range(0, max(n, 1), piece):
        last = min(first + piece, n)
        part = [vector.part(first * weights, last * weights) for vector in vectors]
        parts.append(values(native[:, first * size : last * size], last - first, part))
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)


def _sum_lanes(values: Floats, lanes: int) -> Floats:
    """Add the values ``[..., count]`` as `lanes` threads do: each its own in order, then `sum_lanes` of sum.cuh.

    A lane starts at +0 and so never holds -0: neither lanes without a value nor the sign of a zero value can be seen.
    """
    count = values.shape[-1]
    sums = np.zeros((*values.shape[:-1], lanes), np.float32)
    for start in range(0, count, lanes):
        part = values[..., start : start + lanes]
        sums[..., : part.shape[-1]] += part
    warps = sums.reshape(*sums.shape[:-1], -1, min(lanes, WARP))
    while warps.shape[-1] > 1:
        half = warps.shape[-1] // 2
        warps = warps[..., :half] + warps[..., half:]
    total: Floats = warps[..., 0, 0]
    for warp in range(1, warps.shape[-2]):
        total = total + warps[..., warp, 0]
    return total


def as_bits(values: npt.NDArray[Any]) -> Bits:
    """Outputs (float32, or already uint32) as uint32 with every NaN made 0x7fc00000: what CPU and GPU agree on."""
    bits = np.array(values.view(np.uint32), "<u4")
    bits[bits & 0x7FFFFFFF > 0x7F800000] = CANONICAL_NAN
    return bits


def decode_digest(outputs: Iterable[npt.NDArray[Any]]) -> str:
    """SHA-256 over outputs, one array after the other, as little-endian uint32 with one kind of NaN; in hexadecimal."""
    digest = hashlib.sha256()
    for values in outputs:
        digest.update(as_bits(values).tobytes())
    return digest.hexdigest()
