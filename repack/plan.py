"""What a conversion will do, and what it costs in bytes, before anything is written."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from repack.errors import Damaged, NothingToDo, UsageError, shown
from repack.gguf.index import GGUFIndex, Tensor, check_tensors, read_index
from repack.gguf.types import type_name
from repack.layout import DEFAULT, TYPES, QuantType
from repack.sidecar.manifest import RESERVED_NAME, Entry, Skipped

MAX_ROW_BYTES = 8 << 20
"""Longest native row converted: ten million weights of Q6_K. A few rows are held at once, so rows are bounded too."""
ALL = "all"


@dataclass(frozen=True, slots=True)
class Ledger:
    """Bytes of some tensors in each layout."""

    native: int = 0
    padded: int = 0
    dpl: int = 0

    def __add__(self, other: Ledger) -> Ledger:
        return Ledger(self.native + other.native, self.padded + other.padded, self.dpl + other.dpl)


@dataclass(frozen=True, slots=True)
class Plan:
    """The selected tensors of a model, in table order, and the census of the others."""

    index: GGUFIndex
    types: tuple[QuantType, ...]
    """The types that were asked for, ascending by number."""
    selected: tuple[Tensor, ...]
    skipped: tuple[Skipped, ...]
    """All that is not selected, by type, tensors that the patterns left out included."""
    include: tuple[str, ...]
    exclude: tuple[str, ...]
    left_out: tuple[str, ...]
    """Names of the tensors of these types that the patterns left out."""
    ledgers: Mapping[int, Ledger]
    """Bytes of the selected tensors by ggml's type number, ascending."""

    @property
    def ledger(self) -> Ledger:
        """Bytes of all selected tensors."""
        return sum(self.ledgers.values(), Ledger())

    @property
    def convertible(self) -> tuple[Skipped, ...]:
        """The model's tensors of types that could be converted but were not asked for."""
        asked = {quant.number for quant in self.types}
        return tuple(kind for kind in self.skipped if kind.type in TYPES and kind.type not in asked)


def types_named(names: Iterable[str]) -> tuple[QuantType, ...]:
    """The types with these names (`all` for all), ascending by number. Raises UsageError if one is unknown."""
    known = {quant.name: quant for quant in TYPES.values()}
    chosen: set[int] = set()
    for name in names:
        if name.lower() == ALL:
            chosen.update(TYPES)
        elif name.upper() in known:
            chosen.add(known[name.upper()].number)
        else:
            raise UsageError("unknown type", found=shown(name), expected=f"{ALL} or some of {', '.join(known)}")
    if not chosen:
        raise UsageError("no type is named", expected=f"{ALL} or some of {', '.join(known)}")
    return tuple(TYPES[number] for number in sorted(chosen))


def make_plan(
    model: str | os.PathLike[str],
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    types: Sequence[QuantType] = (DEFAULT,),
) -> Plan:
    """Index a model and select its tensors of `types`.

    include, exclude: regular expressions searched in tensor names; no `include` means all. Raises NothingToDo if no
    tensor is selected, Damaged or UsageError as `read_index` does.
    """
    wanted, unwanted = compiled(include, "include"), compiled(exclude, "exclude")
    index = read_index(Path(model))
    numbers = {quant.number for quant in types}
    of_types = [tensor for tensor in index.tensors if tensor.type in numbers]
    selected = tuple(
        tensor
        for tensor in of_types
        if (not wanted or any(pattern.search(tensor.name) for pattern in wanted))
        and not any(pattern.search(tensor.name) for pattern in unwanted)
    )
    chosen = {tensor.name for tensor in selected}
    skipped = census(tensor for tensor in index.tensors if tensor.name not in chosen)
    if not selected:
        _nothing(index, types, bool(of_types), skipped)
    check_tensors(index, selected)
    for tensor in selected:
        _check_supported(tensor, index)
    return Plan(
        index,
        tuple(TYPES[number] for number in sorted(numbers)),
        selected,
        skipped,
        tuple(include),
        tuple(exclude),
        tuple(tensor.name for tensor in of_types if tensor.name not in chosen),
        _ledgers(selected),
    )


def compiled(patterns: Sequence[str], option: str) -> list[re.Pattern[str]]:
    """Compile the patterns of a command-line option. Raises UsageError if one is no regular expression."""
    done = []
    for pattern in patterns:
        try:
            pattern.encode()
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # what `re` warns about, a set within a set, nobody means
                done.append(re.compile(pattern))
        except (re.error, ValueError, OverflowError, RecursionError, Warning) as error:
            raise UsageError(f"--{option} {shown(pattern)} is no regular expression ({error})") from None
    return done


def as_entry(tensor: Tensor) -> Entry:
    """The manifest's entry of a tensor, with the largest counts possible and the digest still to be made."""
    quant = TYPES[tensor.type]
    scales = tensor.rows * (tensor.ne[0] // quant.block_weights) * quant.block_scales
    return Entry(tensor.name, quant, tensor.ne, tensor.shard, tensor.offset, "0" * 64, scales, scales)


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


def _check_supported(tensor: Tensor, index: GGUFIndex) -> None:
    where, what = shown(index.shards[tensor.shard].path), f"tensor {shown(tensor.name)}"
    if tensor.name == RESERVED_NAME:
        raise Damaged(f"{what} has a name that safetensors reserves", where=where, hint="leave it out with --exclude")
    quant = TYPES[tensor.type]
    row_bytes = tensor.ne[0] // quant.block_weights * quant.block_bytes
    if row_bytes > MAX_ROW_BYTES:
        raise Damaged(
            f"{what} has rows longer than supported",
            where=where,
            found=f"{row_bytes} bytes",
            expected=f"<= {MAX_ROW_BYTES}",
            hint="leave it out with --exclude",
        )


def _ledgers(tensors: tuple[Tensor, ...]) -> dict[int, Ledger]:
    ledgers: dict[int, Ledger] = {}
    for entry in sorted(map(as_entry, tensors), key=lambda entry: entry.quant.number):
        one = Ledger(entry.nbytes, entry.padded_nbytes, entry.dpl_nbytes)
        ledgers[entry.quant.number] = ledgers.get(entry.quant.number, Ledger()) + one
    return ledgers


def _nothing(index: GGUFIndex, types: Sequence[QuantType], left_out: bool, skipped: Sequence[Skipped]) -> None:
    where, wanted = shown(index.shards[0].path), " or ".join(quant.name for quant in types)
    if left_out:
        raise NothingToDo(f"--include and --exclude leave no tensor of type {wanted}", where=where)
    if not index.tensors:
        raise NothingToDo("holds no tensor at all (a vocabulary?)", where=where)
    others = ",".join(kind.name for kind in skipped if kind.type in TYPES)
    raise NothingToDo(
        f"holds no tensor of type {wanted}, nothing to convert",
        where=where,
        found=", ".join(f"{kind.tensors} {kind.name}" for kind in skipped),
        hint=f"--types {others} converts what it holds" if others else "",
    )
