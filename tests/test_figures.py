"""Stage bandwidth: figures never decide, whatever happens while they are taken; bits that differ are decode's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from repack.errors import Differs, EnvironmentFailure
from repack.layout import DEFAULT, TYPES, QuantType
from tests.support.judging import dpl_byte, flip, judge
from tests.test_decode import emulating
from verify.contract.forms import LOOP, Form
from verify.gpu.device import DeviceInfo
from verify.gpu.speeds import ShapeTimings, Timing, Use
from verify.gpu.timing import all_variants, identical, random_rows, timed
from verify.run import Options
from verify.stages import bandwidth
from verify.verdict import Status, Verdict

Pair = tuple[Path, Path]
INFO = DeviceInfo(0, "none", "GPU-0", "0", "9.0", 1 << 30, 1 << 20, "13.0", "13.0", "13.0", "14")


def timings(quant: QuantType, rows: int, n: int, dependent: bool = False, same: bool = True) -> ShapeTimings:
    one = Timing("row", "dpl", 1, 1, 1, 1, 1, 1)
    return ShapeTimings(quant, rows, n, True, 6, 30, same, (one,), dependent)


class Bench:
    """Stands in for the GPU; counts what is measured."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.measured = 0
        self.error: BaseException | None = None
        self.same = True
        monkeypatch.setattr("verify.run.preflight", lambda _: INFO)
        monkeypatch.setattr("verify.run.check_tensor", emulating())
        monkeypatch.setattr(bandwidth, "measure", self.measure)
        monkeypatch.setattr(bandwidth, "can_launch_dependent", self.can_launch_dependent)

    def can_launch_dependent(self) -> bool:
        if isinstance(self.error, SystemError):
            raise self.error
        return False

    def measure(self, quant: QuantType, rows: int, n: int, l2: int, *, dependent: bool) -> ShapeTimings:
        assert l2 == INFO.l2_bytes
        self.measured += 1
        if self.error is not None and self.measured == 2:
            raise self.error
        return timings(quant, rows, n, dependent, self.same)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


def test_what_was_measured_is_in_the_verdict(pair: Pair, bench: Bench) -> None:
    verdict = judge(*pair)
    assert verdict.exit_code == 0
    (outcome,) = verdict.of("bandwidth")
    assert outcome.status is Status.PASSED
    assert len(verdict.bandwidth) == len(verdict.uses) == bench.measured == 5


