"""The float64 oracle: what sampled rows are worth, added up piece by piece, so that no row is held in float64 whole.

Two things are compared with it: the sidecar's rows as gguf's own dequantizer reads them (stage oracle), and what the
decode contract makes of the model's rows and one vector of activations (stage decode).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from repack.files.signals import check
from repack.gguf.dequantize import dequantize
from repack.rows import Bytes
from verify.contract.activations import Activations
from verify.contract.forms import Form
from verify.contract.quants.contract import Contract
from verify.pairs import blamed

STEP_WEIGHTS = 1 << 17
"""Weights that are looked at together."""
TOLERANCE = 1e-5
"""Largest error of float32 against float64, relative to the norm of the row."""
_LARGEST = float(np.finfo(np.float32).max)
_SMALLEST = float(np.finfo(np.float32).tiny)

Reals = npt.NDArray[np.float64]


class Oracle:
    """Some rows of a tensor against their float64 weights."""

    def __init__(self, rows: int) -> None:
        self._weights = 0
        self._norms = np.zeros(rows)
        """Of the rows' finite weights, squared."""
        self._errors = np.zeros(rows)
        """Of the dequantized rows, squared."""
        self._same = np.ones(rows, np.bool_)
        """Whether what is not finite is the same there."""
        self._products = np.zeros(rows)
        self._inputs = 0.0
        """Norm of the activations, squared."""

    def add(self, exact: Reals, dequantized: npt.NDArray[np.float32], activations: Reals) -> None:
        """The next weights of all rows: float64 ``[rows, w]``, the same by gguf, and the activations ``[w]``."""
        values = np.where(np.abs(exact) > _LARGEST, np.copysign(np.inf, exact), exact)  # as float32 has them
        finite, found = np.isfinite(values), np.isfinite(dequantized)
        same = np.where(finite, found, (dequantized == values) | (np.isnan(dequantized) & np.isnan(values)))
        self._same &= same.all(axis=1)
        with np.errstate(invalid="ignore"):
            self._errors += np.square(np.where(finite & found, dequantized - values, 0)).sum(axis=1)
            self._norms += np.square(np.where(np.isfinite(exact), exact, 0)).sum(axis=1)
            self._products += np.einsum("rw,w->r", exact, activations)
        self._inputs += float(np.square(activations).sum())
        self._weights += exact.shape[1]

    def worst(self) -> tuple[int, float]:
        """The row that differs most from what gguf made of it, and by how much relative to its norm.

        Weights that are not finite have to be the same, else the error is infinite. A row without any norm has to be
        exact.
        """
        norms = np.where(self._norms > 0, self._norms, _SMALLEST**2)
        relative = np.where(self._same, np.sqrt(self._errors / norms), np.inf)
        row = int(np.argmax(relative))
        return row, float(relative[row])

    def wrong_product(self, outputs: Mapping[Form, npt.NDArray[np.float32]]) -> tuple[Form, int, float, float] | None:
        """The first output, float32 ``[rows]``, that is not the product: form, row, found, expected; None if all are.

        It has to be within 1e-5 of the norms (and 2^-126 a weight: below that float32 has fewer bits), and not finite
        exactly where the product is not. Where sums may pass float32's largest number both will do.
        """
        norms = np.sqrt(self._norms * self._inputs)
        allowed = TOLERANCE * norms + self._weights * _SMALLEST
        finite, overflows = np.isfinite(self._products), norms > _LARGEST / 4
        for form, found in outputs.items():
            both = finite & np.isfinite(found)
            errors = np.abs(np.where(both, found, 0).astype(np.float64) - np.where(both, self._products, 0))
            wrong = (errors > allowed) | ((np.isfinite(found) != finite) & ~overflows)
            if wrong.any():
                row = int(wrong.argmax())
                return form, row, float(found[row]), float(self._products[row])
        return None


def judged(contract: Contract, native: Bytes, unpacked: Bytes, n: int, vector: Activations) -> Oracle:
    """The model's rows in float64, the sidecar's by gguf, and one vector: in pieces of `STEP_WEIGHTS` weights a row.

    native, unpacked: uint8 ``[rows, block_bytes * n]``.
    """
    quant, oracle = contract.quant, Oracle(len(native))
    piece = max(1, STEP_WEIGHTS // quant.block_weights)
    for first in range(0, n, piece):
        check()
        last = min(first + piece, n)
        part = slice(first * quant.block_bytes, last * quant.block_bytes)
        inputs = vector.part(first * quant.block_weights, last * quant.block_weights).values()
        with blamed("oracle"):
            given = dequantize(np.ascontiguousarray(unpacked[:, part]), quant)
        oracle.add(contract.dequantize(native[:, part], last - first), given, inputs)
    return oracle


def sample_rows(rows: int, wanted: int, seed: int) -> npt.NDArray[np.int64]:
    """Row numbers to look at closely: first, last, and others drawn by PCG64(seed); sorted, at most `wanted`."""
    if rows <= wanted:
        return np.arange(rows, dtype=np.int64)
    drawn = np.random.Generator(np.random.PCG64(seed)).integers(0, rows, max(wanted - 2, 0))
    return np.unique(np.concatenate((np.array([0, rows - 1][:wanted]), drawn))).astype(np.int64)
