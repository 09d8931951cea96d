"""Weights as float32 by gguf's dequantizers: the oracle that is not ours."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from repack.errors import EnvironmentFailure
from repack.layout import QuantType
from repack.rows import Bytes


def dequantize(native: Bytes, quant: QuantType) -> npt.NDArray[np.float32]:
    """Native rows, uint8 ``[rows, block_bytes * n]``, as float32 ``[rows, block_weights * n]``.

    Raises EnvironmentFailure if the installed gguf is too old to know the type.
    """
    if not native.size:
        return np.empty((len(native), native.shape[1] // quant.block_bytes * quant.block_weights), np.float32)
    from gguf import constants, quants  # noqa: PLC0415 - 0.4 s that readers of bytes need not pay

    try:
        kind = constants.GGMLQuantizationType(quant.number)
        with np.errstate(invalid="ignore", over="ignore"):  # Inf and NaN in scales are the model's, and meant
            weights: npt.NDArray[np.float32] = quants.dequantize(native, kind)
    except (NotImplementedError, ValueError):
        what = f"the installed gguf does not know {quant.name}"
        raise EnvironmentFailure(what, hint="update it: pip install --upgrade gguf") from None
    return weights
