"""Quantized tensors of GGUF models in the dense split-plane layout (dpl): convert a model, read a sidecar.

>>> import repack
>>> repack.convert_file("model.gguf", "model.dpl", types=["Q6_K", "Q8_0"])
>>> with repack.open_sidecar("model.dpl") as sidecar:
...     tensor = sidecar["blk.0.ffn_down.weight"]
...     tensor.entry.quant         # its type: block sizes, planes
...     tensor.rows                # uint8 [..., row_stride], memory-mapped
...     tensor.planes(0, 16)       # ql, qh, scales and d of rows 0 to 15, as views
...     tensor.unpack(0, 16)       # the same rows as in the GGUF, uint8 [16, block_bytes * n]
...     tensor.dequantize(0, 16)   # float32 [16, ne0]
"""

import sys
from itertools import pairwise

if sys.argv[:1] == ["-m"] and any(pair[0] == "-m" and pair[1].startswith("repack") for pair in pairwise(sys.orig_argv)):
    import gguf_dpl  # noqa: F401 - `python -m repack`: what goes wrong in the imports below is one line as well

from repack.convert import Conversion, convert_file
from repack.errors import Damaged, Differs, DplError, EnvironmentFailure, NothingToDo, UsageError
from repack.layout import TYPES, Field, QuantType
from repack.plan import Ledger, Plan, make_plan, types_named
from repack.sidecar.manifest import Entry, Manifest
from repack.sidecar.reader import Sidecar, SidecarTensor, open_sidecar

__all__ = [
    "TYPES",
    "Conversion",
    "Damaged",
    "Differs",
    "DplError",
    "Entry",
    "EnvironmentFailure",
    "Field",
    "Ledger",
    "Manifest",
    "NothingToDo",
    "Plan",
    "QuantType",
    "Sidecar",
    "SidecarTensor",
    "UsageError",
    "convert_file",
    "make_plan",
    "open_sidecar",
    "types_named",
]
