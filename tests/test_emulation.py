from __future__ import annotations

import hashlib
from collections.abc import Sequence

import gguf
import numpy as np
import pytest

from repack.layout import DEFAULT, TYPES, QuantType
from repack.rows import Bytes
from tests.support.rows import EDGE_D, edge_rows, random_rows, set_scales
from verify.contract import emulation
from verify.contract.activations import Activations, adversarial, seeded
from verify.contract.emulation import as_bits, decode_digest, decode_forms
from verify.contract.forms import LOOP, PF, Form, forms_for, row_form, units_of
from verify.contract.quants import contract_of
from verify.contract.quants.contract import Floats, group_dots

SIZES = [1, 2, 3, 5, 7, 8, 16, 20, 54, 56, 74]
WITH_KERNEL = [quant for quant in TYPES.values() if units_of(quant, 1)]
each_type = pytest.mark.parametrize("quant", WITH_KERNEL, ids=lambda quant: quant.name)


def decode(native: Bytes, n: int, vectors: Sequence[Activations], form: Form) -> Floats:
    return emulation.decode(DEFAULT, native, n, vectors, form)


def one_block(ql: int = 0, qh: int = 0, scale: int = 1, d: float = 1.0) -> Bytes:
    """A row of one super-block with the same byte everywhere in a field."""
    scales = np.full(16, scale, np.int8).view(np.uint8)
    d_bytes = np.array([d], "<f2").view(np.uint8)
    return np.concatenate([np.full(128, ql, np.uint8), np.full(64, qh, np.uint8), scales, d_bytes])[None]


def ones(n: int = 1) -> Activations:
    return Activations("ones", np.ones(256 * n, np.int8), np.ones(8 * n, np.float16))


def any_forms(n: int) -> list[Form]:
    return [*forms_for(DEFAULT, n, 64), Form("row", 16, 5, 64), Form("row", 1, 1, 32), Form("row", 224, 1, 224)]


@pytest.mark.parametrize("form", [LOOP, row_form(DEFAULT, 1, 1), Form("row", 2, 1, 32)], ids=str)
@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (one_block(), -32 * 256),  # all quants 0, so all weights -32
        (one_block(ql=0xFF, qh=0xFF), 31 * 256),
        (one_block(ql=0x21), (-31 + -30) * 128),  # low nibbles are groups 0 and 1, high ones 2 and 3
        (one_block(qh=0b11_10_01_00), 16 * (0 + 1 + 2 + 3) * 64 - 32 * 256),
        (one_block(scale=-128, d=0.5), 32 * 256 * 64),
        (one_block(d=-0.0), 0),
    ],
)
def test_hand_made_blocks(form: Form, block: Bytes, expected: float) -> None:
    assert decode(block, 1, [ones()], form).tolist() == [[expected]]


def test_every_weight_has_its_own_place() -> None:
    """One weight at a time: the quant, the scale and the activation of weight j meet, for every j."""
    native = random_rows(1, 1, 3)
    weights = gguf.quants.dequantize(native, gguf.GGMLQuantizationType.Q6_K).reshape(256)
    vectors = []
    for j in range(256):
        quants = np.zeros(256, np.int8)
        quants[j] = 1
        vectors.append(Activations(str(j), quants, np.ones(8, np.float16)))
    for form in (LOOP, row_form(DEFAULT, 1, 1)):
        np.testing.assert_array_equal(decode(native, 1, vectors, form)[:, 0], weights)


