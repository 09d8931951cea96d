"""Malformed GGUF models: one line, exit 3, nothing written, by both commands. And odd ones that are fine."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.calls import MIB, call, listing
from tests.support.models import (
    ARRAY,
    F16_TENSOR,
    F32_TENSOR,
    F64,
    I32,
    Q6_K,
    Q8_0,
    STRING,
    U8,
    U16,
    U32,
    U64,
    Model,
    T,
    pair,
    q6_k,
    q6_k_tensor,
    string,
)
from tests.support.sidecars.by_hand import sidecar_of, tiny_model

ARCH = pair("general.architecture", STRING, "test")
GOOD = q6_k_tensor("good", (256, 2))


def with_pairs(*pairs: bytes, **facts: Any) -> bytes:
    return Model([GOOD], (ARCH, *pairs), **facts).to_bytes()


def with_tensors(*tensors: T, **facts: Any) -> bytes:
    return Model([GOOD, *tensors], **facts).to_bytes()


def raw_array(key: str, item: int, count: int, items: bytes = b"") -> bytes:
    return string(key) + struct.pack("<IIQ", ARRAY, item, count) + items


def nested(depth: int) -> bytes:
    return string("deep") + struct.pack("<I", ARRAY) + struct.pack("<IQ", ARRAY, 1) * depth + struct.pack("<IQ", U8, 0)


def big_endian() -> bytes:
    return b"GGUF" + struct.pack(">IQQ", 3, 1, 0) + bytes(100)


def cut(model: Model, end: int) -> bytes:
    return model.to_bytes()[:end]


WHOLE = Model([GOOD, q6_k_tensor("last", (256, 3))], tail=False)

REFUSED: dict[str, tuple[bytes | Callable[[], bytes], tuple[str, ...]]] = {
    # something else under the name of a model
    "an HTML page": (b"<!DOCTYPE html><html>", ("not a GGUF", "HTML", "<!DOCTYPE html>")),
    "a JSON error": (b'{"error":"Unauthorized"}', ("not a GGUF", "JSON", "Unauthorized")),
    "plain text": (b"Entry not found", ("not a GGUF", "Entry not found")),
    "an XML error with a byte order mark": (b"\xef\xbb\xbf<?xml version='1.0'?><Error>", ("XML",)),
    "a git-lfs pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", ("git-lfs", "git lfs pull")),
    "a zip archive": (b"PK\x03\x04" + bytes(60), ("zip",)),
    "an old ggml model": (b"tjgg" + bytes(60), ("older than GGUF",)),
    "a safetensors file": (sidecar_of(tiny_model()), ("safetensors", "swapped")),
    "terminal escapes": (b"\x1b]0;owned\x07\x1b[2J" + bytes(9), ("not a GGUF", "\\x1b")),
    # cut short
    "nothing at all": (b"", ("it is empty",)),
    "the magic alone": (b"GGUF", ("ends within the version", "cut short")),
    "a header cut in the counts": (cut(WHOLE, 20), ("20 bytes",)),
    "a header cut in a key": (cut(WHOLE, 30), ("30 bytes",)),
    "a header cut in the tensor table": (cut(WHOLE, 110), ("ends within",)),
    "no data at all": (WHOLE.parts()[0], ("cut short", "`good`", "needs bytes")),
    "one byte short": (cut(WHOLE, -1), ("cut short", "`last`")),
    "one block short": (cut(WHOLE, -210), ("cut short", "`last`")),
    "version 1": (with_tensors(version=1), ("version", "found 1", "2 or 3")),
    "version 4": (with_tensors(version=4), ("version", "found 4", "2 or 3")),
    "version 0": (with_tensors(version=0), ("version", "found 0")),
    "big endian": (big_endian, ("big-endian",)),
    "a tensor twice": (with_tensors(q6_k_tensor("good", (256, 1))), ("`good`", "twice")),
    "a key twice": (with_pairs(ARCH), ("`general.architecture`", "twice")),
    "no dimensions": (with_tensors(T("x", (), data=bytes(210))), ("`x`", "0 dimensions")),
    "five dimensions": (with_tensors(T("x", (256, 1, 1, 1, 1))), ("`x`", "5 dimensions")),
    "a million dimensions": (with_tensors(T("x", (1,) * 10**6, F32_TENSOR, b"")), ("`x`", "1000000 dimensions")),
    **{
        f"{name} of type {kind}": (with_tensors(T("x", ne, kind, b"")), ("cut short", "`x`"))
        for kind in (F32_TENSOR, Q6_K)
        for name, ne in (
            ("a dimension of 2^63", (1 << 63,)),
            ("a product that wraps", (1 << 32, 1 << 32)),
            ("a size that wraps", (1 << 61, 2)),
        )
    },
    "a wrapping product around a zero": (
        with_tensors(T("x", (1 << 62, 0, 1 << 62), data=b"")),
        ("`x`", "larger than any file"),
    ),
    "2^62 keys": (with_pairs(pair_count=1 << 62), ("claims", "keys")),
    "2^62 tensors": (with_tensors(tensor_count=1 << 62), ("claims", "tensors")),
    "a few tensors too many": (with_tensors(tensor_count=3), ("tensor ``", "makes no sense", "0 dimensions")),
    "an array of 2^63 numbers": (with_pairs(raw_array("a", U8, 1 << 63)), ("`a`", "ends within")),
    "an array of 2^61 numbers of 8 bytes": (with_pairs(raw_array("a", U64, 1 << 61)), ("`a`", "ends within")),
    "an array of 2^63 strings": (with_pairs(raw_array("a", STRING, 1 << 63)), ("`a`", "ends within")),
    "an array of 2^60 arrays": (with_pairs(raw_array("a", ARRAY, 1 << 60)), ("`a`", "ends within")),
    "a string of 2^63 bytes": (with_pairs(string("a") + struct.pack("<IQ", STRING, 1 << 63)), ("`a`", "ends within")),
    "a key of 2^63 bytes": (with_pairs(struct.pack("<Q", 1 << 63)), ("key", "ends within")),
    "a string in an array that leaps": (
        with_pairs(raw_array("a", STRING, 2, struct.pack("<Q", 1 << 62) + string("b"))),
        ("`a`", "ends within"),
    ),
    "an offset beyond the file": (with_tensors(T("x", (1,), F32_TENSOR, b"", 1 << 40)), ("`x`", "cut short")),
    "an offset that wraps": (with_tensors(T("x", (1,), F32_TENSOR, b"", (1 << 64) - 32)), ("`x`", "cut short")),
    "an overlap": (with_tensors(T("x", (1,), F32_TENSOR, b"", 32)), ("`good`", "`x`", "overlap")),
    "the same range twice": (with_tensors(T("x", (256, 2), data=b"", offset=0)), ("`good`", "`x`", "overlap")),
    "an unaligned offset": (
        with_tensors(T("x", (256,), Q6_K, b"", 8), T("y", (9,), F32_TENSOR)),
        ("`x`", "not aligned"),
    ),
    **{
        f"an alignment of {value}": (with_pairs(pair("general.alignment", U32, value)), ("general.alignment",))
        for value in (0, 24, 1 << 31)
    },
    "an alignment of another type": (with_pairs(pair("general.alignment", U64, 32)), ("general.alignment", "type")),
    "an alignment that is a list": (with_pairs(pair("general.alignment", U32, [32])), ("general.alignment", "type")),
    "a tensor name that is not UTF-8": (with_tensors(T(b"\xff\xfe", (1,), F32_TENSOR)), ("not UTF-8", "\\xff")),
    "a tensor name of half a surrogate": (with_tensors(T(b"\xed\xa0\x80", (1,), F32_TENSOR)), ("not UTF-8",)),
    "a key that is not UTF-8": (with_pairs(pair(b"\xc3(", U8, 1)), ("key is not UTF-8",)),
    "a tensor name of 100,000 bytes": (with_tensors(T("n" * 100_000, (1,), F32_TENSOR)), ("too long", "100000")),
    **{
        f"Q6_K of ne0 {ne0}": (with_tensors(T("x", (ne0, 256), data=q6_k(ne0))), ("`x`", "multiple of 256", str(ne0)))
        for ne0 in (128, 384, 896, 255, 1)
    },
    "a row of 16 million weights": (with_tensors(T("x", (256 * 65536,), data=b"\0" * 13762560)), ("`x`", "longer")),
    "a reserved name": (with_tensors(q6_k_tensor("__metadata__", (256,))), ("`__metadata__`", "reserves")),
    "an unknown value type": (with_pairs(string("a") + struct.pack("<I", 13)), ("`a`", "unknown value type", "13")),
    "an unknown item type": (with_pairs(raw_array("a", 99, 0)), ("`a`", "unknown item type", "99")),
    "arrays in arrays in arrays": (with_pairs(nested(100)), ("`deep`", "nests")),
    # split models that make no sense
    "shard 6 of 2": (with_pairs(pair("split.count", U16, 2), pair("split.no", U16, 5)), ("split.no", "split.count")),
    "a first shard under another name": (
        with_pairs(pair("split.count", U16, 2), pair("split.no", U16, 0)),
        ("not named so", "-00001-of-00002.gguf"),
    ),
    "a split of 2^60 shards": (
        with_pairs(pair("split.count", U64, 1 << 60), pair("split.no", U16, 0)),
        ("not named so",),
    ),
    "a shard that says so by its number alone": (with_pairs(pair("split.no", U16, 1)), ("split.no `1`",)),
    "a shard that says so by the number of tensors": (
        with_pairs(pair("split.tensors.count", I32, 9)),
        ("does not hold all of its tensors", "found 1, expected `9`"),
    ),
    "a number of shards that is text": (with_pairs(pair("split.count", STRING, "2")), ("split.count", "no integer")),
    **{
        f"a shard number that is {name}": (with_pairs(pair("split.count", U16, 2), no), ("split.no",))
        for name, no in (
            ("text", pair("split.no", STRING, "\x1b[31mone\n")),
            ("not a number", pair("split.no", F64, float("nan"))),
            ("negative", pair("split.no", I32, -1)),
        )
    },
}


@pytest.mark.parametrize("kind", REFUSED)
def test_refused_in_one_line(kind: str, tmp_path: Path) -> None:
    made, words = REFUSED[kind]
    model, out = tmp_path / "model.gguf", tmp_path / "model.dpl"
    model.write_bytes(made() if callable(made) else made)
    before = listing(tmp_path)
    call("repack", model, "-o", out, memory=256 * MIB).refused(3, "model.gguf`", *words)
    assert listing(tmp_path) == before
    if "reserves" in words or "longer" in words:  # sound models, which verify has no quarrel with
        return
    out.write_bytes(sidecar_of(tiny_model()))
    call("verify", "--quiet", model, out, memory=256 * MIB).refused(3, "model.gguf`", *words)


@pytest.mark.parametrize("count", [None, 0, 1])
def test_a_shard_by_its_name_is_not_proven_alone(count: int | None, tmp_path: Path) -> None:
    """Without its keys nothing but its name says that it is one; a sidecar of it would be taken for the model's."""
    model, out = tmp_path / "m-00002-of-00003.gguf", tmp_path / "m.dpl"
    tiny_model().write(tmp_path / "m.gguf")
    assert call("repack", tmp_path / "m.gguf", "-o", out).code == 0
    keys = () if count is None else (pair("split.count", U16, count),)
    Model(tiny_model().tensors, (ARCH, *keys)).write(model)
    words = ("m-00002-of-00003.gguf", "named as one of 3 shards", "rename")
    call("verify", "--quiet", model, out).refused(3, *words)
    out.unlink()
    call("repack", model, "-o", out).refused(3, *words)
    assert not out.exists()


