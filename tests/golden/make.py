"""The golden files: a tiny model and its sidecar, written down from the formats; shares nothing with the converter.

`python -m tests.golden.make` writes them anew. What they look like is described in docs/format.md, section 7.
"""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path

from tests.support.independent import KINDS, TABLE, Kind, pack
from tests.support.sidecars.by_hand import framed, header_of
from tests.support.sidecars.forge import entry

FOLDER = Path(__file__).parent
VERSION = "golden"
PAIRS = {"general.architecture": "tiny", "general.name": "Tiny"}


@dataclass(frozen=True)
class Tensor:
    """A tensor of the tiny model: its number, so that no two blocks look alike, counts blocks from here."""

    name: str
    type: int
    ne: tuple[int, ...]
    first: int

    def native(self) -> bytes:
        if not self.type:
            return struct.pack("<4f", 1, 2, 3, 4)
        kind = TABLE[self.type]
        return b"".join(block(kind, self.first + at) for at in range(prod(self.ne) // kind.weights))


def block(kind: Kind, number: int) -> bytes:
    """A block whose every byte tells where it stood; its scales are numbers, one of them zero, one of them NaN."""
    raw = bytearray((number * 53 + place * 7) % 256 for place in range(kind.size))
    for at, what in kind.scales:
        if what == "f16":
            struct.pack_into("<e", raw, at, -0.0 if number == 20 and at == 2 else (number + 1) / 64)
        else:
            raw[at] = 255 if number == 68 else 52 + number
    return bytes(raw)


TENSORS = (
    Tensor("blk.0.ffn_down.weight", 14, (768, 2), 0),
    Tensor("output_norm.weight", 0, (4,), 0),
    Tensor("blk.0.attn_q.weight", 2, (96, 2), 6),
    Tensor("blk.0.attn_k.weight", 3, (96, 2), 16),
    Tensor("blk.0.attn_v.weight", 6, (96, 2), 22),
    Tensor("blk.0.attn_output.weight", 7, (96, 2), 28),
    Tensor("token_embd.weight", 8, (96, 2), 34),
    Tensor("blk.0.ffn_gate.weight", 10, (768, 2), 40),
    Tensor("blk.0.ffn_up.weight", 11, (768, 2), 46),
    Tensor("blk.0.ffn_down_exps.weight", 20, (96, 2, 2), 52),
    Tensor("output.weight", 23, (768,), 64),
    Tensor("blk.0.ffn_up_exps.weight", 39, (96, 1, 2, 1), 67),
)


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def model() -> tuple[bytes, bytes]:
    """The model's bytes: everything before the data section, and the data section. GGUF version 3, alignment 32."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(TENSORS), len(PAIRS))
    for key, value in PAIRS.items():
        head += string(key) + struct.pack("<I", 8) + string(value)
    data = b""
    for tensor in TENSORS:
        head += string(tensor.name) + struct.pack("<I", len(tensor.ne)) + struct.pack(f"<{len(tensor.ne)}Q", *tensor.ne)
        head += struct.pack("<IQ", tensor.type, len(data))
        data += tensor.native()
        data += bytes(-len(data) % 32)
    return head + bytes(-len(head) % 32), data


def sidecar() -> bytes:
    """The sidecar's bytes, all types asked for."""
    head, native_data = model()
    entries, data, offset = [], b"", len(head)
    for tensor in TENSORS:
        native = tensor.native()
        if tensor.type:
            kind = TABLE[tensor.type]
            entries.append(entry(tensor.name, tensor.ne, native, kind, offset))
            data += pack(native, kind, tensor.ne[0] // kind.weights)
        offset += -(-len(native) // 32) * 32
    manifest = {
        "format": {"name": "dpl", "major": 2, "minor": 0},
        "generator": {"name": "gguf-dpl", "version": VERSION},
        "layouts": [json.loads(kind.layout()) for kind in KINDS],
        "source": {
            "shards": [
                {
                    "name": "tiny.gguf",
                    "size": len(head) + len(native_data),
                    "header_sha256": hashlib.sha256(head).hexdigest(),
                }
            ],
            "general": PAIRS,
        },
        "selection": {"types": [kind.number for kind in KINDS], "include": [], "exclude": [], "left_out": []},
        "tensors": entries,
        "skipped": [{"type": 0, "name": "F32", "tensors": 1, "nbytes": 16}],
    }
    return framed(header_of(manifest), data)


if __name__ == "__main__":
    (FOLDER / "tiny.gguf").write_bytes(b"".join(model()))
    (FOLDER / "tiny.dpl").write_bytes(sidecar())
