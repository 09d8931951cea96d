"""Sidecars made by hand from docs/format.md, good ones and bad ones. Nothing here uses the code under test."""

from __future__ import annotations

import hashlib
import json
import struct
from math import prod
from pathlib import Path
from typing import Any

from tests.support.independent import TABLE, pack
from tests.support.models import F32_TENSOR, Q6_K, Model, T, q6_k_tensor
from tests.support.sidecars.forge import canonical, entry

Json = dict[str, Any]


def tiny_model() -> Model:
    """Two Q6_K tensors and one other: 12 rows, some 3 KB."""
    return Model([q6_k_tensor("a", (256, 2), 1), T("b", (3,), F32_TENSOR), q6_k_tensor("c", (512, 2, 2), 2)])


def manifest_of(model: Model, name: str = "model.gguf", types: tuple[int, ...] = (Q6_K,)) -> Json:
    """The manifest that converting `model` has to give, all of these types selected; not sealed yet."""
    head, data = model.parts()
    tensors: list[Json] = []
    skipped: dict[int, tuple[int, int]] = {}
    offset = len(head)
    for tensor in model.tensors:
        payload = tensor.payload()
        if tensor.type in types:
            tensors.append(entry(tensor.name, tensor.ne, payload, TABLE[tensor.type], offset))
        else:
            count, nbytes = skipped.get(tensor.type, (0, 0))
            skipped[tensor.type] = (count + 1, nbytes + len(payload))
        offset += -(-len(payload) // 32) * 32
    used = sorted({member["type"] for member in tensors})
    names = {F32_TENSOR: "F32", **{kind.number: kind.name for kind in TABLE.values()}}
    size = len(head) + len(data)
    return {
        "format": {"name": "dpl", "major": 2, "minor": 0},
        "generator": {"name": "by hand", "version": "0"},
        "layouts": [json.loads(TABLE[number].layout()) for number in used],
        "source": {
            "shards": [{"name": name, "size": size, "header_sha256": hashlib.sha256(head).hexdigest()}],
            "general": {"general.architecture": "test"},
        },
        "selection": {"types": list(types), "include": [], "exclude": [], "left_out": []},
        "tensors": tensors,
        "skipped": [
            {"type": kind, "name": names[kind], "tensors": count, "nbytes": nbytes}
            for kind, (count, nbytes) in sorted(skipped.items())
        ],
    }


def sealed(manifest: Json) -> str:
    """The manifest as text, with its digest over whatever it says."""
    body = {key: value for key, value in manifest.items() if key != "manifest_sha256"}
    return canonical({**body, "manifest_sha256": hashlib.sha256(canonical(body).encode()).hexdigest()})


def header_of(manifest: Json, text: str | None = None) -> str:
    """The JSON before the data, with `text` in the manifest's place."""
    members = [f'"__metadata__":{canonical({"dpl": sealed(manifest) if text is None else text})}']
    begin = 0
    for member in manifest["tensors"]:
        ne, kind = member["ne"], TABLE.get(member["type"], TABLE[Q6_K])
        shape = [*(ne[:0:-1] or [1]), kind.stride(ne[0] // kind.weights)]
        end = begin + prod(int(size) for size in shape)
        facts = f'"dtype":"U8","shape":{canonical(shape)},"data_offsets":[{begin},{end}]'
        members.append(f"{canonical(member['name'])}:{{{facts}}}")
        begin = end
    return "{" + ",".join(members) + "}"


def framed(header: str | bytes, data: bytes, *, alignment: int = 4096, length: int | None = None) -> bytes:
    """A safetensors file: length, header, spaces, data."""
    raw = header.encode() if isinstance(header, str) else header
    raw += b" " * (-(8 + len(raw)) % alignment)
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def data_of(model: Model, types: tuple[int, ...] = (Q6_K,)) -> bytes:
    chosen = [tensor for tensor in model.tensors if tensor.type in types]
    return b"".join(pack(t.payload(), TABLE[t.type], t.ne[0] // TABLE[t.type].weights) for t in chosen)


def sidecar_of(model: Model, manifest: Json | None = None, types: tuple[int, ...] = (Q6_K,)) -> bytes:
    """The bytes of a sidecar of all tensors of these types, by default the right one."""
    facts = manifest_of(model, types=types) if manifest is None else manifest
    return framed(header_of(facts), data_of(model, types))


def write_pair(folder: Path, model: Model, sidecar: bytes | None = None) -> tuple[Path, Path]:
    out = folder / "model.dpl"
    out.write_bytes(sidecar_of(model) if sidecar is None else sidecar)
    return model.write(folder / "model.gguf"), out
