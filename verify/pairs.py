"""A model and a sidecar opened side by side: what is compared with what, and plain reads of both."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from repack import layout
from repack.errors import shown
from repack.files.reading import open_input, read_into
from repack.sidecar.manifest import Entry

if TYPE_CHECKING:
    from repack.gguf.index import GGUFIndex, Tensor
from repack.rows import Bytes, unpack_rows


@dataclass(frozen=True, slots=True)
class Pair:
    """One tensor of the sidecar and, where there is one, its source in the GGUF."""

    entry: Entry
    dpl_offset: int
    """Absolute byte offset in the sidecar."""
    source: Tensor | None
    """None if there is no model, or no tensor there that could be compared."""


@dataclass(frozen=True, slots=True)
class Files:
    """Open descriptors of a sidecar and of a model's shards."""

    sidecar: int
    sidecar_name: str
    shards: tuple[int, ...] = ()
    shard_names: tuple[str, ...] = ()

    def read_dpl(self, pair: Pair, row: int, out: Bytes) -> None:
        """Fill `out`, uint8 ``[rows, row_stride]``, with the sidecar's rows from `row` on."""
        offset = pair.dpl_offset + row * pair.entry.row_stride
        read_into(self.sidecar, out.data.cast("B"), offset, f"{self.sidecar_name}: tensor {shown(pair.entry.name)}")

    def read_native(self, pair: Pair, row: int, out: Bytes) -> None:
        """Fill `out`, uint8 ``[rows, 210 n]``, with the GGUF's rows from `row` on."""
        assert pair.source is not None
        offset = pair.source.offset + row * layout.BLOCK_BYTES * pair.entry.n
        where = f"{self.shard_names[pair.source.shard]}: tensor {shown(pair.entry.name)}"
        read_into(self.shards[pair.source.shard], out.data.cast("B"), offset, where)

    def dpl_rows(self, pair: Pair, rows: npt.NDArray[np.int64]) -> Bytes:
        """The given rows of the sidecar, uint8 ``[len(rows), row_stride]``."""
        out = np.empty((len(rows), pair.entry.row_stride), np.uint8)
        for at, row in enumerate(rows):
            self.read_dpl(pair, int(row), out[at : at + 1])
        return out

    def native_rows(self, pair: Pair, rows: npt.NDArray[np.int64]) -> Bytes:
        """The given rows of the GGUF, uint8 ``[len(rows), 210 n]``."""
        out = np.empty((len(rows), layout.BLOCK_BYTES * pair.entry.n), np.uint8)
        for at, row in enumerate(rows):
            self.read_native(pair, int(row), out[at : at + 1])
        return out

    def unpacked_rows(self, pair: Pair, rows: npt.NDArray[np.int64]) -> Bytes:
        """The given rows of the sidecar in the GGUF's form, uint8 ``[len(rows), 210 n]``."""
        out = np.empty((len(rows), layout.BLOCK_BYTES * pair.entry.n), np.uint8)
        unpack_rows(self.dpl_rows(pair, rows), out, pair.entry.quant, pair.entry.n)
        return out


@contextmanager
def opened(sidecar: Path, index: GGUFIndex | None) -> Iterator[Files]:
    """Open a sidecar and the shards of an indexed model for the time of the block."""
    paths = [sidecar, *(shard.path for shard in index.shards)] if index else [sidecar]
    fds: list[int] = []
    try:
        for path in paths:
            fds.append(open_input(path))
        names = tuple(shown(path) for path in paths)
        yield Files(fds[0], names[0], tuple(fds[1:]), names[1:])
    finally:
        for fd in fds:
            os.close(fd)


def row_name(ne: tuple[int, ...], row: int) -> str:
    """A row in a person's terms: ``row 7``, or ``expert 3, row 7`` where there are outer dimensions."""
    if len(ne) < 3:
        return f"row {row}"
    expert, inner = divmod(row, ne[1])
    if len(ne) == 4:
        outer, expert = divmod(expert, ne[2])
        return f"outer {outer}, expert {expert}, row {inner}"
    return f"expert {expert}, row {inner}"
