"""The table of types and the copies between layouts, against bytes put in place by hand and gguf's table."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import pytest

from repack.layout import DEFAULT, TYPES, QuantType, align
from repack.rows import Bytes, count_unusual, pack_rows, pad_rows, paddings, plane, same_bytes, unpack_rows

# Written down from ggml-common.h: the fields in the order of the block, and the order of the planes.
BLOCKS = {
    "Q4_0": (32, [("d", 2), ("qs", 16)], ["qs", "d"]),
    "Q4_1": (32, [("dm", 4), ("qs", 16)], ["qs", "dm"]),
    "Q5_0": (32, [("d", 2), ("qh", 4), ("qs", 16)], ["qs", "qh", "d"]),
    "Q5_1": (32, [("dm", 4), ("qh", 4), ("qs", 16)], ["qs", "qh", "dm"]),
    "Q8_0": (32, [("d", 2), ("qs", 32)], ["qs", "d"]),
    "Q2_K": (256, [("scales", 16), ("qs", 64), ("dm", 4)], ["qs", "scales", "dm"]),
    "Q3_K": (256, [("hmask", 32), ("qs", 64), ("scales", 12), ("d", 2)], ["qs", "hmask", "scales", "d"]),
    "Q6_K": (256, [("ql", 128), ("qh", 64), ("scales", 16), ("d", 2)], ["ql", "qh", "scales", "d"]),
    "IQ4_NL": (32, [("d", 2), ("qs", 16)], ["qs", "d"]),
    "IQ4_XS": (256, [("d", 2), ("scales_h", 2), ("scales_l", 4), ("qs", 128)], ["qs", "scales_l", "scales_h", "d"]),
    "MXFP4": (32, [("e", 1), ("qs", 16)], ["qs", "e"]),
}
SIZES = [1, 2, 3, 5, 7, 8, 33, 54]
each_type = pytest.mark.parametrize("quant", TYPES.values(), ids=lambda quant: quant.name)
Q6_K = DEFAULT


def random_native(quant: QuantType, rows: int, n: int) -> Bytes:
    size = sum(nbytes for _, nbytes in BLOCKS[quant.name][1])
    return np.random.default_rng(n).integers(0, 256, (rows, size * n), dtype=np.uint8)


def by_hand(name: str, row: bytes, n: int) -> bytes:
    """One dpl row, slice by slice."""
    _, fields, order = BLOCKS[name]
    size = sum(nbytes for _, nbytes in fields)
    out = b""
    for wanted in order:
        at = 0
        for field, nbytes in fields:
            if field == wanted:
                out += b"".join(row[size * block + at : size * block + at + nbytes] for block in range(n))
                out += b"\0" * (-len(out) % 16)
            at += nbytes
    return out


def test_the_table_has_these_types_and_no_other() -> None:
    assert [quant.name for quant in TYPES.values()] == list(BLOCKS)
    assert list(TYPES) == sorted(TYPES)
    assert DEFAULT.name == "Q6_K"
    for number, quant in TYPES.items():
        assert quant.number == number == gguf.GGMLQuantizationType[quant.name]
        assert (quant.block_weights, quant.block_bytes) == gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(number)]
        assert quant.block_weights == BLOCKS[quant.name][0]


@each_type
def test_fields_tile_the_block_and_native_bytes_are_located(quant: QuantType) -> None:
    place = 0
    for name, nbytes in BLOCKS[quant.name][1]:
        for byte in range(nbytes):
            block, field, rest = quant.locate_native(2 * quant.block_bytes + place)
            assert (block, field.name, rest) == (2, name, byte)
            place += 1
    assert place == quant.block_bytes


def test_the_last_plane_is_the_scales_of_the_block() -> None:
    for quant in TYPES.values():
        assert [field.name for field in quant.planes if field.scale] == [quant.planes[-1].name]
        assert quant.planes[-1].name in {"d", "dm", "e"}


@pytest.mark.parametrize(("n", "stride"), [(1, 224), (2, 432), (3, 640), (8, 1680), (20, 4208), (54, 11344)])
def test_row_stride_of_q6_k(n: int, stride: int) -> None:
    assert Q6_K.row_stride(n) == stride
    assert Q6_K.plane_starts(n) == (0, 128 * n, 192 * n, 208 * n)


@pytest.mark.parametrize(
    ("name", "starts", "stride"),
    [
        ("Q5_0", (0, 48, 64), 80),
        ("MXFP4", (0, 48), 64),
        ("Q3_K", (0, 192, 288, 336), 352),
        ("Q2_K", (0, 192, 240), 256),
    ],
)
def test_planes_that_need_padding(name: str, starts: tuple[int, ...], stride: int) -> None:
    (quant,) = (quant for quant in TYPES.values() if quant.name == name)
    assert quant.plane_starts(3) == starts
    assert quant.row_stride(3) == stride


@each_type
@pytest.mark.parametrize("n", SIZES)
def test_pack_matches_slices_made_by_hand_and_unpack_undoes_it(quant: QuantType, n: int) -> None:
    native = random_native(quant, 5, n)
    dpl, back = np.full((5, quant.row_stride(n)), 0xAA, np.uint8), np.empty_like(native)
    pack_rows(native, dpl, quant, n)
    assert dpl.tobytes() == b"".join(by_hand(quant.name, row.tobytes(), n) for row in native)
    unpack_rows(dpl, back, quant, n)
    assert same_bytes(native, back)


@each_type
def test_pad_rows_puts_zeros_after_each_block(quant: QuantType) -> None:
    native = random_native(quant, 2, 3)
    size = quant.block_bytes
    out = np.full((2, 3 * -(-size // 16) * 16), 0xAA, np.uint8)
    pad_rows(native, out, quant, 3)
    blocks = [native.tobytes()[at : at + size] for at in range(0, native.size, size)]
    assert out.tobytes() == b"".join(block + b"\0" * (-size % 16) for block in blocks)


@each_type
@pytest.mark.parametrize("n", SIZES)
def test_every_plane_is_aligned_and_every_byte_is_located(quant: QuantType, n: int) -> None:
    assert all(start % 16 == 0 for start in (*quant.plane_starts(n), quant.row_stride(n)))
    block_of_byte = np.empty((1, quant.block_bytes * n), np.uint8)
    native, dpl = random_native(quant, 1, n), np.empty((1, quant.row_stride(n)), np.uint8)
    block_of_byte[0] = np.arange(native.size) // quant.block_bytes
    for source, expect in ((native, "byte"), (block_of_byte, "block")):
        pack_rows(source, dpl, quant, n)
        for byte in range(quant.row_stride(n)):
            block, field, rest = quant.locate(byte, n)
            if field is None:
                assert block == -1
                assert any(used + rest == byte and rest < zeros.size for used, zeros in paddings(dpl, quant, n))
            elif expect == "block":
                assert dpl[0, byte] == block
            else:
                assert dpl[0, byte] == native[0, quant.block_bytes * block + field.offset + rest]
    with pytest.raises(ValueError, match="behind"):
        quant.locate(quant.row_stride(n), n)


@each_type
def test_planes_and_paddings_cover_a_row_once(quant: QuantType) -> None:
    n = 3
    dpl = np.zeros((2, quant.row_stride(n)), np.uint8)
    for index in range(len(quant.planes)):
        plane(dpl, quant, index, n).view(np.uint8)[...] += 1
    for _, zeros in paddings(dpl, quant, n):
        zeros[...] += 1
    assert (dpl == 1).all()


def test_planes_have_the_dtype_of_their_field() -> None:
    dpl = np.zeros((4, Q6_K.row_stride(2)), np.uint8)
    found = [plane(dpl, Q6_K, index, 2) for index in range(4)]
    assert [(view.dtype.str, view.shape) for view in found] == [
        ("|u1", (4, 256)),
        ("|u1", (4, 128)),
        ("|i1", (4, 32)),
        ("<f2", (4, 2)),
    ]
    assert all(np.shares_memory(view, dpl) for view in found)


@pytest.mark.parametrize(
    ("name", "scales", "expected"),
    [
        ("Q6_K", "003c 0000 0080 007c 00fc 017e ffff 0100", (4, 2)),
        ("Q2_K", "003c0000 0080007c 017e0100", (2, 2)),
        ("MXFP4", "00 01 fe ff ff", (2, 0)),
    ],
)
def test_unusual_scales_are_counted(name: str, scales: str, expected: tuple[int, int]) -> None:
    (quant,) = (quant for quant in TYPES.values() if quant.name == name)
    values = [bytes.fromhex(text) for text in scales.split()]
    n, native = len(values), random_native(quant, 1, len(values))
    for block, value in enumerate(values):
        at = quant.block_bytes * block + quant.planes[-1].offset
        native[0, at : at + len(value)] = list(value)
    dpl = np.empty((1, quant.row_stride(n)), np.uint8)
    pack_rows(native, dpl, quant, n)
    assert count_unusual(dpl, quant, n) == expected


def test_arrays_of_another_shape_or_order_are_refused() -> None:
    good = np.zeros((2, 420), np.uint8)
    out = np.zeros((2, Q6_K.row_stride(2)), np.uint8)
    wrong: list[Any] = [good.view(np.int8), good[:, :210], good.reshape(-1), np.zeros((2, 840), np.uint8)]
    for bad in wrong:
        with pytest.raises(ValueError, match="expected uint8"):
            pack_rows(bad, out, Q6_K, 2)
    with pytest.raises(ValueError, match="last axis must be contiguous"):
        unpack_rows(out, np.zeros((2, 840), np.uint8)[:, ::2], Q6_K, 2)


@pytest.mark.parametrize(("nbytes", "expected"), [(0, 0), (1, 16), (16, 16), (17, 32)])
def test_align(nbytes: int, expected: int) -> None:
    assert align(nbytes) == expected


@pytest.mark.parametrize("size", [1, 7, 8, 9, 23, 24])
def test_a_difference_in_any_byte_is_seen(size: int) -> None:
    one = np.arange(size, dtype=np.uint8)
    assert same_bytes(one, one.copy())
    for byte in range(size):
        other = one.copy()
        other[byte] ^= 0x80
        assert not same_bytes(one, other)
