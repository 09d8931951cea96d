"""docs/consumers/python/torch_linear.py, on the CPU and (`pytest -m gpu`) on a GPU; skipped without PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from repack import open_sidecar
from repack.layout import TYPES
from tests.support.independent import KINDS, Kind
from tests.support.readers import load
from tests.support.sidecars.sound import later
from tests.support.sidecars.whole import pair_of_all_types
from verify.contract.quants import contract_of

torch = pytest.importorskip("torch")
CONTRACTS = {kind: contract_of(TYPES[kind.number]) for kind in KINDS}
WITH_KERNEL = [kind for kind, contract in CONTRACTS.items() if contract is not None and contract.has_kernel]
each_type = pytest.mark.parametrize("kind", WITH_KERNEL, ids=lambda kind: kind.name)


@pytest.fixture(scope="module")
def linear() -> Any:
    return load("torch_linear")


@pytest.fixture(scope="module")
def sidecar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pair_of_all_types(tmp_path_factory.mktemp("torch"))[1]


def a_tensor(sidecar: Path, kind: Kind, dimensions: int = 2) -> str:
    """A tensor of that type: its name."""
    with open_sidecar(sidecar) as opened:
        found = [
            name for name, t in opened.items() if t.entry.quant.name == kind.name and len(t.entry.ne) >= dimensions
        ]
    return found[0]


def vectors(*shape: int) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(8))


@each_type
def test_the_same_as_with_dequantized_weights(linear: Any, sidecar: Path, kind: Kind) -> None:
    name = a_tensor(sidecar, kind)
    layer = linear.DplLinear.from_file(sidecar, name)
    with open_sidecar(sidecar) as opened:
        weights = torch.from_numpy(opened[name].dequantize())
    x = vectors(2, 3, weights.shape[1])
    y, exact = layer(x), linear.q8(x)[2] @ weights.T
    assert y.shape == (2, 3, len(weights))
    assert torch.linalg.norm(y - exact) < 1e-5 * torch.linalg.norm(exact)
    assert torch.linalg.norm(y - x @ weights.T) < 2e-2 * torch.linalg.norm(exact)  # q8 costs that much


def test_ranks(linear: Any, gemma_dpl: Path) -> None:
    x, name = vectors(2048), "blk.1.ffn_down.weight"
    whole = linear.DplLinear.from_file(gemma_dpl, name)(x)
    parts = [linear.DplLinear.from_file(gemma_dpl, name, slice(r * 320, (r + 1) * 320))(x) for r in range(2)]
    assert torch.equal(torch.cat(parts), whole)


def test_an_expert(linear: Any, sidecar: Path) -> None:
    x = vectors(1024)
    whole = linear.DplLinear.from_file(sidecar, "experts")(x)
    assert torch.equal(linear.DplLinear.from_file(sidecar, "experts", 2)(x), whole[10:15])


def test_rows_from_numpy_are_the_rows_of_safetensors(linear: Any, gemma_dpl: Path) -> None:
    from safetensors import safe_open

    name = "blk.1.ffn_down.weight"
    with open_sidecar(gemma_dpl) as sidecar, safe_open(gemma_dpl, framework="pt") as file:
        assert torch.equal(linear.view(sidecar[name].rows), file.get_slice(name)[:])


def test_a_type_without_a_kernel_is_told(linear: Any, tmp_path: Path) -> None:
    (tmp_path / "a.dpl").write_bytes(later(("a", 3, 0), ("b", 1, 3)).to_bytes())
    with pytest.raises(ValueError, match="has no kernel"):
        linear.DplLinear.from_file(tmp_path / "a.dpl", "a")


def test_rows_of_another_length(linear: Any, sidecar: Path) -> None:
    with open_sidecar(sidecar) as opened:
        tensor = opened["experts"]
        rows = torch.from_numpy(tensor.rows.copy())
    with pytest.raises(ValueError, match=r"expected uint8 \[..., 1056\]"):
        linear.DplLinear(rows, tensor.entry.quant, 1280)


@pytest.mark.gpu
@each_type
def test_on_the_gpu_bit_for_bit(linear: Any, sidecar: Path, kind: Kind) -> None:
    layer = linear.DplLinear.from_file(sidecar, a_tensor(sidecar, kind))
    x = vectors(4, layer.n * layer.quant.block_weights)
    expected = layer(x)
    found = layer.cuda()(x.cuda())
    assert found.is_cuda
    assert torch.equal(found.cpu().view(torch.int32), expected.view(torch.int32))
