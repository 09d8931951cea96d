"""GGUF header -> table of tensors, with every bound checked before it is used.

Own code beside a library, and why: gguf 0.19's GGUFReader decodes every vocabulary entry (15 s and 715 MB for a model
of 253 MB), fails on tensor types it does not know, accepts offsets that wrap into the header, and hangs on a 49-byte
file. This walk skips arrays by their length, keeps raw type numbers, and believes no number that the file size does
not allow. The constants and type sizes are gguf's. The format: ``docs/gguf.md`` in the ggml repository.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path

from repack.errors import Damaged, UsageError, shown
from repack.files.reading import open_input, read_bytes, stamp, utf8
from repack.gguf.cursor import Cursor
from repack.gguf.metadata import Scalar, alignment_of, read_metadata
from repack.gguf.preamble import MAX_TENSORS, read_preamble
from repack.gguf.types import GGML_QUANT_SIZES, GGMLQuantizationType

MAX_SHARDS = 512
MAX_DIMS = 4
_MAX_SIZE = 1 << 63
_WINDOW = 1 << 20

_BLOCKS: dict[int, tuple[int, int]] = {int(kind): sizes for kind, sizes in GGML_QUANT_SIZES.items()}
_SPLIT_NAME = re.compile(r"^(?P<prefix>.*)-(?P<no>\d{5})-of-(?P<count>\d{5})\.gguf$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Shard:
    """One GGUF file of a model."""

    path: Path
    size: int
    version: int
    alignment: int
    data_offset: int
    """Bytes before the data section: header, tensor table and alignment padding."""
    stamp: tuple[int, int, int, int]
    """Which file it was when it was indexed, and in which state, see `repack.files.reading.stamp`."""

    @property
    def name(self) -> str:
        """Base name; bytes that are not UTF-8 appear as escapes."""
        return utf8(self.path.name)


@dataclass(frozen=True, slots=True)
class Tensor:
    """One entry of the tensor table."""

    name: str
    type: int
    """Raw ggml type number, known to gguf or not."""
    ne: tuple[int, ...]
    """Dimensions, row length first, as in the GGUF."""
    offset: int
    """Absolute byte offset in the shard's file."""
    nbytes: int | None
    """None when the size of the type is not known."""
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


def type_name(number: int) -> str:
    """The ggml name of a tensor type, or ``type N`` if gguf knows none."""
    return GGMLQuantizationType(number).name if number in _BLOCKS else f"type {number}"


def read_index(path: Path) -> GGUFIndex:
    """Index a model; of a split model the first shard is given and its siblings are found by name.

    Raises Damaged if a file is damaged, unsupported or missing from a split, UsageError if `path` names no file.
    """
    shard, tensors, metadata = _read_shard(path, 0)
    count, number = metadata.get("split.count", 1), metadata.get("split.no", 0)
    if not isinstance(count, int) or count <= 1:
        return GGUFIndex((shard,), tensors, metadata)
    paths = _sibling_paths(path, count, number)
    shards, all_tensors = [shard], list(tensors)
    for index, sibling in enumerate(paths[1:], start=1):
        other, more, other_metadata = _read_shard(sibling, index)
        for key, expected in (("split.count", count), ("split.no", index)):
            if other_metadata.get(key) != expected:
                raise Damaged(
                    f"does not belong to the model of {shown(path.name)}",
                    where=shown(sibling),
                    found=f"{key} {shown(other_metadata.get(key))}",
                    expected=expected,
                )
        name = "general.architecture"
        if name in other_metadata and other_metadata[name] != metadata.get(name):
            raise Damaged(
                f"does not belong to the model of {shown(path.name)}",
                where=shown(sibling),
                found=f"architecture {shown(other_metadata[name])}",
                expected=shown(metadata.get(name)),
            )
        shards.append(other)
        all_tensors += more
        if len(all_tensors) > MAX_TENSORS:
            raise Damaged(f"has more than the {MAX_TENSORS} tensors supported in its shards", where=shown(path))
    total = metadata.get("split.tensors.count", len(all_tensors))
    if total != len(all_tensors):
        raise Damaged(
            "the shards do not hold the model's tensors",
            where=shown(path),
            found=len(all_tensors),
            expected=shown(total),
        )
    _refuse_duplicates((tensor.name for tensor in all_tensors), "tensor", shown(path))
    return GGUFIndex(tuple(shards), tuple(all_tensors), metadata)


def header_sha256(fd: int, shard: Shard) -> str:
    """SHA-256 (hex) of all bytes of a shard before its data section, or of the whole file if it ends before."""
    digest, end = hashlib.sha256(), min(shard.data_offset, shard.size)
    for start in range(0, end, _WINDOW):
        digest.update(read_bytes(fd, min(_WINDOW, end - start), start, shown(shard.path)))
    return digest.hexdigest()


