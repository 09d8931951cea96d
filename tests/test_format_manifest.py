"""docs/format.md, sections 3 and 4: the manifest, rule by rule; see tests/test_format.py."""

from __future__ import annotations

import hashlib
import json
import re
import struct
from pathlib import Path

import gguf
import pytest

from repack import convert_file
from tests.conftest import mixed_model
from tests.support.models import F32_TENSOR, Q6_K, STRING, Model, T, pair, q6_k_tensor
from tests.support.readers import reader
from tests.support.sidecars.apart import FIELDS, FORMAT, File, natives, section
from tests.support.sidecars.forge import canonical

Pair = tuple[Path, Path]


@pytest.fixture
def file(pair: Pair) -> File:
    return File(pair[1])


def test_r11_canonical_json(file: File) -> None:
    assert json.dumps(file.manifest, sort_keys=True, separators=(",", ":")) == file.text
    assert all(" " <= character <= "~" for character in file.text)
    assert json.dumps('\n\r\t\b\f"\\\x00\x7f\xe9\U0001f600/') == r'"\n\r\t\b\f\"\\\u0000\u007f\u00e9\ud83d\ude00/"'


def test_r12_the_seal(file: File) -> None:
    member = f'"manifest_sha256":"{file.manifest["manifest_sha256"]}",'
    rest = file.text.replace(member, "", 1)
    assert len(rest) == len(file.text) - len(member)
    assert hashlib.sha256(rest.encode()).hexdigest() == file.manifest["manifest_sha256"]
    body = {key: value for key, value in file.manifest.items() if key != "manifest_sha256"}
    assert canonical(body) == rest


def test_r13_the_members(file: File) -> None:
    table = section("3.").split("**R13.**", 1)[1].split("**R14.**", 1)[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == sorted(file.manifest)
    (layout,) = re.findall(r'^    (\{"block_bytes".*\})$', table, re.MULTILINE)
    assert f'"layout":{layout},' in file.text
    assert layout == reader.LAYOUT
    assert {f["name"]: (f["plane_offset"], f["block_bytes"]) for f in json.loads(layout)["fields"]} == FIELDS


def test_r14_the_tensors(file: File, pair: Pair) -> None:
    table = section("3.").split("**R14.**", 1)[1].split("**R15.**", 1)[0]
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", table, re.MULTILINE)
    named = sorted(name for cell in rows for name in re.findall(r"`(\w+)`", cell))
    shard = pair[0].read_bytes()
    assert [entry["name"] for entry in file.tensors] == list(natives())
    for entry in file.tensors:
        native, data = natives()[entry["name"]], file.data(entry["name"])
        assert sorted(entry) == named
        assert entry["type"] == 14
        assert entry["nbytes"] == entry["rows"] * entry["n"] * 210 == len(native)
        assert entry["shard"] == 0
        assert shard[entry["offset"] : entry["offset"] + entry["nbytes"]] == native
        assert entry["sha256"] == hashlib.sha256(data).hexdigest()


def test_r14_counts_of_d(tmp_path: Path) -> None:
    bits = [0x0000, 0x8000, 0x0001, 0x3C00, 0x7BFF, 0x7C00, 0xFC00, 0x7E00, 0xFE01, 0x7C01]
    data = b"".join(b"\x11" * 208 + struct.pack("<H", d) for d in bits)
    Model([T("d", (256, len(bits)), data=data)]).write(tmp_path / "model.gguf")
    convert_file(tmp_path / "model.gguf", tmp_path / "model.dpl")
    (entry,) = File(tmp_path / "model.dpl").tensors
    assert (entry["nonfinite_d"], entry["zero_d"]) == (5, 2)


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


def test_r15_the_source(tmp_path: Path) -> None:
    shards = split_model(tmp_path)
    convert_file(shards[0], tmp_path / "model.dpl")
    manifest = File(tmp_path / "model.dpl").manifest
    assert [entry["name"] for entry in manifest["tensors"]] == ["b0", "a", "b1"]  # table order, shard after shard
    assert [entry["shard"] for entry in manifest["tensors"]] == [0, 0, 1]
    for path, shard in zip(shards, manifest["source"]["shards"], strict=True):
        raw, data = path.read_bytes(), min(tensor.data_offset for tensor in gguf.GGUFReader(path).tensors)
        expected = {"name": path.name, "size": len(raw), "header_sha256": hashlib.sha256(raw[:data]).hexdigest()}
        assert shard == expected
    general = manifest["source"]["general"]
    assert general == {f"general.{key}": key for key in ("architecture", "name", "type")}


def test_r16_what_the_patterns_left_out(pair: Pair, tmp_path: Path) -> None:
    convert_file(pair[0], tmp_path / "some.dpl", include=["dim", "last"], exclude=["^one"])
    file = File(tmp_path / "some.dpl")
    selection = {"include": ["dim", "last"], "exclude": ["^one"], "left_out": ["one.dim", "experts", "no.rows"]}
    assert file.manifest["selection"] == selection
    assert [entry["name"] for entry in file.tensors] == ["two.dims", "four.dims", "last"]
    assert File(pair[1]).manifest["selection"] == {"include": [], "exclude": [], "left_out": []}


def test_r17_the_census(pair: Pair, tmp_path: Path) -> None:
    convert_file(pair[0], tmp_path / "some.dpl", include=["two"])
    left = sum(len(native) for name, native in natives().items() if name != "two.dims")
    assert File(tmp_path / "some.dpl").manifest["skipped"] == [
        {"type": F32_TENSOR, "name": "F32", "tensors": 1, "nbytes": 12},
        {"type": Q6_K, "name": "Q6_K", "tensors": 5, "nbytes": left},
        {"type": 42, "name": "type 42", "tensors": 1, "nbytes": None},
    ]


def test_r18_the_same_bytes_again_and_elsewhere(pair: Pair, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    model = pair[0].rename(tmp_path / "elsewhere" / pair[0].name)
    convert_file(model, tmp_path / "again.dpl", threads=3)
    assert (tmp_path / "again.dpl").read_bytes() == pair[1].read_bytes()


def test_r19_the_version(file: File) -> None:
    assert file.manifest["format"] == {"name": "dpl", "major": 1, "minor": 0}
    assert FORMAT.startswith("# The dpl sidecar, format version 1.0\n")


@pytest.mark.parametrize("change", ["nothing", "size", "header", "data"])
def test_c18_a_stale_sidecar_is_seen_by_the_header(pair: Pair, change: str) -> None:
    model, (shard,) = bytearray(pair[0].read_bytes()), File(pair[1]).manifest["source"]["shards"]
    begin = len(mixed_model().parts()[0])
    if change == "size":
        model += b"\0" * 32
    elif change in {"header", "data"}:
        model[begin - 40 if change == "header" else begin + 40] ^= 1
    fresh = len(model) == shard["size"] and hashlib.sha256(model[:begin]).hexdigest() == shard["header_sha256"]
    assert fresh == (change not in {"size", "header"})
