"""Chunks in the order in which they are worked on, and the digests that are made of them."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from repack.files.chunks import Chunk, chunks_of
from repack.files.digests import Digests
from repack.files.pipeline import CHUNK_BYTES
from repack.layout import DEFAULT
from repack.sidecar.manifest import Entry

LONG = 2 * CHUNK_BYTES // 210 + 1  # rows of one super-block: three chunks
SHAPES = [(256, LONG), (256, 0), (512, 3), (256, LONG), (0, 7), (256, 1), (256, 2 * LONG)]
ENTRIES = [Entry(str(number), DEFAULT, ne, 0, 0, "", 0, 0) for number, ne in enumerate(SHAPES)]


@pytest.mark.parametrize("streams", [1, 2, 3, 9])
def test_every_row_comes_once_and_in_the_order_that_a_digest_needs(streams: int) -> None:
    chunks = list(chunks_of(ENTRIES, streams))
    for number, (ne0, rows) in enumerate(SHAPES):
        mine = [chunk for chunk in chunks if chunk.tensor == number]
        assert [row for chunk in mine for row in range(chunk.row, chunk.row + chunk.rows)] == list(
            range(rows if ne0 else 0)
        )
        assert len({chunk.stream for chunk in mine}) <= 1
    for stream in range(streams):
        tensors = [chunk.tensor for chunk in chunks if chunk.stream == stream]
        assert tensors == sorted(tensors)


def test_one_stream_is_the_order_of_the_file() -> None:
    assert [chunk.tensor for chunk in chunks_of(ENTRIES, 1)] == [0, 0, 0, 2, 3, 3, 3, 5, 6, 6, 6, 6, 6]


def test_two_streams_take_turns() -> None:
    assert [chunk.tensor for chunk in chunks_of(ENTRIES, 2)] == [0, 2, 0, 3, 0, 3, 5, 3, 6, 6, 6, 6, 6]


def test_digests_of_several_tensors_at_a_time() -> None:
    with Digests(ENTRIES[:3], 2) as digests:
        pieces = [np.full(5, value, np.uint8) for value in range(4)]
        order = [Chunk(2, 0, 1, 1), Chunk(0, 0, 1, 0), Chunk(2, 1, 1, 1), Chunk(0, 1, 1, 0)]
        for chunk, piece in zip(order, pieces, strict=True):
            digests.feed(chunk, piece)
    first, second, third = (
        hashlib.sha256(data).hexdigest() for data in (b"\1" * 5 + b"\3" * 5, b"", b"\0" * 5 + b"\2" * 5)
    )
    assert digests.in_hex() == [first, second, third]
