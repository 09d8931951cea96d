"""Sidecars made by hand, sound ones and broken ones; json, struct and hashlib only, nothing of the code under test."""

from __future__ import annotations

import copy
import hashlib
import json
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from tests.support.independent import KINDS, TABLE, Kind, counts, pack

T0 = ("tensors", 0)
GOLDEN = Path(__file__).parents[2] / "golden"
SEAL = re.compile(r'"manifest_sha256":"([^"]*)",')
STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)


def canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def marks(text: str) -> int:
    """Commas and opening brackets outside strings."""
    return sum(map(STRING.sub("", text).count, ",[{"))


def depth(text: str) -> int:
    """Brackets that are open at the end of a text."""
    bare = STRING.sub("", text)
    return bare.count("{") + bare.count("[") - bare.count("}") - bare.count("]")


def same(text: str) -> str:
    return text


def sealed(text: str) -> str:
    """The manifest's text with the right `manifest_sha256`, the one at the top level: docs/format.md, R12."""
    seals = list(SEAL.finditer(text))
    assert seals, "no seal in the manifest"
    seal = next((seal for seal in seals if depth(text[: seal.start()]) == 1), seals[0])
    body = text[: seal.start()] + text[seal.end() :]
    digest = hashlib.sha256(body.encode("utf-8", "surrogatepass")).hexdigest()
    return f'{text[: seal.start()]}"manifest_sha256":"{digest}",{text[seal.end() :]}'


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
            if not all(type(length) is int for length in shape):
                raise TypeError("no header can be made of it")
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


def entry(
    name: str | bytes, ne: Sequence[int], native: bytes, kind: Kind = TABLE[14], offset: int = 0
) -> dict[str, Any]:
    """A tensor's member of the manifest; its native bytes are said to stand at `offset` of the first shard."""
    n, rows = ne[0] // kind.weights, prod(ne[1:])
    nonfinite, zero = counts(native, kind)
    return {
        "name": name,
        "type": kind.number,
        "ne": list(ne),
        "rows": rows,
        "n": n,
        "row_stride": kind.stride(n),
        "shard": 0,
        "offset": offset,
        "nbytes": rows * n * kind.size,
        "sha256": hashlib.sha256(pack(native, kind, n)).hexdigest(),
        "nonfinite_scales": nonfinite,
        "zero_scales": zero,
    }


def pattern(nbytes: int, seed: int) -> bytes:
    """Bytes that tell where they stood."""
    return bytes((seed * 31 + place * 7 + place // 256) % 256 for place in range(nbytes))


def holding(entries: list[dict[str, Any]], data: bytes, kinds: tuple[Kind, ...] = KINDS, **parts: Any) -> Forge:
    """A sidecar of these tensors, all of them of these types."""
    used = {entry["type"] for entry in entries}

    def change(manifest: dict[str, Any]) -> None:
        manifest["tensors"] = entries
        manifest["layouts"] = [json.loads(kind.layout()) for kind in kinds if kind.number in used]
        manifest["selection"]["types"] = sorted(used)
        manifest["source"]["shards"][0]["size"] = (1 << 63) - 1

    return tiny(change, data=data, **parts)


def with_tensors(*tensors: tuple[str, list[int]], kind: Kind = TABLE[14], **parts: Any) -> Forge:
    """A sidecar of tensors of these names and dimensions, of one type, which may be one that no reader knows."""
    data, entries = b"", []
    for number, (name, ne) in enumerate(tensors):
        n = ne[0] // kind.weights
        native = pattern(prod(ne[1:]) * n * kind.size, number)
        entries.append(entry(name, ne, native, kind))
        data += pack(native, kind, n)
    return holding(entries, data, (kind,), **parts)


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
