"""One tensor on the GPU: both layouts uploaded independently, compared, and decoded with every form.

A tensor passes through in chunks of rows. Two stages, each with its own stream and buffers, take turns: while the
host reads the rows of one chunk, the other chunk is being uploaded and decoded. So the device memory needed does not
depend on the tensor, and the time is that of reading.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from repack.layout import BLOCK_BYTES
from verify.contract.activations import Activations
from verify.contract.forms import Form
from verify.gpu.device import DeviceInfo, device_errors, preflight
from verify.gpu.findings import ByteDifference, Output, Results, Seconds, TensorResult, TensorRows
from verify.gpu.stage import Stage

__all__ = [
    "ByteDifference",
    "DeviceInfo",
    "Output",
    "Seconds",
    "TensorResult",
    "TensorRows",
    "check_tensor",
    "preflight",
]

CHUNK_BYTES = 32 << 20


def check_tensor(
    tensor: TensorRows, vectors: Sequence[Activations], forms: Sequence[Form], *, chunk_bytes: int = CHUNK_BYTES
) -> TensorResult:
    """Prove one tensor on the current device, see the module's text.

    chunk_bytes: native bytes in a chunk, at least one row. Raises EnvironmentFailure, naming the tensor, on a CUDA
    error and when even small chunks do not fit; whatever the readers raise passes through.
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
    capacity = min(max(chunk_bytes // (BLOCK_BYTES * tensor.n), 1), tensor.rows)
    stages = _stages(tensor, vectors, forms, capacity)
    step = stages[0].capacity
    starts = range(0, tensor.rows, step)
    try:
        for number, row0 in enumerate(starts):
            stage = stages[number % len(stages)]
            stage.collect(results)  # of the chunk before last; the other stage is still busy with the last
            stage.upload(row0, min(row0 + step, tensor.rows))
            stage.compare()
            stage.decode()
        for number in range(len(starts), len(starts) + len(stages)):
            stages[number % len(stages)].collect(results)
    finally:
        for stage in stages:  # the buffers must not be freed under a running kernel
            stage.stream.synchronize()


def _stages(
    tensor: TensorRows, vectors: Sequence[Activations], forms: Sequence[Form], capacity: int
) -> tuple[Stage, ...]:
    """Two stages for `capacity` rows each (one if that is the whole tensor), or for fewer where memory is short."""
    import cupy  # noqa: PLC0415 - an optional extra

    while True:
        try:
            wanted = 1 if capacity >= tensor.rows else 2
            return tuple(Stage(tensor, vectors, forms, capacity) for _ in range(wanted))
        except cupy.cuda.memory.OutOfMemoryError:
            if capacity == 1:
                raise
        capacity = -(-capacity // 2)
        cupy.get_default_memory_pool().free_all_blocks()
