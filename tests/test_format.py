"""docs/format.md, statement by statement, checked with struct, json and hashlib alone on a model of every rank.

The tests are named for the rules: R1 is `test_r1_...`. The checks C1 to C18 are in tests/test_readers.py.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from math import prod
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import safetensors.numpy

from repack import convert_file
from tests.build import F32_TENSOR, Q6_K, STRING, Model, T, pair, q6_k_tensor
from tests.conftest import mixed_model
from tests.forge import GOLDEN, canonical
from tests.readers import CONSUMERS, reader

FORMAT = (CONSUMERS.parent / "format.md").read_text()
FIELDS = {"ql": (0, 128), "qh": (128, 64), "scales": (192, 16), "d": (208, 2)}
Pair = tuple[Path, Path]


class File:
    """A sidecar taken apart by the statements of section 2."""

    def __init__(self, path: Path) -> None:
        self.raw = path.read_bytes()
        (self.length,) = struct.unpack_from("<Q", self.raw)
        self.start = 8 + self.length
        self.header = self.raw[8 : self.start].decode("ascii")
        self.members = json.loads(self.header)
        self.text = self.members.pop("__metadata__")["dpl"]
        self.manifest: dict[str, Any] = json.loads(self.text)
        self.tensors: list[dict[str, Any]] = self.manifest["tensors"]

    def data(self, name: str) -> bytes:
        begin, end = self.members[name]["data_offsets"]
        return self.raw[self.start + begin : self.start + end]


@pytest.fixture
def file(pair: Pair) -> File:
    return File(pair[1])


def natives() -> dict[str, bytes]:
    """The native bytes of the model's tensors, by name."""
    return {str(t.name): t.payload() for t in mixed_model().tensors if t.type == Q6_K}


def section(title: str) -> str:
    return FORMAT.split(f"\n## {title}", 1)[1].split("\n## ", 1)[0]


def test_every_rule_has_a_test() -> None:
    rules = re.findall(r"^\*\*(R\d+)\.\*\*", FORMAT, re.MULTILINE)
    assert rules == [f"R{number}" for number in range(1, len(rules) + 1)]
    tested = {match[1].upper() for name in globals() if (match := re.match(r"test_(r\d+)_", name))}
    assert tested == set(rules)


def test_the_dumps_are_the_golden_file() -> None:
    raw = (GOLDEN / "tiny.dpl").read_bytes()
    lines = re.findall(r"^    ([0-9a-f]{6})  ((?:[0-9a-f]{2} ){15}[0-9a-f]{2})  (.{16})$", FORMAT, re.MULTILINE)
    assert len(lines) == 24
    for at, hexadecimal, text in lines:
        found = raw[int(at, 16) : int(at, 16) + 16]
        assert found.hex(" ") == hexadecimal
        assert "".join(chr(byte) if 32 <= byte < 127 else "." for byte in found) == text


def test_the_example_says_the_truth() -> None:
    text, golden = section("7."), File(GOLDEN / "tiny.dpl")
    assert "has 6272 bytes" in text
    assert len(golden.raw) == 6272
    assert golden.length == 0x0FF8
    assert golden.start == 8 + 4088
    assert len(golden.header.rstrip(" ")) == 1789
    for number in range(10):
        shard = (GOLDEN / "tiny.gguf").read_bytes()
        entry, index = (golden.tensors[0], number) if number < 6 else (golden.tensors[1], number - 6)
        block = shard[entry["offset"] + 210 * index :][:210]
        assert list(block[:208]) == [(53 * number + 7 * place) % 256 for place in range(208)]
        assert struct.unpack_from("<e", block, 208) == ((number + 1) / 64,)
    assert golden.raw[5824 : 5824 + 128] == bytes((53 * 8 + 7 * place) % 256 for place in range(128))


def test_r1_the_fields_are_ggmls() -> None:
    table = re.findall(r"^\| (\w+) \| (\d+) \| (\d+) \|", section("1."), re.MULTILINE)
    assert {name: (int(offset), int(size)) for name, size, offset in table} == FIELDS
    assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType.Q6_K] == (256, 210)
    assert sum(size for _, size in FIELDS.values()) == 210


