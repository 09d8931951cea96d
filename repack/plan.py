"""What a conversion will do, and what it costs in bytes, before anything is written."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from repack import layout
from repack.errors import Damaged, NothingToDo, shown
from repack.gguf.index import GGUFIndex, Tensor, read_index, type_name
from repack.patterns import compiled
from repack.sidecar.manifest import Q6_K, RESERVED_NAME, Entry, Skipped

MAX_ROW_BYTES = 8 << 20
"""Longest native row converted: ten million weights. Memory is bounded by a few rows, so rows are bounded too."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """Bytes of the selected tensors in each layout."""

    native: int
    padded: int
    dpl: int

    @property
    def dpl_pad(self) -> int:
        """Dead bytes of the dpl layout: the zeros that round a row up to 16 bytes."""
        return self.dpl - self.native

    @property
    def saved(self) -> int:
        """Bytes that the padded layout would hold and move more."""
        return self.padded - self.dpl


@dataclass(frozen=True, slots=True)
class Plan:
    """The selected tensors of a model, in table order, and the census of the others."""

    index: GGUFIndex
    selected: tuple[Tensor, ...]
    skipped: tuple[Skipped, ...]
    include: tuple[str, ...]
    exclude: tuple[str, ...]
    left_out: tuple[str, ...]
    """Names of the Q6_K tensors that the patterns left out."""
    ledger: Ledger


def make_plan(model: str | os.PathLike[str], include: Sequence[str] = (), exclude: Sequence[str] = ()) -> Plan:
    """Index a model and select its Q6_K tensors.

    include, exclude: regular expressions searched in tensor names; no `include` means all. Raises NothingToDo if no
    tensor is selected, Damaged or UsageError as `read_index` does.
    """
    wanted, unwanted = compiled(include, "include"), compiled(exclude, "exclude")
    index = read_index(Path(model))
    q6_k = [tensor for tensor in index.tensors if tensor.type == Q6_K]
    selected = tuple(
        tensor
        for tensor in q6_k
        if (not wanted or any(pattern.search(tensor.name) for pattern in wanted))
        and not any(pattern.search(tensor.name) for pattern in unwanted)
    )
    if not selected:
        _nothing(index, bool(q6_k))
    for tensor in selected:
        _check_supported(tensor, index)
    chosen = {tensor.name for tensor in selected}
    return Plan(
        index,
        selected,
        census(tensor for tensor in index.tensors if tensor.name not in chosen),
        tuple(include),
        tuple(exclude),
        tuple(tensor.name for tensor in q6_k if tensor.name not in chosen),
        _ledger(selected),
    )


def as_entry(tensor: Tensor) -> Entry:
    """The manifest's entry of a tensor, with the largest counts possible and the digest still to be made."""
    blocks = tensor.rows * (tensor.ne[0] // layout.BLOCK_WEIGHTS)
    return Entry(tensor.name, tensor.ne, tensor.shard, tensor.offset, "0" * 64, blocks, blocks)


def _check_supported(tensor: Tensor, index: GGUFIndex) -> None:
    where, what = shown(index.shards[tensor.shard].path), f"tensor {shown(tensor.name)}"
    if tensor.name == RESERVED_NAME:
        raise Damaged(f"{what} has a name that safetensors reserves", where=where, hint="leave it out with --exclude")
    row_bytes = tensor.ne[0] // layout.BLOCK_WEIGHTS * layout.BLOCK_BYTES
    if row_bytes > MAX_ROW_BYTES:
        raise Damaged(
            f"{what} has rows longer than supported",
            where=where,
            found=f"{row_bytes} bytes",
            expected=f"<= {MAX_ROW_BYTES}",
            hint="leave it out with --exclude",
        )


def census(others: Iterable[Tensor]) -> tuple[Skipped, ...]:
    """Count tensors that are not converted, by type."""
    kinds: dict[int, list[Tensor]] = {}
    for tensor in others:
        kinds.setdefault(tensor.type, []).append(tensor)
    return tuple(
        Skipped(
            kind,
            type_name(kind),
            len(tensors),
            None if any(tensor.nbytes is None for tensor in tensors) else sum(tensor.nbytes or 0 for tensor in tensors),
        )
        for kind, tensors in sorted(kinds.items())
    )


def _ledger(tensors: tuple[Tensor, ...]) -> Ledger:
    entries = [as_entry(tensor) for tensor in tensors]
    return Ledger(
        native=sum(entry.nbytes for entry in entries),
        padded=sum(entry.padded_nbytes for entry in entries),
        dpl=sum(entry.dpl_nbytes for entry in entries),
    )


def _nothing(index: GGUFIndex, has_q6_k: bool) -> None:
    where = shown(index.shards[0].path)
    if has_q6_k:
        raise NothingToDo("--include and --exclude leave no Q6_K tensor", where=where)
    if not index.tensors:
        raise NothingToDo("holds no tensor at all (a vocabulary?)", where=where)
    kinds = ", ".join(sorted({type_name(tensor.type) for tensor in index.tensors}))
    raise NothingToDo("holds no Q6_K tensor, nothing to convert", where=where, found=kinds)
