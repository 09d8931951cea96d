"""The buffers and launches for one chunk of rows on the device, step by step."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from repack.errors import EnvironmentFailure
from repack.layout import BLOCK_BYTES, PADDED_BLOCK_BYTES, ROW_ALIGNMENT, row_stride
from verify.contract.activations import Activations, pack_plain, pack_quarters
from verify.contract.forms import LAYOUTS, Form
from verify.gpu.device import decoder, tool
from verify.gpu.findings import UNWRITTEN, Results, TensorRows

_THREADS = 256


class Stage:
    """Buffers and a stream for chunks of up to `capacity` rows of one tensor; one chunk at a time."""

    def __init__(
        self, tensor: TensorRows, vectors: Sequence[Activations], forms: Sequence[Form], capacity: int
    ) -> None:
        import cupy  # noqa: PLC0415

        self.tensor, self.forms, self.vectors = tensor, forms, vectors
        self.capacity = capacity
        self.row0 = self.count = 0
        self.read_seconds = 0.0
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self.events = [cupy.cuda.Event() for _ in range(4)]
        n = tensor.n
        self.widths = {"native": BLOCK_BYTES * n, "padded": PADDED_BLOCK_BYTES * n, "dpl": row_stride(n)}
        self.rows = {layout: cupy.empty(capacity * width, np.uint8) for layout, width in self.widths.items()}
        self.pinned = {layout: _pinned(capacity * self.widths[layout], np.uint8) for layout in ("native", "dpl")}
        outputs = len(forms) * len(vectors) * capacity
        self.outputs = cupy.empty(len(LAYOUTS) * outputs, np.uint32)
        self.pinned_outputs = _pinned(outputs, np.uint32)
        self.firsts = cupy.empty(1 + len(LAYOUTS) * len(forms) * 2, np.uint64)
        self.plain = [cupy.asarray(pack_plain(vector)) for vector in vectors]
        self.quarters = [cupy.asarray(pack_quarters(vector)) for vector in vectors]
        cupy.cuda.get_current_stream().synchronize()  # our stream does not wait for the one that copied the vectors
        for array in (*self.rows.values(), *self.plain, *self.quarters):
            if array.data.ptr % ROW_ALIGNMENT:
                raise EnvironmentFailure(
                    f"a device buffer is not on a {ROW_ALIGNMENT}-byte boundary", where=tensor.name
                )

    def upload(self, row0: int, row1: int) -> None:
        """Read rows row0 to row1 in both layouts, each by itself, and send them to the device; pad the native ones."""
        self.row0, self.count = row0, row1 - row0
        start = time.perf_counter()
        hosts = {layout: self.pinned[layout][: self.count * self.widths[layout]] for layout in self.pinned}
        self.tensor.read_native(row0, row1, hosts["native"].reshape(self.count, -1))
        self.tensor.read_dpl(row0, row1, hosts["dpl"].reshape(self.count, -1))
        self.read_seconds = time.perf_counter() - start
        with self.stream:
            self.events[0].record(self.stream)
            for layout, host in hosts.items():
                self.rows[layout].data.copy_from_host_async(host.ctypes.data, host.nbytes, self.stream)
            arguments = (self.rows["native"], self.rows["padded"], np.int32(self.tensor.n))
            tool("pad")((self.count,), (_THREADS,), arguments)
            self.events[1].record(self.stream)

    def compare(self) -> None:
        """Compare the dpl rows on the device with the native ones there."""
        with self.stream:
            self.firsts.data.memset_async(0xFF, self.firsts.nbytes, self.stream)
            arguments = (self.rows["native"], self.rows["dpl"], self.firsts, np.int32(self.tensor.n))
            tool("compare")((self.count,), (_THREADS,), arguments)
            self.events[2].record(self.stream)

    def decode(self) -> None:
        """Decode the chunk with every form, layout and vector, and compare the outputs with the native layout's."""
        per_form = len(self.vectors) * self.count
        per_layout = len(self.forms) * per_form
        with self.stream:
            self.outputs.data.memset_async(0xFF, self.outputs.nbytes, self.stream)
            for number, layout in enumerate(LAYOUTS):
                for f, form in enumerate(self.forms):
                    start = number * per_layout + f * per_form
                    for vector in range(len(self.vectors)):
                        row = start + vector * self.count
                        self.launch(form, layout, vector, self.outputs[row : row + self.count])
                    found = self.outputs[start : start + per_form]
                    expected = self.outputs[f * per_form : (f + 1) * per_form]
                    first = self.firsts[1 + 2 * (number * len(self.forms) + f) :]
                    arguments = (found, expected, np.int64(per_form), np.uint32(UNWRITTEN), first)
                    tool("check")((-(-per_form // _THREADS),), (_THREADS,), arguments)
            host = self.pinned_outputs[:per_layout]
            self.outputs.data.copy_to_host_async(host.ctypes.data, host.nbytes, self.stream)
            self.events[3].record(self.stream)

    def launch(self, form: Form, layout: str, vector: int, out: Any) -> None:
        """Run one kernel over the chunk; `out` is uint32 ``[rows]`` on the device."""
        activations = self.quarters if form.name == "row" else self.plain
        decoder(form, layout)(self.rows[layout], activations[vector], out, self.count, self.tensor.n)

    def collect(self, results: Results) -> None:
        """Wait for the chunk, if there is one, and hand over what was found."""
        if not self.count:
            return
        import cupy  # noqa: PLC0415

        self.stream.synchronize()
        firsts = self.firsts.get()
        shape = (len(self.forms), len(self.vectors), self.count)
        results.add_difference(self.row0, int(firsts[0]))
        bits = self.pinned_outputs[: np.prod(shape)].reshape(shape)
        results.add_outputs(self.row0, bits, firsts[1:].reshape(len(LAYOUTS), len(self.forms), 2))
        spans = [cupy.cuda.get_elapsed_time(*pair) / 1e3 for pair in pairwise(self.events)]
        results.seconds += (self.read_seconds, *spans)
        self.count = 0


def _pinned(count: int, dtype: Any) -> npt.NDArray[Any]:
    """Page-locked host memory, which the device copies from and to by itself."""
    import cupy  # noqa: PLC0415

    nbytes = count * np.dtype(dtype).itemsize
    return np.frombuffer(cupy.cuda.alloc_pinned_memory(max(nbytes, 1)), dtype, count)
