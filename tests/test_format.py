"""docs/format.md, statement by statement, on a model of every type and rank: struct, json and hashlib alone.

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
from tests.golden import make
from tests.support.independent import KINDS, TABLE, Kind, Read, blocks, counts, read
from tests.support.readers import reader
from tests.support.sidecars.forge import GOLDEN
from tests.support.sidecars.page import FORMAT, section, weights
from tests.support.sidecars.whole import pair_of_all_types, whole_model

Pair = tuple[Path, Path]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return pair_of_all_types(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def file(pair: Pair) -> Read:
    return read(pair[1])


def natives() -> dict[str, bytes]:
    return {str(tensor.name): tensor.payload() for tensor in whole_model().tensors if tensor.type in TABLE}


def test_every_rule_has_a_test() -> None:
    rules = re.findall(r"^\*\*(R\d+)\.\*\*", FORMAT, re.MULTILINE)
    assert rules == [f"R{number}" for number in range(1, len(rules) + 1)]
    names = [*globals(), *vars(test_format_manifest)]
    tested = {match[1].upper() for name in names if (match := re.match(r"test_(r\d+)_", name))}
    assert tested == set(rules)


def test_every_line_of_the_page_fits() -> None:
    assert [line for line in FORMAT.splitlines() if len(line) > 120] == []


def test_the_dumps_are_the_golden_file() -> None:
    raw = (GOLDEN / "tiny.dpl").read_bytes()
    lines = re.findall(r"^    ([0-9a-f]{6})  ((?:[0-9a-f]{2} ){15}[0-9a-f]{2})  (.{16})$", FORMAT, re.MULTILINE)
    assert len(lines) == 22
    for at, hexadecimal, text in lines:
        found = raw[int(at, 16) : int(at, 16) + 16]
        assert found.hex(" ") == hexadecimal
        assert "".join(chr(byte) if 32 <= byte < 127 else "." for byte in found) == text


def test_the_example_says_the_truth() -> None:
    text, golden = section("7."), read(GOLDEN / "tiny.dpl")
    assert "has 12304 bytes" in text
    assert len(golden.raw) == 12304
    assert golden.length == 0x1FF8
    assert golden.data_start == 8 + 8184
    assert len(golden.text.rstrip(" ")) == 6777
    assert "6777 after its first" in text
    for tensor in make.TENSORS:
        if not tensor.type:
            continue
        kind, native = TABLE[tensor.type], tensor.native()
        for at in range(prod(tensor.ne) // kind.weights):
            k, block = tensor.first + at, native[kind.size * at :][: kind.size]
            scales = {place + b for place, what in kind.scales for b in range(2 if what == "f16" else 1)}
            assert all(block[b] == (53 * k + 7 * b) % 256 for b in range(kind.size) if b not in scales)
            for place, what in kind.scales:
                found, expected = float(block[place]), 52.0 + k
                if what == "f16":
                    found, expected = struct.unpack_from("<e", block, place)[0], (k + 1) / 64
                assert found == (0 if (k, place) == (20, 2) else 255 if k == 68 else expected)
    begin = golden.header["blk.0.ffn_up_exps.weight"]["data_offsets"][0]
    assert begin == 3984
    assert golden.raw[8192 + 3984 + 48 :][:16] == bytes([119, 255, 121]) + bytes(13)


def test_the_places_in_the_model_are_right() -> None:
    found = {
        name: (int(begin), int(end))
        for name, begin, end in re.findall(r"^\| `(\S+)` \| (\d+) \.\. (\d+) \|", FORMAT, re.M)
    }
    model, sidecar = (GOLDEN / "tiny.gguf").read_bytes(), read(GOLDEN / "tiny.dpl")
    assert list(found) == list(sidecar.header)
    for name, (begin, end) in found.items():
        assert model[begin:end] == sidecar.native(name)


def test_r1_the_fields_are_ggmls() -> None:
    table = re.findall(r"^\| (\w+) \| (\d+) \| (\d+) \| (\d+) \| (.* @ .*) \|$", section("1."), re.MULTILINE)
    found = []
    for name, number, weight, size, planes in table:
        fields = tuple((field, int(b), int(at)) for field, b, at in re.findall(r"(\w+) (\d+) @ (\d+)", planes))
        found.append(Kind(int(number), name, int(weight), int(size), fields, TABLE[int(number)].scales))
        assert gguf.GGMLQuantizationType(int(number)).name == name
        assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(int(number))] == (int(weight), int(size))
    assert tuple(found) == KINDS


def test_r2_dimensions_and_rows(file: Read) -> None:
    assert {len(entry["ne"]) for entry in file.tensors} == {1, 2, 3, 4}
    for entry in file.tensors:
        assert entry["ne"][0] % TABLE[entry["type"]].weights == 0
        assert entry["n"] == entry["ne"][0] // TABLE[entry["type"]].weights
        assert entry["rows"] == prod(entry["ne"][1:])
    (experts,) = (entry for entry in file.tensors if entry["name"] == "experts")
    stack = np.frombuffer(natives()["experts"], np.uint8).reshape(4, 5, -1)  # NumPy: outermost first
    n, stride = experts["n"], experts["row_stride"]
    for r in range(experts["rows"]):
        row = file.tensor("experts")[r * stride :][:128]
        assert row == stack[r // 5, r % 5, :128].tobytes()
    assert n == 4


def test_r3_every_byte_of_every_plane(file: Read) -> None:
    compared = 0
    for entry in file.tensors:
        kind, n, data, native = TABLE[entry["type"]], entry["n"], file.tensor(entry["name"]), natives()[entry["name"]]
        for r in range(entry["rows"]):
            for (_, size, offset), start in zip(kind.planes, kind.starts(n), strict=True):
                for i in range(n):
                    for b in range(size):
                        stored = data[r * entry["row_stride"] + start + size * i + b]
                        assert stored == native[(r * n + i) * kind.size + offset + b]
                        compared += 1
    assert compared == sum(map(len, natives().values())) > 50_000


def test_r4_stride_and_padding(file: Read) -> None:
    widths = set()
    for entry in file.tensors:
        kind, n, stride, data = TABLE[entry["type"]], entry["n"], entry["row_stride"], file.tensor(entry["name"])
        ends = [*kind.starts(n)[1:], stride]
        for (_, size, _), start, end in zip(kind.planes, kind.starts(n), ends, strict=True):
            assert start % 16 == 0
            assert end - start == (size * n + 15) // 16 * 16
            for r in range(entry["rows"]):
                assert not any(data[r * stride + start + size * n : r * stride + end])
            widths.add(end - start - size * n)
    assert {0, 2, 4, 6, 8, 10, 12, 14} <= widths
    assert any(width % 2 for width in widths)


def test_r4_the_rows_of_three_blocks() -> None:
    table = re.findall(r"^\| (\w+) \| (\w+ 0 \(.*\)) \| (\d+) \| (\d+) \|$", section("1."), re.MULTILINE)
    assert [name for name, *_ in table] == [kind.name for kind in KINDS]
    for kind, (_, planes, stride, zeros) in zip(KINDS, table, strict=True):
        expected = [
            f"{name} {start} ({3 * b})" for (name, b, _), start in zip(kind.planes, kind.starts(3), strict=True)
        ]
        assert planes.split(", ") == expected
        assert (int(stride), int(zeros)) == (kind.stride(3), kind.stride(3) - 3 * kind.size)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_r5_the_formulas_of_the_weights(kind: Kind) -> None:
    """Written down from the page and compared with gguf's dequantizer."""
    native = blocks(kind, 40, 3)
    raw = np.frombuffer(native, np.uint8).reshape(-1, kind.size)
    expected = gguf.dequantize(raw, gguf.GGMLQuantizationType(kind.number))
    for block, values in zip(range(0, len(native), kind.size), expected, strict=True):
        np.testing.assert_allclose(weights(native[block : block + kind.size], kind), values, 2e-6, 1e-12)


