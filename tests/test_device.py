"""Which GPU, is it usable, and how its failures read: against a CuPy that is none."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import metadata
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from repack.errors import EnvironmentFailure
from repack.layout import DEFAULT
from verify.contract.forms import Form, units_of
from verify.gpu.device import describe, device_errors, preflight, versions
from verify.gpu.launch import decoder


class OutOfMemoryError(Exception):
    pass


class CUDARuntimeError(Exception):
    pass


class CUDADriverError(Exception):
    pass


class CompileException(Exception):
    pass


class Array:
    def __init__(self) -> None:
        self.value = 0

    def get(self) -> list[int]:
        return [self.value]


def raising(error: Exception) -> Callable[..., Any]:
    def raise_it(*_: object, **__: object) -> None:
        raise error

    return raise_it


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Any:
    """One GPU that computes 42."""

    def first(grid: object, block: object, arguments: tuple[Array]) -> None:
        del grid, block
        arguments[0].value = made.answer

    made: Any = ModuleType("cupy")
    made.answer, made.__version__ = 42, "14.0"
    made.empty = lambda *_: Array()
    made.RawModule = lambda **_: SimpleNamespace(get_function=lambda _: first)
    sizes = {"totalGlobalMem": 1, "l2CacheSize": 2}
    properties = {"uuid": bytes(range(16)), "name": b"A GPU", "major": 9, "minor": 0, **sizes}
    runtime = SimpleNamespace(
        getDeviceCount=lambda: 1,
        getDeviceProperties=lambda _: properties,
        deviceGetPCIBusId=lambda _: "0000:01:00.0",
        driverGetVersion=lambda: 13000,
        runtimeGetVersion=lambda: 12090,
        CUDARuntimeError=CUDARuntimeError,
    )
    made.cuda = SimpleNamespace(
        runtime=runtime,
        driver=SimpleNamespace(CUDADriverError=CUDADriverError),
        memory=SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
        compiler=SimpleNamespace(CompileException=CompileException),
        nvrtc=SimpleNamespace(getVersion=lambda: (13, 0)),
        Device=lambda _: SimpleNamespace(use=lambda: None),
    )
    monkeypatch.setitem(sys.modules, "cupy", made)
    return made


@pytest.mark.usefixtures("cupy")
def test_a_gpu_is_described() -> None:
    info = preflight()
    assert (info.index, info.name, info.compute_capability) == (0, "A GPU", "9.0")
    assert (info.driver, info.runtime, info.nvrtc) == ("13.0", "12.9", "13.0")
    assert info.uuid == "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"
    assert info.facts()["gpu l2_bytes"] == "2"
    assert describe()["gpu name"] == "A GPU"


def test_a_gpu_that_computes_nonsense(cupy: Any) -> None:
    cupy.answer = 41
    with pytest.raises(EnvironmentFailure, match="GPU 0: the first kernel computed nonsense; found 41, expected 42"):
        preflight()


def test_a_number_that_is_no_gpus(cupy: Any) -> None:
    with pytest.raises(EnvironmentFailure, match=r"GPU 1: no such GPU; found 1 GPU\(s\)"):
        preflight(1)
    cupy.cuda.runtime.getDeviceCount = lambda: 0
    with pytest.raises(EnvironmentFailure, match="GPU 0: no such GPU"):
        preflight()
    cupy.cuda.runtime.getDeviceCount = raising(CUDARuntimeError("driver\ntoo old"))
    with pytest.raises(EnvironmentFailure, match=r"CUDA finds no GPU: .*: driver too old; .*--device cpu"):
        preflight()
    assert describe()["gpu"].startswith("none: CUDA finds no GPU")


def test_a_kernel_that_cannot_be_compiled(cupy: Any) -> None:
    cupy.RawModule = raising(CompileException("nvrtc: error"))
    with pytest.raises(EnvironmentFailure, match="could not be compiled and run: CompileException: nvrtc: error"):
        preflight()


def test_a_cupy_that_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(EnvironmentFailure, match=r"CuPy cannot be imported: .*docs/quickstart\.md"):
        preflight()


@pytest.mark.usefixtures("cupy")
@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MemoryError(), "x: out of memory"),
        (OutOfMemoryError("2 GB"), "x: out of memory: OutOfMemoryError: 2 GB"),
        (CUDARuntimeError("cudaErrorECC"), "x: CUDA failed: CUDARuntimeError: cudaErrorECC"),
        (CUDADriverError("lost"), "x: CUDA failed: CUDADriverError: lost"),
        (CompileException("bad"), "x: CUDA failed: CompileException: bad"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_failure_of_the_gpu_names_what_was_done(error: Exception, words: str) -> None:
    with pytest.raises(EnvironmentFailure, match=words), device_errors("x"):
        raise error
    with pytest.raises(KeyError), device_errors("x"):
        raise KeyError


def test_a_package_without_metadata_is_unknown_and_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert versions()["numpy"] == np.__version__
    for error in (metadata.PackageNotFoundError("gguf"), OSError("unreadable"), ValueError("no version")):
        monkeypatch.setattr("verify.gpu.device.metadata.version", raising(error))
        assert versions()["gguf"] == "unknown"
    monkeypatch.setattr("verify.gpu.device.metadata.version", lambda _: None)  # metadata without a version
    assert versions()["gguf"] == "unknown"


def test_a_row_that_is_too_long_for_a_form_is_refused() -> None:
    form = Form("row", 32, 1, 128, 1, 1, "once")
    assert units_of(DEFAULT, 9) > 32
    with pytest.raises(ValueError, match="cannot decode rows of 9 blocks"):
        decoder(DEFAULT, form, "dpl")(None, None, None, 1, 9)
