"""GGUF files made by hand with struct, good ones and bad ones. Nothing here uses the code under test."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

import numpy as np
import numpy.typing as npt

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
F32_TENSOR, F16_TENSOR, Q8_0, Q4_K, Q6_K = 0, 1, 8, 12, 14
_CODES = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "?", U64: "Q", I64: "q", F64: "d"}
_SIZES = {F32_TENSOR: (1, 4), F16_TENSOR: (1, 2), Q8_0: (32, 34), Q4_K: (256, 144), Q6_K: (256, 210)}


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def scalar(kind: int, value: object) -> bytes:
    """A metadata value with its type, or an array of one type if `value` is a list."""
    if isinstance(value, list):
        items = b"".join(_bare(kind, item) for item in value)
        return struct.pack("<IIQ", ARRAY, kind, len(value)) + items
    return struct.pack("<I", kind) + _bare(kind, value)


def _bare(kind: int, value: object) -> bytes:
    if kind == STRING:
        assert isinstance(value, str | bytes)
        return string(value)
    return struct.pack("<" + _CODES[kind], value)


def pair(key: str | bytes, kind: int, value: object) -> bytes:
    """One metadata key with its value."""
    return string(key) + scalar(kind, value)


@dataclass
class T:
    """A tensor to be written. `offset` and `data` may be forced to anything."""

    name: str | bytes
    ne: Sequence[int]
    type: int = Q6_K
    data: bytes | None = None
    offset: int | None = None

    def payload(self) -> bytes:
        if self.data is not None:
            return self.data
        weights, size = _SIZES.get(self.type, (1, 1))
        return b"\x5a" * (prod(self.ne) // weights * size)


@dataclass
class Model:
    """A GGUF file; every count in its preamble can be forced."""

    tensors: Sequence[T] = ()
    pairs: Sequence[bytes] = field(default_factory=lambda: (pair("general.architecture", STRING, "test"),))
    version: int = 3
    alignment: int = 32
    magic: bytes = b"GGUF"
    tensor_count: int | None = None
    pair_count: int | None = None
    tail: bool = True
    """Whether the padding after the last tensor is there."""

    def parts(self) -> tuple[bytes, bytes]:
        """Everything before the data section (padding included), and the data section."""
        counts = (
            len(self.tensors) if self.tensor_count is None else self.tensor_count,
            len(self.pairs) if self.pair_count is None else self.pair_count,
        )
        head = [self.magic, struct.pack("<I", self.version), struct.pack("<QQ", *counts), *self.pairs]
        data = b""
        for tensor in self.tensors:
            offset = len(data) if tensor.offset is None else tensor.offset
            head.append(string(tensor.name))
            head.append(struct.pack(f"<I{len(tensor.ne)}QIQ", len(tensor.ne), *tensor.ne, tensor.type, offset))
            if tensor.offset is None:
                data += tensor.payload()
                if tensor is not self.tensors[-1] or self.tail:
                    data += b"\0" * (-len(data) % self.alignment)
        joined = b"".join(head)
        return joined + b"\0" * (-len(joined) % self.alignment), data

    def to_bytes(self) -> bytes:
        return b"".join(self.parts())

    def write(self, path: Path) -> Path:
        path.write_bytes(self.to_bytes())
        return path


def q6_k(blocks: int, seed: int = 1) -> bytes:
    """Random but finite Q6_K super-blocks: all bytes free, d a normal fp16 of moderate size."""
    rng = np.random.default_rng(seed)
    raw = rng.integers(0, 256, (blocks, 210), dtype=np.uint8)
    d = rng.uniform(1e-4, 1e-2, blocks).astype("<f2") * rng.choice(np.array([-1, 1], "<f2"), blocks)
    raw[:, 208:] = d.astype("<f2").view(np.uint8).reshape(blocks, 2)
    return raw.tobytes()


def q6_k_tensor(name: str, ne: Sequence[int], seed: int = 1) -> T:
    return T(name, ne, Q6_K, q6_k(prod(ne) // 256, seed))


def dpl_by_hand(native: bytes, n: int) -> bytes:
    """The dpl bytes of native rows, slice by slice in plain Python: the slow, obvious reference."""
    out = bytearray()
    for start in range(0, len(native), 210 * n):
        blocks = [native[start + 210 * i : start + 210 * (i + 1)] for i in range(n)]
        for begin, end in ((0, 128), (128, 192), (192, 208), (208, 210)):
            for block in blocks:
                out += block[begin:end]
        out += b"\0" * (-(210 * n) % 16)
    return bytes(out)


def write_synthetic(path: Path, shapes: Iterable[tuple[str, Sequence[int]]], seed: int = 1) -> Path:
    """A large all-Q6_K model, written piece by piece; super-blocks repeat in a long cycle but rows differ."""
    tensors = [T(name, ne, Q6_K, b"") for name, ne in shapes]
    offset = 0
    for tensor in tensors:
        tensor.offset = offset
        offset += -(-(prod(tensor.ne) // 256 * 210) // 32) * 32
    head, _ = Model(tensors).parts()
    piece: npt.NDArray[np.uint8] = np.frombuffer(q6_k(40_009, seed), np.uint8)
    with path.open("wb") as file:
        file.write(head)
        for tensor in tensors:
            left = prod(tensor.ne) // 256 * 210
            while left:
                left -= file.write(piece[:left].data)
            file.write(b"\0" * (-file.tell() % 32))
    return path
