"""Compile every kernel for every architecture that is claimed, with no GPU: no errors, no spills, no stack."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from repack.layout import DEFAULT, TYPES, QuantType
from verify import kernels
from verify.contract.forms import Form, row_form, units_of
from verify.gpu.speeds import READERS

cupy = pytest.importorskip("cupy", reason="needs cupy and nvidia-cuda-nvrtc, but no GPU")
nvrtc = cupy.cuda.nvrtc

ARCHITECTURES = [75, 80, 86, 89, 90, 100, 120]
SHAPES = [(54, 5120), (20, 152064), (74, 3584), (56, 4096), (16, 4096), (38, 2560), (112, 8192), (208, 16384), (300, 4)]
ORDINARY = sorted({row_form(DEFAULT, n, rows) for n, rows in SHAPES}, key=str)
DEPENDENT = sorted({row_form(DEFAULT, n, rows, dependent=True) for n, rows in SHAPES} - {*ORDINARY}, key=str)
FORMS = [(architecture, form) for architecture in ARCHITECTURES for form in ORDINARY]
FORMS += [(architecture, form) for architecture in ARCHITECTURES if architecture >= 90 for form in DEPENDENT]
"""Dependent launches need compute capability 9.0."""
OTHERS = [quant for quant in TYPES.values() if quant is not DEFAULT and units_of(quant, 1)]
"""Types with a kernel but Q6_K, which is tuned for more shapes."""
COLUMNS = [13824, 4096]
SPILLED = {"Q2_K": 8, "Q3_K": 16}
"""Bytes a thread that a kernel with three units a lane may spill, by type: docs/benchmarks.md says why."""
REPORT = re.compile(
    r"entry function '(\w+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
    r".*?Used (\d+) registers",
    re.DOTALL,
)


def report(name: str, architecture: int, *options: str, quant: QuantType = DEFAULT) -> dict[str, tuple[int, ...]]:
    """Compile a file and return for each kernel: bytes of stack, of spill stores and of spill loads, and registers."""
    program = nvrtc.createProgram(kernels.source(name, quant), name, [], [])
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


def check(
    name: str,
    architecture: int,
    threads: int,
    record: Callable[[str, object], None],
    *options: str,
    quant: QuantType = DEFAULT,
    spilled: int = 0,
) -> set[str]:
    found = report(name, architecture, *options, quant=quant)
    for kernel, (*memory, registers) in found.items():
        assert max(memory) <= spilled, (kernel, memory)
        assert registers * threads <= 65536, kernel
        record(" ".join((f"sm_{architecture}", quant.name, kernel, *options, "registers")), registers)
    return set(found)


def test_loop_and_pf(architecture: int, record_property: Callable[[str, object], None]) -> None:
    kernels = {f"{form}_{layout}" for form in ("loop", "pf") for layout in ("native", "padded", "dpl")}
    assert check("loop.cu", architecture, 256, record_property) == kernels


@pytest.mark.parametrize("quant", [DEFAULT, *OTHERS], ids=lambda quant: quant.name)
def test_tools(architecture: int, quant: QuantType, record_property: Callable[[str, object], None]) -> None:
    kernels = {"pad", "compare", "check", *(f"{reader}{loads}" for reader in READERS for loads in (2, 4, 8))}
    assert check("tools.cu", architecture, 256, record_property, quant=quant) == kernels


@pytest.mark.parametrize(("architecture", "form"), FORMS, ids=str)
def test_row(architecture: int, form: Form, record_property: Callable[[str, object], None]) -> None:
    kernels = {f"row_{layout}" for layout in ("native", "padded", "dpl", "staged")}
    assert check("row.cu", architecture, form.threads, record_property, *form.defines) == kernels


@pytest.mark.parametrize("quant", OTHERS, ids=lambda quant: quant.name)
def test_row_of_every_type(architecture: int, quant: QuantType, record_property: Callable[[str, object], None]) -> None:
    names = {f"row_{layout}" for layout in ("native", "padded", "dpl", "staged")}
    for form in {row_form(quant, columns // quant.block_weights, 4096) for columns in COLUMNS}:
        assert check("row.cu", architecture, form.threads, record_property, *form.defines, quant=quant) == names


@pytest.mark.parametrize("dependent", [False, True])
@pytest.mark.parametrize("quant", OTHERS, ids=lambda quant: quant.name)
def test_row_of_every_type_for_one_shape_alone(
    quant: QuantType, dependent: bool, record_property: Callable[[str, object], None]
) -> None:
    for rows, columns in ((5120, 13824), (4096, 4096), (152064, 5120)):
        n = columns // quant.block_weights
        form = row_form(quant, n, rows, dependent)
        options = form.options(rows, n, dependent)
        spilled = SPILLED.get(quant.name, 0) if form.units == 3 else 0
        found = check("row.cu", 90, form.threads, record_property, *options, quant=quant, spilled=spilled)
        assert len(found) == 4


@pytest.mark.parametrize("quant", [DEFAULT, TYPES[39]], ids=lambda quant: quant.name)
def test_row_with_an_addend(quant: QuantType, record_property: Callable[[str, object], None]) -> None:
    form = row_form(quant, 13824 // quant.block_weights, 5120)
    found = check("row.cu", 90, form.threads, record_property, *form.defines, "-DDPL_ADD=1", quant=quant)
    assert found == {"row_native", "row_padded", "row_dpl"}


@pytest.mark.parametrize("dependent", [False, True])
@pytest.mark.parametrize(("n", "rows"), SHAPES)
def test_row_for_one_shape_alone(
    n: int, rows: int, dependent: bool, record_property: Callable[[str, object], None]
) -> None:
    form = row_form(DEFAULT, n, rows, dependent)
    assert len(check("row.cu", 90, form.threads, record_property, *form.options(rows, n, dependent))) == 4


def test_a_spill_would_be_seen() -> None:
    found = report("row.cu", 90, *Form("row", 32, 8, 1024).defines)  # 64 registers for 8 units
    assert any(spilled for _, spilled, _, _ in found.values())


def test_sources_are_ascii_need_no_toolkit_and_round_explicitly() -> None:
    folder = Path(kernels.__file__).parent
    for path in [*folder.glob("*.cu*"), *folder.glob("quants/*")]:
        text = path.read_text("ascii")
        for included in re.findall(r"#include (.*)", text):
            assert included == "DPL_QUANT" or re.fullmatch(r'"(quants/)?\w+\.cuh"', included), included
        assert not re.search(r"\b(fmaf?|__fma\w*|sinf|expf|rsqrtf)\(", text)
    for quant in (DEFAULT, *OTHERS):
        for name in ("row.cu", "tools.cu"):
            assert "#include" not in kernels.source(name, quant)
    assert "#include" not in kernels.source("loop.cu", DEFAULT)


def test_decoding_uses_no_atomics() -> None:
    assert "atomic" not in kernels.source("loop.cu", DEFAULT)
    assert not any("atomic" in kernels.source("row.cu", quant) for quant in (DEFAULT, *OTHERS))


@pytest.mark.parametrize("quant", [DEFAULT, *OTHERS], ids=lambda quant: quant.name)
def test_what_a_type_s_file_says_is_what_the_table_says(quant: QuantType) -> None:
    text = (Path(kernels.__file__).parent / kernels.quant_file(quant)).read_text("ascii")
    fields = re.findall(r"F\((\w+), (\d+), (\d+), (\d+)\)", text)
    assert [(name.lower(), int(number), int(size), int(offset)) for name, number, size, offset in fields] == [
        (field.name, number, field.nbytes, field.offset) for number, field in enumerate(quant.planes)
    ]
    facts = dict(re.findall(r"(BLOCK_WEIGHTS|ALIGN|UNITS_A_BLOCK) = (\d+)", text))
    assert int(facts["BLOCK_WEIGHTS"]) == quant.block_weights
    assert int(facts["UNITS_A_BLOCK"]) == units_of(quant, 1)
    places = [quant.block_bytes, *(field.offset for field in quant.planes)]
    assert all(place % int(facts["ALIGN"]) == 0 for place in places), "a field off its alignment"


def test_every_file_of_a_type_is_of_a_type_in_the_table() -> None:
    names = {path.stem for path in (Path(kernels.__file__).parent / "quants").glob("*.cuh")}
    assert names == {quant.name.lower() for quant in (DEFAULT, *OTHERS)}