def test_r5_the_numbers_to_check_against() -> None:
    golden = {tensor.name: tensor for tensor in make.TENSORS}
    table = re.findall(r"^\| (\w+) \| `(\S+)` \| (\S+) \| (\S+) \| (\S+) \|$", section("1."), re.MULTILINE)
    assert [name for name, *_ in table] == [kind.name for kind in KINDS]
    for kind, (_, name, *numbers) in zip(KINDS, table, strict=True):
        block = golden[name].native()[2 * kind.size :][: kind.size]
        found = weights(block, kind)
        assert [float(number) for number in numbers] == [found[0], found[17], found[-1]]
        exact = gguf.dequantize(np.frombuffer(block, np.uint8), gguf.GGMLQuantizationType(kind.number))
        assert [float(number) for number in numbers] == [exact[0], exact[17], exact[-1]]


def test_r5_one_block_in_every_step() -> None:
    block = make.TENSORS[0].native()[:210]
    found = weights(block, TABLE[14])
    at = r"`\w+\[(\d+)\]` = "
    line = rf"^\| (\d+) \| {at}(\w+), (\d+) \| {at}(\w+), (\d) \| (-?\d+) \| {at}(-?\d+) \| (\S+) \|$"
    table = re.findall(line, section("1."), re.MULTILINE)
    assert len(table) == 4
    for j, low_at, ql, low, high_at, qh, high, quant, scale_at, scale, weight in table:
        assert (block[int(low_at)], block[128 + int(high_at)]) == (int(ql, 16), int(qh, 16))
        assert int(low) + 16 * int(high) - 32 == int(quant)
        assert struct.unpack_from("<b", block, 192 + int(scale_at)) == (int(scale),)
        assert found[int(j)] == float(weight) == int(scale) * int(quant) / 64


