"""Q6_K tensors of GGUF models in the dense split-plane layout (dpl): convert a model, read a sidecar.

    >>> import repack
    >>> repack.convert_file("model.gguf", "model.dpl")
    >>> with repack.open_sidecar("model.dpl") as sidecar:
    ...     tensor = sidecar["blk.0.ffn_down.weight"]
    ...     tensor.rows                # uint8 [..., row_stride], memory-mapped
    ...     tensor.planes(0, 16)       # ql, qh, scales and d of rows 0 to 15, as views
    ...     tensor.unpack(0, 16)       # the same rows as in the GGUF, uint8 [16, 210 n]
    ...     tensor.dequantize(0, 16)   # float32 [16, ne0]

Names are loaded when they are first used, so that `repack --help` need not wait for NumPy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from repack.api import convert_file as convert_file
    from repack.api import open_sidecar as open_sidecar
    from repack.convert import Conversion as Conversion
    from repack.errors import Damaged as Damaged
    from repack.errors import Differs as Differs
    from repack.errors import DplError as DplError
    from repack.errors import EnvironmentFailure as EnvironmentFailure
    from repack.errors import NothingToDo as NothingToDo
    from repack.errors import UsageError as UsageError
    from repack.plan import Ledger as Ledger
    from repack.plan import Plan as Plan
    from repack.plan import make_plan as make_plan
    from repack.sidecar.manifest import Entry as Entry
    from repack.sidecar.manifest import Manifest as Manifest
    from repack.sidecar.reader import Planes as Planes
    from repack.sidecar.reader import Sidecar as Sidecar
    from repack.sidecar.reader import SidecarTensor as SidecarTensor

_HOMES = {
    "api": ("convert_file", "open_sidecar"),
    "convert": ("Conversion",),
    "errors": ("Damaged", "Differs", "DplError", "EnvironmentFailure", "NothingToDo", "UsageError"),
    "manifest": ("Entry", "Manifest"),
    "plan": ("Ledger", "Plan", "make_plan"),
    "sidecar": ("Planes", "Sidecar", "SidecarTensor"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME)  # noqa: PLE0605 - one list of names, not two


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'repack' has no attribute {name!r}")
    return getattr(import_module(f"repack.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
