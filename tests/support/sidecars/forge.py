"""Sidecars made by hand, sound ones and broken ones; json, struct and hashlib only, nothing of the code under test."""

from __future__ import annotations

import copy
import hashlib
import json
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

T0 = ("tensors", 0)
GOLDEN = Path(__file__).parents[2] / "golden"
SEAL = re.compile(r'"manifest_sha256":"([^"]*)",')


def canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def same(text: str) -> str:
    return text


def sealed(text: str) -> str:
    """The manifest's text with the right `manifest_sha256`, by the rule of docs/format.md, R12."""
    body, count = SEAL.subn("", text, count=1)
    assert count, "no seal in the manifest"
    digest = hashlib.sha256(body.encode("utf-8", "surrogatepass")).hexdigest()
    return SEAL.sub(lambda _: f'"manifest_sha256":"{digest}",', text, count=1)


@dataclass
class Forge:
    """A sidecar in parts; `to_bytes` puts it together as docs/format.md has it, but for what is set otherwise."""

    manifest: dict[str, Any]
    data: bytes
    text: Callable[[str], str] = same
    """Applied to the manifest's text before it is sealed."""
    after: Callable[[str], str] = same
    """Applied to it afterwards."""
    literal: Callable[[str], str] = same
    """Applied to the manifest as a JSON string."""
    header: Callable[[str], str] = same
    """Applied to the header's text before it is padded."""
    start: int = 0
    """Where the data begins; 0 for the next multiple of 4096."""
    length: int | None = None
    """What the first 8 bytes say; None for the truth."""
    file: Callable[[bytes], bytes] = lambda raw: raw

    def to_bytes(self) -> bytes:
        text = self.after(sealed(self.text(canonical(self.manifest))))
        members = [f'{{"__metadata__":{{"dpl":{self.literal(json.dumps(text))}}}']
        begin = 0
        for entry in self.manifest["tensors"]:
            shape = [*reversed(entry["ne"][1:] or [1]), entry["row_stride"]]
            size = ",".join(map(str, shape))
            end = begin + prod(shape)
            members.append(
                f'{json.dumps(entry["name"])}:{{"dtype":"U8","shape":[{size}],"data_offsets":[{begin},{end}]}}'
            )
            begin = end
        head = self.header(",".join(members) + "}").encode("utf-8", "surrogatepass")
        start = self.start or -(-(8 + len(head)) // 4096) * 4096
        head = head.ljust(start - 8)
        length = len(head) if self.length is None else self.length
        return self.file(struct.pack("<Q", length) + head + self.data)


def tiny(change: Callable[[dict[str, Any]], object] = lambda _: None, **parts: Any) -> Forge:
    """The golden sidecar, its manifest changed in place by `change`."""
    raw = (GOLDEN / "tiny.dpl").read_bytes()
    (length,) = struct.unpack_from("<Q", raw)
    header = json.loads(raw[8 : 8 + length])
    manifest = json.loads(header["__metadata__"]["dpl"])
    change(manifest)
    return Forge(manifest, **{"data": raw[8 + length :], **parts})


def entry(name: str, ne: list[int], data: bytes) -> dict[str, Any]:
    """A tensor's member of the manifest; its native bytes are said to stand at offset 0 of a large enough shard."""
    n, rows = ne[0] // 256, prod(ne[1:])
    stride = (210 * n + 15) // 16 * 16
    planes = (data[r * stride + 208 * n : r * stride + 210 * n] for r in range(rows if n else 0))
    d = [bits & 0x7FFF for plane in planes for (bits,) in struct.iter_unpack("<H", plane)]
    return {
        "name": name,
        "type": 14,
        "ne": ne,
        "rows": rows,
        "n": n,
        "row_stride": stride,
        "shard": 0,
        "offset": 0,
        "nbytes": rows * n * 210,
        "sha256": hashlib.sha256(data).hexdigest(),
        "nonfinite_d": sum(bits >= 0x7C00 for bits in d),
        "zero_d": sum(bits == 0 for bits in d),
    }


def row(n: int, seed: int) -> bytes:
    """One dpl row: bytes that tell where they stood, and zero padding."""
    content = bytes((seed * 31 + place * 7 + place // 256) % 256 for place in range(210 * n))
    return content.ljust((210 * n + 15) // 16 * 16, b"\0")


def with_tensors(*tensors: tuple[str, list[int]], **parts: Any) -> Forge:
    """A sidecar of tensors of these names and dimensions."""
    data, entries = [], []
    for number, (name, ne) in enumerate(tensors):
        rows = b"".join(row(ne[0] // 256, number + r) for r in range(prod(ne[1:]) if ne[0] else 0))
        data.append(rows)
        entries.append(entry(name, ne, rows))

    def change(manifest: dict[str, Any]) -> None:
        manifest["tensors"] = entries
        manifest["source"]["shards"][0]["size"] = 1 << 40

    return tiny(change, data=b"".join(data), **parts)


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all members and items in a JSON value."""
    items = list(value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else [])
    return [found for key, item in items for found in [(*path, key), *paths(item, (*path, key))]]


def put(manifest: dict[str, Any], path: tuple[Any, ...], value: Any) -> None:
    """Set what stands at `path`; the value `...` removes it."""
    owner: Any = manifest
    for key in path[:-1]:
        owner = owner[key]
    if value is ...:
        del owner[path[-1]]
    else:
        owner[path[-1]] = copy.deepcopy(value)


def changed(*path: Any, to: Any, **parts: Any) -> Forge:
    """The golden sidecar with one value of its manifest changed."""
    return tiny(lambda manifest: put(manifest, path, to), **parts)


def extra(text: str) -> Forge:
    """A member `zzz` at the manifest's end, written as `text`, under a good seal."""
    return tiny(text=lambda manifest: f'{manifest[:-1]},"zzz":{text}}}')
