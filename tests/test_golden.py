"""Format version 1, frozen: a tiny model made by hand and its sidecar, compared byte for byte.

If this test fails, files in the field are no longer what the tool writes: that is a new format version.
`python -m tests.test_golden` writes the files anew.
"""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path

import pytest

import repack.convert
from repack import convert_file
from tests.support.models import F32_TENSOR, STRING, Model, T, dpl_by_hand, pair

FOLDER = Path(__file__).parent / "golden"
VERSION = "golden"


def block(number: int) -> bytes:
    """A super-block whose every byte tells where it stood: no two fields, blocks or rows look alike."""
    body = bytes((number * 53 + place * 7) % 256 for place in range(208))
    return body + struct.pack("<e", (number + 1) / 64)


def tiny() -> Model:
    """Two rows of three blocks, one expert stack, one tensor of another type."""
    stack = b"".join(block(number) for number in range(6, 10))
    return Model(
        [
            T("blk.0.ffn_down.weight", (768, 2), data=b"".join(block(number) for number in range(6))),
            T("output_norm.weight", (4,), F32_TENSOR, struct.pack("<4f", 1, 2, 3, 4)),
            T("blk.0.ffn_down_exps.weight", (256, 2, 2), data=stack),
        ],
        (pair("general.architecture", STRING, "tiny"), pair("general.name", STRING, "Tiny")),
    )


def by_hand(model: bytes, header_bytes: int) -> bytes:
    """The sidecar written down from the format, sharing nothing with the converter."""
    first = b"".join(block(number) for number in range(6))
    second = b"".join(block(number) for number in range(6, 10))
    sizes = [(first, 3, [768, 2], [2, 640]), (second, 1, [256, 2, 2], [2, 2, 224])]
    names = ["blk.0.ffn_down.weight", "blk.0.ffn_down_exps.weight"]
    data = [dpl_by_hand(native, n) for native, n, _, _ in sizes]
    offsets = [header_bytes, header_bytes + 1280 + 32]
    manifest = {
        "format": {"name": "dpl", "major": 1, "minor": 0},
        "generator": {"name": "gguf-dpl", "version": VERSION},
        "layout": {
            "block_weights": 256,
            "block_bytes": 210,
            "row_alignment": 16,
            "fields": [
                {"name": "ql", "block_bytes": 128, "plane_offset": 0},
                {"name": "qh", "block_bytes": 64, "plane_offset": 128},
                {"name": "scales", "block_bytes": 16, "plane_offset": 192},
                {"name": "d", "block_bytes": 2, "plane_offset": 208},
            ],
        },
        "source": {
            "shards": [
                {
                    "name": "tiny.gguf",
                    "size": len(model),
                    "header_sha256": hashlib.sha256(model[:header_bytes]).hexdigest(),
                }
            ],
            "general": {"general.architecture": "tiny", "general.name": "Tiny"},
        },
        "selection": {"include": [], "exclude": [], "left_out": []},
        "tensors": [
            {
                "name": name,
                "type": 14,
                "ne": ne,
                "rows": len(native) // 210 // n,
                "n": n,
                "row_stride": shape[-1],
                "shard": 0,
                "offset": offset,
                "nbytes": len(native),
                "sha256": hashlib.sha256(dpl).hexdigest(),
                "nonfinite_d": 0,
                "zero_d": 0,
            }
            for name, (native, n, ne, shape), dpl, offset in zip(names, sizes, data, offsets, strict=True)
        ],
        "skipped": [{"type": 0, "name": "F32", "tensors": 1, "nbytes": 16}],
    }

    def canonical(value: object) -> str:
        return json.dumps(value, sort_keys=True, separators=(",", ":"))

    sealed = canonical({**manifest, "manifest_sha256": hashlib.sha256(canonical(manifest).encode()).hexdigest()})
    header = (
        '{"__metadata__":' + canonical({"dpl": sealed}) + ',"blk.0.ffn_down.weight":{"dtype":"U8","shape":[2,640],'
        '"data_offsets":[0,1280]},"blk.0.ffn_down_exps.weight":{"dtype":"U8","shape":[2,2,224],'
        '"data_offsets":[1280,2176]}}'
    ).encode()
    padded = header + b" " * (-(8 + len(header)) % 4096)
    return struct.pack("<Q", len(padded)) + padded + b"".join(data)


def test_the_model_is_the_committed_one() -> None:
    assert tiny().to_bytes() == (FOLDER / "tiny.gguf").read_bytes()


def test_the_sidecar_is_the_one_written_down_by_hand() -> None:
    head, _ = tiny().parts()
    assert by_hand(tiny().to_bytes(), len(head)) == (FOLDER / "tiny.dpl").read_bytes()


def test_the_converter_writes_the_committed_sidecar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repack.convert, "VERSION", VERSION)
    convert_file(FOLDER / "tiny.gguf", tmp_path / "tiny.dpl")
    assert (tmp_path / "tiny.dpl").read_bytes() == (FOLDER / "tiny.dpl").read_bytes()


if __name__ == "__main__":
    tiny().write(FOLDER / "tiny.gguf")
    (FOLDER / "tiny.dpl").write_bytes(by_hand(tiny().to_bytes(), len(tiny().parts()[0])))
