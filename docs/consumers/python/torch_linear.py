"""A PyTorch layer whose weight is a tensor of a sidecar, as it stands in the file.

    python torch_linear.py MODEL.dpl TENSOR

On the CPU it multiplies as docs/decode.md describes, in NumPy; with its weight on a CUDA device it runs the project's
kernel there, through CuPy and DLPack: the bits are the same. Rows (of a tensor-parallel rank, of an expert) are chosen
when it is loaded. It shows how the pieces fit and is not tuned: vectors of a batch are taken one by one.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

from repack import open_sidecar
from repack.layout import QuantType
from repack.rows import unpack_rows
from verify.contract.activations import GROUP, Activations
from verify.contract.emulation import decode
from verify.contract.forms import row_form
from verify.contract.quants import contract_of


def view(rows: np.ndarray[Any, Any]) -> torch.Tensor:
    """A mapped NumPy array as a tensor, without a copy. The mapping is read-only: do not write to it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch has no read-only tensors and says so
        return torch.from_numpy(rows)


def q8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Quantize activations ``[..., ne0]``: int8 quants, fp16 scale of every 32, and what the two stand for."""
    groups = x.float().unflatten(-1, (-1, GROUP))
    d8 = (groups.abs().amax(-1, keepdim=True) / 127).half()
    quants = torch.where(d8 > 0, groups / d8.float(), 0).round().clamp(-127, 127)
    return quants.flatten(-2).to(torch.int8), d8.squeeze(-1), (quants * d8.float()).flatten(-2)


class _Protocol:
    """A PyTorch stream as the CUDA stream protocol has it: version 0, and the handle."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._stream.cuda_stream


def _as_cupy(stream: torch.cuda.Stream) -> Any:
    import cupy  # noqa: PLC0415 - an optional extra

    if hasattr(cupy.cuda.Stream, "from_external"):
        return cupy.cuda.Stream.from_external(_Protocol(stream))
    return cupy.cuda.ExternalStream(stream.cuda_stream)  # CuPy 13


class DplLinear(torch.nn.Module):
    """``y = W x`` with W in the dpl layout, uint8 ``[..., row_stride]``; x ``[..., ne0]``, y float32 ``[..., rows]``.

    quant: the type of W, one that has a kernel. Raises ValueError if it has none or the rows are not of that length.
    """

    rows: torch.Tensor

    def __init__(self, rows: torch.Tensor, quant: QuantType, ne0: int) -> None:
        super().__init__()
        self.quant, self.n = quant, ne0 // quant.block_weights
        if rows.dtype != torch.uint8 or rows.shape[-1] != quant.row_stride(self.n):
            expected = f"uint8 [..., {quant.row_stride(self.n)}]"
            raise ValueError(f"expected {expected}, found {rows.dtype} {list(rows.shape)}")
        contract = contract_of(quant)
        if contract is None or contract.pack is None:
            raise ValueError(f"{quant.name} has no kernel")
        self.pack = contract.pack
        self.register_buffer("rows", rows.reshape(-1, rows.shape[-1]))
        self.form = row_form(quant, self.n, len(self.rows))

    @classmethod
    def from_file(cls, sidecar: Path, name: str, rows: slice | int = slice(None)) -> DplLinear:
        """Load a tensor, or some of it: a slice of rows of a matrix, or one expert of a stack."""
        with open_sidecar(sidecar) as opened:
            tensor = opened[name]
            part = torch.from_numpy(tensor.rows[rows].copy())
            return cls(part, tensor.entry.quant, tensor.entry.ne[0])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply every vector of `x`."""
        quants, d8, _ = q8(x)
        vectors = [Activations("x", q, d) for q, d in zip(_numpy(quants), _numpy(d8), strict=True)]
        y = self._on_gpu(vectors) if self.rows.is_cuda else self._on_cpu(vectors)
        return y.reshape(*x.shape[:-1], len(self.rows))

    def _on_cpu(self, vectors: list[Activations]) -> torch.Tensor:
        native = np.empty((len(self.rows), self.quant.block_bytes * self.n), np.uint8)
        unpack_rows(self.rows.numpy(), native, self.quant, self.n)
        return torch.from_numpy(decode(self.quant, native, self.n, vectors, self.form))

    def _on_gpu(self, vectors: list[Activations]) -> torch.Tensor:
        import cupy  # noqa: PLC0415 - an optional extra

        from verify.gpu.launch import decoder  # noqa: PLC0415

        launch = decoder(self.quant, self.form, "dpl")
        with (
            cupy.cuda.Device(self.rows.device.index),
            _as_cupy(torch.cuda.current_stream()),
        ):
            weights = cupy.from_dlpack(self.rows)
            out = cupy.empty((len(vectors), len(self.rows)), np.float32)
            for vector, result in zip(vectors, out, strict=True):
                launch(weights, cupy.asarray(self.pack(vector)), result, len(self.rows), self.n)
            return torch.from_dlpack(out)


def _numpy(values: torch.Tensor) -> Any:
    return values.reshape(-1, values.shape[-1]).cpu().numpy()


def main(arguments: list[str]) -> int:
    """Multiply a tensor with ones on the device that is there."""
    layer = DplLinear.from_file(Path(arguments[0]), arguments[1])
    layer = layer.cuda() if torch.cuda.is_available() else layer
    y = layer(torch.ones(layer.n * layer.quant.block_weights, device=layer.rows.device))
    print(f"{len(y)} rows on {y.device}, sum {y.double().sum().item():.6f}")  # noqa: T201 - an example prints
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
