"""The table of configurations: what it may choose, and that the bits it chooses depend on a row's length alone."""

from __future__ import annotations

import pytest

from repack.layout import DEFAULT, TYPES, QuantType
from verify.contract.forms import LOOP, PF, PLANS, Form, forms_for, pf_applies, row_form, units_of

ROWS = [1, 7, 512, 1024, 2048, 2560, 4096, 16_384, 32_768, 152_064]


@pytest.mark.parametrize("n", [*range(1, 130), 208, 256, 257, 300, 1000])
def test_every_shape_gets_a_form_that_a_hopper_gpu_can_hold(n: int) -> None:
    for rows in ROWS:
        for dependent in (False, True):
            form = row_form(DEFAULT, n, rows, dependent)
            assert form.fits(4 * n)
            assert form.lanes == row_form(DEFAULT, n, 1).lanes
            assert form.threads * form.blocks <= 2048
            assert form.threads * form.blocks * 32 <= 65_536
            assert form.blocks <= 32
            assert form.plan != "walk" or dependent
            assert form.lanes * form.units < max(
                8 * n, 65
            )  # at least half of the lanes have work, or it is a small row


def test_the_shapes_of_the_benchmarks() -> None:
    assert str(row_form(DEFAULT, 54, 5120)) == "row(224,1,224,1,5,once)"
    assert str(row_form(DEFAULT, 54, 5120, dependent=True)) == "row(224,1,224,1,5,walk)"
    assert str(row_form(DEFAULT, 16, 1024, dependent=True)) == "row(64,1,128,2,7,once)"
    assert str(row_form(DEFAULT, 20, 152_064)) == "row(96,1,96,2,9,once)"
    assert str(row_form(DEFAULT, 3, 2048)) == "row(16,1,128,1,8,once)"
    assert str(row_form(DEFAULT, 300, 4)) == "row(512,2,512)"


def test_what_the_compiler_is_told() -> None:
    ordinary, dependent = row_form(DEFAULT, 54, 5120), row_form(DEFAULT, 54, 5120, dependent=True)
    assert set(ordinary.options(5120, 54, False)) - set(ordinary.defines) == {"-DDPL_N=54", "-DDPL_DEPENDENT=0"}
    assert set(ordinary.options(5120, 54, True)) - set(ordinary.defines) == {"-DDPL_N=54"}
    assert dependent.options(5120, 54, False) == dependent.options(5120, 54, True)
    assert row_form(DEFAULT, 128, 9).options(9, 128, False)[-1] == "-DDPL_N=128"  # two units a lane: the wait stays
    assert row_form(DEFAULT, 300, 4).options(4, 300, False) == row_form(DEFAULT, 300, 4).defines
    narrow = row_form(DEFAULT, 16, 4096)
    assert "-DDPL_WHOLE=1" in narrow.options(4096, 16, False)
    assert "-DDPL_WHOLE=1" not in narrow.options(4095, 16, False)


@pytest.mark.parametrize("quant", [quant for quant in TYPES.values() if units_of(quant, 1)], ids=lambda q: q.name)
def test_every_type_gets_forms_that_a_hopper_gpu_can_hold(quant: QuantType) -> None:
    for columns in [*range(256, 40_000, 256), 65_536, 262_144]:
        n = columns // quant.block_weights
        forms = {row_form(quant, n, rows, dependent) for rows in (1, 4096, 152_064) for dependent in (False, True)}
        assert len({form.lanes for form in forms}) == 1  # the bits depend on the row's length alone
        for form in forms:
            assert form.fits(units_of(quant, n))
            assert form.threads * form.blocks <= 2048


def test_grids() -> None:
    assert Form("row", 64, 1, 128, 2).grid(9, 132) == 3
    assert Form("row", 64, 1, 128, 1, 9, "walk").grid(100_000, 132) == 9 * 132
    assert Form("row", 64, 1, 128, 1, 9, "walk").grid(9, 132) == 5
    assert LOOP.grid(9, 132) == 9


def test_a_form_knows_the_rows_that_fit_it() -> None:
    for plan in PLANS:
        form = Form("row", 64, 1, 64, plan=plan)
        assert form.fits(64)
        assert form.fits(65) == (plan == "turns")


@pytest.mark.parametrize(
    "wrong",
    [
        {"lanes": 48},
        {"lanes": 0},
        {"lanes": 64, "threads": 96},
        {"lanes": 8, "threads": 40},
        {"lanes": 32, "threads": 2048},
        {"lanes": 32, "plan": "run"},
    ],
)
def test_a_form_that_no_kernel_can_run(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="expected"):
        Form("row", **wrong)  # type: ignore[arg-type]


def test_pf_where_its_gate_is_open() -> None:
    assert [n for n in range(1, 100) if pf_applies(n)] == list(range(33, 65))
    assert [form.name for form in forms_for(DEFAULT, 54, 9)] == ["loop", "pf", "row"]
    assert forms_for(DEFAULT, 54, 9, ("pf",)) == (PF,)
    assert forms_for(DEFAULT, 3, 9, ("pf",)) == ()
