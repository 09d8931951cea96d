"""A model's table of tensors, over all of its shards.

Own code beside a library, and why: gguf 0.19's GGUFReader decodes every vocabulary entry (15 s and 715 MB for a model
of 253 MB), fails on tensor types it does not know, accepts offsets that wrap into the header, and hangs on a 49-byte
file. The format: ``docs/gguf.md`` in the ggml repository.

What a tensor says of itself is noted here, and no more: a model may hold tensors of types and shapes that nobody here
has heard of. `check_tensors` looks closely, at those that are going to be used. One thing is looked for in all of them:
whether the file is cut short. It is when a tensor begins behind the file's end, or ends there, where the size of its
type is beyond doubt (`repack.gguf.types.SETTLED`).
"""

from __future__ import annotations

import hashlib
import os
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import NamedTuple

from repack.errors import Damaged, shown
from repack.files.reading import Stamp, open_input, read_bytes, stamp
from repack.gguf.header import MAX_TENSORS, Cursor, Scalar, alignment_of, read_counts, read_metadata
from repack.gguf.split import refuse_stranger, shard_count, siblings_of
from repack.gguf.types import GGML_TYPES, SETTLED

MAX_DIMS = 4
"""Dimensions of a tensor that can be used."""
_MAX_DIMS_LISTED = 64
"""Dimensions of a tensor that can be passed over. Nothing makes more; a greater number is no number of dimensions."""
_MAX_SIZE = 1 << 63
_WINDOW = 1 << 20


@dataclass(frozen=True, slots=True)
class Shard:
    """One GGUF file of a model."""

    path: Path
    size: int
    version: int
    alignment: int
    data_offset: int
    """Bytes before the data section: header, tensor table and alignment padding."""
    stamp: Stamp
    """The state it was in when it was indexed, see `repack.files.reading.stamp`."""

    @property
    def name(self) -> str:
        """Base name, as the manifest has it: U+FFFD stands for backslashes and for what is not UTF-8."""
        return os.fsencode(self.path.name).decode("utf-8", "replace").replace("\\", "\ufffd")


@dataclass(frozen=True, slots=True)
class Tensor:
    """One entry of the tensor table."""

    name: str
    type: int
    """Raw ggml type number, known to ggml or not."""
    ne: tuple[int, ...]
    """Dimensions, row length first, as in the GGUF."""
    offset: int
    """Absolute byte offset in the shard's file."""
    nbytes: int | None
    """None when it is not known: the type is not, or what ggml knows by its number would not fit here."""
    shard: int
    """Index into `GGUFIndex.shards`."""

    @property
    def rows(self) -> int:
        """Product of all dimensions but the first."""
        return prod(self.ne[1:])


@dataclass(frozen=True, slots=True)
class GGUFIndex:
    """A model's tensors in table order, shard after shard, and its short metadata.

    `metadata` holds scalars and strings of up to 4096 bytes of the first shard; arrays and long strings are skipped.
    """

    shards: tuple[Shard, ...]
    tensors: tuple[Tensor, ...]
    metadata: Mapping[str, Scalar]


def read_index(path: Path) -> GGUFIndex:
    """Index a model; of a split model the first shard is given and its siblings are found by name.

    Raises Damaged if a file is damaged, unsupported or missing from a split, UsageError if `path` names no file.
    """
    shard, tensors, metadata = _read_shard(path, 0)
    count = shard_count(path, metadata)
    shards, all_tensors = [shard], list(tensors)
    for number, sibling in enumerate(siblings_of(path, count, metadata), start=1):
        other, more, other_metadata = _read_shard(sibling, number)
        refuse_stranger(sibling, path, other_metadata, metadata, number, count)
        shards.append(other)
        all_tensors += more
        if len(all_tensors) > MAX_TENSORS:
            raise Damaged(f"has more than the {MAX_TENSORS} tensors supported in its shards", where=shown(path))
    total = metadata.get("split.tensors.count", len(all_tensors))
    if total != len(all_tensors):
        what = "the shards do not hold the model's tensors" if count > 1 else "does not hold all of its tensors"
        raise Damaged(what, where=shown(path), found=len(all_tensors), expected=shown(total))
    _refuse_duplicates(all_tensors, shown(path))
    return GGUFIndex(tuple(shards), tuple(all_tensors), metadata)


def check_tensors(index: GGUFIndex, chosen: Iterable[Tensor]) -> None:
    """Raise Damaged unless every chosen tensor can be used: its type, its shape and its place make sense.

    It must have 1 to 4 dimensions, rows of whole blocks, an aligned offset, all of its bytes in the file, and none of
    them in common with another tensor, identical ranges included: ggml loads no such file either. What tensors that are
    not chosen have in common is their affair.
    """
    names = set()
    for tensor in chosen:
        _check(index.shards[tensor.shard], tensor)
        names.add(tensor.name)
    for number, shard in enumerate(index.shards):
        _refuse_overlaps(shard, [tensor for tensor in index.tensors if tensor.shard == number], names)


def header_sha256(fd: int, shard: Shard) -> str:
    """SHA-256 (hex) of all bytes of a shard before its data section, or of the whole file if it ends before."""
    digest, end = hashlib.sha256(), min(shard.data_offset, shard.size)
    for start in range(0, end, _WINDOW):
        digest.update(read_bytes(fd, min(_WINDOW, end - start), start, shown(shard.path)))
    return digest.hexdigest()


class _Listed(NamedTuple):
    """A tensor as its shard lists it."""

    name: str
    ne: tuple[int, ...]
    type: int
    offset: int
    """From the beginning of the data section."""


