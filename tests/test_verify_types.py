"""verify, for every type: its bytes, its padding, its counts, what it is worth, and what is decoded of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from repack import convert_file
from repack.layout import QuantType
from tests.support.independent import KINDS, TABLE, Kind, blocks
from tests.support.judging import dpl_byte, failures, flip, judge
from tests.support.models import Model, T
from tests.support.sidecars import by_hand
from verify.run import Options
from verify.verdict import Status, Verdict

N, ROWS = 5, 3
every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


def converted(folder: Path, tensors: list[T]) -> tuple[Path, Path]:
    model = Model(tensors).write(folder / "m.gguf")
    convert_file(model, folder / "m.dpl", types=["all"])
    return model, folder / "m.dpl"


def tensor(kind: Kind, n: int = N, rows: int = ROWS) -> T:
    return T(f"{kind.name}.{n}", (kind.weights * n, rows), kind.number, blocks(kind, n * rows))


def statuses(verdict: Verdict, stage: str) -> dict[str | None, Status]:
    return {outcome.tensor: outcome.status for outcome in verdict.of(stage)}


def test_all_types_in_one_model(tmp_path: Path) -> None:
    pair = converted(tmp_path, [tensor(kind, n) for n in (1, 2, 3, 7, 33) for kind in KINDS])
    verdict = judge(*pair, Options(device="cpu"))
    assert verdict.exit_code == 0, failures(verdict)
    names = {entry.name for entry in verdict.tensors}
    assert len(names) == 5 * len(KINDS)
    for stage in ("digests", "bytes", "oracle"):
        assert statuses(verdict, stage) == dict.fromkeys(names, Status.PASSED), stage
    assert verdict.bytes_compared == sum(ROWS * n * kind.size for n in (1, 2, 3, 7, 33) for kind in KINDS)
    assert statuses(verdict, "decode") == dict.fromkeys(names, Status.PASSED)
    forms = {name: {one.form for one in verdict.decoded if one.tensor == name} for name in names}
    for name, found in forms.items():
        kind = name.partition(".")[0]
        assert any(form.startswith("row(") for form in found)
        assert ("loop" in found) == (kind == "Q6_K")


def test_a_type_without_a_kernel_is_skipped_with_the_reason(tmp_path: Path, without_kernel: QuantType) -> None:
    verdict = judge(*converted(tmp_path, [tensor(TABLE[without_kernel.number])]), Options(device="cpu"))
    assert verdict.exit_code == 0
    (outcome,) = verdict.of("decode")
    assert (outcome.status, outcome.detail) == (Status.SKIPPED, "there is no kernel for IQ4_NL")
    assert statuses(verdict, "oracle") == {"IQ4_NL.5": Status.PASSED}


@every_kind
def test_a_flipped_bit_in_any_plane_is_named(kind: Kind, tmp_path: Path) -> None:
    model, sidecar = converted(tmp_path, [tensor(kind)])
    (good,) = judge(model, sidecar, Options(device="cpu", rows=None)).of("oracle")
    assert good.status is Status.PASSED
    for start, (name, size, _) in zip(kind.starts(N), kind.planes, strict=True):
        at = dpl_byte(sidecar, f"{kind.name}.{N}", 2, start + 3 * size + size - 1)
        flip(sidecar, at, 0x40)
        verdict = judge(model, sidecar, Options(device="cpu", rows=None))
        found = failures(verdict)
        assert verdict.exit_code == 1
        decoded = {"decode"}
        assert set(found) == {"digests", "bytes", "oracle"} | decoded
        assert f"row 2, block 3, {name}[{size - 1}]" in found["bytes"]
        assert "row 2" in found["oracle"]
        alone = judge(None, sidecar)
        assert (alone.exit_code, set(failures(alone))) == (3, {"digests"})
        flip(sidecar, at, 0x40)
    assert judge(model, sidecar, Options(device="cpu")).exit_code == 0


@pytest.mark.parametrize("n", [1, 2, 3, 7])
@every_kind
def test_a_flipped_bit_in_any_padding_is_named(kind: Kind, n: int, tmp_path: Path) -> None:
    model, sidecar = converted(tmp_path, [tensor(kind, n)])
    padded = False
    for start, (name, size, _) in zip(kind.starts(n), kind.planes, strict=True):
        padding = -size * n % 16
        for byte in {0, padding - 1} if padding else set():
            padded = True
            at = dpl_byte(sidecar, f"{kind.name}.{n}", 1, start + size * n + byte)
            flip(sidecar, at)
            verdict = judge(model, sidecar, Options(device="cpu"))
            assert (verdict.exit_code, set(failures(verdict))) == (1, {"digests", "padding"})
            assert f"row 1, padding byte {byte} after plane {name}" in failures(verdict)["padding"]
            assert failures(judge(None, sidecar)).keys() == {"digests", "padding"}
            flip(sidecar, at)
    (outcome,) = judge(model, sidecar, Options(device="cpu")).of("padding")
    assert outcome.status is (Status.PASSED if padded else Status.SKIPPED)


@every_kind
def test_experts_and_odd_chunks(kind: Kind, tmp_path: Path) -> None:
    """Rows over several dimensions; a row in the middle that differs is named as an expert's."""
    n = 3
    stack = T("experts", (kind.weights * n, 5, 4), kind.number, blocks(kind, n * 20))
    model, sidecar = converted(tmp_path, [stack])
    assert judge(model, sidecar, Options(device="cpu")).exit_code == 0
    flip(sidecar, dpl_byte(sidecar, "experts", 17, 0), 0x40)
    assert "expert 3, row 2, block 0" in failures(judge(model, sidecar, Options(device="cpu")))["bytes"]


