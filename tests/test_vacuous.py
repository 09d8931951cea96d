"""No stage passes that looked at nothing, and no run is a success that compared nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from repack import convert_file
from repack.layout import DEFAULT, QuantType
from repack.sidecar.manifest import Entry
from tests.support.judging import judge
from tests.support.models import Model, T, q6_k_tensor
from tests.test_decode import emulating
from verify.contract.activations import Activations
from verify.contract.forms import Form
from verify.gpu.device import DeviceInfo
from verify.gpu.findings import TensorResult, TensorRows
from verify.run import Options
from verify.verdict import Status, Verdict

Pair = tuple[Path, Path]
PF = ("pf",)
INFO = DeviceInfo(0, "none", "GPU-0", "0", "9.0", 1 << 30, 1 << 20, "13.0", "13.0", "13.0", "14")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that is none: it emulates. Nothing is measured on it."""
    monkeypatch.setattr("verify.run.preflight", lambda _: INFO)
    monkeypatch.setattr("verify.run.check_tensor", emulating())
    monkeypatch.setattr("verify.run.check_bandwidth", lambda *of: of[2].skipped("bandwidth", "no GPU"))


def details(verdict: Verdict, stage: str) -> set[str]:
    return {outcome.detail for outcome in verdict.of(stage) if outcome.status is not Status.PASSED}


def test_a_form_that_is_for_none_of_the_rows_is_skipped(pair: Pair) -> None:
    verdict = judge(*pair, Options(device="cpu", forms=PF))
    assert verdict.exit_code == 0, "the bytes are proven all the same"
    assert {outcome.status for outcome in verdict.of("decode")} == {Status.SKIPPED}
    assert details(verdict, "decode") >= {"form pf is not for Q6_K rows of 1280 weights"}
    assert not verdict.decoded


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("options", [{"require_gpu": True}, {"device": "gpu"}, {"device": "0"}])
def test_a_gpu_that_was_asked_for_and_decoded_nothing(pair: Pair, options: dict[str, bool | str]) -> None:
    assert judge(*pair, Options(forms=PF, **options)).exit_code == 5  # type: ignore[arg-type]
    assert judge(*pair, Options(**options)).exit_code == 0  # type: ignore[arg-type]


@pytest.mark.usefixtures("gpu")
def test_a_gpu_that_was_not_asked_for_may_have_nothing_to_do(pair: Pair) -> None:
    verdict = judge(*pair, Options(forms=PF))
    assert verdict.exit_code == 0
    assert verdict.environment["gpu name"] == "none"


@pytest.mark.usefixtures("gpu")
def test_a_required_gpu_and_a_type_without_a_kernel(tmp_path: Path, without_kernel: QuantType) -> None:
    model = Model([T("a", (32, 3), without_kernel.number, bytes(18 * 3))]).write(tmp_path / "m.gguf")
    convert_file(model, tmp_path / "m.dpl", types=[without_kernel.name])
    assert judge(model, tmp_path / "m.dpl", Options(require_gpu=True)).exit_code == 5
    assert judge(model, tmp_path / "m.dpl").exit_code == 0


def test_tensors_without_rows_pass_nothing_but_their_digest(tmp_path: Path) -> None:
    model = Model([T("none", (256, 0), data=b""), T("no.columns", (0, 3), data=b"")]).write(tmp_path / "m.gguf")
    convert_file(model, tmp_path / "m.dpl")
    verdict = judge(model, tmp_path / "m.dpl", Options(device="cpu"))
    assert verdict.exit_code == 5
    for stage in ("bytes", "padding", "decode", "oracle"):
        assert {outcome.status for outcome in verdict.of(stage)} == {Status.SKIPPED}, stage


def test_an_include_of_empty_tensors_alone_is_no_success(pair: Pair) -> None:
    assert judge(*pair, Options(device="cpu", include=(re.compile("no.rows"),))).exit_code == 5
    assert judge(None, pair[1], Options(include=(re.compile("no.rows"),))).exit_code == 5


def test_rows_without_padding_have_none_to_check(tmp_path: Path) -> None:
    model = Model([q6_k_tensor("aligned", (2048, 3)), q6_k_tensor("odd", (256, 3))]).write(tmp_path / "m.gguf")
    convert_file(model, tmp_path / "m.dpl")
    verdict = judge(model, tmp_path / "m.dpl", Options(device="cpu"))
    assert [(outcome.tensor, outcome.status) for outcome in verdict.of("padding")] == [
        ("aligned", Status.SKIPPED),
        ("odd", Status.PASSED),
    ]
    assert details(verdict, "padding") == {"rows of this length have no padding"}


def test_every_stage_speaks_and_none_is_said_to_fail_that_was_not_asked_for(pair: Pair) -> None:
    pair[1].write_bytes(b"{" * 20)
    verdict = judge(*pair, Options(device="cpu"))
    assert verdict.exit_code == 3
    assert details(verdict, "provenance") == {"not asked for"}
    assert details(verdict, "decode") == {"not run, because container failed"}
    asked = judge(*pair, Options(device="cpu", expect_sha256=("0" * 64,)))
    assert {outcome.status for outcome in asked.of("provenance")} == {Status.FAILED}
    alone = judge(None, pair[1])
    assert details(alone, "provenance") == details(alone, "decode") == {"no model given"}
    assert details(alone, "digests") == {"not run, because container failed"}
    assert details(judge(*pair, Options(device="cpu", bench=False)), "bandwidth") == {"--no-bench"}


def test_a_gpu_result_that_leaves_a_form_out_is_no_success(pair: Pair) -> None:
    """A stand-in for a GPU that forgets one form: its bits cannot be compared, so they may not pass."""

    def forgetful(tensor: TensorRows, vectors: Sequence[Activations], forms: Sequence[Form]) -> TensorResult:
        return emulating()(tensor, vectors, forms[1:])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("verify.run.preflight", lambda _: INFO)
        patch.setattr("verify.run.check_tensor", forgetful)
        assert judge(*pair, Options(bench=False)).exit_code != 0


def test_what_the_model_holds_besides_is_named(pair: Pair) -> None:
    verdict = judge(*pair, Options(device="cpu"))
    assert [(kind.type, kind.tensors) for kind in verdict.not_counted] == [(0, 1), (42, 1)]
    assert judge(None, pair[1]).not_counted == []


def test_a_tensor_that_was_skipped_is_not_compared() -> None:
    made = Verdict("model", "sidecar")
    made.tensors.append(Entry("t", DEFAULT, (256, 1), 0, 0, "0" * 64, 0, 0))
    made.skipped("bytes", "for some reason", "t")
    assert made.exit_code == 5
    made.passed("bytes", "t")
    assert made.exit_code == 0
