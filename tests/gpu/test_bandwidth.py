"""The bandwidth report on a real GPU: `pytest -m gpu`."""

from __future__ import annotations

import pytest

from verify.contract.forms import Form
from verify.gpu.device import preflight
from verify.gpu.timing import all_variants, measure

pytest.importorskip("cupy")
pytestmark = pytest.mark.gpu


def test_a_shape_is_measured_whole() -> None:
    info = preflight()
    rows, n = 2048, 54
    result = measure(rows, n, info.l2_bytes, replays=3)
    assert result.identical
    assert result.launches >= 30
    assert result.copies * 224 * n * rows > 5 * info.l2_bytes  # padded needs the fewest copies
    expected = {(str(form), layout) for form, layout in all_variants(rows, n)}
    expected |= {("read", layout) for layout in ("native", "padded", "dpl")}
    assert {(timing.form, timing.layout) for timing in result.timings} == expected
    for timing in result.timings:
        assert 0 < timing.minimum <= timing.median <= timing.maximum
        assert timing.moved >= timing.content
        assert timing.form != "read" or timing.share == 1


def test_a_small_tensor_is_flagged() -> None:
    info = preflight()
    result = measure(64, 3, info.l2_bytes, [(Form("row", 32, 1, 128), "dpl")], replays=3)
    assert result.fits_l2
    assert [timing.layout for timing in result.timings] == ["dpl", "dpl"]