@pytest.mark.parametrize(
    "error",
    [
        EnvironmentFailure("out of memory", where="bandwidth of Q6_K 7 x 1280"),
        MemoryError(),
        RuntimeError("cudaErrorECCUncorrectable"),
        AttributeError("a mistake of ours"),
        SystemError("the GPU has fallen off the bus"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_goes_wrong_while_measuring_leaves_what_is_proven(pair: Pair, bench: Bench, error: Exception) -> None:
    bench.error = error
    verdict = judge(*pair)
    assert verdict.exit_code == 0
    (outcome,) = verdict.of("bandwidth")
    assert outcome.status is Status.SKIPPED
    assert outcome.detail.startswith("not measured: ")
    assert judge(*pair, Options(require_gpu=True)).exit_code == 0


def test_nothing_is_measured_that_was_not_asked_for(pair: Pair, bench: Bench) -> None:
    (outcome,) = judge(*pair, Options(bench=False)).of("bandwidth")
    assert (outcome.status, outcome.detail, bench.measured) == (Status.SKIPPED, "--no-bench", 0)


def test_nothing_is_measured_after_a_failure(pair: Pair, bench: Bench) -> None:
    flip(pair[1], dpl_byte(pair[1], "last", 0, 3))
    verdict = judge(*pair)
    assert verdict.exit_code == 1
    assert bench.measured == 0
    (outcome,) = verdict.of("bandwidth")
    assert (outcome.status, outcome.detail) == (Status.SKIPPED, "not measured, because a check failed")


def test_bits_that_differ_while_measuring_are_a_failure_of_decode(pair: Pair, bench: Bench) -> None:
    bench.same = False
    verdict = judge(*pair)
    assert verdict.exit_code == Differs.exit_code
    (failed,) = [outcome for outcome in verdict.outcomes if outcome.status is Status.FAILED]
    assert failed.stage == "decode"
    assert "different bits" in failed.detail
    assert {outcome.status for outcome in verdict.of("bandwidth")} == {Status.SKIPPED}
    assert not verdict.bandwidth, "such figures are not shown"


@pytest.mark.parametrize("possible", [False, True])
def test_dependent_launches_are_measured_where_they_can_be_made(
    monkeypatch: pytest.MonkeyPatch, possible: bool
) -> None:
    monkeypatch.setattr(bandwidth, "measure", lambda quant, rows, n, _, dependent: timings(quant, rows, n, dependent))
    monkeypatch.setattr(bandwidth, "can_launch_dependent", lambda: possible)
    verdict = Verdict("m.gguf", "m.dpl")
    bandwidth.check_bandwidth([Use(DEFAULT, 5120, 54, 3), Use(TYPES[8], 40, 2, 10)], 1, verdict)
    assert [shape.dependent for shape in verdict.bandwidth] == ([False, True] * 2 if possible else [False] * 2)
    (outcome,) = verdict.of("bandwidth")
    assert ("ordinary launches only: dependent ones need" in outcome.detail) == (not possible)


def test_a_model_of_which_nothing_can_be_measured_is_told_so() -> None:
    verdict = Verdict("m.gguf", "m.dpl")
    bandwidth.check_bandwidth([], 1, verdict)
    (outcome,) = verdict.of("bandwidth")
    assert outcome.status is Status.SKIPPED


def test_what_has_to_be_identical() -> None:
    """Everything of one form and number of lanes, over all layouts; other lanes may give other bits."""
    ones, twos = np.ones(3, np.uint32), np.full(3, 2, np.uint32)
    wide, narrow = Form("row", 64, 1, 64), Form("row", 32, 1, 64)
    assert identical({(wide, "native"): ones, (wide, "dpl"): ones, (LOOP, "dpl"): twos, (narrow, "dpl"): twos})
    assert identical({(wide, "native"): ones, (Form("row", 64, 1, 128), "dpl"): ones})
    last = np.array([1, 1, 2], np.uint32)
    for layout in ("native", "padded", "staged"):
        assert not identical({(wide, layout): last, (wide, "dpl"): ones})
    assert not identical({(wide, "native"): ones, (Form("row", 64, 1, 128), "dpl"): last})


@pytest.mark.parametrize("dependent", [False, True])
@pytest.mark.parametrize("quant", [DEFAULT, TYPES[8]], ids=lambda quant: quant.name)
def test_what_is_timed_and_what_is_only_run(quant: QuantType, dependent: bool) -> None:
    """Native rows want another configuration: a figure with dpl's would flatter dpl. Their bits count all the same."""
    figures, runs = timed(quant, 40, 5, dependent), all_variants(quant, 40, 5, dependent)
    assert {layout for _, layout in figures} == {"padded", "dpl"}
    assert {layout for _, layout in runs} == {"native", "padded", "dpl"} | (set() if dependent else {"staged"})
    assert {form for form, _ in figures} == {form for form, _ in runs}
    names = {form.name for form, _ in figures}
    assert names == ({"loop", "row"} if quant is DEFAULT and not dependent else {"row"})


@pytest.mark.parametrize("quant", TYPES.values(), ids=lambda quant: quant.name)
def test_weights_to_measure_with_are_finite(quant: QuantType) -> None:
    rows = random_rows(quant, 20, 3)
    assert rows.shape == (20, 3 * quant.block_bytes)
    blocks = rows.reshape(-1, quant.block_bytes)
    for field in quant.planes:
        part = blocks[:, field.offset : field.offset + field.nbytes]
        if field.scale == "f16":
            scales = np.ascontiguousarray(part).view("<f2").astype(np.float64)
            assert np.isfinite(scales).all()
            assert 0 < np.abs(scales).max() < 1e-2
        elif field.scale == "e8m0":
            assert 100 < part.min() <= part.max() < 140
    assert len(np.unique(rows)) > 200
