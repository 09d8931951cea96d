"""The table of ggml's types is gguf's; dequantizing is gguf's own; and no command loads gguf for less."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gguf.constants
import gguf.quants
import numpy as np
import pytest

from repack.errors import EnvironmentFailure
from repack.gguf.dequantize import dequantize
from repack.gguf.types import DEFAULT_ALIGNMENT, GGML_TYPES, SETTLED, ValueType, type_name
from repack.layout import TYPES, QuantType


def test_the_table_is_that_of_gguf() -> None:
    """Every type that both know is the same one. A type that gguf alone knows is a row to add."""
    theirs = {
        int(kind): (kind.name, *gguf.constants.GGML_QUANT_SIZES[kind]) for kind in gguf.constants.GGMLQuantizationType
    }
    assert len(theirs) > 30
    assert {number: tuple(GGML_TYPES[number]) for number in theirs} == theirs
    assert list(GGML_TYPES) == sorted(GGML_TYPES)


def test_the_other_constants_are_those_of_gguf() -> None:
    assert {kind.name: kind.value for kind in ValueType} == {
        kind.name: kind.value for kind in gguf.constants.GGUFValueType
    }
    assert DEFAULT_ALIGNMENT == gguf.constants.GGUF_DEFAULT_ALIGNMENT


def test_the_layouts_are_of_these_types() -> None:
    for number, quant in TYPES.items():
        assert GGML_TYPES[number] == (quant.name, quant.block_weights, quant.block_bytes)


def test_types_by_name() -> None:
    assert [type_name(number) for number in (14, 4, SETTLED, 42, 2**31)] == [
        "Q6_K",
        "type 4",
        f"type {SETTLED}",
        "type 42",
        "type 2147483648",
    ]


def blocks(quant: QuantType, rows: int, n: int) -> np.ndarray:
    return np.random.default_rng(quant.number).integers(0, 256, (rows, n * quant.block_bytes), np.uint8)


@pytest.mark.parametrize("quant", TYPES.values(), ids=lambda quant: quant.name)
def test_weights_are_what_gguf_makes_of_the_bytes(quant: QuantType) -> None:
    """Scales of all kinds are among them, NaN and infinities too, and they raise no warning."""
    native = blocks(quant, 40, 3)
    with np.errstate(all="ignore"):
        expected = gguf.quants.dequantize(native, gguf.constants.GGMLQuantizationType[quant.name])
    found = dequantize(native, quant)
    assert found.dtype == np.float32
    assert found.shape == (40, 3 * quant.block_weights)
    assert np.array_equal(found.view(np.uint32), expected.view(np.uint32))
    assert dequantize(native[:0], quant).shape == (0, 3 * quant.block_weights)
    assert dequantize(native[:, :0], quant).shape == (40, 0)


def test_a_gguf_that_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(number: int) -> int:
        raise ValueError(f"{number} is not a valid GGMLQuantizationType")

    monkeypatch.setattr(gguf.constants, "GGMLQuantizationType", unknown)
    with pytest.raises(EnvironmentFailure, match=r"does not know MXFP4.*update"):
        dequantize(blocks(TYPES[39], 1, 1), TYPES[39])


@pytest.mark.parametrize(
    ("command", "absent"),
    [
        (["repack", "--help"], {"gguf", "cupy"}),
        (["repack", "MODEL", "--dry-run"], {"gguf", "cupy"}),
        (["verify", "--help"], {"gguf", "cupy"}),
        (["verify", "SIDECAR"], {"gguf", "cupy"}),
    ],
)
def test_a_command_loads_no_more_than_it_needs(pair: tuple[Path, Path], command: list[str], absent: set[str]) -> None:
    paths = {"MODEL": str(pair[0]), "SIDECAR": str(pair[1])}
    name, *arguments = (paths.get(word, word) for word in command)
    module = {"repack": "repack.command.main", "verify": "verify.command"}[name]
    code = f"import sys, {module}, repack.command.ending as c; sys.argv[1:] = {arguments!r}\n"
    code += f"code = c.run({module}._command); print('LOADED', *sys.modules); sys.exit(code)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.rpartition("LOADED")[2].split())
    assert "repack.command.ending" in loaded
    assert not absent & loaded