def _read_shard(path: Path, number: int) -> tuple[Shard, tuple[Tensor, ...], dict[str, Scalar]]:
    fd = open_input(path)
    try:
        found = stamp(fd)
        cursor = Cursor(fd, shown(path))
        version, tensor_count, key_count = read_counts(cursor)
        metadata = read_metadata(cursor, key_count)
        alignment = alignment_of(metadata, cursor.where)
        listed = [_read_listed(cursor) for _ in range(tensor_count)]
    finally:
        os.close(fd)
    shard = Shard(path, cursor.size, version, alignment, _align(cursor.position, alignment), found)
    tensors = _placed(listed, shard, number)
    _refuse_duplicates(tensors, cursor.where)
    return shard, tensors, metadata


def _read_listed(cursor: Cursor) -> _Listed:
    name = cursor.name("a tensor name")
    what = f"the entry of tensor {shown(name)}"
    dims = cursor.unsigned(4, what)
    if dims > _MAX_DIMS_LISTED or not (dims or name):  # a table that ends before its count is followed by zeros
        found = f"{dims} dimensions"
        raise Damaged(f"{what} makes no sense", where=cursor.where, found=found, hint="the file is damaged")
    ne = tuple(cursor.unsigned(8, what) for _ in range(dims))
    return _Listed(name, ne, cursor.unsigned(4, what), cursor.unsigned(8, what))


def _placed(listed: list[_Listed], shard: Shard, number: int) -> tuple[Tensor, ...]:
    """Tensors at their places in the file. Raises Damaged if the file is cut short."""
    begins = sorted({shard.data_offset + tensor.offset for tensor in listed})
    tensors = []
    for name, ne, kind, relative in listed:
        offset, nbytes = shard.data_offset + relative, _size(kind, ne)
        if nbytes and kind >= SETTLED:
            after = bisect_right(begins, offset)
            room = (begins[after] if after < len(begins) else shard.size) - offset
            nbytes = nbytes if nbytes <= room else None
        end = offset + (1 if nbytes is None else nbytes)
        if nbytes != 0 and end > shard.size:
            raise _cut_short(shard, name, offset, end)
        tensors.append(Tensor(name, kind, ne, offset, nbytes, number))
    return tuple(tensors)


def _size(kind: int, ne: tuple[int, ...]) -> int | None:
    """Bytes of a tensor of this type and shape, as ggml has them; None if it has none such."""
    if not all(ne):
        return 0
    if kind not in GGML_TYPES:
        return None
    _, weights, nbytes = GGML_TYPES[kind]
    return prod(ne) // weights * nbytes if (ne[0] if ne else 1) % weights == 0 else None


def _check(shard: Shard, tensor: Tensor) -> None:
    where, what = shown(shard.path), f"tensor {shown(tensor.name)}"
    ne, kind = tensor.ne, GGML_TYPES[tensor.type]
    if not 1 <= len(ne) <= MAX_DIMS:
        raise Damaged(f"{what} has {len(ne)} dimensions", where=where, expected=f"1 to {MAX_DIMS}")
    if prod(max(size, 1) for size in ne) >= _MAX_SIZE:
        raise Damaged(f"{what} is larger than any file can be", where=where, found=f"ne {list(ne)}")
    if ne[0] % kind.block_weights:
        why = f"{what} of type {kind.name} has a row length that is no multiple of {kind.block_weights}"
        raise Damaged(why, where=where, found=f"ne0 {ne[0]}")
    if (tensor.offset - shard.data_offset) % shard.alignment:
        found, expected = f"offset {tensor.offset - shard.data_offset}", f"% {shard.alignment} == 0"
        raise Damaged(f"{what} is not aligned", where=where, found=found, expected=expected)
    end = tensor.offset + prod(ne) // kind.block_weights * kind.block_bytes
    limit = shard.size if all(ne) else max(_align(shard.size, shard.alignment), shard.data_offset)
    if end > limit:
        raise _cut_short(shard, tensor.name, tensor.offset, end)


def _cut_short(shard: Shard, name: str, offset: int, end: int) -> Damaged:
    return Damaged(
        f"is cut short: tensor {shown(name)} needs bytes {offset} to {end}",
        where=shown(shard.path),
        found=f"{shard.size} bytes",
        hint="download the file again, or join its parts first",
    )


def _refuse_overlaps(shard: Shard, tensors: Iterable[Tensor], chosen: set[str]) -> None:
    """Raise Damaged if a chosen tensor has a byte in common with any other of its shard."""
    furthest: list[tuple[int, str]] = [(0, ""), (0, "")]  # how far those before reach: all of them, and the chosen ones
    for tensor in sorted((tensor for tensor in tensors if tensor.nbytes != 0), key=lambda tensor: tensor.offset):
        is_chosen = tensor.name in chosen
        end, before = furthest[0 if is_chosen else 1]
        if tensor.offset < end:
            what = f"tensors {shown(before)} and {shown(tensor.name)} overlap at byte {tensor.offset}"
            raise Damaged(what, where=shown(shard.path))
        nbytes = _size(tensor.type, tensor.ne) if is_chosen else tensor.nbytes
        reach = tensor.offset + (1 if nbytes is None else nbytes), tensor.name
        furthest[0] = max(furthest[0], reach)
        furthest[1] = max(furthest[1], reach) if is_chosen else furthest[1]


def _refuse_duplicates(tensors: Iterable[Tensor], where: str) -> None:
    seen: set[str] = set()
    for tensor in tensors:
        if tensor.name in seen:
            raise Damaged(f"tensor {shown(tensor.name)} stands twice", where=where)
        seen.add(tensor.name)


def _align(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment
