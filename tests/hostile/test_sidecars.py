"""Malformed sidecars, kinds 31 to 34, 39, 40 and 51: exit 3 or 1, one line, by verify in both forms and the reader."""

from __future__ import annotations

import copy
import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from repack.errors import Damaged
from repack.sidecar.reader import Sidecar
from tests.support.calls import MIB, call, listing
from tests.support.independent import TABLE
from tests.support.models import Model, q6_k, q6_k_tensor
from tests.support.sidecars.by_hand import (
    Json,
    data_of,
    framed,
    header_of,
    manifest_of,
    sealed,
    sidecar_of,
    tiny_model,
    write_pair,
)
from tests.support.sidecars.forge import canonical

MODEL = tiny_model()
MANIFEST = manifest_of(MODEL)
DATA = data_of(MODEL)
GOOD = sidecar_of(MODEL)
START = len(GOOD) - len(DATA)


def edited(*path: str | int, value: object) -> Json:
    """The manifest with one value replaced; to be sealed anew."""
    manifest = copy.deepcopy(MANIFEST)
    at: Any = manifest
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return manifest


def remade(*path: str | int, value: object, data: bytes = DATA) -> bytes:
    """A sidecar whose every part but this value fits."""
    return framed(header_of(edited(*path, value=value)), data)


def with_text(text: str) -> bytes:
    """A sidecar with any text in the manifest's place."""
    return framed(header_of(MANIFEST, text), DATA)


def replaced(old: str, new: str) -> bytes:
    """A sidecar with another safetensors header around the right manifest."""
    header = header_of(MANIFEST)
    assert old in header
    return framed(header.replace(old, new), DATA)


def with_space() -> bytes:
    return with_text(sealed(MANIFEST).replace(":", ": ", 1))


def empty_tensors() -> bytes:
    return framed(header_of({**MANIFEST, "tensors": []}), b"")


