"""docs/format.md, statement by statement, checked with struct, json and hashlib alone on a model of every rank.

The tests are named for the rules: R1 is `test_r1_...`. The checks C1 to C17 are in tests/test_readers.py.
"""

from __future__ import annotations

import json
import re
import struct
from math import prod
from pathlib import Path

import gguf
import numpy as np
import pytest
import safetensors.numpy

from tests import test_format_manifest
from tests.support.readers import reader
from tests.support.sidecars.apart import FIELDS, FORMAT, File, natives, section
from tests.support.sidecars.forge import GOLDEN

Pair = tuple[Path, Path]


@pytest.fixture
def file(pair: Pair) -> File:
    return File(pair[1])


def test_every_rule_has_a_test() -> None:
    rules = re.findall(r"^\*\*(R\d+)\.\*\*", FORMAT, re.MULTILINE)
    assert rules == [f"R{number}" for number in range(1, len(rules) + 1)]
    names = [*globals(), *vars(test_format_manifest)]
    tested = {match[1].upper() for name in names if (match := re.match(r"test_(r\d+)_", name))}
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
    assert len(golden.header.rstrip(" ")) == 1615
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
