"""The pipeline: every row once, digests in order, buffers that are bounded, and an end at the first failure."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from dataclasses import dataclass

import numpy as np
import pytest

from repack.files import pipeline
from repack.files.pipeline import BUFFER_BYTES, CHUNK_BYTES, Chunk, lanes_and_buffers, pump, worker_threads
from repack.files.signals import Interrupted, _State
from repack.layout import TYPES, QuantType

Q6_K, MXFP4 = TYPES[14], TYPES[39]


@dataclass(frozen=True)
class Rows:
    """As much of a tensor as the pipeline has to know."""

    quant: QuantType
    n: int
    rows: int


LONG = 2 * CHUNK_BYTES // 210 + 1  # rows of one block of Q6_K: three chunks
TENSORS = [
    Rows(Q6_K, 1, LONG),
    Rows(Q6_K, 1, 0),
    Rows(MXFP4, 5, 3),
    Rows(Q6_K, 1, LONG),
    Rows(Q6_K, 0, 7),
    Rows(Q6_K, 1, 1),
    Rows(MXFP4, 33, 9000),
]
STRIDES = [224, 224, 96, 224, 0, 224, 576]  # 16 * 5 + 5 is 85, and 16 * 33 + 33 is 561


def filled(chunk: Chunk) -> int:
    """Work as a sidecar's reader does it: bytes that say which tensor and which row this is."""
    rows = np.arange(chunk.row, chunk.row + len(chunk.dpl), dtype=np.uint32)[:, None]
    chunk.dpl[...] = rows * 7 + np.arange(chunk.dpl.shape[1], dtype=np.uint32) * 3 + chunk.tensor
    chunk.native[...] = 1
    chunk.back[...] = 2
    return len(chunk.dpl)


def expected(index: int) -> str:
    tensor, stride = TENSORS[index], STRIDES[index]
    rows = np.arange(tensor.rows, dtype=np.uint32)[:, None]
    return hashlib.sha256(((rows * 7 + np.arange(stride) * 3 + index) & 255).astype(np.uint8).tobytes()).hexdigest()


@pytest.mark.parametrize("threads", [1, 2, 3, 4, 9])
def test_every_row_once_and_every_digest(threads: int) -> None:
    seen: list[tuple[int, int, int]] = []
    digests = pump(TENSORS, filled, lambda chunk, rows: seen.append((chunk.tensor, chunk.row, rows)), threads)
    assert digests == [expected(index) for index in range(len(TENSORS))]
    for index, tensor in enumerate(TENSORS):
        pieces = [(row, rows) for at, row, rows in seen if at == index]
        assert [row for first, rows in pieces for row in range(first, first + rows)] == (
            list(range(tensor.rows if tensor.n else 0))
        ), "in order, one after the other"
        assert all(rows * tensor.n * tensor.quant.block_bytes <= CHUNK_BYTES for _, rows in pieces)


def test_two_tensors_at_a_time_where_there_are_threads_for_it() -> None:
    second_begun = threading.Event()

    def work(chunk: Chunk) -> None:
        if chunk.tensor == 1:
            second_begun.set()
        elif not chunk.row:
            assert second_begun.wait(30), "the second tensor is begun before the first is done"

    pump([Rows(Q6_K, 1, 9 * LONG)] * 2, work, lambda *_: None, 3)


def test_else_one_tensor_after_the_other() -> None:
    order: list[int] = []
    pump([TENSORS[0]] * 9, lambda _: None, lambda chunk, _: order.append(chunk.tensor), 2)
    assert order == sorted(order)


def test_chunks_in_flight_have_buffers_of_their_own() -> None:
    """No buffer is given out again before the digest has been made of it."""
    lock, in_flight, most = threading.Lock(), dict[int, Chunk](), 0

    def work(chunk: Chunk) -> None:
        nonlocal most
        with lock:
            place = chunk.dpl.__array_interface__["data"][0]
            assert place not in in_flight
            in_flight[place] = chunk
            most = max(most, len(in_flight))
        assert not np.shares_memory(chunk.native, chunk.back)
        filled(chunk)

    def finish(chunk: Chunk, _: None) -> None:
        with lock:
            del in_flight[chunk.dpl.__array_interface__["data"][0]]

    assert pump(TENSORS, work, finish, 4)[0] == expected(0)
    assert 1 < most <= 12


