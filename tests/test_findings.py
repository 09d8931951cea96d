"""What is made of a GPU's answers, without a GPU: places and outputs over the chunks of a tensor."""

from __future__ import annotations

import numpy as np
import pytest

from repack.layout import DEFAULT, TYPES, QuantType
from tests.support.rows import random_rows
from verify.contract.activations import seeded
from verify.contract.forms import LAYOUTS, LOOP, PF, Form
from verify.gpu.findings import NOTHING, UNWRITTEN, ByteDifference, Output, Results, TensorRows
from verify.gpu.launch import can_stage, packer, staged_bytes
from verify.gpu.speeds import ShapeTimings, Timing, Use, best, token_milliseconds

FORMS = (LOOP, PF)


def results(n: int = 3, rows: int = 10) -> Results:
    native = random_rows(rows, n)
    tensor = TensorRows("t", DEFAULT, n, rows, lambda *_: None, lambda *_: None)
    assert len(native) == rows
    return Results(tensor, [seeded(256 * n, 1), seeded(256 * n, 2)], FORMS)


def firsts(*found: tuple[int, int, int, int]) -> np.ndarray:
    """`[layouts, forms, 2]` with nothing found but: layout, form, kind, first index."""
    out = np.full((len(LAYOUTS), len(FORMS), 2), NOTHING, np.uint64)
    for layout, form, kind, first in found:
        out[layout, form, kind] = first
    return out


def test_nothing_found_is_proven() -> None:
    found = results()
    for row0 in (0, 5):
        found.add_difference(row0, NOTHING)
        found.add_outputs(row0, np.full((2, 2, 5), row0, np.uint32), firsts())
    result = found.finish(1.0)
    assert result.proven
    for form in FORMS:
        assert result.bits[form].tolist() == [[0] * 5 + [5] * 5] * 2


def test_rows_that_no_chunk_brought_are_unwritten() -> None:
    found = results()
    found.add_outputs(0, np.zeros((2, 2, 5), np.uint32), firsts())
    assert (found.finish(1.0).bits[LOOP][:, 5:] == UNWRITTEN).all()


@pytest.mark.parametrize(
    ("byte", "place"),
    [
        (0, (5, 0, "ql", 0)),
        (640 * 2 + 128 * 2 + 7, (7, 2, "ql", 7)),
        (640 + 192 * 3 + 16 + 3, (6, 1, "scales", 3)),
        (640 + 630 + 9, (6, -1, "padding", 9)),
    ],
)
def test_a_first_byte_is_a_place(byte: int, place: tuple[int, int, str, int]) -> None:
    found = results()
    found.add_difference(5, byte)
    found.add_difference(5, 3)  # only the first chunk's counts
    assert found.finish(1.0).difference == ByteDifference(*place)
    assert not found.finish(1.0).proven


def test_a_first_output_is_a_vector_and_a_row() -> None:
    found = results()
    bits = np.zeros((2, 2, 5), np.uint32)
    found.add_outputs(5, bits, firsts((2, 1, 0, 8), (1, 0, 1, 4)))
    found.add_outputs(5, bits, firsts((2, 1, 0, 0)))
    result = found.finish(1.0)
    assert result.mismatches == (Output(PF, "dpl", "seeded-2", 8),)
    assert result.unwritten == (Output(LOOP, "padded", "seeded-1", 9),)
    assert not result.proven


def test_activations_are_packed_as_the_form_reads_them() -> None:
    vector = seeded(512, 1)
    assert packer(DEFAULT, "loop")(vector)[:512].view(np.int8).tolist() == vector.quants.tolist()
    assert packer(DEFAULT, "row")(vector).size == 640
    assert packer(TYPES[8], "row")(vector).size == 512 + 2 * 16


def test_a_type_without_a_kernel_has_no_packing(without_kernel: QuantType) -> None:
    with pytest.raises(ValueError, match="IQ4_NL has no kernel"):
        packer(without_kernel, "row")


def test_rows_are_staged_where_they_fit() -> None:
    form = Form("row", 32, 1, 128)
    assert staged_bytes(DEFAULT, form, 1) == 4 * 256  # 15 bytes before the row's 210, and a word after: 16 items
    assert can_stage(DEFAULT, form, 58)
    assert not can_stage(DEFAULT, form, 59)
    assert not can_stage(DEFAULT, LOOP, 1)


def test_token_times_need_every_use_measured_with_ordinary_launches() -> None:
    def shape(rows: int, dependent: bool = False, **us: float) -> ShapeTimings:
        timings = tuple(Timing("row", layout, time, time, time, 0, 0, 0) for layout, time in us.items())
        return ShapeTimings(DEFAULT, rows, 3, False, 5, 30, True, timings, dependent)

    uses = [Use(DEFAULT, 10, 3, 2), Use(DEFAULT, 20, 3, 1)]
    both = [shape(10, native=9, staged=4, padded=5, dpl=3), shape(20, padded=7, dpl=6)]
    assert best(both[0])["native"].median == 4
    assert token_milliseconds(uses, both) == {"padded": pytest.approx(0.017), "dpl": pytest.approx(0.012)}
    assert token_milliseconds(uses, [both[0], shape(20, dependent=True, padded=1, dpl=1)]) == {}
    assert token_milliseconds([], both) == {}
