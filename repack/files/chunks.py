"""Tensors cut into chunks of whole rows, and the buffers of the chunks in flight; for the converter and for verify."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from repack.files.pipeline import rows_per_chunk
from repack.rows import Bytes
from repack.sidecar.manifest import Entry


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows `row` to ``row + rows`` of the tensor with this index."""

    tensor: int
    row: int
    rows: int
    stream: int
    """Of all chunks with this number those of one tensor come first, then those of the next."""


class Slot:
    """Buffers for one chunk: its native rows, its dpl rows, and room to bring these back to the native order."""

    def __init__(self, native_bytes: int, dpl_bytes: int) -> None:
        self._native = np.empty(native_bytes, np.uint8)
        self._back = np.empty(native_bytes, np.uint8)
        self._dpl = np.empty(dpl_bytes, np.uint8)

    def native(self, rows: int, entry: Entry) -> Bytes:
        """Room for native rows, uint8 ``[rows, block_bytes * n]``."""
        return _shaped(self._native, rows, entry.quant.block_bytes * entry.n)

    def back(self, rows: int, entry: Entry) -> Bytes:
        """Room for the same rows once more, uint8 ``[rows, block_bytes * n]``."""
        return _shaped(self._back, rows, entry.quant.block_bytes * entry.n)

    def dpl(self, rows: int, entry: Entry) -> Bytes:
        """Room for dpl rows, uint8 ``[rows, row_stride]``."""
        return _shaped(self._dpl, rows, entry.row_stride)


def chunks_of(entries: Sequence[Entry], streams: int) -> Iterator[Chunk]:
    """All rows of all tensors that have any bytes: of `streams` tensors in turn, each in order.

    A digest takes the chunks of its tensor one after the other; two tensors' digests can be made at the same time.
    """
    tensors = iter(enumerate(entries))
    lines = [_line(tensors, stream) for stream in range(streams)]
    while lines:
        for line in tuple(lines):
            chunk = next(line, None)
            if chunk is None:
                lines.remove(line)
            else:
                yield chunk


def _line(tensors: Iterator[tuple[int, Entry]], stream: int) -> Iterator[Chunk]:
    """Tensor after tensor, each the next that no other line has begun."""
    for index, entry in tensors:
        step = rows_per_chunk(entry.quant.block_bytes * entry.n)
        for row in range(0, entry.rows if entry.n else 0, step):
            yield Chunk(index, row, min(step, entry.rows - row), stream)


def slots_for(entries: Sequence[Entry], count: int) -> list[Slot]:
    """`count` sets of buffers, each fit for the largest chunk."""
    native = dpl = 0
    for entry in entries:
        rows = min(rows_per_chunk(entry.quant.block_bytes * entry.n), entry.rows)
        native = max(native, rows * entry.quant.block_bytes * entry.n)
        dpl = max(dpl, rows * entry.row_stride)
    return [Slot(native, dpl) for _ in range(count)]


def _shaped(buffer: Bytes, rows: int, width: int) -> Bytes:
    return buffer[: rows * width].reshape(rows, width)
