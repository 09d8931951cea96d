"""Sidecars made by hand from docs/format.md, good ones and bad ones. Nothing here uses the code under test."""

from __future__ import annotations

import hashlib
import json
import struct
from math import prod
from pathlib import Path
from typing import Any

from tests.support.models import F32_TENSOR, Q6_K, Model, T, dpl_by_hand, q6_k_tensor

Json = dict[str, Any]


def tiny_model() -> Model:
    """Two Q6_K tensors and one other: 12 rows, some 3 KB."""
    return Model([q6_k_tensor("a", (256, 2), 1), T("b", (3,), F32_TENSOR), q6_k_tensor("c", (512, 2, 2), 2)])


def canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def manifest_of(model: Model, name: str = "model.gguf") -> Json:
    """The manifest that converting `model` has to give, all of it selected; not sealed yet."""
    head, data = model.parts()
    tensors, offset = [], 0
    for tensor in model.tensors:
        payload = tensor.payload()
        if tensor.type == Q6_K:
            n = tensor.ne[0] // 256
            dpl = dpl_by_hand(payload, n)
            d = [payload[at + 208 : at + 210] for at in range(0, len(payload), 210)]
            tensors.append(
                {
                    "name": tensor.name,
                    "type": Q6_K,
                    "ne": list(tensor.ne),
                    "rows": prod(tensor.ne[1:]),
                    "n": n,
                    "row_stride": -(-210 * n // 16) * 16,
                    "shard": 0,
                    "offset": len(head) + offset,
                    "nbytes": len(payload),
                    "sha256": hashlib.sha256(dpl).hexdigest(),
                    "nonfinite_d": sum(struct.unpack("<H", pair)[0] & 0x7FFF >= 0x7C00 for pair in d),
                    "zero_d": sum(struct.unpack("<H", pair)[0] & 0x7FFF == 0 for pair in d),
                }
            )
        offset += -(-len(payload) // 32) * 32
    others = [tensor for tensor in model.tensors if tensor.type == F32_TENSOR]
    nbytes = sum(len(tensor.payload()) for tensor in others)
    skipped = [{"type": 0, "name": "F32", "tensors": len(others), "nbytes": nbytes}] if others else []
    size = len(head) + len(data)
    return {
        "format": {"name": "dpl", "major": 1, "minor": 0},
        "generator": {"name": "by hand", "version": "0"},
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
            "shards": [{"name": name, "size": size, "header_sha256": hashlib.sha256(head).hexdigest()}],
            "general": {"general.architecture": "test"},
        },
        "selection": {"include": [], "exclude": [], "left_out": []},
        "tensors": tensors,
        "skipped": skipped,
    }


def sealed(manifest: Json) -> str:
    """The manifest as text, with its digest over whatever it says."""
    body = {key: value for key, value in manifest.items() if key != "manifest_sha256"}
    return canonical({**body, "manifest_sha256": hashlib.sha256(canonical(body).encode()).hexdigest()})


def header_of(manifest: Json, text: str | None = None) -> str:
    """The JSON before the data, with `text` in the manifest's place."""
    members = [f'"__metadata__":{canonical({"dpl": sealed(manifest) if text is None else text})}']
    begin = 0
    for entry in manifest["tensors"]:
        ne, stride = entry["ne"], -(-210 * (entry["ne"][0] // 256) // 16) * 16
        shape = [*reversed(ne[1:]), stride] if len(ne) > 1 else [1, stride]
        end = begin + prod(int(size) for size in shape)
        facts = f'"dtype":"U8","shape":{canonical(shape)},"data_offsets":[{begin},{end}]'
        members.append(f"{canonical(entry['name'])}:{{{facts}}}")
        begin = end
    return "{" + ",".join(members) + "}"


def framed(header: str | bytes, data: bytes, *, alignment: int = 4096, length: int | None = None) -> bytes:
    """A safetensors file: length, header, spaces, data."""
    raw = header.encode() if isinstance(header, str) else header
    raw += b" " * (-(8 + len(raw)) % alignment)
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def data_of(model: Model) -> bytes:
    return b"".join(dpl_by_hand(t.payload(), t.ne[0] // 256) for t in model.tensors if t.type == Q6_K and t.ne[0])


def sidecar_of(model: Model, manifest: Json | None = None) -> bytes:
    """The bytes of a sidecar, by default the right one."""
    facts = manifest_of(model) if manifest is None else manifest
    return framed(header_of(facts), data_of(model))


def write_pair(folder: Path, model: Model, sidecar: bytes | None = None) -> tuple[Path, Path]:
    out = folder / "model.dpl"
    out.write_bytes(sidecar_of(model) if sidecar is None else sidecar)
    return model.write(folder / "model.gguf"), out
