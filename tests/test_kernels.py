"""Compile every kernel for every architecture that is claimed, with no GPU: no errors, no spills, no stack."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from verify import kernels
from verify.contract.forms import Form, row_form
from verify.gpu.speeds import READERS

cupy = pytest.importorskip("cupy", reason="needs cupy and nvidia-cuda-nvrtc, but no GPU")
nvrtc = cupy.cuda.nvrtc

ARCHITECTURES = [75, 80, 86, 89, 90, 100, 120]
SHAPES = [(54, 5120), (20, 152064), (74, 3584), (56, 4096), (16, 4096), (38, 2560), (112, 8192), (208, 16384), (300, 4)]
FORMS = sorted({row_form(n, rows, dependent) for n, rows in SHAPES for dependent in (False, True)}, key=str)
REPORT = re.compile(
    r"entry function '(\w+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
    r".*?Used (\d+) registers",
    re.DOTALL,
)


def report(name: str, architecture: int, *options: str) -> dict[str, tuple[int, ...]]:
    """Compile a file and return for each kernel: bytes of stack, of spill stores and of spill loads, and registers."""
    program = nvrtc.createProgram(kernels.source(name), name, [], [])
    options = (f"--gpu-architecture=sm_{architecture}", "-ftz=true", "--ptxas-options=-v", *kernels.OPTIONS, *options)
    try:
        nvrtc.compileProgram(program, options)
    except nvrtc.NVRTCError:
        pytest.fail(nvrtc.getProgramLog(program))
    log = nvrtc.getProgramLog(program)
    nvrtc.destroyProgram(program)
    assert "warning" not in log, log
    return {kernel: tuple(map(int, numbers)) for kernel, *numbers in REPORT.findall(log)}


@pytest.fixture(params=ARCHITECTURES, ids="sm_{}".format)
def architecture(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def check(name: str, architecture: int, threads: int, record: Callable[[str, object], None], *options: str) -> set[str]:
    found = report(name, architecture, *options)
    for kernel, (stack, stores, loads, registers) in found.items():
        assert (stack, stores, loads) == (0, 0, 0), kernel
        assert registers * threads <= 65536, kernel
        record(" ".join((f"sm_{architecture}", kernel, *options, "registers")), registers)
    return set(found)


def test_loop_and_pf(architecture: int, record_property: Callable[[str, object], None]) -> None:
    kernels = {f"{form}_{layout}" for form in ("loop", "pf") for layout in ("native", "padded", "dpl")}
    assert check("loop.cu", architecture, 256, record_property) == kernels


def test_tools(architecture: int, record_property: Callable[[str, object], None]) -> None:
    kernels = {"pad", "compare", "check", *(f"{reader}{loads}" for reader in READERS for loads in (2, 4, 8))}
    assert check("tools.cu", architecture, 256, record_property) == kernels


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_row(architecture: int, form: Form, record_property: Callable[[str, object], None]) -> None:
    kernels = {f"row_{layout}" for layout in ("native", "padded", "dpl", "staged")}
    assert check("row.cu", architecture, form.threads, record_property, *form.defines) == kernels


@pytest.mark.parametrize("dependent", [False, True])
@pytest.mark.parametrize(("n", "rows"), SHAPES)
def test_row_for_one_shape_alone(
    n: int, rows: int, dependent: bool, record_property: Callable[[str, object], None]
) -> None:
    form = row_form(n, rows, dependent)
    assert len(check("row.cu", 90, form.threads, record_property, *form.options(rows, n, dependent))) == 4


def test_a_spill_would_be_seen() -> None:
    found = report("row.cu", 90, *Form("row", 32, 8, 1024).defines)  # 64 registers for 8 quarters
    assert any(spilled for _, spilled, _, _ in found.values())


def test_sources_are_ascii_need_no_toolkit_and_round_explicitly() -> None:
    for path in Path(kernels.__file__).parent.glob("*.cu*"):
        text = path.read_text("ascii")
        assert set(re.findall(r"#include (.*)", text)) <= {'"q6k.cuh"', '"ptx.cuh"', '"sum.cuh"'}
        assert not re.search(r"\b(fmaf?|__fma\w*|sinf|expf|rsqrtf)\(", text)
    for name in ("loop.cu", "row.cu", "tools.cu"):
        assert "#include" not in kernels.source(name)


def test_decoding_uses_no_atomics() -> None:
    assert "atomic" not in kernels.source("loop.cu") + kernels.source("row.cu")