def test_r2_dimensions_and_rows(file: File) -> None:
    assert {len(entry["ne"]) for entry in file.tensors} == {1, 2, 3, 4}
    for entry in file.tensors:
        assert entry["ne"][0] % 256 == 0
        assert entry["n"] == entry["ne"][0] // 256
        assert entry["rows"] == prod(entry["ne"][1:])
    (experts,) = (entry for entry in file.tensors if entry["name"] == "experts")
    stack = np.frombuffer(natives()["experts"], np.uint8).reshape(4, 5, -1)  # NumPy: outermost first
    n, stride = experts["n"], experts["row_stride"]
    for r in range(experts["rows"]):
        row = file.data("experts")[r * stride :][:128]
        assert row == stack[r // 5, r % 5, :128].tobytes()
    assert n == 4


def test_r3_every_byte_of_every_plane(file: File) -> None:
    compared = 0
    for entry in file.tensors:
        n, data, native = entry["n"], file.data(entry["name"]), natives()[entry["name"]]
        for r in range(entry["rows"]):
            for i in range(n):
                for offset, size in FIELDS.values():
                    for b in range(size):
                        stored = data[r * entry["row_stride"] + offset * n + size * i + b]
                        assert stored == native[(r * n + i) * 210 + offset + b]
                        compared += 1
    assert compared == sum(map(len, natives().values())) > 20_000


def test_r3_the_table_of_planes() -> None:
    table = re.findall(r"^\| (\w+) \| (\d+)(?: n)? \| (\d+) n \|$", section("1."), re.MULTILINE)
    assert {name: (int(offset), int(size)) for name, offset, size in table} == FIELDS


def test_r4_stride_and_padding(file: File) -> None:
    for entry in file.tensors:
        content, stride, data = 210 * entry["n"], entry["row_stride"], file.data(entry["name"])
        assert stride == (content + 15) // 16 * 16
        for r in range(entry["rows"]):
            assert not any(data[r * stride + content : (r + 1) * stride])
    assert {entry["row_stride"] - 210 * entry["n"] for entry in file.tensors} == {6, 8, 10, 12, 14}


def test_r5_the_formula_of_the_weights(file: File) -> None:
    for name, native in natives().items():
        if not native:
            continue
        expected = gguf.dequantize(np.frombuffer(native, np.uint8).reshape(-1, 210), gguf.GGMLQuantizationType.Q6_K)
        for block, weights in zip(range(0, len(native), 210), expected, strict=True):
            ql, qh = native[block : block + 128], native[block + 128 : block + 192]
            scales = struct.unpack_from("<16b", native, block + 192)
            (d,) = struct.unpack_from("<e", native, block + 208)
            for j in range(256):
                h, g, place = j // 128, j % 128 // 32, j % 32
                low = ql[64 * h + 32 * (g % 2) + place] >> 4 * (g // 2) & 15
                high = qh[32 * h + place] >> 2 * g & 3
                weight = d * scales[8 * h + 2 * g + place // 16] * ((low | high << 4) - 32)
                assert np.float32(weight) == weights[j], name


def test_r6_lengths(file: File) -> None:
    assert file.start % 4096 == 0
    assert file.length <= 33_554_432 == 32 << 20


def test_r7_the_headers_text(file: File) -> None:
    expected = f'{{"__metadata__":{{"dpl":{json.dumps(file.text)}}}'
    for entry in file.tensors:
        begin, end = file.members[entry["name"]]["data_offsets"]
        ne = entry["ne"]
        outer = {1: "1", 2: "{1}", 3: "{2},{1}", 4: "{3},{2},{1}"}[len(ne)].format(*ne)
        expected += f',{json.dumps(entry["name"])}:{{"dtype":"U8","shape":[{outer},{entry["row_stride"]}],'
        expected += f'"data_offsets":[{begin},{end}]}}'
    expected += "}"
    assert file.header.startswith(expected)
    assert set(file.header[len(expected) :]) <= {" "}


def test_r8_no_holes_and_no_tail(file: File) -> None:
    at = 0
    for entry in file.tensors:
        begin, end = file.members[entry["name"]]["data_offsets"]
        assert (begin, end) == (at, at + entry["rows"] * entry["row_stride"])
        at = end
    assert len(file.raw) == file.start + at


def test_r9_alignment(file: File, pair: Pair) -> None:
    for entry in file.tensors:
        begin, _ = file.members[entry["name"]]["data_offsets"]
        for r in range(entry["rows"]):
            for offset, _ in FIELDS.values():
                assert (file.start + begin + r * entry["row_stride"] + offset * entry["n"]) % 16 == 0
    tensor = reader.Sidecar(str(pair[1])).tensors["experts"]
    assert np.frombuffer(tensor.data, np.uint8).ctypes.data % 16 == 0  # mapped


def test_r10_the_stock_reader_opens_it(file: File, pair: Pair) -> None:
    with safetensors.safe_open(pair[1], framework="np") as opened:
        assert opened.metadata() == {"dpl": file.text}
        assert set(opened.keys()) == set(file.members)
        for name in file.members:
            assert opened.get_tensor(name).tobytes() == file.data(name)
            assert list(opened.get_slice(name).get_shape()) == file.members[name]["shape"]


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
        assert entry["native_sha256"] == hashlib.sha256(native).hexdigest()
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
def test_c19_a_stale_sidecar_is_seen_by_the_header(pair: Pair, change: str) -> None:
    model, (shard,) = bytearray(pair[0].read_bytes()), File(pair[1]).manifest["source"]["shards"]
    begin = len(mixed_model().parts()[0])
    if change == "size":
        model += b"\0" * 32
    elif change in {"header", "data"}:
        model[begin - 40 if change == "header" else begin + 40] ^= 1
    fresh = len(model) == shard["size"] and hashlib.sha256(model[:begin]).hexdigest() == shard["header_sha256"]
    assert fresh == (change not in {"size", "header"})
