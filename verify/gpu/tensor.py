"""One tensor on the GPU: both layouts uploaded independently, compared, and decoded with every form.

A tensor passes through in chunks of rows. Two sets of buffers, each with its own stream, take turns: while the host
reads the rows of one chunk, the other chunk is being uploaded and decoded. So the device memory needed does not depend
on the tensor, and the time is that of reading.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from verify.contract.activations import Activations
from verify.contract.forms import LAYOUTS, Form
from verify.gpu.device import device_errors
from verify.gpu.findings import UNWRITTEN, Results, TensorResult, TensorRows
from verify.gpu.launch import decoder, packer, tool

CHUNK_BYTES = 32 << 20
_THREADS = 256


def check_tensor(
    tensor: TensorRows, vectors: Sequence[Activations], forms: Sequence[Form], *, chunk_bytes: int = CHUNK_BYTES
) -> TensorResult:
    """Prove one tensor on the current device, see the module's text.

    chunk_bytes: native bytes in a chunk, at least one row. Memory, on the host and on the device: two chunks in every
    layout, and ``8 * layouts * forms * vectors`` bytes for each row of a chunk. Raises EnvironmentFailure, naming the
    tensor, on a CUDA error and when even small chunks do not fit; whatever the readers raise passes through.
    """
    start = time.perf_counter()
    results = Results(tensor, vectors, forms)
    if tensor.rows:
        with device_errors(tensor.name):
            _pass_through(tensor, vectors, forms, results, chunk_bytes)
    return results.finish(time.perf_counter() - start)


def _pass_through(
    tensor: TensorRows, vectors: Sequence[Activations], forms: Sequence[Form], results: Results, chunk_bytes: int
) -> None:
    capacity = min(max(chunk_bytes // (tensor.quant.block_bytes * tensor.n), 1), tensor.rows)
    buffers = _buffers(tensor, vectors, forms, capacity)
    step = buffers[0].capacity
    starts = range(0, tensor.rows, step)
    try:
        for number, row0 in enumerate(starts):
            chunk = buffers[number % len(buffers)]
            chunk.collect(results)  # of the chunk before last; the other one is still busy with the last
            chunk.upload(row0, min(row0 + step, tensor.rows))
            chunk.compare()
            chunk.decode()
        for number in range(len(starts), len(starts) + len(buffers)):
            buffers[number % len(buffers)].collect(results)
    finally:
        for chunk in buffers:  # they must not be freed under a running kernel
            chunk.stream.synchronize()


def _buffers(
    tensor: TensorRows, vectors: Sequence[Activations], forms: Sequence[Form], capacity: int
) -> tuple[ChunkOnDevice, ...]:
    """Two for `capacity` rows each (one if that is the whole tensor), or for fewer where memory is short."""
    import cupy  # noqa: PLC0415 - an optional extra

    while True:
        try:
            wanted = 1 if capacity >= tensor.rows else 2
            return tuple(ChunkOnDevice(tensor, vectors, forms, capacity) for _ in range(wanted))
        except cupy.cuda.memory.OutOfMemoryError:
            if capacity == 1:
                raise
        capacity = -(-capacity // 2)
        cupy.get_default_memory_pool().free_all_blocks()


class ChunkOnDevice:
    """Buffers and a stream for chunks of up to `capacity` rows of one tensor; one chunk at a time."""

    def __init__(
        self, tensor: TensorRows, vectors: Sequence[Activations], forms: Sequence[Form], capacity: int
    ) -> None:
        import cupy  # noqa: PLC0415 - an optional extra

        self.tensor, self.forms, self.vectors = tensor, forms, vectors
        self.capacity = capacity
        self.row0 = self.count = 0
        self.read_seconds = 0.0
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self.events = [cupy.cuda.Event() for _ in range(4)]
        quant, n = tensor.quant, tensor.n
        self.widths = {
            "native": quant.block_bytes * n,
            "padded": quant.padded_block_bytes * n,
            "dpl": quant.row_stride(n),
        }
        self.rows = {layout: cupy.empty(capacity * width, np.uint8) for layout, width in self.widths.items()}
        self.pinned = {layout: _pinned(capacity * self.widths[layout], np.uint8) for layout in ("native", "dpl")}
        outputs = len(forms) * len(vectors) * capacity
        self.outputs = cupy.empty(len(LAYOUTS) * outputs, np.uint32)
        self.pinned_outputs = _pinned(outputs, np.uint32)
        self.firsts = cupy.empty(1 + len(LAYOUTS) * len(forms) * 2, np.uint64)
        self.activations = {
            form.name: [cupy.asarray(packer(tensor.quant, form.name)(vector)) for vector in vectors] for form in forms
        }
        cupy.cuda.get_current_stream().synchronize()  # our stream does not wait for the one that copied the vectors

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
            tool("pad", self.tensor.quant)((self.count,), (_THREADS,), arguments)
            self.events[1].record(self.stream)

    def compare(self) -> None:
        """Compare the dpl rows on the device with the native ones there."""
        with self.stream:
            self.firsts.data.memset_async(0xFF, self.firsts.nbytes, self.stream)
            arguments = (self.rows["native"], self.rows["dpl"], self.firsts, np.int32(self.tensor.n))
            tool("compare", self.tensor.quant)((self.count,), (_THREADS,), arguments)
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
                    tool("check", self.tensor.quant)((-(-per_form // _THREADS),), (_THREADS,), arguments)
            host = self.pinned_outputs[:per_layout]
            self.outputs.data.copy_to_host_async(host.ctypes.data, host.nbytes, self.stream)
            self.events[3].record(self.stream)

    def launch(self, form: Form, layout: str, vector: int, out: Any) -> None:
        """Run one kernel over the chunk; `out` is uint32 ``[rows]`` on the device."""
        activations = self.activations[form.name][vector]
        run = decoder(self.tensor.quant, form, layout)
        run(self.rows[layout], activations, out, self.count, self.tensor.n)

    def collect(self, results: Results) -> None:
        """Wait for the chunk, if there is one, and hand over what was found."""
        if not self.count:
            return
        import cupy  # noqa: PLC0415 - an optional extra

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
    import cupy  # noqa: PLC0415 - an optional extra

    nbytes = count * np.dtype(dtype).itemsize
    return np.frombuffer(cupy.cuda.alloc_pinned_memory(max(nbytes, 1)), dtype, count)
