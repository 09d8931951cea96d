"""Bytes of tensors in each layout, as rows of a table; and what of them one token reads."""

from __future__ import annotations

from repack.gguf.index import GGUFIndex, Tensor
from repack.plan import Ledger, Plan, as_entry
from repack.sidecar.manifest import Entry

LEDGER_HEADER = ("type", "tensors", "native bytes", "padded bytes", "dead", "dpl bytes", "dead")
"""Dead: the share of a layout's own bytes that carry nothing."""
_LOOKED_UP = {"per_layer_token_embd.weight", "position_embd.weight", "token_types.weight"}
"""A token takes one row of these and multiplies nothing with them."""


def ledger_row(name: str, tensors: int, ledger: Ledger) -> tuple[str, ...]:
    """A row under `LEDGER_HEADER`."""
    return (
        name,
        f"{tensors:,}",
        f"{ledger.native:,}",
        f"{ledger.padded:,}",
        _share(ledger.padded, ledger.native),
        f"{ledger.dpl:,}",
        _share(ledger.dpl, ledger.native),
    )


def dead(nbytes: int, native: int) -> str:
    """How many bytes of a layout carry nothing, and their share of that layout's own bytes."""
    return f"{nbytes - native:,} ({_share(nbytes, native)})" if nbytes > native else "0"


def _share(nbytes: int, native: int) -> str:
    return f"{(nbytes - native) / nbytes:.2%}" if nbytes > native else "0"


def token_ledger(plan: Plan) -> Ledger:
    """What one token reads of the selected tensors, in each layout. The speed of decode follows from these bytes."""
    total = Ledger()
    for tensor in plan.selected:
        entry, rows = as_entry(tensor), rows_of_a_token(tensor, plan.index)
        blocks = rows * entry.n
        quant = entry.quant
        total += Ledger(blocks * quant.block_bytes, blocks * quant.padded_block_bytes, rows * entry.row_stride)
    return total


def rows_of_a_token(tensor: Tensor | Entry, index: GGUFIndex) -> int:
    """Rows of a tensor that one token reads.

    All of a matrix. Of a stack of experts (3-D) the ``expert_used_count`` that are used, where the metadata says so.
    One row of a token embedding, unless the model has no ``output.weight``: then it is the output matrix as well.
    """
    metadata = index.metadata
    used = metadata.get(f"{metadata.get('general.architecture')}.expert_used_count")
    if len(tensor.ne) == 3 and isinstance(used, int) and 0 < used < tensor.ne[2]:
        return tensor.ne[1] * used
    tied = all(other.name != "output.weight" for other in index.tensors)
    if tensor.name in _LOOKED_UP or (tensor.name == "token_embd.weight" and not tied):
        return min(1, tensor.rows)
    return tensor.rows
