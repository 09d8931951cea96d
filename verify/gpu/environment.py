"""What a verdict ran on: versions, and what there is of GPU, driver and CuPy."""

from __future__ import annotations

import platform
from importlib import metadata

from repack.errors import EnvironmentFailure
from repack.version import NAME, VERSION
from verify.gpu.device import preflight

_PACKAGES = ("numpy", "gguf", "safetensors", "rich")
_GPU_PACKAGES = ("cupy", "cupy-cuda11x", "cupy-cuda12x", "cupy-cuda13x", "nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12")


def versions() -> dict[str, str]:
    """Versions of this tool, of Python and of the packages it needs."""
    return {
        NAME: VERSION,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        **{name: metadata.version(name) for name in _PACKAGES},
    }


def describe() -> dict[str, str]:
    """`versions`, the CuPy and NVRTC packages that are installed, and the GPU or why there is none."""
    facts = versions()
    for name in _GPU_PACKAGES:
        try:
            facts[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    try:
        facts |= preflight().facts()
    except EnvironmentFailure as error:
        facts["gpu"] = f"none: {error}"
    return facts
