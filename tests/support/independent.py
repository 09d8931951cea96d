"""A second reader of sidecars, written from the format alone: struct, json and hashlib, no code of the project."""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import gguf


@dataclass
class Read:
    """A sidecar taken apart."""

    manifest: dict[str, Any]
    header: dict[str, Any]
    data_start: int
    raw: bytes

    def tensor(self, name: str) -> bytes:
        begin, end = self.header[name]["data_offsets"]
        return self.raw[self.data_start + begin : self.data_start + end]

    def native(self, name: str) -> bytes:
        """A tensor's bytes back in the GGUF's order, slice by slice."""
        shape, data = self.header[name]["shape"], self.tensor(name)
        rows, stride = prod(shape[:-1]), shape[-1]
        (entry,) = (entry for entry in self.manifest["tensors"] if entry["name"] == name)
        n, out = entry["ne"][0] // 256, bytearray(rows * (entry["ne"][0] // 256) * 210)
        for row in range(rows):
            source = data[row * stride : (row + 1) * stride]
            for at, size in ((0, 128), (128, 64), (192, 16), (208, 2)):
                for block in range(n):
                    target = (row * n + block) * 210 + at
                    out[target : target + size] = source[at * n + block * size : at * n + (block + 1) * size]
            assert source[210 * n :] == b"\0" * (stride - 210 * n), "padding is not zero"
        return bytes(out)


def read(path: Path) -> Read:
    raw = path.read_bytes()
    (length,) = struct.unpack_from("<Q", raw)
    header = json.loads(raw[8 : 8 + length])
    metadata = header.pop("__metadata__")
    assert list(metadata) == ["dpl"]
    return Read(json.loads(metadata["dpl"]), header, 8 + length, raw)


def check(model: Path, sidecar: Path) -> int:
    """Every byte of every row, alignment, padding and digests, against gguf's own reader; returns tensors checked."""
    found = read(sidecar)
    assert found.data_start % 4096 == 0
    sources = {t.name: t for t in gguf.GGUFReader(model).tensors if t.tensor_type == gguf.GGMLQuantizationType.Q6_K}
    assert set(found.header) == set(sources)
    end = 0
    for name, source in sources.items():
        begin, stop = found.header[name]["data_offsets"]
        assert begin == end, "a hole"
        assert (found.data_start + begin) % 16 == 0
        assert found.header[name]["shape"][-1] % 16 == 0
        assert found.header[name]["dtype"] == "U8"
        end = stop
        native = source.data.tobytes()
        assert found.native(name) == native
        (entry,) = (entry for entry in found.manifest["tensors"] if entry["name"] == name)
        assert entry["ne"] == [int(size) for size in source.shape]
        assert entry["sha256"] == hashlib.sha256(found.tensor(name)).hexdigest()
    assert found.data_start + end == len(found.raw)
    return len(sources)
