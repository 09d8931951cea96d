"""verify, for every type: its bytes, its padding, its counts, what it is worth, and what is decoded of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from repack import convert_file
from tests.support.independent import KINDS, TABLE, Kind, blocks
from tests.support.models import Model, T
from tests.test_verify import dpl_byte, failures, flip, judge
from verify.run import Options
from verify.verdict import Status, Verdict

N, ROWS = 5, 3
WITHOUT_KERNEL = {"IQ4_XS"}
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
    decoded = statuses(verdict, "decode")
    for name in names:
        skipped = name.partition(".")[0] in WITHOUT_KERNEL
        assert decoded[name] is (Status.SKIPPED if skipped else Status.PASSED), name
    forms = {name: {one.form for one in verdict.decoded if one.tensor == name} for name in names}
    for name, found in forms.items():
        kind = name.partition(".")[0]
        assert any(form.startswith("row(") for form in found) == (kind not in WITHOUT_KERNEL)
        assert ("loop" in found) == (kind == "Q6_K")


def test_a_type_without_a_kernel_is_skipped_with_the_reason(tmp_path: Path) -> None:
    verdict = judge(*converted(tmp_path, [tensor(TABLE[23])]), Options(device="cpu"))
    assert verdict.exit_code == 0
    (outcome,) = verdict.of("decode")
    assert (outcome.status, outcome.detail) == (Status.SKIPPED, "there is no kernel for IQ4_XS")
    assert statuses(verdict, "oracle") == {"IQ4_XS.5": Status.PASSED}


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
        decoded = set() if kind.name in WITHOUT_KERNEL else {"decode"}
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
