"""ggml's constants, from gguf: its module `constants` alone.

Imported by its name it would bring the whole package along (reader, writer, vocabularies, YAML): 0.1 s, a quarter of
what `repack --dry-run` may take. The module imports nothing of gguf's; should that change, the package is loaded.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from repack.layout import BLOCK_BYTES, BLOCK_WEIGHTS

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from gguf.constants import GGML_QUANT_SIZES, GGUF_DEFAULT_ALIGNMENT, GGMLQuantizationType, GGUFValueType

    from repack.rows import Bytes

__all__ = ["GGML_QUANT_SIZES", "GGUF_DEFAULT_ALIGNMENT", "GGMLQuantizationType", "GGUFValueType", "dequantize_q6_k"]


def _constants() -> ModuleType:
    package = find_spec("gguf")
    if package is not None and package.origin is not None:
        spec = spec_from_file_location("gguf_constants", Path(package.origin).with_name("constants.py"))
        if spec is not None and spec.loader is not None:
            module = module_from_spec(spec)
            try:
                spec.loader.exec_module(module)
            except (ImportError, OSError):
                return import_module("gguf.constants")
            return module
    return import_module("gguf.constants")


def dequantize_q6_k(native: Bytes) -> npt.NDArray[np.float32]:
    """Native rows, uint8 ``[rows, 210 n]``, as float32 ``[rows, 256 n]`` by gguf's dequantizer."""
    import numpy as np  # noqa: PLC0415
    from gguf.constants import GGMLQuantizationType as Kind  # noqa: PLC0415 - the one its dequantizer compares with
    from gguf.quants import dequantize  # noqa: PLC0415

    if not native.size:
        return np.empty((len(native), native.shape[1] // BLOCK_BYTES * BLOCK_WEIGHTS), np.float32)
    with np.errstate(invalid="ignore", over="ignore"):  # Inf and NaN in d are the model's, and meant
        weights: npt.NDArray[np.float32] = dequantize(native, Kind.Q6_K)
    return weights


if not TYPE_CHECKING:
    _found = _constants()
    GGML_QUANT_SIZES = _found.GGML_QUANT_SIZES
    GGUF_DEFAULT_ALIGNMENT = _found.GGUF_DEFAULT_ALIGNMENT
    GGMLQuantizationType = _found.GGMLQuantizationType
    GGUFValueType = _found.GGUFValueType
