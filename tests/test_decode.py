"""Stage decode without a GPU: the emulation for real, and a stand-in for the GPU that computes by emulation."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from repack.errors import EnvironmentFailure
from repack.gguf.dequantize import dequantize
from repack.gguf.index import GGUFIndex, Tensor, read_index
from repack.layout import DEFAULT, TYPES, QuantType
from repack.rows import Bytes
from repack.sidecar.manifest import Entry
from repack.sidecar.reader import Sidecar
from tests.support.judging import dpl_byte, flip, judge
from tests.support.models import Q6_K, Model, T, q6_k
from verify.contract.activations import Activations
from verify.contract.emulation import decode_forms
from verify.contract.forms import FORM_NAMES, LOOP, Form
from verify.gpu.findings import ByteDifference, Output, Seconds, TensorResult, TensorRows
from verify.gpu.speeds import ShapeTimings, Timing, Use, token_milliseconds
from verify.pairs import Pair, opened
from verify.run import Options
from verify.stages.bandwidth import uses
from verify.stages.decode import CheckTensor, Request, decoding
from verify.verdict import Status, Verdict

FilesPair = tuple[Path, Path]


def emulating(change: Callable[[TensorResult], TensorResult] = lambda result: result) -> CheckTensor:
    """A GPU that is none: it reads the native rows and emulates."""

    def check(tensor: TensorRows, vectors: Sequence[Activations], forms: Sequence[Form]) -> TensorResult:
        native = np.empty((tensor.rows, tensor.quant.block_bytes * tensor.n), np.uint8)
        tensor.read_native(0, tensor.rows, native)
        outputs = decode_forms(tensor.quant, native, tensor.n, vectors, forms)
        bits = {form: out.view(np.uint32) for form, out in outputs.items()}
        return change(TensorResult(bits, None, (), (), Seconds(1.0, 0.25, 0.25, 0.25, 0.25)))

    return check


@contextlib.contextmanager
def decoded(pair: FilesPair, gpu: CheckTensor | None, rows: int | None = 4) -> Iterator[Verdict]:
    index = read_index(pair[0])
    sources = {tensor.name: tensor for tensor in index.tensors}
    with Sidecar(pair[1]) as sidecar:
        manifest, start = sidecar.manifest, sidecar.data_start
    verdict = Verdict(str(pair[0]), str(pair[1]))
    with opened(pair[1], index) as files:
        pairs = []
        for entry in manifest.tensors:
            pairs.append(Pair(entry, start, sources[entry.name]))
            start += entry.dpl_nbytes
        with decoding(pairs, files, Request(rows, 0, FORM_NAMES, gpu, 2), verdict):
            pass
    yield verdict


def statuses(verdict: Verdict) -> dict[str | None, Status]:
    return {outcome.tensor: outcome.status for outcome in verdict.of("decode")}


def test_both_devices_print_the_same_digests(pair: FilesPair) -> None:
    with decoded(pair, None) as on_cpu, decoded(pair, emulating()) as on_gpu, decoded(pair, None, None) as whole:
        assert on_cpu.exit_code == on_gpu.exit_code == 5  # decoding alone proves nothing
        assert [(d.tensor, d.form, d.digest) for d in on_cpu.decoded] == [
            (d.tensor, d.form, d.digest) for d in on_gpu.decoded
        ]
        assert [d.all_rows_digest for d in on_gpu.decoded] == [d.digest for d in whole.decoded]
        assert on_gpu.timings["gpu read"] == 0.25 * 5


def test_all_layouts_have_to_agree(pair: FilesPair) -> None:
    flip(pair[1], dpl_byte(pair[1], "last", 0, 3))
    verdict = judge(*pair, Options(rows=None, device="cpu"))
    (failed,) = [outcome for outcome in verdict.of("decode") if outcome.status is Status.FAILED]
    assert failed.tensor == "last"
    assert "row 0" in failed.detail


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: replace(r, difference=ByteDifference(4, 2, "qh", 7)), "block 2, qh[7]"),
        (lambda r: replace(r, mismatches=(Output(LOOP, "dpl", "seeded-0", 2),)), "loop dpl: row 2 has other bits"),
        (lambda r: replace(r, unwritten=(Output(LOOP, "padded", "seeded-0", 1),)), "loop padded: row 1 is not written"),
        (lambda r: replace(r, bits={form: bits ^ np.uint32(1) for form, bits in r.bits.items()}), "the contract"),
    ],
    ids=["bytes", "layouts", "unwritten", "contract"],
)
def test_what_a_gpu_finds_fails(pair: FilesPair, change: Callable[[TensorResult], TensorResult], message: str) -> None:
    with decoded(pair, emulating(change)) as verdict:
        assert verdict.exit_code == 1
        assert any(message in outcome.detail for outcome in verdict.of("decode")), [*verdict.of("decode")]


@pytest.mark.parametrize("factor", [1.1, np.nan])
def test_what_both_files_give_has_to_be_the_product(
    pair: FilesPair, monkeypatch: pytest.MonkeyPatch, factor: float
) -> None:
    """The same mistake in both layouts: only float64 can tell."""

    def wrong(*of: object) -> dict[Form, np.ndarray]:
        return {form: bits * np.float32(factor) for form, bits in decode_forms(*of).items()}  # type: ignore[arg-type]

    monkeypatch.setattr("verify.stages.decode.decode_forms", wrong)
    with decoded(pair, None) as verdict:
        assert verdict.exit_code == 1
        details = [outcome.detail for outcome in verdict.of("decode") if outcome.status is Status.FAILED]
        assert len(details) == 5
        assert all("is not the product of weights and activations in" in detail for detail in details)
        assert {outcome.status for outcome in verdict.of("oracle")} == {Status.PASSED, Status.SKIPPED}


def test_weights_that_gguf_reads_otherwise_fail(pair: FilesPair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slightly other weights, in one row of each tensor."""

    def wrong(native: Bytes, quant: QuantType) -> np.ndarray:
        weights = dequantize(native, quant)
        weights[-1] *= np.float32(1.0001)
        return weights

    monkeypatch.setattr("verify.stages.oracle.dequantize", wrong)
    with decoded(pair, None) as verdict:
        assert verdict.exit_code == 1
        details = {o.tensor: o.detail for o in verdict.of("oracle") if o.status is Status.FAILED}
        assert len(details) == 5
        assert "expert 3, row 4 dequantizes differently, error 1.0e-04 of the norm" in details["experts"]
        assert {outcome.status for outcome in verdict.of("decode")} == {Status.PASSED, Status.SKIPPED}