NOTHING = {
    "a vocabulary": Model([]),
    "another type only": Model([T("q", (64,), Q8_0, bytes(68))]),
    "another type under the name Q6_K": Model([T("blk.0.Q6_K.weight", (64,), Q8_0, bytes(68))]),
}


@pytest.mark.parametrize("kind", NOTHING)
def test_nothing_to_convert_is_no_success(kind: str, tmp_path: Path) -> None:
    model = NOTHING[kind].write(tmp_path / "model-Q6_K.gguf")
    before = listing(tmp_path)
    call("repack", model, "-o", tmp_path / "out.dpl").refused(5, "model-Q6_K.gguf", "no")
    assert listing(tmp_path) == before
    (tmp_path / "out.dpl").write_bytes(sidecar_of(tiny_model()))
    assert call("verify", "--quiet", model, tmp_path / "out.dpl").code in {1, 3}


ODD_BUT_FINE = {
    "version 2": Model([GOOD], version=2),
    "no padding after the last tensor": Model([GOOD], tail=False),
    "unknown types first, in the middle and last": Model(
        [T("a", (7,), 42, b"1"), GOOD, T("b", (3,), 1 << 31, b"2"), q6_k_tensor("z", (256,)), T("c", (1,), 4, b"3")]
    ),
    "zero elements of an unknown type at the very end": Model([GOOD, T("e", (0, 5), 42, b"")], tail=False),
    "zero elements of Q6_K at the very end": Model([GOOD, T("e", (256, 0), data=b"")], tail=False),
    "zero rows beside huge ones": Model([GOOD, T("e", (256, 0, 1 << 50), data=b"")]),
    "rows without weights": Model([GOOD, T("e", (0, 1 << 60), data=b"")]),
    "an alignment of 16": Model([GOOD], (ARCH, pair("general.alignment", U32, 16)), alignment=16),
    "an alignment of 64": Model([GOOD], (ARCH, pair("general.alignment", U32, 64)), alignment=64),
    "descending offsets": Model(
        [T("b", (256, 1), data=b"", offset=224), T("a", (256, 1), data=b"", offset=0), T("d", (512,), F32_TENSOR)]
    ),
    "empty arrays, and arrays in arrays": Model([GOOD], (ARCH, raw_array("a", STRING, 0), nested(3))),
    "a name of nothing": Model([q6_k_tensor("", (256,))]),
    "a name in use by JavaScript": Model([q6_k_tensor("__proto__", (256,)), q6_k_tensor("constructor", (256,))]),
    "no metadata": Model([GOOD], ()),
    "five dimensions, and none at all": Model(
        [GOOD, T("five", (2, 1, 3, 1, 2), F16_TENSOR, bytes(24)), T("none", (), F32_TENSOR, bytes(4))]
    ),
    "numbers that a fork gave to types of its own": Model(
        [T("i2", (512, 99), 39, bytes(30)), GOOD, T("i4", (77,), 40, bytes(3)), T("last", (1 << 40,), 41, bytes(3))]
    ),
    "a shape that no file can hold, of an unknown type": Model([GOOD, T("x", (1 << 63, 1 << 63), 99, b"1")]),
    "rows of Q8_0 that are no whole blocks": Model([GOOD, T("x", (48, 3), Q8_0, bytes(153))]),
    "tied and unaligned tensors of other types": Model(
        [GOOD, T("x", (9,), F32_TENSOR), T("tied", (3,), F32_TENSOR, b"", 456)]
    ),
    "metadata that is not UTF-8": Model([GOOD], (pair("general.name", STRING, b"\xff\x00\x1b[2J"),)),
    "d of every special kind, scales of -128": Model(
        [T("x", (256, 8), data=b"".join(b"\x80" * 208 + struct.pack("<H", bits) for bits in (
            0x7E00, 0xFE00, 0x7C01, 0x7C00, 0xFC00, 0x8000, 0x0000, 0x0001)))]
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", ODD_BUT_FINE)
def test_odd_but_fine(kind: str, tmp_path: Path) -> None:
    model, out = tmp_path / "model.gguf", tmp_path / "model.dpl"
    made = ODD_BUT_FINE[kind].to_bytes()
    if kind == "descending offsets":
        made = made[: len(ODD_BUT_FINE[kind].parts()[0])] + q6_k(1) + bytes(14) + q6_k(1) + bytes(14 + 1600)
        made = made.replace(struct.pack("<IQIQ", 1, 512, F32_TENSOR, 0), struct.pack("<IQIQ", 1, 4, F32_TENSOR, 448))
    model.write_bytes(made)
    done = call("repack", model, "-o", out)
    assert (done.code, done.err) == (0, ""), done.err
    done = call("verify", model, out)
    assert (done.code, done.err) == (0, ""), done.err
    assert "PROVEN" in done.out
    assert "\x1b" not in done.out
    done = call("verify", out)
    assert (done.code, done.err) == (0, ""), done.err


def test_a_damaged_model_is_named_before_an_output_that_exists(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    (tmp_path / "m.dpl").write_bytes(b"old")
    call("repack", tmp_path / "m.gguf", "-o", tmp_path / "m.dpl", "--force").refused(3)
    assert (tmp_path / "m.dpl").read_bytes() == b"old"


def test_a_tensor_that_makes_no_sense_can_be_left_out(tmp_path: Path) -> None:
    model, out = tmp_path / "m.gguf", tmp_path / "m.dpl"
    model.write_bytes(with_tensors(T("odd", (384, 2), data=bytes(999))))
    call("repack", model, "-o", out).refused(3, "`odd`", "multiple of 256")
    assert call("repack", model, "-o", out, "--exclude", "odd").code == 0
    done = call("verify", model, out)
    assert (done.code, done.err) == (0, "")
