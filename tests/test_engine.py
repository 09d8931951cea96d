"""What docs/engine.md tells authors of engines, done in NumPy."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from repack import convert_file, open_sidecar
from repack.layout import DEFAULT, FIELDS, row_stride
from repack.rows import pack_rows
from tests.support.models import Model, q6_k, q6_k_tensor
from tests.support.readers import CONSUMERS

ENGINE = (CONSUMERS.parent / "engine.md").read_text()


def test_the_table_of_bytes_a_row() -> None:
    table = re.findall(
        r"^\| (\d+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \| ([\d.]+) % \| ([\d.]+) % \|$", ENGINE, re.MULTILINE
    )
    assert len(table) == 4
    for line in table:
        n, ne0, native, padded, dpl = map(int, line[:5])
        assert (ne0, native, padded, dpl) == (256 * n, 210 * n, 224 * n, -(-210 * n // 16) * 16)
        assert line[5:] == (f"{(padded - native) / padded:.2%}"[:-1], f"{(dpl - native) / dpl:.2%}"[:-1])


def test_a_split_by_columns_is_four_ranges_of_each_row() -> None:
    rows, n, b0, b1 = 3, 9, 2, 7
    native = np.frombuffer(q6_k(rows * n), np.uint8).reshape(rows, n, 210)
    whole, part = np.empty((rows, row_stride(n)), np.uint8), np.zeros((rows, row_stride(b1 - b0)), np.uint8)
    pack_rows(native.reshape(rows, -1), whole, DEFAULT, n)
    for field in FIELDS:
        source = whole[:, field.offset * n + field.nbytes * b0 : field.offset * n + field.nbytes * b1]
        part[:, field.offset * (b1 - b0) :][:, : source.shape[1]] = source
    expected = np.empty_like(part)
    pack_rows(np.ascontiguousarray(native[:, b0:b1]).reshape(rows, -1), expected, DEFAULT, b1 - b0)
    np.testing.assert_array_equal(part, expected)


def test_rows_for_tensor_parallelism_experts_and_embeddings(tmp_path: Path) -> None:
    """What docs/engine.md says of slices, in NumPy: ranks split rows, an expert is a slice, get_rows gathers."""
    Model([q6_k_tensor("experts", (1024, 6, 4), 3)]).write(tmp_path / "model.gguf")
    convert_file(tmp_path / "model.gguf", tmp_path / "model.dpl")
    with open_sidecar(tmp_path / "model.dpl") as sidecar:
        tensor = sidecar["experts"]
        whole = tensor.dequantize()
        assert np.shares_memory(tensor.rows[2], tensor.rows)
        np.testing.assert_array_equal(tensor.dequantize(2 * 6, 3 * 6), whole[12:18])
        ranks = [tensor.planes(rank * 8, (rank + 1) * 8) for rank in range(3)]
        for at, name in enumerate(("ql", "qh", "scales", "d")):
            joined = np.concatenate([planes[at] for planes in ranks])
            np.testing.assert_array_equal(joined, getattr(tensor.planes(), name))
        ids = np.array([[23, 0], [5, 5]])
        np.testing.assert_array_equal(tensor.get_rows(ids), whole[ids])
        assert tensor.get_rows([]).shape == (0, 1024)
        assert tensor.get_rows(-1).shape == (1024,)
        with pytest.raises(IndexError):
            tensor.get_rows([24])
