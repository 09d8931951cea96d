"""A bounded pipeline over chunks: parallel work, then ordered digests, over a ring of buffers.

SHA-256 is sequential over a tensor, so one thread feeds it in order, while any number of threads work on later
chunks. Memory is the ring: as many slots as chunks may be in flight.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from repack.files.signals import check

Chunk = TypeVar("Chunk")
Slot = TypeVar("Slot")
Result = TypeVar("Result")

CHUNK_BYTES = 2 << 20
"""Native bytes handled at once. Larger ones take more memory and are no faster, smaller ones cost Python's time."""


def worker_threads(wanted: int, busy: int = 0) -> int:
    """`wanted`, or if that is 0 as many as there are processors without `busy` that have other work; at most 4."""
    return wanted or max(1, min((os.cpu_count() or 1) - busy, 4))


def digest_threads(workers: int) -> int:
    """How many digests to make at a time: one keeps up with two workers."""
    return 1 if workers <= 2 else 2


def rows_per_chunk(native_row_bytes: int) -> int:
    """Rows that are handled at once: `CHUNK_BYTES` of them, at least one."""
    return max(1, CHUNK_BYTES // max(native_row_bytes, 1))


def pump(
    chunks: Iterable[Chunk],
    slots: Sequence[Slot],
    work: Callable[[Chunk, Slot], Result],
    finish: Callable[[Chunk, Slot, Result], Future[Any]],
    threads: int,
) -> None:
    """Call ``work(chunk, slot)`` on `threads` threads and ``finish(chunk, slot, result)`` here, in order of the chunks.

    A slot is handed out again when the future that `finish` returned for it is done. The first exception stops
    everything and is raised here.
    """
    readers: list[Future[Any] | None] = [None] * len(slots)
    waiting: deque[tuple[int, Chunk, Future[Result]]] = deque()

    def retire() -> None:
        at, chunk, future = waiting.popleft()
        readers[at] = finish(chunk, slots[at], future.result())

    pool = ThreadPoolExecutor(threads, "work")
    try:
        for number, chunk in enumerate(chunks):
            check()
            at = number % len(slots)
            if len(waiting) == len(slots):
                retire()
            if (reader := readers[at]) is not None:
                reader.result()
            waiting.append((at, chunk, pool.submit(work, chunk, slots[at])))
            while waiting and waiting[0][2].done():
                retire()
        while waiting:
            retire()
        for reader in readers:
            if reader is not None:
                reader.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
