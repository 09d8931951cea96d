"""What docs/engine.md tells authors of engines, done in NumPy."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from repack import convert_file, open_sidecar
from repack.layout import TYPES
from repack.rows import pack_rows
from tests.support.independent import KINDS, Kind, blocks
from tests.support.models import Model
from tests.support.readers import CONSUMERS
from tests.support.sidecars.whole import tensor

ENGINE = (CONSUMERS.parent / "engine.md").read_text()


def percent(part: float) -> str:
    return f"{part:.2%}"[:-1]


def test_the_table_of_bytes_a_row() -> None:
    line = r"^\| (\d+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \| ([\d.]+) % \| ([\d.]+) % \|$"
    table = re.findall(line, ENGINE, re.MULTILINE)
    assert len(table) == 4
    for cells in table:
        n, ne0, native, padded, dpl = map(int, cells[:5])
        assert (ne0, native, padded, dpl) == (256 * n, 210 * n, 224 * n, KINDS[7].stride(n))
        assert cells[5:] == (percent((padded - native) / padded), percent((dpl - native) / dpl))


def test_the_table_of_types() -> None:
    line = r"^\| (\w+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \| ([\d.]+) % \|$"
    table = re.findall(line, ENGINE, re.MULTILINE)
    assert [name for name, *_ in table] == [kind.name for kind in KINDS]
    for kind, (_, weights, size, alignment, padded, dead) in zip(KINDS, table, strict=True):
        assert (int(weights), int(size)) == (kind.weights, kind.size)
        assert int(alignment) == kind.size & -kind.size
        assert int(padded) == -(-kind.size // 16) * 16
        assert dead == percent((int(padded) - kind.size) / int(padded))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_split_by_columns_is_one_range_of_each_plane(kind: Kind) -> None:
    rows, n, b0, b1 = 3, 9, 2, 7
    native = np.frombuffer(blocks(kind, rows * n), np.uint8).reshape(rows, n, kind.size)
    whole = np.empty((rows, kind.stride(n)), np.uint8)
    pack_rows(native.reshape(rows, -1), whole, TYPES[kind.number], n)
    part = np.zeros((rows, kind.stride(b1 - b0)), np.uint8)
    for (_, size, _), start, new in zip(kind.planes, kind.starts(n), kind.starts(b1 - b0), strict=True):
        source = whole[:, start + size * b0 : start + size * b1]
        part[:, new : new + source.shape[1]] = source
    expected = np.empty_like(part)
    pack_rows(np.ascontiguousarray(native[:, b0:b1]).reshape(rows, -1), expected, TYPES[kind.number], b1 - b0)
    np.testing.assert_array_equal(part, expected)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_rows_for_tensor_parallelism_experts_and_embeddings(kind: Kind, tmp_path: Path) -> None:
    """What the page says of slices, in NumPy: ranks split rows, an expert is a slice, get_rows gathers."""
    Model([tensor("experts", kind.number, 4, 6, 4)]).write(tmp_path / "model.gguf")
    convert_file(tmp_path / "model.gguf", tmp_path / "model.dpl", types=("all",))
    with open_sidecar(tmp_path / "model.dpl") as sidecar:
        experts = sidecar["experts"]
        whole = experts.dequantize()
        assert np.shares_memory(experts.rows[2], experts.rows)
        np.testing.assert_array_equal(experts.dequantize(2 * 6, 3 * 6), whole[12:18])
        ranks = [experts.planes(rank * 8, (rank + 1) * 8) for rank in range(3)]
        for name, plane in experts.planes().items():
            np.testing.assert_array_equal(np.concatenate([planes[name] for planes in ranks]), plane)
        ids = np.array([[23, 0], [5, 5]])
        np.testing.assert_array_equal(experts.get_rows(ids), whole[ids])
