"""A second opinion on sidecars, written from docs/format.md alone: struct, json and hashlib, no code of the project.

The table below was typed from ggml's block structs, not taken from repack.layout; packing goes byte by byte.
"""

from __future__ import annotations

import hashlib
import json
import random
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import gguf


@dataclass(frozen=True)
class Kind:
    """A quantization type: planes as name, bytes in a block, offset in the block; scales as offset and kind."""

    number: int
    name: str
    weights: int
    size: int
    planes: tuple[tuple[str, int, int], ...]
    scales: tuple[tuple[int, str], ...]

    def stride(self, n: int) -> int:
        return sum((size * n + 15) // 16 * 16 for _, size, _ in self.planes)

    def starts(self, n: int) -> list[int]:
        """Where each plane begins in a row."""
        return [sum((size * n + 15) // 16 * 16 for _, size, _ in self.planes[:at]) for at in range(len(self.planes))]

    def layout(self) -> str:
        """Its member of `layouts`."""
        planes = ",".join(f'{{"bytes":{size},"name":"{name}","offset":{at}}}' for name, size, at in self.planes)
        return (
            f'{{"block_bytes":{self.size},"block_weights":{self.weights},"name":"{self.name}",'
            f'"planes":[{planes}],"type":{self.number}}}'
        )


HALF, TWO = ((0, "f16"),), ((0, "f16"), (2, "f16"))
KINDS = (
    Kind(2, "Q4_0", 32, 18, (("qs", 16, 2), ("d", 2, 0)), HALF),
    Kind(3, "Q4_1", 32, 20, (("qs", 16, 4), ("dm", 4, 0)), TWO),
    Kind(6, "Q5_0", 32, 22, (("qs", 16, 6), ("qh", 4, 2), ("d", 2, 0)), HALF),
    Kind(7, "Q5_1", 32, 24, (("qs", 16, 8), ("qh", 4, 4), ("dm", 4, 0)), TWO),
    Kind(8, "Q8_0", 32, 34, (("qs", 32, 2), ("d", 2, 0)), HALF),
    Kind(10, "Q2_K", 256, 84, (("qs", 64, 16), ("scales", 16, 0), ("dm", 4, 80)), ((80, "f16"), (82, "f16"))),
    Kind(11, "Q3_K", 256, 110, (("qs", 64, 32), ("hmask", 32, 0), ("scales", 12, 96), ("d", 2, 108)), ((108, "f16"),)),
    Kind(14, "Q6_K", 256, 210, (("ql", 128, 0), ("qh", 64, 128), ("scales", 16, 192), ("d", 2, 208)), ((208, "f16"),)),
    Kind(20, "IQ4_NL", 32, 18, (("qs", 16, 2), ("d", 2, 0)), HALF),
    Kind(23, "IQ4_XS", 256, 136, (("qs", 128, 8), ("scales_l", 4, 4), ("scales_h", 2, 2), ("d", 2, 0)), HALF),
    Kind(39, "MXFP4", 32, 17, (("qs", 16, 1), ("e", 1, 0)), ((0, "e8m0"),)),
)
TABLE = {kind.number: kind for kind in KINDS}


def blocks(kind: Kind, count: int, seed: int = 1) -> bytes:
    """Random native blocks whose scales are ordinary numbers."""
    rng, out = random.Random(seed), bytearray()
    for _ in range(count):
        block = bytearray(rng.randbytes(kind.size))
        for at, what in kind.scales:
            if what == "f16":
                struct.pack_into("<e", block, at, rng.choice((-1, 1)) * rng.uniform(1e-4, 1e-2))
            else:
                block[at] = rng.randint(100, 140)
        out += block
    return bytes(out)


def pack(native: bytes, kind: Kind, n: int) -> bytes:
    """Native rows of `n` blocks as dpl rows, byte by byte: R3 and R4."""
    out = bytearray()
    for start in range(0, len(native), kind.size * n or 1):
        row = bytearray(kind.stride(n))
        for (_, size, offset), plane in zip(kind.planes, kind.starts(n), strict=True):
            for i in range(n):
                for b in range(size):
                    row[plane + size * i + b] = native[start + kind.size * i + offset + b]
        out += row
    return bytes(out)


def unpack(dpl: bytes, kind: Kind, n: int) -> bytes:
    """Dpl rows as native rows; every byte that is not of a plane must be zero."""
    out, stride = bytearray(), kind.stride(n)
    for start in range(0, len(dpl), stride or 1):
        row, left = bytearray(kind.size * n), bytearray(dpl[start : start + stride])
        for (_, size, offset), plane in zip(kind.planes, kind.starts(n), strict=True):
            for i in range(n):
                for b in range(size):
                    row[kind.size * i + offset + b] = left[plane + size * i + b]
                    left[plane + size * i + b] = 0
        assert not any(left), "padding is not zero"
        out += row
    return bytes(out)


def counts(native: bytes, kind: Kind) -> tuple[int, int]:
    """Scales that are not finite, and that are zero."""
    bad = zero = 0
    for start in range(0, len(native), kind.size):
        for at, what in kind.scales:
            if what == "f16":
                (bits,) = struct.unpack_from("<H", native, start + at)
                bad, zero = bad + (bits >> 10 & 31 == 31), zero + (bits << 1 & 0xFFFF == 0)
            else:
                bad += native[start + at] == 255
    return bad, zero


@dataclass
class Read:
    """A sidecar taken apart by the statements of section 2."""

    raw: bytes
    length: int
    text: str
    """The header, spaces included."""
    header: dict[str, Any]
    """Its members but `__metadata__`."""
    manifest_text: str
    manifest: dict[str, Any]

    @property
    def data_start(self) -> int:
        return 8 + self.length

    @property
    def tensors(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.manifest["tensors"]
        return found

    def tensor(self, name: str) -> bytes:
        begin, end = self.header[name]["data_offsets"]
        return self.raw[self.data_start + begin : self.data_start + end]

    def native(self, name: str) -> bytes:
        """A tensor's bytes back in the GGUF's order; its layout is taken from the file."""
        (entry,) = (entry for entry in self.tensors if entry["name"] == name)
        (layout,) = (layout for layout in self.manifest["layouts"] if layout["type"] == entry["type"])
        planes = tuple((plane["name"], plane["bytes"], plane["offset"]) for plane in layout["planes"])
        kind = Kind(layout["type"], layout["name"], layout["block_weights"], layout["block_bytes"], planes, ())
        return unpack(self.tensor(name), kind, entry["ne"][0] // kind.weights)


def read(path: Path) -> Read:
    raw = path.read_bytes()
    (length,) = struct.unpack_from("<Q", raw)
    text = raw[8 : 8 + length].decode("ascii")
    header = json.loads(text)
    metadata = header.pop("__metadata__")
    assert list(metadata) == ["dpl"]
    return Read(raw, length, text, header, metadata["dpl"], json.loads(metadata["dpl"]))


def check(model: Path, sidecar: Path, types: tuple[int, ...] = (14,)) -> int:
    """Every byte of every row, alignment, padding and digests, against gguf's own reader; returns tensors checked."""
    found = read(sidecar)
    assert found.data_start % 4096 == 0
    sources = {t.name: t for t in gguf.GGUFReader(model).tensors if t.tensor_type in types}
    assert list(found.header) == list(sources)
    assert [json.dumps(layout, sort_keys=True, separators=(",", ":")) for layout in found.manifest["layouts"]] == [
        TABLE[number].layout() for number in sorted({int(source.tensor_type) for source in sources.values()})
    ]
    end = 0
    for entry, (name, source) in zip(found.tensors, sources.items(), strict=True):
        kind, native = TABLE[source.tensor_type], source.data.tobytes()
        n, data = int(source.shape[0]) // kind.weights, found.tensor(name)
        begin, stop = found.header[name]["data_offsets"]
        assert begin == end, "a hole"
        assert (found.data_start + begin) % 16 == 0
        end = stop
        outer = [int(size) for size in source.shape[:0:-1]]
        assert found.header[name] == {
            "dtype": "U8",
            "shape": [*(outer or [1]), kind.stride(n)],
            "data_offsets": [begin, begin + prod(outer) * kind.stride(n)],
        }
        assert data == pack(native, kind, n)
        assert found.native(name) == native
        facts = {"name": name, "type": kind.number, "ne": [int(size) for size in source.shape], "n": n}
        facts |= {"rows": prod(outer), "row_stride": kind.stride(n), "nbytes": len(native), "shard": 0}
        facts |= {"offset": int(source.data_offset), "sha256": hashlib.sha256(data).hexdigest()}
        assert entry == facts | dict(zip(("nonfinite_scales", "zero_scales"), counts(native, kind), strict=True))
    assert found.data_start + end == len(found.raw)
    return len(sources)
