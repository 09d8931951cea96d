"""What the reports make of timings: gains by hand-computed ratios, the sum for one token, in every form."""

from __future__ import annotations

import json

import pytest

from tests.support.reports import check_schema
from verify.gpu.timing import ShapeTimings, Timing
from verify.reports.as_json import to_json
from verify.reports.markdown import to_markdown
from verify.reports.page import to_html
from verify.reports.speeds import gain_rows, timing_rows, token_line
from verify.stages import bandwidth as benchmark
from verify.stages.bandwidth import Use
from verify.verdict import Verdict


def timing(form: str, layout: str, us: float, share: float = 0.5) -> Timing:
    return Timing(form, layout, us - 0.5, us, us + 1, 100.0, 106.0, share)


def measured() -> Verdict:
    verdict = Verdict("m.gguf", "m.dpl")
    first = (
        timing("loop", "native", 40),
        timing("loop", "padded", 21),
        timing("loop", "dpl", 30),
        timing("row", "native", 28),
        timing("row", "padded", 22),
        timing("row", "dpl", 20, 1.25),
        timing("row", "staged", 24),
        timing("read", "dpl", 10, 1.0),
    )
    second = (timing("loop", "native", 8), timing("loop", "padded", 4), timing("loop", "dpl", 5))
    verdict.bandwidth = [
        ShapeTimings(5120, 54, True, 6, 30, True, first),
        ShapeTimings(40, 2, False, 6, 30, True, second),
    ]
    verdict.uses = [Use(5120, 54, 3), Use(40, 2, 10)]
    return verdict


def test_gains_are_those_of_the_best_forms() -> None:
    assert gain_rows(measured()) == [
        ("5120 x 13824", "3 x", "24.00", "21.00", "20.00", "1.050", "1.200"),
        ("40 x 512", "10 x", "8.00", "4.00", "5.00", "0.800", "1.600"),
    ]


def test_one_token_is_the_sum_over_its_tensors() -> None:
    assert token_line(measured()) == (
        "One token's Q6_K products, cold: 0.152 ms native, 0.103 ms padded, 0.110 ms dpl; "
        "dpl takes 1.068 of padded's time."
    )
    assert not token_line(Verdict("m.gguf", "m.dpl"))


def test_every_timing_has_its_row() -> None:
    rows = timing_rows(measured())
    assert len(rows) == 11
    assert rows[5] == (
        "5120 x 13824 (fits L2)", "row", "dpl", "20.00", "19.50 to 21.00", "100", "106",
        "125.0% (above the ceiling: not to be trusted)",
    )  # fmt: skip


def test_dependent_launches_are_told_apart_and_no_part_of_the_token() -> None:
    verdict = measured()
    token = token_line(verdict)
    timings = (timing("row", "padded", 2), timing("row", "dpl", 1), timing("waiting", "dpl", 0.8, 0.9))
    verdict.bandwidth.append(ShapeTimings(40, 2, False, 6, 30, True, timings, dependent=True))
    assert gain_rows(verdict)[-1] == ("40 x 512, dependent", "10 x", "-", "2.00", "1.00", "2.000", "-")
    assert token_line(verdict) == token
    document = json.loads(to_json(verdict, 5))
    check_schema(document, "verdict.schema.json")
    assert [shape["dependent"] for shape in document["bandwidth"]] == [False, False, True]
    assert "40 x 512, dependent" in to_markdown(verdict)
    assert "dependent launches" in to_html(verdict)


@pytest.mark.parametrize("possible", [False, True])
def test_the_stage_measures_dependent_launches_where_they_can_be_made(
    monkeypatch: pytest.MonkeyPatch, possible: bool
) -> None:
    def measure(rows: int, n: int, l2_bytes: int, dependent: bool) -> ShapeTimings:
        return ShapeTimings(rows, n, l2_bytes > 0, 6, 30, True, (timing("row", "dpl", 1),), dependent)

    monkeypatch.setattr(benchmark, "measure", measure)
    monkeypatch.setattr(benchmark, "can_launch_dependent", lambda: possible)
    verdict = Verdict("m.gguf", "m.dpl")
    benchmark.check_bandwidth([Use(5120, 54, 3), Use(40, 2, 10)], 1, verdict)
    assert [shape.dependent for shape in verdict.bandwidth] == ([False, True] * 2 if possible else [False] * 2)
    (outcome,) = verdict.of("bandwidth")
    assert ("ordinary launches only: dependent ones need cuda.bindings" in outcome.detail) == (not possible)


def test_all_forms_say_it() -> None:
    verdict = measured()
    document = json.loads(to_json(verdict, 5))
    check_schema(document, "verdict.schema.json")
    assert document["token_ms"] == {"native": 0.152, "padded": 0.103, "dpl": 0.11}
    for text in (to_markdown(verdict), to_html(verdict)):
        assert "0.103 ms padded" in text
        assert "1.050" in text
