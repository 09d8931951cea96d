"""Every row of many tensors through a few threads, with the SHA-256 of each tensor made on the way.

A digest takes the bytes of its tensor one after the other, and is what takes longest. So there are lanes, each a thread
that makes the digest of one tensor after the other, and worker threads that do the rest on the chunks of rows which the
lanes hand out ahead. Two lanes keep up with four workers.
"""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import cycle
from threading import Lock
from typing import Protocol, TypeVar

import numpy as np

from repack.files.signals import check
from repack.layout import QuantType
from repack.rows import Bytes

Progress = Callable[[int], None]
"""Called with the number of bytes that are done, from one thread at a time."""

CHUNK_BYTES = 2 << 20
"""Native bytes handled at once. Larger ones take more memory and are no faster, smaller ones cost Python's time."""
BUFFER_BYTES = 48 << 20
"""What all buffers may take together, unless two rows need more."""

Result = TypeVar("Result")


class Tensor(Protocol):
    """What has to be known of a tensor; an entry of the manifest is one."""

    @property
    def quant(self) -> QuantType:
        """The quantization type."""

    @property
    def n(self) -> int:
        """Blocks in a row."""

    @property
    def rows(self) -> int:
        """Rows over all outer dimensions."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some rows of one tensor, and room for them."""

    tensor: int
    """Index of the tensor."""
    row: int
    """The first of the rows."""
    native: Bytes
    """Room for native rows, uint8 ``[rows, block_bytes * n]``."""
    back: Bytes
    """Room for the same rows once more."""
    dpl: Bytes
    """Room for dpl rows, uint8 ``[rows, row_stride]``: the digest is made of what the work leaves here."""


def worker_threads(wanted: int, busy: int = 0) -> int:
    """`wanted`, or if that is 0 one for each processor that this process may use but `busy` other ones; at most 4."""
    return wanted or max(1, min(processors() - busy, 4))


def processors() -> int:
    """Processors that this process may use: a container, a batch system or taskset may leave it a few of many."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def rows_per_chunk(native_row_bytes: int) -> int:
    """Rows that are handled at once: `CHUNK_BYTES` of them, at least one."""
    return max(1, CHUNK_BYTES // max(native_row_bytes, 1))


def pump(
    tensors: Sequence[Tensor],
    work: Callable[[Chunk], Result],
    finish: Callable[[Chunk, Result], None],
    threads: int,
) -> list[str]:
    """Work on all rows of all tensors; returns the SHA-256 (hex) of each tensor's dpl rows.

    work: called with every chunk, on `threads` threads, in any order. finish: called with every chunk and what `work`
    returned, one call at a time, in order within a tensor. The first exception ends everything and is raised here.
    """
    native, dpl = _largest_chunk(tensors)
    lanes, ahead = lanes_and_buffers(threads, 2 * native + dpl)
    shared = _Shared(tensors)
    workers, pool = ThreadPoolExecutor(threads, "work"), ThreadPoolExecutor(lanes, "digest")
    try:
        buffers = [[_Buffer(native, dpl) for _ in range(ahead)] for _ in range(lanes)]
        parts = [pool.submit(_lane, shared, mine, work, finish, workers) for mine in buffers]
        for part in parts:
            part.result()
    finally:
        shared.ended = True
        pool.shutdown()
        workers.shutdown(cancel_futures=True)
    return [digest.hexdigest() for digest in shared.digests]


def lanes_and_buffers(threads: int, buffer_bytes: int) -> tuple[int, int]:
    """How many lanes there are, and how many buffers each of them has.

    One lane for up to two threads, else two, with ``threads + 2`` buffers each. Where these would take more than
    `BUFFER_BYTES` there are fewer, but never fewer than two. A buffer takes three times the largest chunk, which is
    2 MiB, or one row if that is longer: so all of them take ``max(BUFFER_BYTES, 6 * row)`` bytes at most.
    """
    fitting = max(BUFFER_BYTES // max(buffer_bytes, 1), 2)
    lanes = 2 if threads > 2 and fitting >= 4 else 1
    return lanes, min(threads + 2, fitting // lanes)


class _Shared:
    """What the lanes have in common."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors = tensors
        self.digests = [hashlib.sha256() for _ in tensors]
        self.lock = Lock()
        self.ended = False
        self._left = iter(enumerate(tensors))

    def chunks(self, buffers: Sequence[_Buffer]) -> Iterator[Chunk]:
        """Chunk after chunk, each in the next of the buffers, of tensors that no other lane has begun."""
        turn = cycle(buffers)
        while True:
            with self.lock:
                index, tensor = next(self._left, (-1, None))
            if tensor is None:
                return
            for row, rows in _pieces(tensor):
                if self.ended:
                    return
                check()
                yield next(turn).chunk(index, row, rows, tensor)


class _Buffer:
    """Room for any chunk."""

    def __init__(self, native_bytes: int, dpl_bytes: int) -> None:
        self._native, self._back = np.empty(native_bytes, np.uint8), np.empty(native_bytes, np.uint8)
        self._dpl = np.empty(dpl_bytes, np.uint8)

    def chunk(self, index: int, row: int, rows: int, tensor: Tensor) -> Chunk:
        """`rows` rows of a tensor, from `row` on."""
        native, stride = _native_row(tensor), tensor.quant.row_stride(tensor.n)
        return Chunk(
            index,
            row,
            self._native[: rows * native].reshape(rows, native),
            self._back[: rows * native].reshape(rows, native),
            self._dpl[: rows * stride].reshape(rows, stride),
        )


def _lane(
    shared: _Shared,
    buffers: Sequence[_Buffer],
    work: Callable[[Chunk], Result],
    finish: Callable[[Chunk, Result], None],
    workers: ThreadPoolExecutor,
) -> None:
    """Hand out chunks ahead, and take them back in order."""
    waiting: deque[tuple[Chunk, Future[Result]]] = deque()

    def retire() -> None:
        chunk, future = waiting.popleft()
        result = future.result()
        with shared.lock:
            finish(chunk, result)
        shared.digests[chunk.tensor].update(chunk.dpl.data)

    try:
        for chunk in shared.chunks(buffers):
            waiting.append((chunk, workers.submit(work, chunk)))
            if len(waiting) == len(buffers):  # the next chunk takes the buffer of the first of these
                retire()
        while waiting:
            retire()
    except BaseException:
        shared.ended = True  # for the other lane
        raise


def _pieces(tensor: Tensor) -> Iterator[tuple[int, int]]:
    """First row and number of rows of each chunk of a tensor; nothing if it has no bytes."""
    step = rows_per_chunk(_native_row(tensor))
    for row in range(0, tensor.rows if tensor.n else 0, step):
        yield row, min(step, tensor.rows - row)


def _largest_chunk(tensors: Sequence[Tensor]) -> tuple[int, int]:
    """Bytes of the largest chunk of native rows, and of the largest one of dpl rows."""
    native = dpl = 0
    for tensor in tensors:
        rows = min(rows_per_chunk(_native_row(tensor)), tensor.rows)
        native = max(native, rows * _native_row(tensor))
        dpl = max(dpl, rows * tensor.quant.row_stride(tensor.n))
    return native, dpl


def _native_row(tensor: Tensor) -> int:
    return tensor.quant.block_bytes * tensor.n
