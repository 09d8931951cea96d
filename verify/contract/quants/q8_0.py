"""Q8_0: 32 weights of eight bits and one scale (ggml's ``block_q8_0``).

Weight j is ``d * qs[j]``. A lane of `row` takes 16 bytes of qs, half a block.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from repack.layout import TYPES
from repack.rows import Bytes
from verify.contract.activations import Activations, pack_plain
from verify.contract.quants.contract import Contract, Floats, fields_of, group_dots, scales_of, single

_TYPE = TYPES[8]
_UNITS = 2


def dequantize(native: Bytes, n: int) -> npt.NDArray[np.float64]:
    """The format, weight by weight."""
    fields = fields_of(native, _TYPE, n)
    with np.errstate(invalid="ignore"):  # Inf and NaN in d are the model's, and meant
        return (fields["d"].astype(np.float64) * fields["qs"].astype(np.float64)).reshape(len(native), -1)


def values(native: Bytes, n: int, vectors: Sequence[Activations]) -> Floats:
    """``(d * d8) * sum(q x)`` for each half of a block: only the last product rounds."""
    fields = fields_of(native, _TYPE, n)
    scale = single(fields["d"]) * scales_of(vectors)
    dots = group_dots(fields["qs"].reshape(len(native), -1), vectors, 16)
    return np.repeat(scale, _UNITS, axis=-1) * dots


CONTRACT = Contract(_TYPE, dequantize, _UNITS, values, pack_plain)
