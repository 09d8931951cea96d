"""The decode contract on the CPU: NumPy float32, operation for operation what the kernels do, so the same bits.

See docs/decode.md for the contract. All NumPy calls on floats here are element-wise, hence rounded once each, except
one sum of products that is exact in any order because its terms are small integers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from repack.layout import BLOCK_BYTES
from repack.rows import Bytes
from verify.contract.activations import Activations
from verify.contract.forms import WARP, Form

Floats = npt.NDArray[np.float32]
CANONICAL_NAN = 0x7FC00000
_CHUNK_BLOCKS = 4096
"""Super-blocks unpacked at once: a few MB, whatever the tensor's size."""


def decode(native: Bytes, n: int, vectors: Sequence[Activations], form: Form) -> Floats:
    """Multiply rows with activations exactly as the kernels of `form` do.

    native: uint8 ``[rows, 210 n]``. Returns float32 ``[len(vectors), rows]``.
    """
    return decode_forms(native, n, vectors, [form])[form]


def decode_forms(native: Bytes, n: int, vectors: Sequence[Activations], forms: Iterable[Form]) -> dict[Form, Floats]:
    """`decode` for several forms; the integer part, which costs most, is done once."""
    rows = len(native)
    outputs = {form: np.empty((len(vectors), rows), np.float32) for form in forms}
    step = max(1, _CHUNK_BLOCKS // max(n, 1))
    for start in range(0, rows, step):
        chunk = native[start : start + step]
        d, sums = group_sums(chunk, n, vectors)
        for form, output in outputs.items():
            terms = _quarters if form.name == "row" else _units
            with np.errstate(invalid="ignore", over="ignore"):  # d may be Inf or NaN
                values = terms(d, sums, np.stack([vector.d8.astype(np.float32) for vector in vectors]))
                output[:, start : start + step] = _sum_lanes(values, form.lanes)
    return outputs


def group_sums(native: Bytes, n: int, vectors: Sequence[Activations]) -> tuple[Floats, Floats]:
    """The integer part: for each 16 weights, ``scale * sum((q - 32) * x)``.

    Returns d as float32 ``[rows, n]`` and the sums, integers of at most 2^23 held exactly in float32
    ``[vectors, rows, n, 16]``, in the order of the weights.
    """
    rows = len(native)
    blocks = native.reshape(rows, n, BLOCK_BYTES)
    ql = blocks[..., :128].reshape(rows, n, 2, 2, 32)
    qh = blocks[..., 128:192].reshape(rows, n, 2, 32)
    quants = np.empty((rows, n, 2, 4, 32), np.float32)
    for group in range(4):
        low = ql[..., group & 1, :] >> (group & 2) * 2 & 15
        quants[..., group, :] = low | (qh >> 2 * group & 3) << 4
    quants -= 32
    x = np.stack([vector.quants.reshape(16 * n, 16) for vector in vectors], axis=1).astype(np.float32)
    # Partial sums are integers below 2^24: exact in any order. Not by BLAS: OpenBLAS ends a process that is short of
    # memory, with 1, which is our code for "differs".
    dots = np.einsum("rgk,gvk->vrg", quants.reshape(rows, 16 * n, 16), x)
    scales = blocks[..., 192:208].view(np.int8).reshape(rows, 16 * n)
    sums = dots * scales.astype(np.float32)
    d = np.ascontiguousarray(blocks[..., 208:]).view("<f2")[..., 0].astype(np.float32)
    return d, sums.reshape(-1, rows, n, 16)


def _units(d: Floats, sums: Floats, d8: Floats) -> Floats:
    """`loop` and `pf`: one value for each 32 weights, ``(d * d8) * (sum0 + sum1)``; ``[vectors, rows, 8 n]``."""
    rows, n = d.shape
    pairs = sums[..., 0::2] + sums[..., 1::2]  # integers up to 2^24: exact
    scale = d[:, :, None] * d8.reshape(-1, 1, n, 8)
    return (scale * pairs).reshape(-1, rows, 8 * n)


def _quarters(d: Floats, sums: Floats, d8: Floats) -> Floats:
    """`row`: one value for each 16 columns of a half, ``d * (((d8 t)0 + (d8 t)1) + ...)``; ``[vectors, rows, 4 n]``."""
    rows, n = d.shape
    t = sums.reshape(-1, rows, n, 2, 4, 2)  # half, group, column
    products = t * d8.reshape(-1, 1, n, 2, 4, 1)
    total = products[..., 0, :]
    for group in range(1, 4):
        total = total + products[..., group, :]
    return (d[:, :, None, None] * total).reshape(-1, rows, 4 * n)


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


def as_bits(values: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
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
