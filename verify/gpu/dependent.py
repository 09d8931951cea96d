"""Programmatic dependent launch (sm_90 and newer): a kernel starts while the one before it on the stream still runs.

The kernels of row.cu load their weights at once, which nothing on the stream writes, and wait for the previous kernel
before they read activations or write outputs. CuPy cannot ask for such a launch; NVIDIA's cuda.bindings can (extra
`dependent`), also while a stream is captured into a graph.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np

from repack.errors import EnvironmentFailure

_TYPES = {np.int32: ctypes.c_int32, np.uint32: ctypes.c_uint32, np.int64: ctypes.c_int64}


def can_launch_dependent() -> bool:
    """Say whether cuda.bindings is there and the current device knows dependent launches."""
    import cupy  # noqa: PLC0415

    try:
        _driver()
    except EnvironmentFailure:
        return False
    return int(cupy.cuda.Device().compute_capability) >= 90


def launch_dependent(kernel: Any, grid: int, threads: int, arguments: tuple[Any, ...]) -> None:
    """Launch a CuPy kernel on the current stream as dependent on what the stream did last.

    arguments: device arrays and NumPy scalars, as for CuPy. Raises EnvironmentFailure.
    """
    import cupy  # noqa: PLC0415

    driver = _driver()
    attribute = driver.CUlaunchAttribute()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    attribute.value.programmaticStreamSerializationAllowed = 1
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = grid, 1, 1
    config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
    config.hStream = driver.CUstream(cupy.cuda.get_current_stream().ptr)
    config.attrs, config.numAttrs = [attribute], 1
    values, types = zip(*map(_argument, arguments), strict=True)
    (status,) = driver.cuLaunchKernelEx(config, driver.CUfunction(kernel.kernel.ptr), (values, types), 0)
    if int(status):
        raise EnvironmentFailure(f"a dependent launch failed: {status.name}")


def _argument(value: Any) -> tuple[int, Any]:
    """The number to pass and its C type."""
    if isinstance(value, np.generic):
        return int(value), _TYPES[type(value)]
    return value.data.ptr, ctypes.c_void_p


@cache
def _driver() -> Any:
    try:
        from cuda.bindings import driver  # noqa: PLC0415 - an optional extra
    except ImportError as error:
        raise EnvironmentFailure(
            "cuda.bindings cannot be imported", hint="install `gguf-dpl[dependent]` for dependent launches"
        ) from error
    return driver