def _sibling_paths(path: Path, count: int, number: Scalar) -> list[Path]:
    match = _SPLIT_NAME.match(path.name)
    if count > MAX_SHARDS or not isinstance(number, int) or not 0 <= number < count:
        raise Damaged(
            "its place in a split model makes no sense",
            where=shown(path),
            found=f"split.no {shown(number)}, split.count {shown(count)}",
            expected=f"split.no below split.count, which is <= {MAX_SHARDS}",
        )
    if number != 0:
        first = f"{match['prefix']}-00001-of-{count:05d}.gguf" if match else "the first shard"
        raise UsageError(
            f"is shard {number + 1} of {count} of a split model", where=shown(path), hint=f"give {shown(first)}"
        )
    if not match or int(match["no"]) != 1 or int(match["count"]) != count:
        raise Damaged(
            f"is the first of {count} shards but is not named so, the others cannot be found",
            where=shown(path),
            expected=shown(f"NAME-00001-of-{count:05d}.gguf"),
        )
    paths = [path.with_name(f"{match['prefix']}-{index:05d}-of-{count:05d}.gguf") for index in range(1, count + 1)]
    missing = [sibling.name for sibling in paths if not sibling.exists()]
    if missing:
        listed = ", ".join(shown(name) for name in missing[:8]) + (", ..." if len(missing) > 8 else "")
        raise Damaged(f"{len(missing)} of {count} shards are missing: {listed}", where=shown(path))
    return paths


def _read_shard(path: Path, number: int) -> tuple[Shard, tuple[Tensor, ...], dict[str, Scalar]]:
    fd = open_input(path)
    try:
        found = stamp(fd)
        cursor = Cursor(fd, shown(path))
        version, tensor_count, key_count = read_preamble(cursor, path)
        metadata = read_metadata(cursor, key_count)
        alignment = alignment_of(metadata, cursor.where)
        entries = [_tensor_entry(cursor) for _ in range(tensor_count)]
    finally:
        os.close(fd)
    _refuse_duplicates((entry[0] for entry in entries), "tensor", cursor.where)
    shard = Shard(path, cursor.size, version, alignment, _align(cursor.position, alignment), found)
    tensors = tuple(_place(shard, number, *entry) for entry in entries)
    _refuse_overlaps(shard, tensors)
    return shard, tensors, metadata


def _tensor_entry(cursor: Cursor) -> tuple[str, tuple[int, ...], int, int]:
    name = cursor.name("a tensor name")
    what = f"the entry of tensor {shown(name)}"
    dims = cursor.unsigned(4, what)
    if not 1 <= dims <= MAX_DIMS:
        raise Damaged(f"tensor {shown(name)} has {dims} dimensions", where=cursor.where, expected=f"1 to {MAX_DIMS}")
    ne = tuple(cursor.unsigned(8, what) for _ in range(dims))
    if max(ne) >= _MAX_SIZE or prod(max(size, 1) for size in ne) >= _MAX_SIZE:
        raise Damaged(
            f"tensor {shown(name)} is larger than any file can be", where=cursor.where, found=f"ne {list(ne)}"
        )
    return name, ne, cursor.unsigned(4, what), cursor.unsigned(8, what)


def _place(shard: Shard, number: int, name: str, ne: tuple[int, ...], kind: int, relative: int) -> Tensor:
    """Turn a table entry into a tensor whose bytes are known to lie in the file."""
    where, what = shown(shard.path), f"tensor {shown(name)}"
    nbytes: int | None = None if all(ne) else 0
    if kind in _BLOCKS:
        weights, block_bytes = _BLOCKS[kind]
        if ne[0] % weights:
            raise Damaged(
                f"{what} of type {type_name(kind)} has a row length that is no multiple of {weights}",
                where=where,
                found=f"ne0 {ne[0]}",
            )
        nbytes = prod(ne) // weights * block_bytes
    if relative % shard.alignment:
        raise Damaged(
            f"{what} is not aligned", where=where, found=f"offset {relative}", expected=f"% {shard.alignment} == 0"
        )
    offset = shard.data_offset + relative
    empty = nbytes == 0
    limit = _align(shard.size, shard.alignment) if empty else shard.size
    needed = offset if empty else offset + (nbytes or 1)
    if needed > max(limit, shard.data_offset if empty else 0):
        raise Damaged(
            f"is cut short: {what} needs bytes {offset} to {needed}",
            where=where,
            found=f"{shard.size} bytes",
            hint="download the file again, or join its parts first",
        )
    return Tensor(name, kind, ne, offset, nbytes, number)


def _refuse_overlaps(shard: Shard, tensors: tuple[Tensor, ...]) -> None:
    """No two tensors share a byte, identical ranges included: ggml loads no such file either."""
    solid = sorted((tensor for tensor in tensors if tensor.nbytes != 0), key=lambda tensor: tensor.offset)
    for before, after in pairwise(solid):
        if after.offset < before.offset + (before.nbytes or 1):
            raise Damaged(
                f"tensors {shown(before.name)} and {shown(after.name)} overlap at byte {after.offset}",
                where=shown(shard.path),
            )


def _refuse_duplicates(names: Iterable[str], what: str, where: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise Damaged(f"{what} {shown(name)} stands twice", where=where)
        seen.add(name)


def _align(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment
