"""What the reports make of timings: gains by hand-computed ratios, the sum for one token, in every form."""

from __future__ import annotations

import json

import pytest

from repack.layout import TYPES, QuantType
from repack.sidecar.manifest import Skipped
from tests.support.reports import check_schema
from verify.gpu.speeds import ShapeTimings, Timing, Use
from verify.reports.as_json import to_json
from verify.reports.markdown import to_markdown
from verify.reports.page import to_html
from verify.reports.speeds import gain_header, gain_rows, timing_rows, token_line
from verify.verdict import Verdict

Q6_K, Q8_0 = TYPES[14], TYPES[8]


def timing(form: str, layout: str, us: float, share: float = 0.5) -> Timing:
    return Timing(form, layout, us - 0.5, us, us + 1, 100.0, 106.0, share)


def shape(
    quant: QuantType, rows: int, n: int, timings: tuple[Timing, ...], *, fits_l2: bool = False, dependent: bool = False
) -> ShapeTimings:
    return ShapeTimings(
        quant=quant, rows=rows, n=n, fits_l2=fits_l2, copies=6, launches=30, identical=True, timings=timings,
        dependent=dependent,
    )  # fmt: skip


def use(quant: QuantType, rows: int, n: int, times: int) -> Use:
    return Use(quant=quant, rows=rows, n=n, times=times)


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
        shape(Q6_K, 5120, 54, first, fits_l2=True),
        shape(Q6_K, 40, 2, second),
    ]
    verdict.uses = [use(Q6_K, 5120, 54, 3), use(Q6_K, 40, 2, 10)]
    return verdict


def test_gains_are_those_of_the_best_forms() -> None:
    assert gain_header(measured())[-2:] == ("native us", "native / dpl")
    assert gain_rows(measured()) == [
        ("Q6_K 5120 x 13824", "3 x", "21.00", "20.00", "1.050", "125.0%", "24.00", "1.200"),
        ("Q6_K 40 x 512", "10 x", "4.00", "5.00", "0.800", "50.0%", "8.00", "1.600"),
    ]


def test_native_is_compared_only_if_it_was_measured_everywhere() -> None:
    """Figures of native are there only where it had forms of its own: with dpl's it looks slower than it is."""
    verdict = measured()
    verdict.bandwidth.append(shape(Q6_K, 40, 3, (timing("row", "padded", 4), timing("row", "dpl", 2))))
    assert not any("native" in column for column in gain_header(verdict))
    assert {len(row) for row in gain_rows(verdict)} == {len(gain_header(verdict))}
    assert gain_rows(verdict)[2] == ("Q6_K 40 x 768", "0 x", "4.00", "2.00", "2.000", "50.0%")


def test_one_token_is_the_sum_over_its_tensors() -> None:
    assert token_line(measured()) == (
        "One token's products with the converted tensors, cold: 0.152 ms native, 0.103 ms padded, 0.110 ms dpl; "
        "dpl takes 1.068 of padded's time."
    )
    assert not token_line(Verdict("m.gguf", "m.dpl"))


def test_one_token_takes_all_types_and_names_what_is_not_counted() -> None:
    verdict = Verdict("m.gguf", "m.dpl")
    timings = (timing("row", "padded", 3), timing("row", "dpl", 2))
    verdict.bandwidth = [
        shape(Q6_K, 5120, 54, (timing("row", "padded", 21), timing("row", "dpl", 20))),
        shape(Q8_0, 5120, 54, timings),  # the same numbers as above, and another shape: 54 blocks of 32 weights
    ]
    verdict.uses = [use(Q6_K, 5120, 54, 3), use(Q8_0, 5120, 54, 10)]
    verdict.not_counted = [Skipped(0, "F32", 1234, 5), Skipped(12, "Q4_K", 27, None)]
    assert [row[:2] for row in gain_rows(verdict)] == [("Q6_K 5120 x 13824", "3 x"), ("Q8_0 5120 x 1728", "10 x")]
    assert token_line(verdict) == (
        "One token's products with the converted tensors, cold: 0.093 ms padded, 0.080 ms dpl; "
        "dpl takes 0.860 of padded's time. Not counted, because they are not converted: 1,234 F32, 27 Q4_K."
    )
    document = json.loads(to_json(verdict, 5))
    check_schema(document, "verdict.schema.json")
    assert document["token_ms"] == {"padded": pytest.approx(0.093), "dpl": pytest.approx(0.08)}
    assert [(one["type"], one["ne0"], one["uses_per_token"]) for one in document["bandwidth"]] == [
        ("Q6_K", 13824, 3),
        ("Q8_0", 1728, 10),
    ]
    assert document["not_counted"] == [
        {"type": "F32", "tensors": 1234, "nbytes": 5},
        {"type": "Q4_K", "tensors": 27, "nbytes": None},
    ]
    for text in (to_markdown(verdict), to_html(verdict)):
        assert "Q8_0 5120 x 1728" in text
        assert "1,234 F32, 27 Q4_K" in text


def test_every_timing_has_its_row() -> None:
    rows = timing_rows(measured())
    assert len(rows) == 11
    assert rows[5] == (
        "Q6_K 5120 x 13824 (fits L2)", "row", "dpl", "20.00", "19.50 to 21.00", "100", "106",
        "125.0% (above the ceiling: not to be trusted)",
    )  # fmt: skip


def test_dependent_launches_are_told_apart_and_no_part_of_the_token() -> None:
    verdict = measured()
    token = token_line(verdict)
    timings = (timing("row", "padded", 2), timing("row", "dpl", 1), timing("waiting", "dpl", 0.8, 0.9))
    verdict.bandwidth.append(shape(Q6_K, 40, 2, timings, dependent=True))
    assert gain_rows(verdict)[-1] == ("Q6_K 40 x 512, dependent", "10 x", "2.00", "1.00", "2.000", "50.0%")
    assert token_line(verdict) == token
    document = json.loads(to_json(verdict, 5))
    check_schema(document, "verdict.schema.json")
    assert [shape["dependent"] for shape in document["bandwidth"]] == [False, False, True]
    for text in (to_markdown(verdict), to_html(verdict)):
        assert "Q6_K 40 x 512, dependent" in text


def test_all_forms_say_it() -> None:
    verdict = measured()
    document = json.loads(to_json(verdict, 5))
    check_schema(document, "verdict.schema.json")
    assert document["token_ms"] == {"native": 0.152, "padded": 0.103, "dpl": 0.11}
    for text in (to_markdown(verdict), to_html(verdict)):
        assert "0.103 ms padded" in text
        assert "1.050" in text
