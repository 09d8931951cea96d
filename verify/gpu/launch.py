"""Kernels compiled and launched: a decode form over one layout of one type, and the tools of verification.

CuPy cannot ask for programmatic dependent launch; verify/gpu/dependent.py can.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from repack.layout import ALIGNMENT, QuantType, align
from repack.rows import Bytes
from verify.contract.activations import Activations, pack_plain
from verify.contract.forms import Form, units_of
from verify.contract.quants import contract_of
from verify.gpu.dependent import launch_dependent
from verify.gpu.speeds import STAGED
from verify.kernels import OPTIONS, source

SHARED_BYTES = 48 << 10
"""What every GPU grants a thread block without being asked for more."""

Launch = Callable[[Any, Any, Any, int, int], None]


def tool(name: str, quant: QuantType) -> Any:
    """Return a kernel of tools.cu for one type."""
    return compiled("tools.cu", quant).get_function(name)


def packer(quant: QuantType, form: str) -> Callable[[Activations], Bytes]:
    """How activations are stored for a form, by its name: uint8."""
    contract = contract_of(quant)
    if contract is None or contract.pack is None:
        raise ValueError(f"{quant.name} has no kernel")
    return contract.pack if form == "row" else pack_plain


def decoder(quant: QuantType, form: Form, layout: str, dependent: bool = False) -> Launch:
    """Return ``launch(weights, activations, out, rows, n)`` for one form over one layout (`staged` too for `row`).

    weights and activations: device uint8, in the form's packing; out: device, 4 bytes a row. `rows` must not be 0.
    The launch goes to the current stream; a `dependent` one may start before what the stream did last has ended (see
    verify/gpu/dependent.py; form `row` only).
    """

    def launch(weights: Any, activations: Any, out: Any, rows: int, n: int) -> None:
        if form.name == "row" and not form.fits(units_of(quant, n)):
            raise ValueError(f"{form} cannot decode rows of {n} blocks")
        options = form.options(rows, n, dependent)
        module = compiled("row.cu", quant, *options) if form.name == "row" else compiled("loop.cu", quant)
        kernel = module.get_function(f"{form.name}_{layout}")
        staged = layout == STAGED
        grid = -(-rows // form.groups) if staged else form.grid(rows, _multiprocessors())
        shared = staged_bytes(quant, form, n) if staged else 0
        arguments = (weights, activations, out, np.int64(rows), np.int32(n))
        if dependent:
            launch_dependent(kernel, grid, form.threads, arguments)
        else:
            kernel((grid,), (form.threads,), arguments, shared_mem=shared)

    return launch


def staged_bytes(quant: QuantType, form: Form, n: int) -> int:
    """Shared memory that the staged native kernel needs: 16-byte items that cover a row, and a word (see row.cu)."""
    return form.groups * align(quant.block_bytes * n + 2 * ALIGNMENT)


def can_stage(quant: QuantType, form: Form, n: int) -> bool:
    """Say whether the staged native kernel can run: form `row`, and the rows of a block fit into shared memory."""
    return form.name == "row" and staged_bytes(quant, form, n) <= SHARED_BYTES


@cache
def _multiprocessors() -> int:
    import cupy  # noqa: PLC0415 - an optional extra

    return int(cupy.cuda.Device().attributes["MultiProcessorCount"])


@cache
def compiled(name: str, quant: QuantType, *options: str) -> Any:
    """A kernel file for one type as a module on the current device, with these options for the compiler."""
    import cupy  # noqa: PLC0415 - an optional extra

    return cupy.RawModule(code=source(name, quant), options=(*OPTIONS, *options))