def scalar_loop(row: Bytes, n: int, vector: Activations) -> np.float32:
    """The loop form written out for one row, thread by thread, from docs/decode.md."""
    lanes = [np.float32(0)] * 256
    for u in range(8 * n):
        block, half, group = u >> 3, u >> 2 & 1, u & 3
        data = row[210 * block :][:210]
        total = 0
        for i in range(32):
            nibble = int(data[64 * half + 32 * (group & 1) + i]) >> (4 if group > 1 else 0) & 15
            q = nibble | (int(data[128 + 32 * half + i]) >> 2 * group & 3) << 4
            scale = int(data[192 + 8 * half + 2 * group + i // 16].view(np.int8))
            total += scale * (q - 32) * int(vector.quants[32 * u + i])
        d = data[208:].view("<f2")[0].astype(np.float32)
        lanes[u % 256] = lanes[u % 256] + d * vector.d8[u].astype(np.float32) * np.float32(total)
    sums = []
    for warp in range(8):
        values = lanes[32 * warp :][:32]
        for offset in (16, 8, 4, 2, 1):
            values = [values[lane] + values[lane ^ offset] for lane in range(32)]
        sums.append(values[0])
    total_sum = sums[0]
    for value in sums[1:]:
        total_sum = total_sum + value
    return np.float32(total_sum)


@pytest.mark.parametrize("n", [1, 33, 65])
def test_loop_is_the_scalar_loop(n: int) -> None:
    native, vector = random_rows(2, n, n), seeded(256 * n, 2)
    expected = np.array([scalar_loop(row, n, vector) for row in native], np.float32)
    np.testing.assert_array_equal(decode(native, n, [vector], LOOP)[0].view(np.uint32), expected.view(np.uint32))


def test_pf_and_loop_agree() -> None:
    native, vectors = random_rows(9, 54), [seeded(256 * 54, 1), *adversarial(256 * 54)]
    np.testing.assert_array_equal(decode(native, 54, vectors, PF), decode(native, 54, vectors, LOOP))


def test_lanes_change_the_order_but_units_and_threads_do_not() -> None:
    native, vectors = random_rows(50, 54), [seeded(256 * 54, 1)]
    configs = ((96, 2, 96), (96, 3, 384), (64, 4, 64))
    bits = [decode(native, 54, vectors, Form("row", *config)).tobytes() for config in configs]
    assert bits[0] == bits[1]
    assert bits[0] != bits[2]


def reference(native: Bytes, n: int, vector: Activations) -> tuple[Floats, Floats]:
    """The product in float64 by gguf's own dequantizer, and the sum of the terms' magnitudes."""
    weights = gguf.quants.dequantize(native, gguf.GGMLQuantizationType.Q6_K).reshape(len(native), 256 * n)
    product = weights.astype(np.float64) * vector.values()
    return product.sum(-1), np.abs(product).sum(-1)


@pytest.mark.parametrize("n", SIZES)
def test_against_float64(n: int) -> None:
    native, vectors = random_rows(40, n, n), (seeded(256 * n, 1), seeded(256 * n, 2), *adversarial(256 * n))
    for form, outputs in decode_forms(DEFAULT, native, n, vectors, any_forms(n)).items():
        for vector, output in zip(vectors, outputs, strict=True):
            expected, _ = reference(native, n, vector)
            assert np.linalg.norm(output - expected) <= 1e-5 * np.linalg.norm(expected), (form, vector.name)


def test_nothing_is_subnormal_so_flushing_to_zero_cannot_matter() -> None:
    """Every partial result is a multiple of 2^-48, whatever d and d8 are; the smallest d and d8 reach it."""
    n = 5
    native = random_rows(20, n)
    bits = np.random.default_rng(1).choice(EDGE_D[:6], (20, n))  # zeros and the smallest d of both kinds
    set_scales(native, n, bits)
    smallest = Activations("smallest", seeded(256 * n, 1).quants, np.full(8 * n, 2.0**-24, np.float16))
    for outputs in decode_forms(DEFAULT, native, n, [smallest], any_forms(n)).values():
        exact = outputs.astype(np.float64) * 2.0**48
        np.testing.assert_array_equal(exact, np.rint(exact))
        assert np.abs(exact).max() > 0


def test_infinite_and_nan_scales_come_through() -> None:
    native = edge_rows(len(EDGE_D) + 1, 3)
    for outputs in decode_forms(DEFAULT, native, 3, [seeded(256 * 3, 1)], any_forms(3)).values():
        finite = np.isfinite(outputs[0])
        assert finite.tolist() == [True] * 8 + [False] * 4 + [True]


def test_integer_sums_are_exact_at_the_edges() -> None:
    worst = Activations("worst", np.full(256, -128, np.int8), np.ones(8, np.float16))
    quants = np.full((1, 256), -127, np.int8)
    assert group_dots(quants, [worst], 32).tolist() == [[[127.0 * 128 * 32] * 8]]


def test_pieces_of_rows_and_of_columns_do_not_change_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    for quant in (DEFAULT, TYPES[39]):
        n = 7
        native, vectors = random_rows(37, n, 0, quant), [seeded(n * quant.block_weights, 1)]
        form = Form("row", 4, 1, 32)
        whole = emulation.decode(quant, native, n, vectors, form)
        for weights in (3, 12):
            monkeypatch.setattr("verify.contract.emulation.CHUNK_WEIGHTS", weights * quant.block_weights)
            np.testing.assert_array_equal(emulation.decode(quant, native, n, vectors, form), whole)


def test_no_rows() -> None:
    assert decode(np.empty((0, 630), np.uint8), 3, [seeded(256 * 3, 1)], LOOP).shape == (1, 0)


def test_digest_is_of_little_endian_words_with_one_nan() -> None:
    values = np.array([1.5, -0.0, np.inf, np.nan], np.float32)
    other = values.copy()
    other.view(np.uint32)[3] = 0xFFFFFFFF
    words = bytes.fromhex("0000c03f 00000080 0000807f 0000c07f")
    assert decode_digest([values]) == decode_digest([other[:2], other[2:]]) == hashlib.sha256(words).hexdigest()
    assert decode_digest([values.view(np.uint32)]) == decode_digest([values])
    other.view(np.uint32)[3] = 0x7F800001
    assert decode_digest([other]) == decode_digest([values])
    assert decode_digest([-values]) != decode_digest([values])
    assert as_bits(values).dtype == np.dtype("<u4")


@pytest.mark.parametrize("config", [(0, 1, 32), (24, 1, 48), (48, 1, 96), (64, 1, 96), (16, 1, 16), (1024, 1, 2048)])
def test_impossible_configurations_are_refused(config: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="expected"):
        Form("row", *config)


@each_type
def test_the_rule_gives_possible_forms_everywhere(quant: QuantType) -> None:
    for n in range(1, 1200):
        for rows in (1, 4096, 70_000):
            form = row_form(quant, n, rows)
            assert form.fits(units_of(quant, n))
            assert form.lanes == row_form(quant, n, 1).lanes


def test_forms_for_keeps_to_the_gate_and_the_names() -> None:
    assert [form.name for form in forms_for(DEFAULT, 32, 8)] == ["loop", "row"]
    assert [form.name for form in forms_for(DEFAULT, 33, 8)] == ["loop", "pf", "row"]
    assert [form.name for form in forms_for(DEFAULT, 64, 8)] == ["loop", "pf", "row"]
    assert [form.name for form in forms_for(DEFAULT, 65, 8)] == ["loop", "row"]
    assert [form.name for form in forms_for(DEFAULT, 33, 8, ("row", "pf"))] == ["pf", "row"]


def test_types_without_a_kernel_have_no_form(without_kernel: QuantType) -> None:
    assert forms_for(without_kernel, 3, 8) == ()
    native = random_rows(1, 3, 0, without_kernel)
    with pytest.raises(ValueError, match="no kernel"):
        decode_forms(without_kernel, native, 3, [seeded(96, 1)], [Form("row", 32, 1, 32)])


def gguf_weights(native: Bytes, quant: QuantType) -> Floats:
    weights = gguf.quants.dequantize(native, gguf.GGMLQuantizationType(quant.number))
    return np.asarray(weights, np.float32).reshape(len(native), -1)


@pytest.mark.parametrize("quant", TYPES.values(), ids=lambda quant: quant.name)
@pytest.mark.parametrize("n", [1, 3, 33])
def test_the_oracle_is_gguf_s_dequantizer(quant: QuantType, n: int) -> None:
    contract = contract_of(quant)
    assert contract is not None
    for native in (random_rows(9, n, n, quant), edge_rows(13, n, n, quant)):
        with np.errstate(invalid="ignore", over="ignore"):
            expected = gguf_weights(native, quant)
            exact = contract.dequantize(native, n)
        finite = np.isfinite(expected)
        with np.errstate(over="ignore"):
            assert (np.isfinite(exact.astype(np.float32)) == finite).all()  # of e8m0 scales the largest overflow
        np.testing.assert_allclose(exact[finite], expected[finite], rtol=1e-6, atol=2.0**-149)


@each_type
@pytest.mark.parametrize("n", [1, 2, 3, 7, 33, 130])
def test_every_type_against_float64(quant: QuantType, n: int) -> None:
    weights = n * quant.block_weights
    native, vectors = random_rows(9, n, n, quant), (seeded(weights, 1), *adversarial(weights))
    exact = gguf_weights(native, quant).astype(np.float64)
    for form in (row_form(quant, n, 9), Form("row", 16, 5, 64), Form("row", 1, 1, 32)):
        for vector, output in zip(vectors, emulation.decode(quant, native, n, vectors, form), strict=True):
            norms = np.linalg.norm(exact, axis=1) * np.linalg.norm(vector.values())
            assert (np.abs(output - exact @ vector.values()) <= 1e-5 * norms).all(), (form, vector.name)


@each_type
def test_every_weight_of_every_type_has_its_own_place(quant: QuantType) -> None:
    """One weight at a time: the quant, the scales and the activation of weight j meet, for every j."""
    native, count = random_rows(1, 2, 3, quant), 2 * quant.block_weights
    vectors = []
    for j in range(count):
        quants = np.zeros(count, np.int8)
        quants[j] = 1
        vectors.append(Activations(str(j), quants, np.ones(count // 32, np.float16)))
    found = emulation.decode(quant, native, 2, vectors, Form("row", 32, 1, 32))[:, 0]
    np.testing.assert_allclose(found, gguf_weights(native, quant)[0], rtol=1e-6, atol=0)
