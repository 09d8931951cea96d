"""What `repack` will do, or did, for a person at a terminal or for the log of a job."""

from __future__ import annotations

import os
from collections.abc import Iterable

from repack.command.console import Console
from repack.command.ledger import LEDGER_HEADER, ledger_row, token_ledger
from repack.convert import Conversion
from repack.errors import shown
from repack.gguf.types import GGML_TYPES
from repack.layout import ALIGNMENT, TYPES
from repack.plan import Plan
from repack.restore import Restoration
from repack.sidecar.manifest import Entry, Skipped


def show_plan(plan: Plan, conversion: Conversion | None, console: Console) -> None:
    """Print what the model holds, what of it is converted, and what that makes in bytes."""
    shards = plan.index.shards
    title = shown(os.path.basename(shards[0].path))  # noqa: PTH119 - a path that came as text
    if conversion:
        title += f" -> {shown(conversion.path.name)}"
    facts = [("shards", str(len(shards)))] if len(shards) > 1 else []
    facts.append(("tensors", f"{len(plan.selected):,} of {len(plan.index.tensors):,} are converted"))
    if plan.convertible:
        more, names = sum(kind.tensors for kind in plan.convertible), option_for_more(plan)
        facts.append(("more", f"{names} would convert {more:,} more"))
    facts += _written(conversion) if conversion else [("dry run", "nothing was written")]
    console.facts(title, facts)
    console.table(("type", "tensors", "bytes", "what becomes of them"), _census(plan), right=(1, 2))
    console.table(LEDGER_HEADER, _ledger(plan), right=range(1, 7))


def show_restoration(done: Restoration, title: str, console: Console) -> None:
    """Print what was restored."""
    entries = done.manifest.tensors
    total = sum(entry.nbytes for entry in entries)
    facts = [
        ("tensors", f"{_by_type(entries)}, {total:,} bytes, digests as in the manifest"),
        ("GGUF", f"{done.gguf_bytes:,} bytes in {done.seconds:.2f} s, {total / done.seconds / 1e9:.2f} GB/s"),
    ]
    console.facts(title, facts)


def why_left(kind: Skipped, plan: Plan) -> str:
    """Why tensors of a type are not converted, and what would convert them."""
    ggml = GGML_TYPES.get(kind.type)
    if kind.type in {quant.number for quant in plan.types}:
        return "left out by --include or --exclude"
    if kind.type in TYPES:
        return f"not asked for; --types {kind.name} would convert them"
    if ggml is None:
        return "unknown type"
    if ggml.block_weights == 1:
        return "no blocks to rearrange"
    if ggml.block_bytes % ALIGNMENT == 0:
        return f"aligned already: blocks of {ggml.block_bytes} bytes, a multiple of {ALIGNMENT}"
    return "this version has no layout for this type"


def option_for_more(plan: Plan) -> str:
    """The option that converts what this plan does and the model's other types of the table as well."""
    numbers = sorted({*plan.ledgers, *(kind.type for kind in plan.convertible)})
    return f"--types {','.join(TYPES[number].name for number in numbers)}"


def _by_type(entries: Iterable[Entry]) -> str:
    names = [entry.quant.name for entry in entries]
    return ", ".join(f"{names.count(name):,} {name}" for name in dict.fromkeys(names))


def _written(conversion: Conversion) -> list[tuple[str, str]]:
    entries = conversion.manifest.tensors
    rate = sum(entry.nbytes for entry in entries) / conversion.seconds / 1e9
    facts = [("sidecar", f"{conversion.sidecar_bytes:,} bytes in {conversion.seconds:.2f} s, {rate:.2f} GB/s")]
    nonfinite = sum(entry.nonfinite_scales for entry in entries)
    zero = sum(entry.zero_scales for entry in entries)
    if nonfinite:
        also = f", {zero:,} are zero" if zero else ""
        facts.append(("warning", f"{nonfinite:,} scales of blocks are NaN or infinite{also}; kept bit for bit"))
    return facts


def _census(plan: Plan) -> list[tuple[str, str, str, str]]:
    """One row for each type that is converted, then one for each that is left."""
    converted = [
        (TYPES[number].name, f"{_count(plan, number):,}", f"{ledger.native:,}", "converted")
        for number, ledger in plan.ledgers.items()
    ]
    left = [
        (kind.name, f"{kind.tensors:,}", "?" if kind.nbytes is None else f"{kind.nbytes:,}", why_left(kind, plan))
        for kind in plan.skipped
    ]
    return converted + left


def _ledger(plan: Plan) -> list[tuple[str, ...]]:
    rows = [ledger_row(TYPES[number].name, _count(plan, number), one) for number, one in plan.ledgers.items()]
    if len(rows) > 1:
        rows.append(ledger_row("all", len(plan.selected), plan.ledger))
    token = token_ledger(plan)
    return rows if token == plan.ledger else [*rows, ledger_row("read for one token", len(plan.selected), token)]


def _count(plan: Plan, number: int) -> int:
    return sum(tensor.type == number for tensor in plan.selected)
