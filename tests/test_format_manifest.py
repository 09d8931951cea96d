"""docs/format.md, sections 3 and 4: the manifest, rule by rule; see tests/test_format.py."""

from __future__ import annotations

import hashlib
import json
import re
import struct
from pathlib import Path
from typing import Any

import gguf
import pytest

from repack import convert_file
from tests.support.independent import KINDS, TABLE, Read, counts, read
from tests.support.models import F32_TENSOR, Q6_K, STRING, Model, T, pair, q6_k_tensor
from tests.support.sidecars.forge import canonical
from tests.support.sidecars.page import FORMAT, section
from tests.support.sidecars.whole import pair_of_all_types, whole_model

Pair = tuple[Path, Path]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """A model of all types and its sidecar; not to be changed."""
    return pair_of_all_types(tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def file(whole: Pair) -> Read:
    return read(whole[1])


def rule(number: int) -> str:
    """A rule's text, with what follows up to the next one."""
    return FORMAT.split(f"\n**R{number}.**", 1)[1].split("\n**R", 1)[0]


def test_r11_canonical_json(file: Read) -> None:
    assert json.dumps(file.manifest, sort_keys=True, separators=(",", ":")) == file.manifest_text
    assert all(" " <= character <= "~" for character in file.manifest_text)
    assert json.dumps('\n\r\t\b\f"\\\x00\x7f\xe9\U0001f600/') == r'"\n\r\t\b\f\"\\\u0000\u007f\u00e9\ud83d\ude00/"'


def test_r11_the_limits_are_those_of_the_readers() -> None:
    assert "At most 16 brackets" in rule(11)
    assert "at most 1,048,576 commas and opening brackets" in rule(11)
    for text in ("16 open brackets", "1,048,576", "33,554,432", "65,536 bytes", "16 planes", "2^63"):
        assert text in " ".join(section("5.").split())


def test_r12_the_seal(file: Read) -> None:
    member = f'"manifest_sha256":"{file.manifest["manifest_sha256"]}",'
    rest = file.manifest_text.replace(member, "", 1)
    assert len(rest) == len(file.manifest_text) - len(member)
    assert hashlib.sha256(rest.encode()).hexdigest() == file.manifest["manifest_sha256"]
    body = {key: value for key, value in file.manifest.items() if key != "manifest_sha256"}
    assert canonical(body) == rest


def test_r13_the_members(file: Read) -> None:
    assert re.findall(r"^\| `(\w+)` \|", rule(13), re.MULTILINE) == sorted(file.manifest)


def test_r14_the_layouts(file: Read) -> None:
    (shown,) = re.findall(r"^    (\{.*?\})\n\n", rule(14), re.MULTILINE | re.DOTALL)
    assert re.sub(r"\n *", "", shown) == TABLE[39].layout()
    layouts = ",".join(kind.layout() for kind in KINDS)
    assert f'"layouts":[{layouts}],' in file.manifest_text


def test_r14_only_the_types_used(whole: Pair, tmp_path: Path) -> None:
    convert_file(whole[0], tmp_path / "some.dpl", types=("MXFP4", "Q4_0", "Q8_0"), exclude=["Q4_0"])
    manifest = read(tmp_path / "some.dpl").manifest
    assert [canonical(layout) for layout in manifest["layouts"]] == [TABLE[8].layout(), TABLE[39].layout()]


def test_r15_the_tensors(file: Read, whole: Pair) -> None:
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", rule(15), re.MULTILINE)
    named = sorted(name for cell in rows for name in re.findall(r"`(\w+)`", cell))
    shard = whole[0].read_bytes()
    sources = {str(tensor.name): tensor for tensor in whole_model().tensors if tensor.type in TABLE}
    assert [entry["name"] for entry in file.tensors] == list(sources)
    for entry in file.tensors:
        source, data = sources[entry["name"]], file.tensor(entry["name"])
        kind, native = TABLE[source.type], source.payload()
        assert sorted(entry) == named
        assert (entry["type"], entry["ne"]) == (source.type, list(source.ne))
        assert entry["nbytes"] == entry["rows"] * entry["n"] * kind.size == len(native)
        assert entry["shard"] == 0
        assert shard[entry["offset"] : entry["offset"] + entry["nbytes"]] == native
        assert entry["sha256"] == hashlib.sha256(data).hexdigest()
        assert entry["row_stride"] == kind.stride(entry["n"])


def test_r15_counts_of_scales(tmp_path: Path) -> None:
    """Every scale of every type once with each special value."""
    bits = [0x0000, 0x8000, 0x0001, 0x3C00, 0x7BFF, 0x7C00, 0xFC00, 0x7E00, 0xFE01, 0x7C01]
    tensors = []
    for kind in KINDS:
        data = bytearray(b"\x11" * kind.size * len(bits))
        for block, d in enumerate(bits):
            for at, what in kind.scales:
                struct.pack_into("<H", data, block * kind.size + at, d) if what == "f16" else None
        if kind.name == "MXFP4":
            data[:: kind.size] = bytes([255, 254, 0, 1, 127, 255, 255, 128, 0, 2])
        tensors.append(T(kind.name, (kind.weights, len(bits)), kind.number, bytes(data)))
    Model(tensors).write(tmp_path / "model.gguf")
    convert_file(tmp_path / "model.gguf", tmp_path / "model.dpl", types=("all",))
    for entry in read(tmp_path / "model.dpl").tensors:
        scales = len(TABLE[entry["type"]].scales)
        expected = (3, 0) if entry["name"] == "MXFP4" else (5 * scales, 2 * scales)
        assert (entry["nonfinite_scales"], entry["zero_scales"]) == expected
        native = next(tensor for tensor in tensors if tensor.name == entry["name"]).payload()
        assert counts(native, TABLE[entry["type"]]) == expected


def split_model(folder: Path) -> list[Path]:
    """A model of two shards, the first one named."""
    files = [folder / f"m-0000{number + 1}-of-00002.gguf" for number in range(2)]
    for number, path in enumerate(files):
        keys = [pair("split.no", 2, number), pair("split.count", 2, 2), pair("split.tensors.count", 5, 3)]
        if not number:
            keys += [pair(f"general.{key}", STRING, key) for key in ("architecture", "name", "type", "url")]
        tensors = [q6_k_tensor(f"b{number}", (256, 3), number), q6_k_tensor("a", (512, 2), 9)][: 2 - number]
        Model(tensors, keys).write(path)
    return files


def test_r16_the_source(tmp_path: Path) -> None:
    shards = split_model(tmp_path)
    convert_file(shards[0], tmp_path / "model.dpl")
    manifest = read(tmp_path / "model.dpl").manifest
    assert [entry["name"] for entry in manifest["tensors"]] == ["b0", "a", "b1"]  # table order, shard after shard
    assert [entry["shard"] for entry in manifest["tensors"]] == [0, 0, 1]
    for path, shard in zip(shards, manifest["source"]["shards"], strict=True):
        raw, data = path.read_bytes(), min(tensor.data_offset for tensor in gguf.GGUFReader(path).tensors)
        expected = {"name": path.name, "size": len(raw), "header_sha256": hashlib.sha256(raw[:data]).hexdigest()}
        assert shard == expected
    general = manifest["source"]["general"]
    assert general == {f"general.{key}": key for key in ("architecture", "name", "type")}


def test_r16_a_name_that_is_no_base_name_elsewhere(tmp_path: Path) -> None:
    """A backslash is a character of a name on Linux and a folder's end on Windows."""
    model = Model([q6_k_tensor("a", (256, 1), 1)]).write(tmp_path / "a\\b.gguf")
    convert_file(model, tmp_path / "a.dpl")
    (shard,) = read(tmp_path / "a.dpl").manifest["source"]["shards"]
    assert shard["name"] == "a\ufffdb.gguf"


def test_r17_what_was_asked_for_and_left_out(whole: Pair, tmp_path: Path) -> None:
    convert_file(whole[0], tmp_path / "some.dpl", types=("Q6_K", "Q2_K"), include=["experts", "Q2"], exclude=["3$"])
    found = read(tmp_path / "some.dpl")
    sources = [(str(tensor.name), tensor.type) for tensor in whole_model().tensors]
    asked = [name for name, number in sources if number in {10, 14}]
    chosen = [name for name in asked if ("experts" in name or "Q2" in name) and not name.endswith("3")]
    assert 1 < len(chosen) < len(asked)
    assert [entry["name"] for entry in found.tensors] == chosen
    left_out = [name for name in asked if name not in chosen]
    selection = {"types": [10, 14], "include": ["experts", "Q2"], "exclude": ["3$"], "left_out": left_out}
    assert found.manifest["selection"] == selection
    everything = {"types": [kind.number for kind in KINDS], "include": [], "exclude": [], "left_out": []}
    assert read(whole[1]).manifest["selection"] == everything


def test_r18_the_census(whole: Pair, tmp_path: Path) -> None:
    convert_file(whole[0], tmp_path / "some.dpl", include=["experts"])
    expected: list[dict[str, Any]] = [{"type": F32_TENSOR, "name": "F32", "tensors": 1, "nbytes": 12}]
    for kind in KINDS:
        left = [t for t in whole_model().tensors if t.type == kind.number and t.name != "experts"]
        nbytes = sum(len(tensor.payload()) for tensor in left)
        expected.append({"type": kind.number, "name": kind.name, "tensors": len(left), "nbytes": nbytes})
    expected.append({"type": 42, "name": "type 42", "tensors": 1, "nbytes": None})
    found = read(tmp_path / "some.dpl").manifest["skipped"]
    assert sorted(found, key=lambda kind: kind["type"]) == sorted(expected, key=lambda kind: kind["type"])
    assert Q6_K in {kind["type"] for kind in found}


def test_r19_the_same_bytes_again_and_elsewhere(tmp_path: Path) -> None:
    first, sidecar = pair_of_all_types(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    model = first.rename(tmp_path / "elsewhere" / first.name)
    convert_file(model, tmp_path / "again.dpl", types=[kind.name for kind in KINDS], threads=3)
    assert (tmp_path / "again.dpl").read_bytes() == sidecar.read_bytes()


def test_r20_the_version(file: Read) -> None:
    assert file.manifest["format"] == {"name": "dpl", "major": 2, "minor": 0}
    assert FORMAT.startswith("# The dpl sidecar, format version 2.0\n")


@pytest.mark.parametrize("change", ["nothing", "size", "header", "data"])
def test_c18_a_stale_sidecar_is_seen_by_the_header(whole: Pair, change: str) -> None:
    model, (shard,) = bytearray(whole[0].read_bytes()), read(whole[1]).manifest["source"]["shards"]
    begin = len(whole_model().parts()[0])
    if change == "size":
        model += b"\0" * 32
    elif change in {"header", "data"}:
        model[begin - 40 if change == "header" else begin + 40] ^= 1
    fresh = len(model) == shard["size"] and hashlib.sha256(model[:begin]).hexdigest() == shard["header_sha256"]
    assert fresh == (change not in {"size", "header"})
