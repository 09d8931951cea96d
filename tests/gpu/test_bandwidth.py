"""The bandwidth report on a real GPU, every type: `pytest -m gpu`."""

from __future__ import annotations

from typing import Any

import pytest

from repack.layout import DEFAULT, QuantType
from tests.gpu.tensors import KERNELS
from verify.contract.forms import Form
from verify.gpu import timing
from verify.gpu.device import preflight
from verify.gpu.launch import Launch, decoder
from verify.gpu.timing import measure, timed

pytest.importorskip("cupy")
pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("quant", KERNELS, ids=lambda quant: quant.name)
def test_a_shape_is_measured_whole(quant: QuantType) -> None:
    info = preflight()
    rows, n = 2048, 13824 // quant.block_weights
    result = measure(quant, rows, n, info.l2_bytes, replays=3)
    assert result.identical
    assert result.quant == quant
    assert result.launches >= 30
    assert result.copies * quant.padded_block_bytes * n * rows > 5 * info.l2_bytes  # padded needs the fewest copies
    expected = {(str(form), layout) for form, layout in timed(quant, rows, n)}
    expected |= {("read", layout) for layout in ("padded", "dpl")}
    assert {(timing.form, timing.layout) for timing in result.timings} == expected
    for one in result.timings:
        assert 0 < one.minimum <= one.median <= one.maximum
        assert one.moved >= one.content
        assert one.form != "read" or one.share == 1


def test_a_small_tensor_is_flagged() -> None:
    info = preflight()
    variants = [
        (Form("row", 32, 1, 128), "dpl"),
        (Form("row", 32, 1, 128), "native"),
        (Form("row", 32, 1, 128), "staged"),
    ]
    result = measure(DEFAULT, 64, 3, info.l2_bytes, variants, replays=3)
    assert result.fits_l2
    assert [one.layout for one in result.timings] == ["dpl", "native", "staged", "native", "dpl"]


@pytest.mark.parametrize("layout", ["native", "padded", "dpl"])
def test_bits_that_differ_are_noticed(monkeypatch: pytest.MonkeyPatch, layout: str) -> None:
    """One layout's kernel leaves the last row alone."""

    def forgetful(quant: QuantType, form: Form, on: str, dependent: bool = False) -> Launch:
        def launch(weights: Any, activations: Any, out: Any, rows: int, n: int) -> None:
            decoder(quant, form, on, dependent)(weights, activations, out, rows - (on == layout), n)

        return launch

    monkeypatch.setattr(timing, "decoder", forgetful)
    assert not measure(DEFAULT, 64, 3, preflight().l2_bytes, replays=3).identical
