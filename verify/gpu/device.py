"""The GPU, as far as it must be known: is it usable, what is it, and how its failures read.

CuPy is imported here, and only when it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import numpy as np

from repack.errors import EnvironmentFailure
from verify.contract.forms import Form
from verify.gpu.dependent import launch_dependent
from verify.kernels import OPTIONS, source

SHARED_BYTES = 48 << 10
"""What every GPU grants a block without being asked for more."""
WITHOUT_GPU = "or run with --device cpu"
INSTALL = "install `gguf-dpl[cuda13]` (driver 580 or newer) or `gguf-dpl[cuda12]` (driver 525 or newer)"
_FIRST_KERNEL = 'extern "C" __global__ void first(int* out) { *out = 42; }'


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """The device that was chosen and the software that drives it."""

    index: int
    name: str
    uuid: str
    pci: str
    compute_capability: str
    memory_bytes: int
    l2_bytes: int
    driver: str
    """The newest CUDA version that the driver supports."""
    runtime: str
    nvrtc: str
    cupy: str

    def facts(self) -> dict[str, str]:
        """All of it as texts, for reports: ``gpu name``, ``gpu driver``, ..."""
        return {f"gpu {key}": str(value) for key, value in asdict(self).items()}


def preflight(device: int | None = None) -> DeviceInfo:
    """Make device `device` (default: the first) the current one, and compile and run one kernel on it.

    Raises EnvironmentFailure with what is missing.
    """
    cupy = _import_cupy()
    index = _choose(cupy, device)
    try:
        cupy.cuda.Device(index).use()
        info = _describe(cupy, index)
        out = cupy.empty(1, np.int32)
        cupy.RawModule(code=_FIRST_KERNEL, options=OPTIONS).get_function("first")((1,), (1,), (out,))
        answer = int(out.get()[0])
    except Exception as error:
        raise EnvironmentFailure(
            f"the first kernel could not be compiled and run: {_one_line(error)}",
            where=f"GPU {index}",
            hint=f"{INSTALL}, {WITHOUT_GPU}",
        ) from error
    if answer != 42:
        raise EnvironmentFailure(
            "the first kernel computed nonsense", where=f"GPU {index}", found=answer, expected=42, hint=WITHOUT_GPU
        )
    return info


def _import_cupy() -> Any:
    try:
        import cupy  # noqa: PLC0415 - an optional extra
    except Exception as error:  # a CUDA library that CuPy needs may be missing as well
        raise EnvironmentFailure(
            f"CuPy cannot be imported: {_one_line(error)}", hint=f"{INSTALL}, {WITHOUT_GPU}"
        ) from error
    return cupy


def _choose(cupy: Any, device: int | None) -> int:
    try:
        count = int(cupy.cuda.runtime.getDeviceCount())
    except Exception as error:  # no driver, one that is too old, or no device
        raise EnvironmentFailure(
            f"no usable GPU: {_one_line(error)}",
            hint=f"check that `nvidia-smi` lists one and that the driver is new enough ({INSTALL}), {WITHOUT_GPU}",
        ) from error
    index = 0 if device is None else device
    if not 0 <= index < count:
        raise EnvironmentFailure(
            "no such GPU",
            where=f"GPU {index}",
            found=f"{count} GPU(s)",
            hint=f"choose a lower number, check CUDA_VISIBLE_DEVICES, {WITHOUT_GPU}",
        )
    return index


def _describe(cupy: Any, index: int) -> DeviceInfo:
    runtime = cupy.cuda.runtime
    facts = runtime.getDeviceProperties(index)
    raw = bytes(facts["uuid"])[:16].hex()
    return DeviceInfo(
        index=index,
        name=bytes(facts["name"]).decode("ascii", "replace"),
        uuid="GPU-" + "-".join((raw[:8], raw[8:12], raw[12:16], raw[16:20], raw[20:])),
        pci=str(runtime.deviceGetPCIBusId(index)),
        compute_capability=f"{facts['major']}.{facts['minor']}",
        memory_bytes=int(facts["totalGlobalMem"]),
        l2_bytes=int(facts["l2CacheSize"]),
        driver=_version(runtime.driverGetVersion()),
        runtime=_version(runtime.runtimeGetVersion()),
        nvrtc=".".join(map(str, cupy.cuda.nvrtc.getVersion())),
        cupy=str(cupy.__version__),
    )


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split()).encode("ascii", "backslashreplace").decode("ascii")
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__


@contextmanager
def device_errors(where: str) -> Iterator[None]:
    """Turn a CUDA error or a lack of memory into an EnvironmentFailure that names `where` (a tensor, a shape)."""
    import cupy  # noqa: PLC0415

    try:
        yield
    except (MemoryError, cupy.cuda.memory.OutOfMemoryError) as error:
        raise EnvironmentFailure(
            f"out of memory: {_one_line(error)}", where=where, hint=f"free some GPU memory, {WITHOUT_GPU}"
        ) from error
    except (
        cupy.cuda.runtime.CUDARuntimeError,
        cupy.cuda.driver.CUDADriverError,
        cupy.cuda.compiler.CompileException,
    ) as error:
        raise EnvironmentFailure(
            f"CUDA failed: {_one_line(error)}",
            where=where,
            hint=f"look at `nvidia-smi` and the kernel log, {WITHOUT_GPU}",
        ) from error


def tool(name: str) -> Any:
    """Return a kernel of tools.cu."""
    return _module("tools.cu").get_function(name)


def decoder(form: Form, layout: str, dependent: bool = False) -> Callable[[Any, Any, Any, int, int], None]:
    """Return ``launch(weights, activations, out, rows, n)`` for one form over one layout (`staged` too for `row`).

    weights and activations: device uint8, in the form's packing; out: device, 4 bytes a row. `rows` must not be 0.
    The launch goes to the current stream; a `dependent` one may start before what the stream did last has ended (see
    verify/gpu/dependent.py; form `row` only).
    """

    def launch(weights: Any, activations: Any, out: Any, rows: int, n: int) -> None:
        if not form.fits(n):
            raise ValueError(f"{form} cannot decode rows of {n} super-blocks")
        kernel = _kernel(layout, form.options(rows, n, dependent), form.name)
        staged = layout == "staged"
        grid = -(-rows // form.groups) if staged else form.grid(rows, _multiprocessors())
        shared = staged_bytes(form, n) if staged else 0
        arguments = (weights, activations, out, np.int64(rows), np.int32(n))
        if dependent:
            launch_dependent(kernel, grid, form.threads, arguments)
        else:
            kernel((grid,), (form.threads,), arguments, shared_mem=shared)

    return launch


@cache
def _kernel(layout: str, options: tuple[str, ...], name: str) -> Any:
    module = _module("row.cu", *options) if name == "row" else _module("loop.cu")
    return module.get_function(f"{name}_{layout}")


def staged_bytes(form: Form, n: int) -> int:
    """Shared memory that the staged native kernel needs (see row.cu)."""
    return form.groups * ((210 * n + 47) // 16) * 16


def can_stage(form: Form, n: int) -> bool:
    """Say whether the staged native kernel can run: form `row`, and the rows of a block fit into shared memory."""
    return form.name == "row" and staged_bytes(form, n) <= SHARED_BYTES


def _multiprocessors() -> int:
    import cupy  # noqa: PLC0415

    return int(cupy.cuda.Device().attributes["MultiProcessorCount"])


@cache
def _module(name: str, *options: str) -> Any:
    import cupy  # noqa: PLC0415

    return cupy.RawModule(code=source(name), options=(*OPTIONS, *options))
