"""docs/consumers/python/torch_linear.py, on the CPU and (`pytest -m gpu`) on a GPU; skipped without PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from repack import open_sidecar
from tests.support.readers import load


@pytest.fixture
def linear() -> Any:
    pytest.importorskip("torch")
    return load("torch_linear")


def test_the_same_as_with_dequantized_weights(linear: Any, gemma_dpl: Path) -> None:
    import torch

    name = "blk.0.ffn_down.weight"
    layer = linear.DplLinear.from_file(gemma_dpl, name)
    with open_sidecar(gemma_dpl) as sidecar:
        weights = torch.from_numpy(sidecar[name].dequantize())
    x = torch.randn(2, 3, 2048, generator=torch.Generator().manual_seed(8))
    y, exact = layer(x), linear.q8(x)[2] @ weights.T
    assert y.shape == (2, 3, 640)
    assert torch.linalg.norm(y - exact) < 1e-5 * torch.linalg.norm(exact)
    assert torch.linalg.norm(y - x @ weights.T) < 1e-2 * torch.linalg.norm(exact)  # q8 costs that much


def test_ranks_and_experts(linear: Any, gemma_dpl: Path) -> None:
    import torch

    x = torch.randn(2048, generator=torch.Generator().manual_seed(8))
    name = "blk.1.ffn_down.weight"
    whole = linear.DplLinear.from_file(gemma_dpl, name)(x)
    parts = [linear.DplLinear.from_file(gemma_dpl, name, slice(r * 320, (r + 1) * 320))(x) for r in range(2)]
    assert torch.equal(torch.cat(parts), whole)


def test_rows_from_numpy_are_the_rows_of_safetensors(linear: Any, gemma_dpl: Path) -> None:
    import torch

    name = "blk.1.ffn_down.weight"
    with open_sidecar(gemma_dpl) as sidecar:
        assert torch.equal(linear.view(sidecar[name].rows), linear.DplLinear.from_file(gemma_dpl, name).rows)


@pytest.mark.gpu
def test_on_the_gpu_bit_for_bit(linear: Any, gemma_dpl: Path) -> None:
    import torch

    layer = linear.DplLinear.from_file(gemma_dpl, "blk.0.ffn_down.weight")
    x = torch.randn(4, 2048, generator=torch.Generator().manual_seed(8))
    expected = layer(x)
    found = layer.cuda()(x.cuda())
    assert found.is_cuda
    assert torch.equal(found.cpu().view(torch.int32), expected.view(torch.int32))