def test_a_gpu_that_breaks_leaves_the_rest_unchecked(pair: FilesPair) -> None:
    def broken(tensor: TensorRows, vectors: Sequence[Activations], forms: Sequence[Form]) -> TensorResult:
        if tensor.name == "`experts`":
            raise EnvironmentFailure("CUDA failed", where=tensor.name)
        return emulating()(tensor, vectors, forms)

    with decoded(pair, broken) as verdict:
        assert verdict.exit_code == 4
        assert statuses(verdict) == {
            "two.dims": Status.PASSED,
            "one.dim": Status.PASSED,
            "experts": Status.FAILED,
            "four.dims": Status.SKIPPED,
            "no.rows": Status.SKIPPED,
            "last": Status.SKIPPED,
        }
        assert "not checked" in [*verdict.of("decode")][-1].detail


def test_nan_and_infinite_d_are_decoded_alike(tmp_path: Path) -> None:
    from repack import convert_file

    raw = np.frombuffer(q6_k(20), np.uint8).reshape(20, 210).copy()
    raw[:6, 208:] = np.array([0x7E00, 0xFE01, 0x7C00, 0xFC00, 0x0001, 0x8000], "<u2").view(np.uint8).reshape(6, 2)
    model = Model([T("a", (1280, 4), Q6_K, raw.tobytes())]).write(tmp_path / "m.gguf")
    convert_file(model, tmp_path / "m.dpl")
    assert judge(model, tmp_path / "m.dpl", Options(device="cpu")).exit_code == 0


def test_weights_that_are_not_what_gguf_makes_of_them(pair: FilesPair, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*arguments: Any) -> Any:
        return dequantize(*arguments) * np.float32(1.001)

    monkeypatch.setattr("verify.stages.oracle.dequantize", wrong)
    with decoded(pair, None) as verdict:
        outcomes = [outcome for outcome in verdict.of("oracle") if outcome.status is not Status.SKIPPED]
        assert outcomes
        assert all(
            outcome.status is Status.FAILED and "dequantizes differently" in outcome.detail for outcome in outcomes
        )


