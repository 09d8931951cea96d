from __future__ import annotations

import numpy as np
import pytest

from verify.contract.activations import Activations, adversarial, pack_plain, seeded
from verify.contract.quants.blocks import pack_blocks, pack_table
from verify.contract.quants.halves import pack_halves
from verify.contract.quants.quarters import pack_quarters


def test_seeded_is_reproducible_and_frozen() -> None:
    one, two, other = seeded(768, 5), seeded(768, 5), seeded(768, 6)
    np.testing.assert_array_equal(one.quants, two.quants)
    np.testing.assert_array_equal(one.d8.view(np.uint16), two.d8.view(np.uint16))
    assert not np.array_equal(one.quants, other.quants)
    assert one.quants[:8].tolist() == [40, 101, 56, 43, 110, 43, -108, 78]
    assert one.d8[:3].view(np.uint16).tolist() == [0x2376, 0x17F5, 0x1447]


def test_seeded_scales_are_normal_and_quants_symmetric() -> None:
    vector = seeded(51_200, 1)
    assert vector.quants.shape == (51_200,)
    assert vector.d8.min() >= 2.0**-10
    assert vector.d8.max() <= 2.0**-4
    assert (vector.quants.min(), vector.quants.max()) == (-127, 127)


def test_adversarial_vectors_are_what_they_say() -> None:
    vectors = {vector.name: vector for vector in adversarial(512)}
    assert len(vectors) == len(adversarial(512))
    assert set(vectors["all-127"].quants) == {127}
    assert set(vectors["all-minus-127"].quants) == {-127}
    assert vectors["alternating"].quants[:4].tolist() == [127, -127, 127, -127]
    assert np.flatnonzero(vectors["one-hot"].quants).tolist() == [511]
    assert not vectors["zeros"].quants.any()
    assert set(np.ascontiguousarray(vectors["tiny-scales"].d8).view(np.uint16)) == {0x0001}
    assert set(np.ascontiguousarray(vectors["huge-scales"].d8).view(np.uint16)) == {0x7BFF}
    assert all(vector.quants.shape == (512,) and vector.d8.shape == (16,) for vector in vectors.values())


def test_constant_vectors_take_no_memory() -> None:
    base = sum(array.base is None for vector in adversarial(1 << 20) for array in (vector.quants,))
    assert base <= 4  # alternating, which three vectors share, and one-hot


def test_values_and_parts() -> None:
    vector = Activations("x", np.full(256, -3, np.int8), np.arange(8, dtype=np.float16))
    assert vector.values().tolist() == [-3.0 * group for group in range(8) for _ in range(32)]
    assert vector.part(64, 128).values().tolist() == vector.values()[64:128].tolist()


def test_pack_plain_is_quants_then_scales() -> None:
    vector = seeded(512, 1)
    packed = pack_plain(vector)
    assert packed.shape == (272 * 2,)
    np.testing.assert_array_equal(packed[:512].view(np.int8), vector.quants)
    np.testing.assert_array_equal(packed[512:].view("<u2"), vector.d8.view(np.uint16))


@pytest.mark.parametrize("n", [1, 3])
def test_pack_quarters_item_by_item(n: int) -> None:
    vector = seeded(256 * n, 9)
    packed = pack_quarters(vector)
    assert packed.shape == (320 * n,)
    planes = packed.reshape(5, 4 * n, 16)
    for k in range(4 * n):
        block, half, column = k >> 2, k >> 1 & 1, k & 1
        for group in range(4):
            first = 256 * block + 128 * half + 32 * group + 16 * column
            quants = vector.quants[first : first + 16]
            assert planes[group, k].view(np.int8).tolist() == quants.tolist()
            assert planes[4, k, :8].view("<u2")[group] == vector.d8.view(np.uint16)[first // 32]
            assert planes[4, k, 8:].view("<i2")[group] == int(quants.sum(dtype=np.int64))


@pytest.mark.parametrize("n", [1, 3, 16])
def test_pack_blocks_and_table_block_by_block(n: int) -> None:
    vector = seeded(32 * n, 9)
    for pack, order in (
        (pack_blocks, list(range(32))),
        (pack_table, [weight + high for weight in range(16) for high in (0, 16)]),
    ):
        packed = pack(vector)
        assert packed.shape == (36 * n,)
        for k in range(n):
            quants = vector.quants[32 * k : 32 * k + 32]
            found = np.concatenate((packed[16 * k :][:16], packed[16 * (n + k) :][:16])).view(np.int8)
            assert found.tolist() == quants[order].tolist()
            meta = packed[32 * n + 4 * k :][:4]
            assert meta[:2].view("<u2")[0] == vector.d8.view(np.uint16)[k]
            assert meta[2:].view("<i2")[0] == int(quants.sum(dtype=np.int64))


@pytest.mark.parametrize("n", [1, 3])
def test_pack_halves_item_by_item(n: int) -> None:
    vector = seeded(256 * n, 9)
    packed = pack_halves(vector)
    assert packed.shape == (304 * n,)
    for k in range(2 * n):
        sums = packed[256 * n + 16 * k :][:16].view("<i2")
        d8 = packed[288 * n + 8 * k :][:8].view("<u2")
        for group in range(4):
            assert d8[group] == vector.d8.view(np.uint16)[4 * k + group]
            for column in range(2):
                first, plane = 128 * k + 32 * group + 16 * column, 2 * group + column
                quants = vector.quants[first : first + 16]
                assert packed[32 * n * plane + 16 * k :][:16].view(np.int8).tolist() == quants.tolist()
                assert sums[plane] == int(quants.sum(dtype=np.int64))
