"""Activation vectors in q8: int8 quants, and one fp16 scale for every 32 of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

GROUP = 32
TINY = 2.0**-24
HUGE = 65504.0


@dataclass(frozen=True, slots=True, eq=False)
class Activations:
    """A vector of activations, one for each weight of a row; element j is ``quants[j] * d8[j // 32]``."""

    name: str
    quants: npt.NDArray[np.int8]
    """int8 ``[weights]``."""
    d8: npt.NDArray[np.float16]
    """float16 ``[weights / 32]``."""

    def part(self, start: int, stop: int) -> Activations:
        """Elements `start` to `stop`, whole groups of 32; views."""
        return Activations(self.name, self.quants[start:stop], self.d8[start // GROUP : stop // GROUP])

    def values(self) -> npt.NDArray[np.float64]:
        """Return the real numbers that the vector stands for, float64 ``[weights]``, exact."""
        return self.quants.astype(np.float64) * np.repeat(self.d8.astype(np.float64), GROUP)


def seeded(weights: int, seed: int) -> Activations:
    """Return random activations: quants from -127 to 127, fp16 scales from 2^-10 to 2^-4; a seed fixes them."""
    generator = np.random.Generator(np.random.PCG64(seed))
    quants = generator.integers(-127, 128, weights, dtype=np.int8)
    # no exp2: libraries round it differently
    bits = generator.integers(0x1400, 0x2C00, weights // GROUP, dtype=np.uint16)
    return Activations(f"seeded-{seed}", quants, bits.view(np.float16))


def adversarial(weights: int) -> tuple[Activations, ...]:
    """Return the vectors at the edges: extreme and alternating quants, one weight alone, none, extreme scales.

    Constant ones take no memory: they are views of one number.
    """
    alternating = np.tile(np.array([127, -127], np.int8), weights // 2)
    one_hot = np.zeros(weights, np.int8)
    one_hot[-1:] = 127
    return (
        _scaled("all-127", _constant(127, weights)),
        _scaled("all-minus-127", _constant(-127, weights)),
        _scaled("alternating", alternating),
        _scaled("one-hot", one_hot),
        _scaled("zeros", _constant(0, weights)),
        _scaled("tiny-scales", alternating, TINY),
        _scaled("huge-scales", alternating, HUGE),
    )


def _constant(value: int, count: int) -> npt.NDArray[np.int8]:
    return np.broadcast_to(np.int8(value), count)


def _scaled(name: str, quants: npt.NDArray[np.int8], d8: float = 1.0) -> Activations:
    return Activations(name, quants, np.broadcast_to(np.float16(d8), len(quants) // GROUP))


def pack_plain(activations: Activations) -> npt.NDArray[np.uint8]:
    """Store a vector as it is: quants int8 ``[weights]``, then d8 fp16 ``[weights / 32]``; uint8."""
    d8 = np.ascontiguousarray(activations.d8, "<f2")
    return np.concatenate([np.ascontiguousarray(activations.quants).view(np.uint8), d8.view(np.uint8)])
