"""A packer and checker that share nothing with the project agree with it, on every type and odd shapes."""

from __future__ import annotations

from pathlib import Path

import pytest

from repack import convert_file
from tests.support.independent import KINDS, Kind, blocks, check, pack, unpack
from tests.support.models import F32_TENSOR, Model, T
from tests.support.readers import by_rust
from tests.support.sidecars.forge import GOLDEN
from tests.support.sidecars.whole import tensor

SHAPES = ((1,), (1, 1), (1, 7), (2, 3), (3, 5), (5, 2, 3), (7, 1, 2, 2), (33, 3), (66, 1, 1, 3))
"""Blocks in a row, then the outer dimensions."""


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_byte_of_every_type(kind: Kind, tmp_path: Path) -> None:
    tensors = [tensor("x".join(map(str, shape)), kind.number, *shape) for shape in SHAPES]
    model = Model([T("other", (3,), F32_TENSOR), *tensors]).write(tmp_path / "model.gguf")
    convert_file(model, tmp_path / "model.dpl", types=(kind.name,))
    assert check(model, tmp_path / "model.dpl", (kind.number,)) == len(SHAPES)


def test_all_types_in_one_file_and_the_default(tmp_path: Path) -> None:
    """By default only Q6_K, with the rows that it has among all types."""
    tensors = [tensor(f"{kind.name}.{n}", kind.number, n, 2) for n in (3, 8) for kind in KINDS]
    model = Model(tensors).write(tmp_path / "model.gguf")
    convert_file(model, tmp_path / "all.dpl", types=("all",))
    convert_file(model, tmp_path / "default.dpl")
    assert check(model, tmp_path / "all.dpl", tuple(kind.number for kind in KINDS)) == 22
    assert check(model, tmp_path / "default.dpl") == 2


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_checker_sees_a_flipped_bit(kind: Kind, tmp_path: Path) -> None:
    model = Model([tensor("a", kind.number, 3, 1)]).write(tmp_path / "model.gguf")
    sidecar = tmp_path / "model.dpl"
    convert_file(model, sidecar, types=("all",))
    good = sidecar.read_bytes()
    stride = kind.stride(3)
    for at in range(0, stride, 5):
        sidecar.write_bytes(good[: at - stride] + bytes([good[at - stride] ^ 1 << at % 8]) + good[at - stride :][1:])
        with pytest.raises(AssertionError):
            check(model, sidecar, (kind.number,))
    native = blocks(kind, 3)
    assert unpack(pack(native, kind, 3), kind, 3) == native


def test_readers_refuse_a_flipped_bit_wherever_it_is(tmp_path: Path) -> None:
    """A bit in every third byte of the golden file; every bit of a smaller one is in tests/hostile/test_bits.py."""
    good = (GOLDEN / "tiny.dpl").read_bytes()
    files = [tmp_path / f"{at}.dpl" for at in range(0, len(good), 3)]
    for at, file in zip(range(0, len(good), 3), files, strict=True):
        file.write_bytes(good[:at] + bytes([good[at] ^ 1 << at // 3 % 8]) + good[at + 1 :])
    assert not any(by_rust(files))
