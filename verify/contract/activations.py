"""Activation vectors in q8: int8 quants, and one fp16 scale for every 32 of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

GROUP = 32
TINY = 2.0**-24
HUGE = 65504.0


@dataclass(frozen=True, slots=True, eq=False)
class Activations:
    """A vector of 256 n weights' worth of activations; element j is ``quants[j] * d8[j // 32]``."""

    name: str
    quants: npt.NDArray[np.int8]
    """int8 ``[256 n]``."""
    d8: npt.NDArray[np.float16]
    """float16 ``[8 n]``."""

    @property
    def n(self) -> int:
        """Super-blocks in a row that this vector fits."""
        return len(self.quants) // 256

    def values(self) -> npt.NDArray[np.float64]:
        """Return the real numbers that the vector stands for, float64 ``[256 n]``, exact."""
        return self.quants.astype(np.float64) * np.repeat(self.d8.astype(np.float64), GROUP)


def seeded(n: int, seed: int) -> Activations:
    """Return random activations: quants from -127 to 127, fp16 scales from 2^-10 to 2^-4; a seed fixes them."""
    generator = np.random.Generator(np.random.PCG64(seed))
    quants = generator.integers(-127, 128, 256 * n, dtype=np.int8)
    bits = generator.integers(0x1400, 0x2C00, 8 * n, dtype=np.uint16)  # no exp2: libraries round it differently
    return Activations(f"seeded-{seed}", quants, bits.view(np.float16))


def adversarial(n: int) -> tuple[Activations, ...]:
    """Return the vectors at the edges: extreme and alternating quants, one weight alone, none, extreme scales."""
    alternating = np.where(np.arange(256 * n) % 2, -127, 127)
    one_hot = np.zeros(256 * n)
    one_hot[-1] = 127
    return (
        _uniform("all-127", np.full(256 * n, 127)),
        _uniform("all-minus-127", np.full(256 * n, -127)),
        _uniform("alternating", alternating),
        _uniform("one-hot", one_hot),
        _uniform("zeros", np.zeros(256 * n)),
        _uniform("tiny-scales", alternating, TINY),
        _uniform("huge-scales", alternating, HUGE),
    )


def _uniform(name: str, quants: npt.NDArray[Any], d8: float = 1.0) -> Activations:
    return Activations(name, quants.astype(np.int8), np.full(len(quants) // GROUP, d8, np.float16))


def pack_plain(activations: Activations) -> npt.NDArray[np.uint8]:
    """Store a vector for `loop` and `pf`: quants int8 ``[256 n]``, then d8 fp16 ``[8 n]``; uint8 ``[272 n]``."""
    d8 = activations.d8.astype("<f2")
    return np.concatenate([activations.quants.view(np.uint8), d8.view(np.uint8)])


def pack_quarters(activations: Activations) -> npt.NDArray[np.uint8]:
    """Store a vector for `row`: 5 planes of 4 n items of 16 bytes, one for each quarter super-block; uint8 ``[320 n]``.

    Planes 0 to 3 hold the quants of one group of 32 each, plane 4 the fp16 scales of the four groups and the int16 sums
    of this quarter's 16 quants in each.
    """
    n = activations.n
    quants = activations.quants.reshape(n, 2, 4, 2, 16)  # block, half, group, column, weight
    by_group = quants.transpose(2, 0, 1, 3, 4).reshape(4, 4 * n, 16)
    sums = quants.sum(axis=-1, dtype=np.int16).transpose(0, 1, 3, 2).reshape(4 * n, 4)
    d8 = np.repeat(activations.d8.reshape(2 * n, 4), 2, axis=0)
    packed = np.empty((5, 4 * n, 16), np.uint8)
    packed[:4] = by_group.view(np.uint8)
    packed[4, :, :8] = np.ascontiguousarray(d8, "<f2").view(np.uint8)
    packed[4, :, 8:] = np.ascontiguousarray(sums, "<i2").view(np.uint8)
    return packed.reshape(-1)
