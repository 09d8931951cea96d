"""The float64 oracle: what it lets through, and what it must not. Expected values are hand-made or ggml's own."""

from __future__ import annotations

import numpy as np
import pytest

from repack.layout import DEFAULT, TYPES, QuantType
from tests.support.rows import edge_rows, random_rows
from verify.contract.activations import seeded
from verify.contract.forms import LOOP
from verify.contract.quants import contract_of
from verify.stages import oracle
from verify.stages.oracle import TOLERANCE, Oracle, judged

ROWS, N = 6, 5


def exact_of(rows: int = ROWS, quant: QuantType = DEFAULT) -> np.ndarray:
    contract = contract_of(quant)
    assert contract is not None
    return contract.dequantize(random_rows(rows, N, quant=quant), N)


def judge(exact: np.ndarray, values: np.ndarray) -> tuple[int, float]:
    found = Oracle(len(exact))
    half = exact.shape[1] // 2
    for part in (slice(0, half), slice(half, None)):
        found.add(exact[:, part], values[:, part], np.ones(exact[:, part].shape[1]))
    return found.worst()


def test_the_float64_weights_are_ggmls_own() -> None:
    libgguf = pytest.importorskip("libgguf")
    weights = libgguf.dequantize_rows(random_rows(ROWS, N), libgguf.GGMLQuantizationType.Q6_K)
    assert judge(exact_of(), np.asarray(weights, np.float32).reshape(ROWS, -1))[1] < 1e-7


def test_one_wrong_weight_is_noticed() -> None:
    exact = exact_of()
    values = exact.astype(np.float32)
    assert judge(exact, values)[1] < 1e-7
    values[2, 77] *= np.float32(1.01)
    row, error = judge(exact, values)
    expected = np.linalg.norm(values[2] - exact[2]) / np.linalg.norm(exact[2])
    assert row == 2
    assert error == pytest.approx(expected, rel=1e-6)
    assert error > TOLERANCE
    values[3, 0] = np.nan
    assert judge(exact, values) == (3, np.inf)


def test_a_row_of_zeros_has_to_be_exact() -> None:
    values = np.zeros((2, 64), np.float32)
    values[1, 5] = 1e-30
    assert judge(np.zeros((2, 64)), values)[0] == 1
    assert judge(np.zeros((2, 64)), values)[1] > TOLERANCE


def test_special_values_have_to_stand_in_their_places() -> None:
    exact = np.ones((3, 4))
    exact[0, 1], exact[1, 2], exact[2, 3] = np.inf, np.nan, 1e39  # the last is more than a float32 can hold
    values = np.array([[1, np.inf, 1, 1], [1, 1, np.nan, 1], [1, 1, 1, np.inf]], np.float32)
    assert judge(exact, values)[1] == 0
    for row, at, wrong in ((0, 1, -np.inf), (1, 2, np.inf), (2, 3, 3e38), (2, 3, -np.inf), (1, 0, np.inf)):
        changed = values.copy()
        changed[row, at] = wrong
        assert judge(exact, changed) == (row, np.inf)


def product(exact: np.ndarray, found: np.ndarray, activations: np.ndarray) -> object:
    judged_rows = Oracle(len(exact))
    judged_rows.add(exact, exact.astype(np.float32), activations)
    return judged_rows.wrong_product({LOOP: np.asarray(found, np.float32)})


def test_a_wrong_product_is_named() -> None:
    exact, x = exact_of(), seeded(exact_of().shape[1], 1).values()
    good = (exact @ x).astype(np.float32)
    norms = np.linalg.norm(exact, axis=1) * np.linalg.norm(x)
    assert product(exact, good, x) is None
    slightly = good.astype(np.float64)
    slightly[4] += 0.9e-5 * norms[4]
    assert product(exact, slightly, x) is None
    slightly[4] += 0.2e-5 * norms[4]
    assert product(exact, slightly, x) == (LOOP, 4, pytest.approx(slightly[4]), pytest.approx(float(exact[4] @ x)))
    for wrong in (np.nan, np.inf):
        bad = good.copy()
        bad[1] = wrong
        assert product(exact, bad, x) is not None


def test_a_product_is_not_finite_exactly_where_a_weight_is_not() -> None:
    exact, x = np.ones((3, 4)), np.ones(4)
    exact[1, 2], exact[2, 0] = np.nan, np.inf
    assert product(exact, np.array([4, np.nan, np.inf]), x) is None
    assert product(exact, np.array([4, 4, np.inf]), x) is not None
    assert product(exact, np.array([4, np.nan, 3]), x) is not None


def test_what_float32_cannot_hold_is_no_difference() -> None:
    """Powers of two of MXFP4 reach both ends: sums that overflow, and products with few bits or none."""
    x = np.ones(4)
    assert product(np.full((1, 4), 2.0**127), np.array([np.inf]), x) is None
    assert product(np.full((1, 4), 2.0**-130), np.array([0.0]), x) is None
    assert product(np.full((1, 4), 2.0**-100), np.array([0.0]), x) is not None


@pytest.mark.parametrize("quant", TYPES.values(), ids=lambda quant: quant.name)
def test_rows_are_judged_in_pieces(quant: QuantType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of 3 blocks and whole rows agree, and a changed byte anywhere in a row is seen."""
    contract = contract_of(quant)
    assert contract is not None
    native = random_rows(ROWS, N, quant=quant)
    vector = seeded(quant.block_weights * N, 2)
    whole = judged(contract, native, native, N, vector)
    monkeypatch.setattr(oracle, "STEP_WEIGHTS", 3 * quant.block_weights)
    pieces = judged(contract, native, native, N, vector)
    assert whole.worst()[1] < 1e-6
    assert pieces.worst() == pytest.approx(whole.worst())
    products = {LOOP: (contract.dequantize(native, N) @ vector.values()).astype(np.float32)}
    assert whole.wrong_product(products) is None
    assert pieces.wrong_product(products) is None
    for block in range(N):
        changed = native.copy()
        changed[3, block * quant.block_bytes + quant.planes[0].offset] ^= 0x55
        row, error = judged(contract, native, changed, N, vector).worst()
        assert (row, error > TOLERANCE) == (3, True)


@pytest.mark.parametrize("quant", TYPES.values(), ids=lambda quant: quant.name)
def test_scales_at_the_edges_are_what_gguf_makes_of_them(quant: QuantType) -> None:
    contract = contract_of(quant)
    assert contract is not None
    native = edge_rows(24, N, quant=quant)
    vector = seeded(quant.block_weights * N, 2)
    assert judged(contract, native, native, N, vector).worst()[1] < TOLERANCE