@pytest.mark.parametrize("row", [210, CHUNK_BYTES, 3 << 20, 8 << 20, 1 << 30])
@pytest.mark.parametrize("threads", [1, 2, 3, 4, 64])
def test_buffers_are_bounded_by_bytes(row: int, threads: int) -> None:
    nbytes = 3 * max(row, CHUNK_BYTES)
    lanes, buffers = lanes_and_buffers(threads, nbytes)
    assert lanes * buffers * nbytes <= max(BUFFER_BYTES, 2 * nbytes)
    assert buffers >= 2, "one is worked on while the digest of the other is made"
    assert (lanes, buffers) == (1 + (threads > 2), threads + 2) or (lanes + 1) * (buffers + 1) * nbytes > BUFFER_BYTES


def test_rows_of_eight_mebibytes_take_two_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    honest = pipeline._Buffer.__init__

    def counted(self: pipeline._Buffer, native_bytes: int, dpl_bytes: int) -> None:
        taken.append(2 * native_bytes + dpl_bytes)
        honest(self, native_bytes, dpl_bytes)

    monkeypatch.setattr(pipeline._Buffer, "__init__", counted)
    n = (8 << 20) // 210
    pump([Rows(Q6_K, n, 5)], lambda _: None, lambda *_: None, 4)
    assert len(taken) == 2
    assert sum(taken) <= BUFFER_BYTES


@pytest.mark.parametrize("threads", [1, 4])
def test_the_first_failure_ends_it(threads: int) -> None:
    done = []

    def work(chunk: Chunk) -> None:
        done.append(chunk)
        if chunk.tensor == 0:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        pump([TENSORS[0]] * 1000, work, lambda *_: None, threads)
    assert len(done) < 100
    del done[:]
    with pytest.raises(RecursionError):
        pump([TENSORS[0]] * 1000, done.append, lambda *_: (_ for _ in ()).throw(RecursionError), threads)
    assert len(done) < 100


def test_a_failure_of_one_lane_ends_the_other() -> None:
    done = []

    def work(chunk: Chunk) -> None:
        if chunk.tensor == 1:
            raise ZeroDivisionError
        done.append(chunk)

    with pytest.raises(ZeroDivisionError):
        pump([Rows(Q6_K, 1, 1000 * LONG), TENSORS[0]], work, lambda *_: None, 4)
    assert len(done) < 1000


def test_one_chunk_is_finished_at_a_time() -> None:
    gate = threading.Lock()

    def finish(*_: object) -> None:
        assert gate.acquire(blocking=False)
        time.sleep(0.001)  # so that another one would come in between
        gate.release()

    pump([TENSORS[0]] * 20, lambda _: None, finish, 4)


def test_a_signal_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    done = []

    def work(chunk: Chunk) -> None:
        done.append(chunk)
        if len(done) == 10:
            monkeypatch.setattr(_State, "pending", 15)

    with pytest.raises(Interrupted, match="SIGTERM"):
        pump([TENSORS[0]] * 1000, work, lambda *_: None, 2)
    assert len(done) < 100
    assert threading.active_count() < 10


def test_no_threads_stay() -> None:
    before = threading.active_count()
    pump(TENSORS, filled, lambda *_: None, 4)
    assert threading.active_count() == before


def test_processors_are_those_that_the_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    for allowed, busy, expected in ((1, 0, 1), (1, 1, 1), (2, 1, 1), (3, 0, 3), (3, 1, 2), (16, 1, 4)):
        monkeypatch.setattr(
            os, "sched_getaffinity", lambda _, allowed=allowed: set(range(10, 10 + allowed)), raising=False
        )
        assert worker_threads(0, busy) == expected
        assert worker_threads(7, busy) == 7
    monkeypatch.delattr(os, "sched_getaffinity")
    assert worker_threads(0) == 4
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert worker_threads(0, 1) == 1
