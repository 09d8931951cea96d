"""A sidecar's rows on the GPU with CuPy: uploaded as they are, multiplied, and compared with the CPU bit for bit.

    python cupy_rows.py MODEL.dpl ...

Exits with 1 if a bit differs or nothing was compared.

Device memory comes from CuPy's pool, on 512-byte boundaries; because row strides are
multiples of 16 every row of an uploaded range is aligned, whichever rows they are.
"""

from __future__ import annotations

import sys
from typing import Any

import cupy
import numpy as np

from repack import SidecarTensor, open_sidecar
from repack.layout import ALIGNMENT, QuantType
from verify.contract.activations import seeded
from verify.contract.emulation import as_bits, decode
from verify.contract.forms import row_form
from verify.contract.quants import contract_of
from verify.gpu.launch import decoder


def upload(tensor: SidecarTensor, start: int = 0, stop: int | None = None) -> Any:
    """Rows `start` to `stop`, counted over all outer dimensions, as device uint8 ``[rows, row_stride]``.

    Expert ``e`` of a stack is ``upload(tensor, e * ne1, (e + 1) * ne1)``, or simply ``cupy.asarray(tensor.rows[e])``.
    """
    rows = cupy.asarray(tensor.rows.reshape(-1, tensor.entry.row_stride)[start:stop])
    if rows.data.ptr % ALIGNMENT:
        raise ValueError(f"the device buffer is not on a {ALIGNMENT}-byte boundary")
    return rows


def matvec(rows: Any, vector: Any, quant: QuantType, n: int) -> Any:
    """Uploaded rows of `n` blocks times a packed activation vector: float32 ``[rows]`` on the device."""
    form, out = row_form(quant, n, len(rows)), cupy.empty(len(rows), np.float32)
    decoder(quant, form, "dpl")(rows, vector, out, len(rows), n)
    return out


def compare(tensor: SidecarTensor) -> int:
    """Decode a tensor in two ranges of rows, as two ranks would hold them; the number of outputs that differ."""
    quant, n, rows, different = tensor.entry.quant, tensor.entry.n, tensor.entry.rows, 0
    contract = contract_of(quant)
    if contract is None or contract.pack is None:
        raise ValueError(f"{quant.name} has no kernel")
    vector = seeded(n * quant.block_weights, seed=8)
    packed = cupy.asarray(contract.pack(vector))
    for start, stop in ((0, rows // 2), (rows // 2, rows)):
        if start < stop and n:
            found = matvec(upload(tensor, start, stop), packed, quant, n).get()
            form = row_form(quant, n, stop - start)
            expected = decode(quant, tensor.unpack(start, stop), n, [vector], form)[0]
            different += int(np.count_nonzero(as_bits(found) != as_bits(expected)))
    return different


def main(paths: list[str]) -> int:
    """Compare all rows of all tensors whose type has a kernel."""
    differing = compared = 0
    for path in paths:
        with open_sidecar(path) as sidecar:
            for name, tensor in sidecar.items():
                contract = contract_of(tensor.entry.quant)
                if contract is not None and contract.has_kernel:
                    differing += compare(tensor)
                    compared += tensor.entry.rows
                    print(f"{name!a}: {tensor.entry.rows} rows, {differing} differ so far")  # noqa: T201
    print(f"{compared} rows compared, {differing} differ")  # noqa: T201 - an example prints
    return 1 if differing or not compared else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