def by_hand_pair(folder: Path, model: Model, types: tuple[int, ...], **of_a_tensor: int) -> tuple[Path, Path]:
    """A pair made without the product; the first tensor's member of the manifest says `of_a_tensor`."""
    manifest = by_hand.manifest_of(model, types=types)
    manifest["tensors"][0].update(of_a_tensor)
    return by_hand.write_pair(folder, model, by_hand.sidecar_of(model, manifest, types))


@pytest.mark.parametrize("key", ["nonfinite_scales", "zero_scales"])
@every_kind
def test_counts_of_unusual_scales_are_compared(kind: Kind, key: str, tmp_path: Path) -> None:
    raw = bytearray(blocks(kind, N * ROWS))
    (at, what), *_ = kind.scales
    size = 2 if what == "f16" else 1
    for block, bits in enumerate((b"\xff\xff", b"\x00\x7c", b"\x00\x80", b"\x00\x00", b"\x00\x00")):
        raw[block * kind.size + at : block * kind.size + at + size] = bits[:size]
    model = Model([T("a", (kind.weights * N, ROWS), kind.number, bytes(raw))])
    right = by_hand.manifest_of(model, types=(kind.number,))["tensors"][0][key]
    assert right == {("f16", "nonfinite_scales"): 2, ("f16", "zero_scales"): 3}.get((what, key), key[0] == "n")
    for count, code in ((right, 0), (right + 1, 1)):
        pair = by_hand_pair(tmp_path, model, (kind.number,), **{key: count})
        verdict = judge(*pair, Options(device="cpu"))
        assert verdict.exit_code == code, failures(verdict)
        assert set(failures(verdict)) == ({"digests"} if code else set())
        assert judge(None, pair[1]).exit_code == 3 * code


LATER = Kind(99, "LATER", 64, 9, (("q", 8, 1), ("s", 1, 0)), ())


def test_a_type_of_a_later_version_is_proven_by_its_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TABLE, 99, LATER)
    model = Model([T("a", (64 * 3, 2), 99, bytes(range(54)))])
    pair = by_hand_pair(tmp_path, model, (99,))
    verdict = judge(*pair, Options(device="cpu"))
    assert verdict.exit_code == 0, failures(verdict)
    assert verdict.bytes_compared == 54
    for stage in ("decode", "oracle"):
        (outcome,) = verdict.of(stage)
        assert (outcome.status, outcome.detail) == (
            Status.SKIPPED,
            "this version knows the layout of LATER, not what it means",
        )
    flip(pair[0], len(pair[0].read_bytes()) - 32)
    assert judge(*pair, Options(device="cpu")).exit_code == 1


def test_a_described_type_has_to_be_ggmls_if_ggml_knows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TABLE, 12, Kind(12, "Q4_K", 64, 40, (("q", 40, 0),), ()))
    model = Model([T("a", (256, 2), 12, bytes(320))])
    verdict = judge(*by_hand_pair(tmp_path, model, (12,)), Options(device="cpu"))
    assert verdict.exit_code == 1
    assert "has blocks of another size" in failures(verdict)["selection"]


def test_a_tensor_of_another_type_in_the_model(tmp_path: Path) -> None:
    """Q4_0 and IQ4_NL have blocks of one size: only the type number tells them apart."""
    one, other = (Model([T("a", (64, 2), kind, blocks(TABLE[2], 4))]) for kind in (2, 20))
    _, sidecar = by_hand.write_pair(tmp_path, one, by_hand.sidecar_of(one, types=(2,)))
    other.write(tmp_path / "model.gguf")
    verdict = judge(tmp_path / "model.gguf", sidecar, Options(device="cpu"))
    assert verdict.exit_code == 1
    assert "is of another type in the model" in failures(verdict)["selection"]
    both = by_hand.manifest_of(one, types=(2,))
    both["selection"]["types"] = [2, 20]
    by_hand.write_pair(tmp_path, one, by_hand.sidecar_of(one, both, (2,)))
    other.write(tmp_path / "model.gguf")
    verdict = judge(tmp_path / "model.gguf", sidecar, Options(device="cpu"))
    assert "is of another type in the model" in failures(verdict)["selection"]


def test_tensors_in_another_order_than_in_the_model(tmp_path: Path) -> None:
    model = Model([tensor(TABLE[14], 1), tensor(TABLE[14], 2)])
    manifest = by_hand.manifest_of(model)
    manifest["tensors"].reverse()
    data = by_hand.data_of(Model([*reversed(model.tensors)]))
    pair = by_hand.write_pair(tmp_path, model, by_hand.framed(by_hand.header_of(manifest), data))
    verdict = judge(*pair, Options(device="cpu"))
    assert verdict.exit_code == 1
    assert failures(verdict)["selection"].endswith("the tensors stand in another order than in the model")
