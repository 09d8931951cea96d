"""A model of every type of the table, in every rank and in rows whose planes need padding, and its sidecar."""

from __future__ import annotations

from math import prod
from pathlib import Path

from repack import convert_file
from tests.support.independent import KINDS, TABLE, blocks
from tests.support.models import F32_TENSOR, Model, T

SHAPES = ((1, 5), (2, 3), (3,), (5, 2, 3), (7, 1, 2, 2), (33, 1))
"""Blocks in a row, then the outer dimensions."""


def tensor(name: str, number: int, n: int, *outer: int) -> T:
    """A tensor of `n` blocks in a row, its scales ordinary numbers."""
    kind = TABLE[number]
    return T(name, (n * kind.weights, *outer), number, blocks(kind, n * prod(outer), number + n))


def whole_model() -> Model:
    """Each type in all shapes in turn, a stack of experts, other types in between, and a tensor without rows."""
    tensors = [T("first.f32", (3,), F32_TENSOR)]
    for at, kind in enumerate(KINDS):
        for shape in (SHAPES[at % 6], SHAPES[(at + 1) % 6], SHAPES[(at + 3) % 6]):
            tensors.append(tensor(f"{kind.name}.{'x'.join(map(str, shape))}", kind.number, *shape))
    tensors += [tensor("experts", 14, 4, 5, 4), T("between.type.42", (7,), 42, b"\x01" * 7), tensor("none", 14, 1, 0)]
    return Model(tensors)


def pair_of_all_types(folder: Path) -> tuple[Path, Path]:
    """The model and its sidecar, on disk."""
    model = whole_model().write(folder / "model.gguf")
    convert_file(model, folder / "model.dpl", types=[kind.name for kind in KINDS])
    return model, folder / "model.dpl"
