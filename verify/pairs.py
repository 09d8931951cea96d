"""A model and a sidecar opened side by side: what is compared with what, and plain reads of both."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from repack.errors import Damaged, DplError, as_failure, shown
from repack.files.reading import Inputs, Stamp, open_input, read_into, stamp
from repack.gguf.index import GGUFIndex, Tensor
from repack.rows import Bytes, unpack_rows
from repack.sidecar.manifest import Entry


class StageFailure(Exception):
    """What ends a verification: an error, and the stage that answers for it."""

    def __init__(self, stage: str, error: DplError) -> None:
        super().__init__(stage, error)
        self.stage, self.error = stage, error


@contextmanager
def blamed(stage: str) -> Iterator[None]:
    """Whatever goes wrong in the block is a StageFailure of this stage, unless it is one of another stage already."""
    try:
        yield
    except StageFailure:
        raise
    except Exception as error:
        raise StageFailure(stage, as_failure(error)) from error


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
    """A sidecar, and the shards of a model. What cannot be read raises a StageFailure: of `container`, of `source`."""

    sidecar: int
    """Its descriptor."""
    sidecar_name: str
    sidecar_stamp: Stamp
    shards: Inputs
    """Opened when they are read; none without a model."""

    def read_dpl(self, pair: Pair, row: int, out: Bytes) -> None:
        """Fill `out`, uint8 ``[rows, row_stride]``, with the sidecar's rows from `row` on."""
        offset = pair.dpl_offset + row * pair.entry.row_stride
        with blamed("container"):
            read_into(self.sidecar, out.data.cast("B"), offset, f"{self.sidecar_name}: tensor {shown(pair.entry.name)}")

    def read_native(self, pair: Pair, row: int, out: Bytes) -> None:
        """Fill `out`, uint8 ``[rows, block_bytes * n]``, with the GGUF's rows from `row` on."""
        assert pair.source is not None
        offset = pair.source.offset + row * out.shape[1]
        with blamed("source"):
            self.shards.read_into(pair.source.shard, out.data.cast("B"), offset, f"tensor {shown(pair.entry.name)}")

    def native_rows(self, pair: Pair, rows: npt.NDArray[np.int64]) -> Bytes:
        """The given rows of the GGUF, uint8 ``[len(rows), block_bytes * n]``."""
        out = np.empty((len(rows), pair.entry.quant.block_bytes * pair.entry.n), np.uint8)
        for at, row in enumerate(rows):
            self.read_native(pair, int(row), out[at : at + 1])
        return out

    def unpacked_rows(self, pair: Pair, rows: npt.NDArray[np.int64]) -> Bytes:
        """The given rows of the sidecar in the GGUF's form, uint8 ``[len(rows), block_bytes * n]``."""
        entry = pair.entry
        dpl = np.empty((len(rows), entry.row_stride), np.uint8)
        for at, row in enumerate(rows):
            self.read_dpl(pair, int(row), dpl[at : at + 1])
        out = np.empty((len(rows), entry.quant.block_bytes * entry.n), np.uint8)
        unpack_rows(dpl, out, entry.quant, entry.n)
        return out

    def refuse_changed(self) -> None:
        """Raise a StageFailure if a file is not what it was at the start: then nothing is proven about it."""
        with blamed("container"):
            if stamp(self.sidecar) != self.sidecar_stamp:
                raise Damaged("changed while it was checked", where=self.sidecar_name, hint="run the command again")
        with blamed("source"):
            self.shards.refuse_changed()


@contextmanager
def opened(sidecar: Path, index: GGUFIndex | None) -> Iterator[Files]:
    """Open a sidecar, and the shards of an indexed model, for the time of the block."""
    with blamed("container"):
        fd = open_input(sidecar)
    try:
        with Inputs((shard.path, shard.stamp) for shard in index.shards) if index else Inputs(()) as shards:
            yield Files(fd, shown(sidecar), stamp(fd), shards)
    finally:
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
