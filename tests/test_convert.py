from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
import safetensors
from safetensors.numpy import load_file

from repack import convert_file, open_sidecar
from repack.convert import convert
from repack.errors import Damaged, EnvironmentFailure, NothingToDo, UsageError
from repack.files.output import OutputFile
from repack.layout import TYPES
from repack.plan import make_plan, types_named
from repack.restore import restore
from tests.conftest import mixed_model
from tests.support import independent
from tests.support.models import Q8_0, Model, T, dpl_by_hand, q6_k, q6_k_tensor, write_synthetic
from tests.test_gguf_index import split


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_every_tensor_is_what_slices_by_hand_give(pair: tuple[Path, Path]) -> None:
    found = independent.read(pair[1])
    sources = {t.name: t for t in mixed_model().tensors if t.type == 14}
    assert list(found.header) == list(sources)
    for name, source in sources.items():
        assert found.tensor(str(name)) == dpl_by_hand(source.payload(), source.ne[0] // 256)


def test_shapes_are_the_outer_dimensions_slowest_first(pair: tuple[Path, Path]) -> None:
    header = independent.read(pair[1]).header
    assert {name: facts["shape"] for name, facts in header.items()} == {
        "two.dims": [3, 432],
        "one.dim": [1, 640],
        "experts": [4, 5, 848],
        "four.dims": [2, 2, 3, 224],
        "no.rows": [0, 224],
        "last": [7, 1056],
    }


def test_swapped_dimensions_do_not_hide_in_a_square(tmp_path: Path) -> None:
    model = Model([q6_k_tensor("a", (512, 3)), q6_k_tensor("b", (768, 2))]).write(tmp_path / "m.gguf")
    convert_file(model, tmp_path / "m.dpl")
    assert independent.check(model, tmp_path / "m.dpl") == 2


def test_gemma_through_an_independent_reader(gemma: Path, tmp_path: Path) -> None:
    convert_file(gemma, tmp_path / "g.dpl")
    assert independent.check(gemma, tmp_path / "g.dpl") == 9


def test_a_split_model_goes_into_one_sidecar(tmp_path: Path) -> None:
    first = split(tmp_path)[0]
    convert_file(first, tmp_path / "m.dpl")
    found = independent.read(tmp_path / "m.dpl")
    assert [found.native(f"blk.{i}.w") for i in range(6)] == [q6_k(i + 1, i) for i in range(6)]
    assert [shard["name"] for shard in found.manifest["source"]["shards"]] == [
        p.name for p in sorted(tmp_path.glob("*.gguf"))
    ]


def test_stock_safetensors_opens_it(pair: tuple[Path, Path]) -> None:
    arrays = load_file(pair[1])
    found = independent.read(pair[1])
    assert {name: array.tobytes() for name, array in arrays.items()} == {
        name: found.tensor(name) for name in found.header
    }
    with safetensors.safe_open(pair[1], "np") as file:
        assert list(file.metadata()) == ["dpl"]


def test_stock_safetensors_opens_it_in_torch(pair: tuple[Path, Path]) -> None:
    pytest.importorskip("torch")
    from safetensors.torch import load_file as load_torch

    found = independent.read(pair[1])
    for name, tensor in load_torch(pair[1]).items():
        assert tensor.numpy().tobytes() == found.tensor(name)


def test_runs_and_threads_do_not_change_a_byte(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("repack.files.pipeline.CHUNK_BYTES", 1000)  # many chunks
    plan = make_plan(model)
    digests = set()
    for threads in (1, 1, 2, 4, 9):
        convert(plan, tmp_path / "m.dpl", threads=threads, force=True)
        digests.add(sha256(tmp_path / "m.dpl"))
    assert len(digests) == 1


def test_the_manifest_counts_and_keeps_unusual_d(tmp_path: Path) -> None:
    blocks = np.frombuffer(q6_k(12), np.uint8).reshape(12, 210).copy()
    special = [
        0x7E00,
        0xFE00,
        0x7D01,
        0x7C00,
        0xFC00,
        0x0000,
        0x8000,
        0x0001,
    ]  # NaNs, a signalling one, Inf, 0, subnormal
    blocks[: len(special), 208:] = np.array(special, "<u2").view(np.uint8).reshape(-1, 2)
    blocks[:, 192:208] = 0x80
    model = Model([T("a", (512, 6), data=blocks.tobytes())]).write(tmp_path / "m.gguf")
    (entry,) = convert_file(model, tmp_path / "m.dpl").manifest.tensors
    assert (entry.nonfinite_scales, entry.zero_scales) == (5, 2)
    assert independent.read(tmp_path / "m.dpl").native("a") == blocks.tobytes()


def test_selection_and_census(tmp_path: Path) -> None:
    path = mixed_model().write(tmp_path / "m.gguf")
    conversion = convert_file(path, tmp_path / "m.dpl", include=["dim", "last"], exclude=["^four"])
    manifest = independent.read(tmp_path / "m.dpl").manifest
    assert [entry["name"] for entry in manifest["tensors"]] == ["two.dims", "one.dim", "last"]
    assert manifest["selection"] == {
        "types": [14], "include": ["dim", "last"], "exclude": ["^four"], "left_out": ["experts", "four.dims", "no.rows"]
    }  # fmt: skip
    assert manifest["skipped"] == [
        {"type": 0, "name": "F32", "tensors": 1, "nbytes": 12},
        {"type": 14, "name": "Q6_K", "tensors": 3, "nbytes": 80 * 210 + 12 * 210},
        {"type": 42, "name": "type 42", "tensors": 1, "nbytes": None},
    ]
    assert conversion.manifest.left_out == ("experts", "four.dims", "no.rows")


def every_type(tmp_path: Path, n: int = 3) -> tuple[Path, dict[str, tuple[int, bytes]]]:
    """A model with a matrix of each type of the table, and by name: ggml's number and the bytes."""
    rng = np.random.default_rng(n)
    held = {
        f"{quant.name}.weight": (quant.number, rng.bytes(5 * n * gguf.GGML_QUANT_SIZES[quant.number][1]))
        for quant in TYPES.values()
    }
    tensors = [
        T(name, (n * gguf.GGML_QUANT_SIZES[number][0], 5), number, data) for name, (number, data) in held.items()
    ]
    return Model([T("f32", (4,), 0), *tensors]).write(tmp_path / "all.gguf"), held


def test_every_type_converts_and_comes_back(tmp_path: Path) -> None:
    model, held = every_type(tmp_path)
    conversion = convert_file(model, tmp_path / "m.dpl", types=["all"])
    assert [entry.quant.number for entry in conversion.manifest.tensors] == list(TYPES)
    assert conversion.manifest.types == tuple(TYPES)
    with open_sidecar(tmp_path / "m.dpl") as sidecar:
        assert {name: tensor.unpack().tobytes() for name, tensor in sidecar.items()} == {
            name: data for name, (_, data) in held.items()
        }
    restore(tmp_path / "m.dpl", tmp_path / "back.gguf")
    read = gguf.GGUFReader(tmp_path / "back.gguf").tensors
    back = {tensor.name: (int(tensor.tensor_type), tensor.data.tobytes()) for tensor in read}
    assert back == held


def test_types_are_chosen_by_name(tmp_path: Path) -> None:
    model, _ = every_type(tmp_path)
    plan = make_plan(model, types=types_named(["mxfp4", "Q8_0"]))
    assert [tensor.name for tensor in plan.selected] == ["Q8_0.weight", "MXFP4.weight"]
    assert [quant.name for quant in plan.types] == ["Q8_0", "MXFP4"]
    assert [kind.name for kind in plan.convertible] == [name for name in plan_names() if name not in {"Q8_0", "MXFP4"}]
    assert {kind.name for kind in plan.skipped} == {"F32", *plan_names()} - {"Q8_0", "MXFP4"}
    assert [tensor.name for tensor in make_plan(model).selected] == ["Q6_K.weight"]
    for wrong in (["Q9"], [], ["Q8_0", ""]):
        with pytest.raises(UsageError, match="type"):
            types_named(wrong)


def plan_names() -> list[str]:
    return [quant.name for quant in TYPES.values()]


def test_ledgers_by_type_add_up(tmp_path: Path) -> None:
    model, _ = every_type(tmp_path)
    plan = make_plan(model, types=types_named(["all"]))
    # 5 rows of 3 blocks: native, blocks rounded up to 16 bytes, planes rounded up to 16 bytes
    assert {TYPES[number].name: (one.native, one.padded, one.dpl) for number, one in plan.ledgers.items()} == {
        "Q4_0": (270, 480, 5 * (48 + 16)),
        "Q4_1": (300, 480, 5 * (48 + 16)),
        "Q5_0": (330, 480, 5 * (48 + 16 + 16)),
        "Q5_1": (360, 480, 5 * (48 + 16 + 16)),
        "Q8_0": (510, 720, 5 * (96 + 16)),
        "Q2_K": (1260, 1440, 5 * (192 + 48 + 16)),
        "Q3_K": (1650, 1680, 5 * (192 + 96 + 48 + 16)),
        "Q6_K": (3150, 3360, 5 * (384 + 192 + 48 + 16)),
        "IQ4_NL": (270, 480, 5 * (48 + 16)),
        "IQ4_XS": (2040, 2160, 5 * (384 + 16 + 16 + 16)),
        "MXFP4": (255, 480, 5 * (48 + 16)),
    }
    assert plan.ledger.native == sum(one.native for one in plan.ledgers.values()) == 10395


def test_a_model_of_other_types_gets_the_hint(tmp_path: Path) -> None:
    model = Model([T("a", (32, 2), Q8_0), T("b", (256, 1), 12, b"\0" * 144)]).write(tmp_path / "m.gguf")
    with pytest.raises(NothingToDo, match="--types Q8_0 converts"):
        make_plan(model)
    with pytest.raises(NothingToDo, match=r"found 1 Q4_K$"):
        make_plan(Model([T("b", (256, 1), 12, b"\0" * 144)]).write(tmp_path / "m.gguf"))


def test_the_ledger(tmp_path: Path) -> None:
    ledger = make_plan(Model([q6_k_tensor("a", (256 * 54, 4))]).write(tmp_path / "m.gguf")).ledger
    assert (ledger.native, ledger.padded, ledger.dpl) == (45_360, 48_384, 45_376)


@pytest.mark.parametrize("tensors", [[], [T("a", (32, 2), Q8_0)]], ids=["none at all", "other types"])
def test_nothing_to_convert(tensors: list[T], tmp_path: Path) -> None:
    with pytest.raises(NothingToDo):
        convert_file(Model(tensors).write(tmp_path / "m.gguf"), tmp_path / "m.dpl")
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]


def test_a_pattern_that_matches_nothing(model: Path) -> None:
    with pytest.raises(NothingToDo, match="leave no"):
        make_plan(model, ["no such name"])


@pytest.mark.parametrize("pattern", ["(", "*", "\udc80"])
def test_a_pattern_that_is_none(model: Path, pattern: str) -> None:
    with pytest.raises(UsageError, match="--include"):
        make_plan(model, [pattern])


def test_output_mode_follows_umask_or_the_replaced_file(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "m.dpl"
    before = os.umask(0o027)
    try:
        convert_file(model, out)
        assert out.stat().st_mode & 0o777 == 0o640
        out.chmod(0o604)
        convert_file(model, out, force=True)
        assert out.stat().st_mode & 0o777 == 0o604
    finally:
        os.umask(before)


def test_an_existing_file_needs_force(pair: tuple[Path, Path]) -> None:
    before = sha256(pair[1])
    with pytest.raises(UsageError, match="exists already"):
        convert_file(*pair)
    assert sha256(pair[1]) == before


def test_output_that_is_the_input(model: Path, tmp_path: Path) -> None:
    before = sha256(model)
    (tmp_path / "link.gguf").symlink_to(model)
    (tmp_path / "hard.gguf").hardlink_to(model)
    for name in ("model.gguf", "../" + tmp_path.name + "/model.gguf", "link.gguf", "hard.gguf"):
        with pytest.raises(UsageError, match="input"):
            convert_file(model, tmp_path / name, force=True)
    assert sha256(model) == before


def test_what_reads_back_differently_is_refused(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = OutputFile.write_at

    def lying(self: OutputFile, data: memoryview | bytes, offset: int) -> None:
        spoiled = bytearray(data)
        spoiled[len(spoiled) // 2] ^= 4
        honest(self, bytes(spoiled), offset)

    monkeypatch.setattr(OutputFile, "write_at", lying)
    with pytest.raises(EnvironmentFailure, match="reads back differently"):
        convert_file(model, tmp_path / "m.dpl")
    assert not list(tmp_path.glob("m.dpl*"))


def test_a_source_that_changes_meanwhile_is_refused(model: Path, tmp_path: Path) -> None:
    plan = make_plan(model)

    def touch(done: int) -> None:
        os.utime(model, ns=(0, done))

    with pytest.raises(Damaged, match="changed since"):
        convert(plan, tmp_path / "m.dpl", progress=touch)
    assert not list(tmp_path.glob("m.dpl*"))


def test_progress_ends_at_the_native_bytes(model: Path, tmp_path: Path) -> None:
    seen: list[int] = []
    plan = make_plan(model)
    convert(plan, tmp_path / "m.dpl", progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == plan.ledger.native


def test_peak_memory_does_not_follow_the_model(tmp_path: Path) -> None:
    """512 MB (sparse) in a child of its own, which reports the most memory it had resident."""
    model = tmp_path / "m.gguf"
    rows = 50_000
    head, _ = Model([T("a", (256 * 50, rows), data=b"")]).parts()
    model.write_bytes(head)
    os.truncate(model, len(head) + rows * 50 * 210)
    code = (
        "import sys; from repack import convert_file; convert_file(sys.argv[1], sys.argv[2], threads=4);"
        "print(*[line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')])"
    )
    arguments = [sys.executable, "-c", code, str(model), str(tmp_path / "m.dpl")]
    done = subprocess.run(arguments, check=True, capture_output=True, text=True)
    (tmp_path / "m.dpl").unlink()
    assert int(done.stdout) < 150 * 1024, "KiB"


def test_the_api_reads_what_it_wrote(pair: tuple[Path, Path]) -> None:
    with open_sidecar(pair[1]) as sidecar:
        tensor = sidecar["experts"]
        assert tensor.rows.shape == (4, 5, 848)
        assert not tensor.rows.flags.writeable
        assert tensor.unpack(5, 7).tobytes() == q6_k(80, 3)[5 * 840 : 7 * 840]
        assert tensor.planes(19)["d"].shape == (1, 4)
        assert tensor.dequantize(0, 2).shape == (2, 1024)
        assert sidecar["no.rows"].dequantize().shape == (0, 256)
        assert len(sidecar) == 6


def test_many_small_tensors(tmp_path: Path) -> None:
    shapes = [(f"t{i}", (256, 1 + i % 3)) for i in range(500)]
    model = write_synthetic(tmp_path / "m.gguf", shapes)
    convert_file(model, tmp_path / "m.dpl")
    assert independent.check(model, tmp_path / "m.dpl") == 500


def test_the_manifest_is_one_canonical_metadata_key(pair: tuple[Path, Path]) -> None:
    raw = pair[1].read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    text = header["__metadata__"]["dpl"]
    manifest = json.loads(text)
    assert json.dumps(manifest, sort_keys=True, separators=(",", ":")) == text
    own = manifest.pop("manifest_sha256")
    body = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
    assert hashlib.sha256(body.encode()).hexdigest() == own
    assert manifest["generator"]["name"] == "gguf-dpl"