def test_r6_lengths(file: Read) -> None:
    assert file.data_start % 4096 == 0
    assert file.length <= 33_554_432 == 32 << 20


def test_r7_the_headers_text(file: Read) -> None:
    expected = f'{{"__metadata__":{{"dpl":{json.dumps(file.manifest_text)}}}'
    shapes = dict(re.findall(r"^\| (\d) \| `((?:ne\[\d\],|1,)+row_stride)` \|$", section("2."), re.MULTILINE))
    for entry in file.tensors:
        begin, end = file.header[entry["name"]]["data_offsets"]
        shape = shapes[str(len(entry["ne"]))].replace("row_stride", str(entry["row_stride"]))
        shape = re.sub(r"ne\[(\d)\]", lambda match, entry=entry: str(entry["ne"][int(match[1])]), shape)  # type: ignore[misc]
        expected += f',{json.dumps(entry["name"])}:{{"dtype":"U8","shape":[{shape}],"data_offsets":[{begin},{end}]}}'
    expected += "}"
    assert file.text.startswith(expected)
    assert set(file.text[len(expected) :]) <= {" "}


def test_r8_no_holes_and_no_tail(file: Read) -> None:
    at = 0
    for entry in file.tensors:
        begin, end = file.header[entry["name"]]["data_offsets"]
        assert (begin, end) == (at, at + entry["rows"] * entry["row_stride"])
        at = end
    assert len(file.raw) == file.data_start + at


def test_r9_alignment(file: Read, pair: Pair) -> None:
    for entry in file.tensors:
        begin, _ = file.header[entry["name"]]["data_offsets"]
        for r in range(entry["rows"]):
            for start in TABLE[entry["type"]].starts(entry["n"]):
                assert (file.data_start + begin + r * entry["row_stride"] + start) % 16 == 0
    tensor = reader.Sidecar(str(pair[1])).tensors["experts"]
    assert np.frombuffer(tensor.data, np.uint8).ctypes.data % 16 == 0  # mapped


def test_r10_the_stock_reader_opens_it(file: Read, pair: Pair) -> None:
    with safetensors.safe_open(pair[1], framework="np") as opened:
        assert opened.metadata() == {"dpl": file.manifest_text}
        assert set(opened.keys()) == set(file.header)
        for name in file.header:
            assert opened.get_tensor(name).tobytes() == file.tensor(name)
            assert list(opened.get_slice(name).get_shape()) == file.header[name]["shape"]


def test_the_counts_of_the_page() -> None:
    """NaN, infinities and both zeros of every scale, by the words of R15."""
    for kind in KINDS:
        found = bytearray(blocks(kind, 6))
        for at, (bits, byte) in enumerate([(0x7C00, 255), (0xFE00, 254), (0x0000, 0), (0x8000, 1), (0x0001, 2)]):
            for place, what in kind.scales:
                struct.pack_into(
                    "<H" if what == "f16" else "B", found, at * kind.size + place, bits if what == "f16" else byte
                )
        scales = len(kind.scales)
        assert counts(bytes(found), kind) == ((2 * scales, 2 * scales) if kind.name != "MXFP4" else (1, 0))