def test_a_required_gpu_that_is_not_there(pair: FilesPair, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(device: int | None = None) -> None:
        raise EnvironmentFailure("no usable GPU", hint="look at nvidia-smi")

    monkeypatch.setattr("verify.run.preflight", none)
    for options in (Options(require_gpu=True), Options(device="gpu"), Options(device="3")):
        verdict = judge(*pair, options)
        assert verdict.exit_code == 4
        assert "no usable GPU" in next(iter(verdict.of("decode"))).detail
    verdict = judge(*pair)
    assert verdict.exit_code == 0
    (bandwidth,) = verdict.of("bandwidth")
    assert bandwidth.status is Status.SKIPPED
    assert bandwidth.detail == "no usable GPU"
    assert verdict.no_gpu == "no usable GPU; look at nvidia-smi"
    assert verdict.environment["gpu"] == "none: no usable GPU; look at nvidia-smi"
    assert judge(*pair, Options(device="cpu", require_gpu=True)).exit_code == 2


def entry(name: str, *ne: int) -> Entry:
    return Entry(name, DEFAULT, ne, 0, 0, "", 0, 0)


def test_how_one_token_uses_the_shapes() -> None:
    def index(names: Sequence[str], metadata: dict[str, str | int]) -> GGUFIndex:
        return GGUFIndex((), tuple(Tensor(name, 0, (1,), 0, None, 0) for name in names), metadata)

    entries = [
        entry("blk.0.ffn_down.weight", 512, 40),
        entry("blk.1.ffn_down.weight", 512, 40),
        entry("blk.0.ffn_down_exps.weight", 256, 30, 8),
        entry("token_embd.weight", 768, 1000),
        entry("output.weight", 768, 900),
        entry("empty", 256, 0),
    ]
    moe = index(["output.weight"], {"general.architecture": "moe", "moe.expert_used_count": 2})
    assert uses(entries, moe) == [Use(DEFAULT, 40, 2, 2), Use(DEFAULT, 60, 1, 1), Use(DEFAULT, 900, 3, 1)]
    assert uses(entries[2:3], index([], {})) == [Use(DEFAULT, 240, 1, 1)]
    assert uses(entries[3:4], index([], {})) == [Use(DEFAULT, 1000, 3, 1)]
    assert uses(entries[3:4], moe) == [], "only looked up, although output.weight is of another type"


def test_types_and_their_shapes_are_kept_apart(without_kernel: QuantType) -> None:
    q8_0 = TYPES[8]
    entries = [replace(entry("a", 512, 40), quant=quant) for quant in (DEFAULT, q8_0, without_kernel, DEFAULT)]
    assert uses(entries, GGUFIndex((), (), {})) == [Use(DEFAULT, 40, 2, 2), Use(q8_0, 40, 16, 1)]


def test_long_rows_are_decoded_one_after_the_other(pair: FilesPair, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a thread needs for them is what counts; the others go on beside them."""
    threads: dict[int, set[str]] = {}

    def noted(quant: QuantType, native: Bytes, n: int, *more: Any) -> dict[Form, Any]:
        threads.setdefault(n * quant.block_weights, set()).add(threading.current_thread().name.rpartition("_")[0])
        return decode_forms(quant, native, n, *more)

    monkeypatch.setattr("verify.stages.decode.decode_forms", noted)
    monkeypatch.setattr("verify.stages.decode.LONG_ROW", 768)
    with decoded(pair, None) as verdict:
        assert Status.FAILED not in statuses(verdict).values()
    assert threads == {256: {"decode"}, 512: {"decode"}, 768: {"decode"}, 1024: {"long rows"}, 1280: {"long rows"}}


def test_the_time_of_one_token() -> None:
    def shape(rows: int, n: int, times: dict[tuple[str, str], float]) -> ShapeTimings:
        timings = tuple(Timing(form, layout, us, us, us, 0, 0, 0) for (form, layout), us in times.items())
        return ShapeTimings(DEFAULT, rows, n, False, 5, 30, True, timings)

    shapes = [
        shape(40, 2, {("loop", "padded"): 9, ("row", "padded"): 4, ("row", "dpl"): 3, ("read", "dpl"): 1}),
        shape(60, 1, {("row", "padded"): 10, ("row", "dpl"): 20}),
    ]
    assert token_milliseconds([Use(DEFAULT, 40, 2, 2), Use(DEFAULT, 60, 1, 5)], shapes) == pytest.approx(
        {"padded": 0.058, "dpl": 0.106}
    )
