"""`open_sidecar` and what it hands out: views, native rows, weights, and no row that was not asked for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

import repack
from repack import open_sidecar
from repack.sidecar.reader import Sidecar, SidecarTensor
from tests.golden import make
from tests.support.independent import KINDS, TABLE, pack
from tests.support.sidecars.forge import GOLDEN
from tests.support.sidecars.sound import later

DTYPES = {"d": np.float16, "dm": np.float16}
TENSORS = [tensor for tensor in make.TENSORS if tensor.type]


@pytest.fixture
def golden() -> Iterator[Sidecar]:
    with open_sidecar(GOLDEN / "tiny.dpl") as sidecar:
        yield sidecar


@pytest.fixture
def matrix(golden: Sidecar) -> SidecarTensor:
    """Four rows of IQ4_NL, in two experts."""
    return golden["blk.0.ffn_down_exps.weight"]


def test_it_is_a_mapping(golden: Sidecar) -> None:
    assert list(golden) == [tensor.name for tensor in TENSORS]
    assert len(golden) == 11
    assert "output_norm.weight" not in golden
    with pytest.raises(KeyError):
        golden["output_norm.weight"]
    assert golden.manifest.types == tuple(kind.number for kind in KINDS)


@pytest.mark.parametrize("tensor", TENSORS, ids=lambda tensor: TABLE[tensor.type].name)
def test_rows_planes_unpack_and_dequantize(golden: Sidecar, tensor: make.Tensor) -> None:
    kind, native, found = TABLE[tensor.type], tensor.native(), golden[tensor.name]
    stored = pack(native, kind, 3)
    assert found.rows.tobytes() == stored
    assert not found.rows.flags.writeable
    assert found.rows.shape == (*(tensor.ne[:0:-1] or (1,)), kind.stride(3))
    blocks = np.frombuffer(native, np.uint8).reshape(-1, 3, kind.size)
    planes = found.planes()
    assert list(planes) == [name for name, _, _ in kind.planes]
    for name, size, offset in kind.planes:
        signed = (kind.name, name) in {("Q8_0", "qs"), ("Q6_K", "scales")}
        assert planes[name].dtype == DTYPES.get(name, np.int8 if signed else np.uint8)
        assert planes[name].tobytes() == blocks[:, :, offset : offset + size].tobytes()
        assert np.shares_memory(planes[name], found.rows)
    assert found.unpack().tobytes() == native
    with np.errstate(over="ignore"):  # an exponent of 255
        expected = gguf.dequantize(blocks.reshape(-1, 3 * kind.size), gguf.GGMLQuantizationType(kind.number))
    assert found.dequantize().tobytes() == expected.tobytes()
    rows = len(blocks)
    for start, stop in ((0, rows), (rows, rows), (0, 0), (rows - 1, rows)):
        assert found.unpack(start, stop).tobytes() == blocks[start:stop].tobytes()
        assert found.dequantize(start, stop).tobytes() == expected[start:stop].tobytes()
        assert [len(plane) for plane in found.planes(start, stop).values()] == [stop - start] * len(kind.planes)


@pytest.mark.parametrize(
    "wrong", [(-1, None), (0, 5), (5, None), (3, 2), (-1, -1), (0, -1), (1 << 70, None), (0, 1 << 70)]
)
def test_a_range_outside_the_tensor(matrix: SidecarTensor, wrong: tuple[int, int | None]) -> None:
    for method in (matrix.planes, matrix.unpack, matrix.dequantize):
        with pytest.raises(IndexError):
            method(*wrong)


@pytest.mark.parametrize("wrong", [0.0, 1.9, "1", True, None, np.True_, np.float32(1), [1]])
def test_a_range_of_no_integers(matrix: SidecarTensor, wrong: Any) -> None:
    for method in (matrix.planes, matrix.unpack, matrix.dequantize):
        with pytest.raises(TypeError):
            method(wrong)
        if wrong is not None:
            with pytest.raises(TypeError):
                method(0, wrong)


def test_integers_of_numpy_are_integers(matrix: SidecarTensor) -> None:
    assert len(matrix.unpack(np.int32(1), np.uint64(3))) == 2  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "ids",
    [0, 3, [0, 3], [[1, 2], [2, 0]], (3,), [], np.array([[3], [1]], np.uint8), np.int64(2), np.array(3, np.uint64)],
    ids=repr,
)
def test_get_rows(matrix: SidecarTensor, ids: Any) -> None:
    expected = matrix.dequantize()[np.asarray(ids, np.int64)]
    found = matrix.get_rows(ids)
    assert found.dtype == np.float32
    assert found.shape == expected.shape
    assert found.tobytes() == expected.tobytes()


OUTSIDE = (-1, 4, [-1], [0, 4], [[0], [-4]], np.array([4]), np.array([-1], np.int8), 1 << 63, -(1 << 70), [0, 1 << 64])


@pytest.mark.parametrize("ids", OUTSIDE, ids=repr)
def test_a_row_that_is_not_there(matrix: SidecarTensor, ids: Any) -> None:
    with pytest.raises(IndexError, match=r"row -?[0-9]+ of a tensor of 4 rows"):
        matrix.get_rows(ids)


NO_NUMBERS: tuple[Any, ...] = (1.9, 1.0, [1.0], "1", ["1"], b"1", None, [None], True, [True, 2], [[0, False]], np.True_)
NO_NUMBERS += (float("nan"), [float("nan")], float("inf"), 1j, {}, {1}, np.array([1.0]), np.array([True, False]))
NO_NUMBERS += (np.array(["1"]), np.array([1, None], object), np.datetime64("2026-01-01"), np.array([1], "m8[s]"))


@pytest.mark.parametrize("ids", NO_NUMBERS, ids=repr)
def test_what_is_no_number_of_a_row(matrix: SidecarTensor, ids: Any) -> None:
    with pytest.raises(TypeError):
        matrix.get_rows(ids)


def test_a_type_of_a_later_version(tmp_path: Path) -> None:
    """Its rows come back by what the file says; weights are not known."""
    forged = later(("a", 3, 4), ("\xe9", 4, 0), weights=7)
    (tmp_path / "a.dpl").write_bytes(forged.to_bytes())
    with open_sidecar(tmp_path / "a.dpl") as sidecar:
        tensor = sidecar["a"]
        native = tensor.unpack()
        for name, size, offset in (("a", 3, 4), ("\xe9", 4, 0)):
            expected = native.reshape(2, 3, 7)[:, :, offset : offset + size]
            assert tensor.planes()[name].tobytes() == expected.tobytes()
        with pytest.raises(repack.EnvironmentFailure, match="gguf does not know"):
            tensor.dequantize()


def test_views_outlive_the_block() -> None:
    with open_sidecar(GOLDEN / "tiny.dpl") as sidecar:
        rows = sidecar["output.weight"].rows
    assert rows.tobytes()[:3] == bytes((53 * 64 + 7 * at) % 256 for at in range(8, 11))
    with pytest.raises(BufferError):
        sidecar.close()


def test_the_packages_own_example_names_what_there_is(golden: Sidecar) -> None:
    calls = re.findall(r"tensor\.(\w+)", repack.__doc__ or "")
    assert set(calls) >= {"rows", "planes", "unpack", "dequantize"}
    assert all(hasattr(golden["output.weight"], name) for name in calls)
