"""The machine, as far as it must be known: which GPU, is it usable, how its failures read, and what runs on it.

CuPy is imported here, and only when it is needed.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any

import numpy as np

from repack.errors import INSTALLATION, EnvironmentFailure
from repack.version import NAME, VERSION
from verify.kernels import OPTIONS

WITHOUT_GPU = "or run with --device cpu"
INSTALL = f"for CuPy and the driver it needs see {INSTALLATION}"
_FIRST_KERNEL = 'extern "C" __global__ void first(int* out) { *out = 42; }'
_PACKAGES = ("numpy", "gguf", "safetensors", "rich", "jinja2")
_GPU_PACKAGES = (
    *("cupy", "cupy-cuda11x", "cupy-cuda12x", "cupy-cuda13x"),
    *("cuda-bindings", "nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12"),
)


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


def versions() -> dict[str, str]:
    """Versions of this tool, of Python and of the packages it needs; `unknown` for one without metadata."""
    return {
        NAME: VERSION,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        **{name: _installed(name) or "unknown" for name in _PACKAGES},
    }


def describe() -> dict[str, str]:
    """`versions`, the CuPy and NVRTC packages that are installed, and the GPU or why there is none."""
    facts = versions() | {name: found for name in _GPU_PACKAGES if (found := _installed(name))}
    try:
        return facts | preflight().facts()
    except EnvironmentFailure as error:
        return facts | {"gpu": f"none: {error}"}


def _installed(package: str) -> str:
    """A package's version; nothing if it is not known. It decides nothing, so whatever fails here is no failure."""
    try:
        return metadata.version(package)
    except Exception:  # no metadata, or none that can be read
        return ""


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
            f"CUDA finds no GPU: {_one_line(error)}",
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
    import cupy  # noqa: PLC0415 - an optional extra

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