def huge_shape(ne: list[int]) -> bytes:
    tensors = [{**MANIFEST["tensors"][0], "ne": ne, "rows": 0, "n": ne[0] // 256, "nbytes": 0}]
    tensors[0]["row_stride"] = -(-210 * (ne[0] // 256) // 16) * 16
    return framed(header_of({**MANIFEST, "tensors": tensors}), b"")


def version_1() -> bytes:
    """The right file as version 1 had it: one layout, other names for the counts, nothing of types."""
    facts = copy.deepcopy(MANIFEST)
    facts["format"]["major"] = 1
    planes = [("ql", 128, 0), ("qh", 64, 128), ("scales", 16, 192), ("d", 2, 208)]
    fields = [{"name": name, "block_bytes": size, "plane_offset": at} for name, size, at in planes]
    facts["layout"] = {"block_weights": 256, "block_bytes": 210, "row_alignment": 16, "fields": fields}
    del facts["layouts"], facts["selection"]["types"]
    for entry in facts["tensors"]:
        entry["nonfinite_d"], entry["zero_d"] = entry.pop("nonfinite_scales"), entry.pop("zero_scales")
    return framed(header_of(facts), DATA)


DAMAGED: dict[str, tuple[bytes | Callable[[], bytes], tuple[str, ...]]] = {
    # 39: cut short, at every kind of place, or something else
    "nothing": (b"", ("not a dpl sidecar",)),
    "half a length": (GOOD[:5], ("not a dpl sidecar",)),
    "a length alone": (GOOD[:8], ("not a dpl sidecar",)),
    "half a header": (GOOD[:1000], ("cut short within its header",)),
    "a header alone": (GOOD[:START], ("cut short",)),
    "half the data": (GOOD[: START + 300], ("cut short",)),
    "one byte short": (GOOD[:-1], ("cut short", str(len(GOOD) - 1), str(len(GOOD)))),
    "a model": (MODEL.to_bytes(), ("GGUF", "swapped")),
    "an HTML page": (b"<!DOCTYPE html><html>", ("not a dpl sidecar",)),
    "a git-lfs pointer": (b"version https://git-lfs.github.com/spec/v1\n", ("not a dpl sidecar",)),
    # 32, 33
    "one byte too long": (GOOD + b"\0", ("after its last tensor",)),
    "a length of 2^64": (b"\xff" * 8 + GOOD[8:], ("too long",)),
    "a header of 100 MB": (struct.pack("<Q", 100_000_000) + GOOD[8:], ("too long", "100000000")),
    "a length beyond the file": (struct.pack("<Q", 1 << 20) + GOOD[8:], ("cut short within its header",)),
    "a hole": (replaced('"data_offsets":[448,', '"data_offsets":[464,'), ("does not follow from the manifest",)),
    "an overlap": (replaced('"data_offsets":[448,', '"data_offsets":[0,'), ("does not follow",)),
    "another dtype": (replaced('"dtype":"U8"', '"dtype":"I8"'), ("does not follow",)),
    "another shape": (replaced('"shape":[2,224]', '"shape":[224,2]'), ("does not follow",)),
    "a tensor twice": (replaced('"a":{', '"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{'), ("follow",)),
    "something after the JSON": (framed(header_of(MANIFEST) + "\0", DATA), ("does not follow",)),
    "tabs for spaces": (GOOD[:START].replace(b"  ", b"\t\t") + DATA, ("does not follow",)),
    # 31
    "a stock safetensors file": (framed('{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"1"), ("without a",)),
    "no metadata": (framed('{"__metadata__":null}', b""), ("without a dpl manifest",)),
    "empty metadata": (framed('{"__metadata__":{}}', b""), ("without a dpl manifest",)),
    "a manifest that is a number": (framed('{"__metadata__":{"dpl":1}}', b""), ("manifest is not a string",)),
    "a manifest that never ends": (framed('{"__metadata__":{"dpl":"', b""), ("not JSON",)),
    "a header that is not ASCII": (framed('{"__metadata__":{"dpl":"ä"}}'.encode("latin-1"), b""), ("not JSON",)),
    # 34
    "data at a multiple of 8 only": (framed(header_of(MANIFEST), DATA, alignment=8), ("misaligned", "4096")),
    # the manifest: well-formed JSON is required, then one form of it, then its seal
    "a manifest of nothing": (with_text(""), ("not JSON",)),
    "a manifest that is a list": (with_text("[]"), ("not an object",)),
    "a space in the manifest": (with_space, ("canonical",)),
    "a key twice": (with_text('{"a":1,"a":1}'), ("not JSON",)),
    "not a number": (with_text('{"a":NaN}'), ("not JSON",)),
    "a number of 5,000 digits": (with_text('{"a":' + "9" * 5000 + "}"), ("not JSON",)),
    "a broken seal": (with_text(sealed(MANIFEST).replace('"by hand"', '"by foot"')), ("own digest",)),
    "no seal": (with_text(canonical(MANIFEST)), ("manifest_sha256", "found nothing")),
    "brackets without end": (with_text("[" * 500_000), ("manifest",)),
    "deep but closed": (with_text('{"a":' * 5000 + "1" + "}" * 5000), ("deep",)),
    "three bytes a value": (with_text("[" + "[]," * 2_000_000 + "[]]"), ("more than 1048576 values",)),
    # 40
    "format version 3": (remade("format", "major", value=3), ("format 3", "update", "version 2")),
    "format version 1": (remade("format", "major", value=1), ("format 1, convert again", "version 2")),
    "format version 0": (remade("format", "major", value=0), ("format 0", "version 2")),
    "a sound file of version 1": (version_1, ("format 1, convert again",)),
    "another format": (remade("format", "name", value="zip"), ("`name`", "zip")),
    "another layout": (remade("layouts", 0, "planes", 0, "bytes", value=129), ("another layout of type 14",)),
    "a layout whose zero is false": (remade("layouts", 0, "planes", 0, "offset", value=False), ("another layout",)),
    "a layout too many": (
        remade("layouts", value=[json.loads(TABLE[8].layout()), *MANIFEST["layouts"]]),
        ("no tensor uses", "[8]"),
    ),
    "layouts in disorder": (remade("layouts", value=MANIFEST["layouts"] * 2), ("ascending order",)),
    "a type not asked for": (remade("selection", "types", value=[8]), ("not asked for", "[14]")),
    "types in disorder": (remade("selection", "types", value=[14, 8]), ("ascending order",)),
    # values that make no sense, each sealed
    "no tensor": (empty_tensors, ("lists no tensor",)),
    "tensors that are no list": (with_text(sealed({**MANIFEST, "tensors": {}})), ("`tensors`", "array")),
    "a tensor that is a number": (with_text(sealed({**MANIFEST, "tensors": [1]})), ("`tensors`", "objects")),
    "a row count that is wrong": (remade("tensors", 0, "rows", value=3), ("`rows`", "expected 2")),
    "a count below zero": (remade("tensors", 0, "zero_scales", value=-1), ("`zero_scales`",)),
    "a count that is true": (remade("tensors", 0, "zero_scales", value=True), ("`zero_scales`",)),
    "a count that is a float": (remade("tensors", 0, "zero_scales", value=0.0), ("not JSON",)),
    "a count of 2^63": (remade("tensors", 0, "nonfinite_scales", value=1 << 63), ("not JSON",)),
    "a digest in capitals": (remade("tensors", 0, "sha256", value="A" * 64), ("`sha256`", "hexadecimal")),
    "another type": (remade("tensors", 0, "type", value=8), ("`type`", "a type of `layouts`")),
    "a name that is a number": (with_text(sealed(edited("tensors", 0, "name", value=1))), ("`name`", "a string")),
    "half a surrogate pair for a name": (remade("tensors", 0, "name", value="\ud800"), ("canonical",)),
    "the same name twice": (remade("tensors", 1, "name", value="a"), ("`a`", "twice")),
    "a reserved name": (remade("tensors", 0, "name", value="__metadata__"), ("`__metadata__`", "reserves")),
    "a shard that is not there": (remade("tensors", 0, "shard", value=1), ("`a`", "shard")),
    "bytes outside the shard": (remade("tensors", 0, "offset", value=1 << 40), ("`a`", "outside")),
    "no shards": (remade("source", "shards", value=[]), ("`a`", "shard")),
    "a shard outside the folder": (remade("source", "shards", 0, "name", value="../x"), ("`name`", "without a folder")),
    "a shard without a name": (remade("source", "shards", 0, "name", value=""), ("`name`", "without a folder")),
    "left out without a pattern": (remade("selection", "left_out", value=["b"]), ("without a pattern",)),
    "five dimensions": (with_text(sealed(edited("tensors", 0, "ne", value=[256, 1, 1, 1, 2]))), ("`ne`",)),
    "a row of 100 weights": (with_text(sealed(edited("tensors", 0, "ne", value=[100, 2]))), ("`ne`", "256")),
    "a product of 2^80": (with_text(sealed(edited("tensors", 0, "ne", value=[256, 2**40, 2**32]))), ("`ne`",)),
    "data of 2^50 bytes": (
        framed(
            header_of(
                {**MANIFEST, "tensors": [{**MANIFEST["tensors"][0], "ne": [256, 2**42], "rows": 2**42,
                                          "nbytes": 210 * 2**42}],
                 "source": {"general": {}, "shards": [{**MANIFEST["source"]["shards"][0], "size": 2**60}]}}
            ),
            DATA,
        ),
        ("cut short",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", DAMAGED)
def test_damaged(kind: str, tmp_path: Path) -> None:
    made, words = DAMAGED[kind]
    model, sidecar = write_pair(tmp_path, MODEL, made() if callable(made) else made)
    before = listing(tmp_path)
    call("verify", "--quiet", sidecar, memory=256 * MIB).refused(3, "model.dpl`", *words)
    call("verify", "--quiet", model, sidecar, memory=256 * MIB).refused(3, "model.dpl`", *words)
    with pytest.raises(Damaged, match=r"model\.dpl"):
        Sidecar(sidecar)
    assert listing(tmp_path) == before


def test_the_builder_builds_what_passes(tmp_path: Path) -> None:
    model, sidecar = write_pair(tmp_path, MODEL)
    assert call("verify", "--quiet", model, sidecar).code == 0
    assert call("verify", "--quiet", sidecar).code == 0


OTHER_DATA = bytes([DATA[0] ^ 1]) + DATA[1:]
FOREIGN = Model([q6_k_tensor("a", (256, 2), 7), *tiny_model().tensors[1:]])
RENAMED = Model([q6_k_tensor("x", (256, 2), 1), *tiny_model().tensors[1:]])
FEWER = Model(tiny_model().tensors[:2])
SWAPPED = Model([tiny_model().tensors[i] for i in (2, 1, 0)])

DIFFERENT: dict[str, tuple[bytes, tuple[str, ...]]] = {
    # 51: another model, tensors renamed, one missing, one too many, another order
    "another model of the same shape": (sidecar_of(FOREIGN), ("`a`", "differ from the model")),
    "a tensor under another name": (sidecar_of(RENAMED), ("`x` is not in the model", "`a` is missing")),
    "a tensor missing": (sidecar_of(FEWER), ("`c` is missing",)),
    "another order": (sidecar_of(SWAPPED), ("elsewhere",)),
    # sealed lies
    "bytes of no model under right digests": (framed(header_of(MANIFEST), OTHER_DATA), ("SHA-256", "ql[0]")),
    "counts that are wrong": (remade("tensors", 0, "zero_scales", value=1), ("zero scales is wrong",)),
    "an offset that is wrong": (remade("tensors", 0, "offset", value=224), ("stands elsewhere",)),
    "a census that is wrong": (remade("skipped", value=[]), ("census",)),
    "a shape that is wrong": (
        remade("tensors", 0, "ne", value=[256, 1, 2], data=DATA),
        ("`a` has another shape", "[256, 1, 2]", "[256, 2]"),
    ),
    "left out though it is not there": (
        framed(
            header_of({**MANIFEST, "selection": {"types": [14], "include": ["."], "exclude": [], "left_out": ["z"]}}),
            DATA,
        ),
        ("`z` is said to be left out",),
    ),
    # 40
    "another size of the model": (
        remade("source", "shards", 0, "size", value=MANIFEST["source"]["shards"][0]["size"] + 32),
        ("stale",),
    ),
    "another header of the model": (remade("source", "shards", 0, "header_sha256", value="0" * 64), ("stale",)),
    "more shards": (remade("source", "shards", value=MANIFEST["source"]["shards"] * 2), ("stale", "2")),
    "another architecture": (
        remade("source", "general", value={"general.architecture": "llama", "\x1b[31m\n": "x"}),
        ("general.architecture", "\\x1b[31m\\n"),
    ),
}


@pytest.mark.parametrize("kind", DIFFERENT)
def test_different(kind: str, tmp_path: Path) -> None:
    made, words = DIFFERENT[kind]
    model, sidecar = write_pair(tmp_path, MODEL, made)
    done = call("verify", "--quiet", model, sidecar)
    assert done.code == 1, done.err
    assert all(line.startswith("error: ") and line.isprintable() for line in done.err.splitlines())
    for word in words:
        assert word in done.err


@pytest.mark.parametrize("value", ["0" * 64, 1, None])
def test_a_member_of_an_earlier_draft_is_ignored(value: object, tmp_path: Path) -> None:
    """`native_sha256`, the digest of the model's bytes: nothing reads it any more, whatever it says."""
    model, sidecar = write_pair(tmp_path, MODEL, remade("tensors", 0, "native_sha256", value=value))
    assert call("verify", "--quiet", model, sidecar).code == 0
    assert call("verify", "--quiet", sidecar).code == 0
    assert call("repack", "--restore", "--quiet", sidecar, "-o", tmp_path / "back.gguf").code == 0


def test_weights_changed_in_place(tmp_path: Path) -> None:
    """Size, time and header of the model are the same: only what looks at its weights sees it."""
    model, sidecar = write_pair(tmp_path, MODEL)
    time = model.stat().st_mtime_ns
    raw = bytearray(model.read_bytes())
    raw[-40] ^= 1
    model.write_bytes(raw)
    os.utime(model, ns=(time, time))
    done = call("verify", "--quiet", model, sidecar)
    assert done.code == 1
    assert "error: digests" not in done.err
    assert "`c`: 1 of 4 rows differ from the model, first expert 1, row 1, block 1, qh[58]: 0x" in done.err


@pytest.mark.parametrize("ne", [[0, 1 << 62], [256, 0, 1 << 54], [256, 1 << 54, 0], [0], [0, 0, 0, 0]])
def test_nothing_but_zero_elements_proves_nothing(ne: list[int], tmp_path: Path) -> None:
    _, sidecar = write_pair(tmp_path, MODEL, huge_shape(ne))
    done = call("verify", "--quiet", sidecar, memory=256 * MIB)
    assert done.code in {3, 5}, done.err
    assert "internal" not in done.err
    try:
        with Sidecar(sidecar) as opened:
            assert opened["a"].unpack().size == 0
            assert opened["a"].dequantize().size == 0
    except Damaged:
        pass


def test_unknown_keys_are_ignored_but_sealed(tmp_path: Path) -> None:
    facts = {**MANIFEST, "future": {"any": ["thing", None, 15]}, "format": {"name": "dpl", "major": 2, "minor": 7}}
    model, sidecar = write_pair(tmp_path, MODEL, sidecar_of(MODEL, facts))
    assert call("verify", "--quiet", model, sidecar).code == 0
    raw = sidecar.read_bytes()
    sidecar.write_bytes(raw.replace(b"thing", b"thong"))
    call("verify", "--quiet", sidecar).refused(3, "own digest")


def test_the_census_may_come_from_another_version_of_gguf(tmp_path: Path) -> None:
    names = [{"type": 0, "name": "type 0", "tensors": 1, "nbytes": None}]
    model, sidecar = write_pair(tmp_path, MODEL, remade("skipped", value=names))
    assert call("verify", "--quiet", model, sidecar).code == 0


def test_a_sidecar_alone_proves_less_and_says_so(tmp_path: Path) -> None:
    _, sidecar = write_pair(tmp_path, MODEL)
    done = call("verify", sidecar)
    assert done.code == 0
    assert "PROVEN" not in done.out
    assert "not proven without" in done.out


def test_d_of_every_special_kind_is_counted(tmp_path: Path) -> None:
    specials = (0x7E00, 0xFE00, 0x7C01, 0x7C00, 0xFC00, 0x8000, 0x0000, 0x0001)
    data = b"".join(q6_k(1)[:208] + struct.pack("<H", bits) for bits in specials)
    made = Model([q6_k_tensor("x", (256, 8))])
    made.tensors[0].data = data
    facts = manifest_of(made)
    assert (facts["tensors"][0]["nonfinite_scales"], facts["tensors"][0]["zero_scales"]) == (5, 2)
    model, sidecar = write_pair(tmp_path, made)
    done = call("verify", "--json", "-", model, sidecar)
    assert done.code == 0, done.err
    assert json.loads(done.out)
