from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from repack import layout
from repack.rows import Bytes, pack_rows, pad_rows, plane, unpack_rows
from tests.build import dpl_by_hand, q6_k


def rows_of(n: int, rows: int, seed: int = 7) -> Bytes:
    return np.frombuffer(q6_k(n * rows, seed), np.uint8).reshape(rows, 210 * n)


def test_the_table_is_the_formats() -> None:
    table = [(field.name, field.nbytes, field.offset, field.dtype) for field in layout.FIELDS]
    assert table == [("ql", 128, 0, "u1"), ("qh", 64, 128, "u1"), ("scales", 16, 192, "i1"), ("d", 2, 208, "<f2")]
    assert (layout.BLOCK_WEIGHTS, layout.BLOCK_BYTES, layout.PADDED_BLOCK_BYTES) == (256, 210, 224)


@pytest.mark.parametrize(
    ("n", "stride"),
    [(0, 0), (1, 224), (2, 432), (3, 640), (5, 1056), (8, 1680), (16, 3360), (54, 11_344), (74, 15_552)],
)
def test_row_stride(n: int, stride: int) -> None:
    assert layout.row_stride(n) == stride


@pytest.mark.parametrize(("n", "rows"), [(1, 1), (1, 9), (2, 3), (3, 5), (5, 1), (8, 2), (54, 3), (74, 2)])
def test_pack_is_what_slices_by_hand_give(n: int, rows: int) -> None:
    native = rows_of(n, rows)
    out = np.full((rows, layout.row_stride(n)), 0xEE, np.uint8)
    pack_rows(native, out, n)
    assert out.tobytes() == dpl_by_hand(native.tobytes(), n)


@given(st.integers(1, 20), st.integers(0, 9), st.integers(0, 2**32))
def test_unpack_is_the_inverse(n: int, rows: int, seed: int) -> None:
    native = np.random.default_rng(seed).integers(0, 256, (rows, 210 * n), dtype=np.uint8)
    dpl, back = np.empty((rows, layout.row_stride(n)), np.uint8), np.empty_like(native)
    pack_rows(native, dpl, n)
    unpack_rows(dpl, back, n)
    assert back.tobytes() == native.tobytes()


def test_pad_rows_puts_fourteen_zeros_after_each_block() -> None:
    native = rows_of(3, 2)
    out = np.full((2, 3 * 224), 0xEE, np.uint8)
    pad_rows(native, out, 3)
    raw = native.tobytes()
    assert out.tobytes() == b"".join(raw[at : at + 210] + bytes(14) for at in range(0, len(raw), 210))


def test_planes_are_views_in_the_fields_own_types() -> None:
    native = rows_of(2, 3)
    dpl = np.empty((3, layout.row_stride(2)), np.uint8)
    pack_rows(native, dpl, 2)
    ql, qh, scales, d = (plane(dpl, field, 2) for field in layout.FIELDS)
    assert (ql.shape, qh.shape, scales.shape, d.shape) == ((3, 256), (3, 128), (3, 32), (3, 2))
    assert scales[1, 17] == native[1, 210 + 192 + 1].view(np.int8)
    assert d[2, 1].tobytes() == native[2, 418:420].tobytes()
    assert np.shares_memory(d, dpl)


def test_every_byte_of_a_row_is_located() -> None:
    n = 3
    native = np.arange(210 * n, dtype=np.uint16).astype(np.uint8).reshape(1, -1)
    dpl = np.empty((1, layout.row_stride(n)), np.uint8)
    pack_rows(native, dpl, n)
    for byte in range(layout.row_stride(n)):
        block, field, rest = layout.locate(byte, n)
        if field is None:
            assert byte >= 210 * n
        else:
            assert native[0, block * 210 + field.offset + rest] == dpl[0, byte]


@pytest.mark.parametrize("bad", [np.zeros((2, 419), np.uint8), np.zeros((2, 420), np.int8), np.zeros(420, np.uint8)])
def test_wrong_shapes_are_refused(bad: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> None:
    with pytest.raises(ValueError, match="expected uint8"):
        pack_rows(bad, np.zeros((2, layout.row_stride(2)), np.uint8), 2)


def test_a_target_that_would_be_copied_is_refused() -> None:
    dpl = np.zeros((2, layout.row_stride(2)), np.uint8)
    with pytest.raises(ValueError, match="contiguous"):
        unpack_rows(dpl, np.zeros((2, 840), np.uint8)[:, ::2], 2)
