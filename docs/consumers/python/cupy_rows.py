"""A sidecar's rows on the GPU with CuPy: uploaded as they are, multiplied, and compared with the CPU bit for bit.

    python cupy_rows.py MODEL.dpl ...

Exits with 1 if a bit differs. Device memory comes from CuPy's pool, on 512-byte boundaries; because row strides are
multiples of 16 every row of an uploaded range is aligned, whichever rows they are.
"""

from __future__ import annotations

import sys
from typing import Any

import cupy
import numpy as np

from repack import SidecarTensor, open_sidecar
from repack.layout import ROW_ALIGNMENT
from verify.contract.activations import pack_quarters, seeded
from verify.contract.emulation import as_bits, decode
from verify.contract.forms import row_form
from verify.gpu.device import decoder


def upload(tensor: SidecarTensor, start: int = 0, stop: int | None = None) -> Any:
    """Rows `start` to `stop`, counted over all outer dimensions, as device uint8 ``[rows, row_stride]``.

    Expert ``e`` of a stack is ``upload(tensor, e * ne1, (e + 1) * ne1)``, or simply ``cupy.asarray(tensor.rows[e])``.
    """
    rows = cupy.asarray(tensor.rows.reshape(-1, tensor.entry.row_stride)[start:stop])
    if rows.data.ptr % ROW_ALIGNMENT:
        raise ValueError(f"the device buffer is not on a {ROW_ALIGNMENT}-byte boundary")
    return rows


def matvec(rows: Any, vector: Any, n: int) -> Any:
    """Uploaded rows times a packed activation vector: float32 ``[rows]`` on the device."""
    form, out = row_form(n, len(rows)), cupy.empty(len(rows), np.float32)
    decoder(form, "dpl")(rows, vector, out, len(rows), n)
    return out


def main(paths: list[str]) -> int:
    """Compare all rows of all tensors, in ranges of rows as ranks of tensor parallelism would hold them."""
    different = 0
    for path in paths:
        with open_sidecar(path) as sidecar:
            for name, tensor in sidecar.items():
                n, rows = tensor.entry.n, tensor.entry.rows
                vector = seeded(n, seed=8)
                packed = cupy.asarray(pack_quarters(vector))
                for start in range(0, rows if n else 0, max(rows // 2, 1)):
                    part = tensor.unpack(start, start + max(rows // 2, 1))
                    found = matvec(upload(tensor, start, start + len(part)), packed, n).get()
                    expected = decode(part, n, [vector], row_form(n, len(part)))[0]
                    different += int(np.count_nonzero(as_bits(found) != as_bits(expected)))
                print(f"{name}: {rows} rows, {different} differ so far")  # noqa: T201 - an example prints
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
