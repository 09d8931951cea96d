"""A reader of dpl sidecars in one file, written from docs/format.md: the standard library, no NumPy, no code of ours.

    python reader.py MODEL.dpl ...

prints for every tensor the SHA-256 of its bytes, that of its bytes brought back to the GGUF's order, its rows and row
stride, and its name; exits with 3 if a file is refused or damaged. The second digest stands nowhere in the file:
compare it with that of the GGUF's own bytes. Copy the reader, and keep what you need: `Sidecar` is what an engine
wants. With NumPy, ``np.frombuffer(tensor.data, np.uint8).reshape(tensor.shape)`` is a view of the map.
"""

# ruff: noqa: T201 (an example prints)

from __future__ import annotations

import hashlib
import json
import mmap
import re
import struct
import sys
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

FIELDS = ((0, 128), (128, 64), (192, 16), (208, 2))  # ql, qh, scales, d: offset and bytes in a super-block (R1)
LAYOUT = (
    '{"block_bytes":210,"block_weights":256,"fields":[{"block_bytes":128,"name":"ql","plane_offset":0},'
    '{"block_bytes":64,"name":"qh","plane_offset":128},{"block_bytes":16,"name":"scales","plane_offset":192},'
    '{"block_bytes":2,"name":"d","plane_offset":208}],"row_alignment":16}'
)
PREFIX = '{"__metadata__":{"dpl":'
MAX_HEADER = 1 << 25


class Refused(Exception):
    """Not a sound sidecar; the message begins with the number of the check."""


def require(condition: bool, check: str) -> None:
    """Refuse the file unless `condition` holds."""
    if not condition:
        raise Refused(check)


@dataclass
class Tensor:
    """One tensor; `facts` is its member of the manifest's `tensors`."""

    facts: dict[str, Any]
    shape: list[int]
    data: memoryview

    def row(self, r: int) -> memoryview:
        """One row, counted over all outer dimensions."""
        stride = self.shape[-1]
        return self.data[r * stride : (r + 1) * stride]

    def native_row(self, r: int) -> bytes:
        """A row in the GGUF's order (R3 read backwards)."""
        n, row, out = self.facts["n"], self.row(r), bytearray(210 * self.facts["n"])
        for offset, size in FIELDS:
            for i in range(n):
                at = offset * n + size * i
                out[210 * i + offset : 210 * i + offset + size] = row[at : at + size]
        return bytes(out)


class Sidecar:
    """Opens a file, makes the checks C1 to C14, and holds the tensors by name."""

    def __init__(self, path: str) -> None:
        with Path(path).open("rb") as file:
            require(file.seek(0, 2) >= 9, "C1: shorter than a header")
            self.map = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        (length,) = struct.unpack("<Q", self.map[:8])
        require(0 < length <= MAX_HEADER and 8 + length <= len(self.map), "C1: the header's length")
        require((8 + length) % 4096 == 0, "C2: where the data begins")
        try:
            header = str(self.map[8 : 8 + length], "ascii")
            literal = string_at(header, PREFIX)
            text = json.loads(literal)
            require(canonical(text) == literal, "C3: the manifest as a string")
            self.manifest = json.loads(text, object_pairs_hook=unique, parse_float=refuse, parse_constant=refuse)
            require(isinstance(self.manifest, dict) and canonical(self.manifest) == text, "C4: canonical JSON")
        except (ValueError, RecursionError) as error:
            raise Refused(f"C4: {error}") from None
        check_manifest(self.manifest)
        self.tensors: dict[str, Tensor] = {}
        members, begin, start = [f"{PREFIX}{literal}}}"], 0, 8 + length
        for facts in self.manifest["tensors"]:
            outer = facts["ne"][1:] or [1]
            shape = [*reversed(outer), facts["row_stride"]]
            end = begin + prod(shape)
            name, sizes = canonical(facts["name"]), ",".join(map(str, shape))
            members.append(f'{name}:{{"dtype":"U8","shape":[{sizes}],"data_offsets":[{begin},{end}]}}')
            self.tensors[facts["name"]] = Tensor(facts, shape, self.map[start + begin : start + end])
            begin = end
        require(header.rstrip(" ") == ",".join(members) + "}", "C13: the header does not follow from the manifest")
        require(len(self.map) == start + begin, "C14: where the file ends")


def string_at(header: str, prefix: str) -> str:
    """The JSON string behind `prefix`, quotes included."""
    found = re.compile(r'"(?:[^"\\]|\\.)*"').match(header, len(prefix)) if header.startswith(prefix) else None
    if found is None:
        raise Refused("C3: the header's beginning")
    return found[0]


def canonical(value: Any) -> str:
    """JSON as R11 has it. Raises ValueError if it cannot be written so."""
    json.dumps(value, ensure_ascii=False).encode()  # an unpaired surrogate is an error here
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """For json.loads: no key twice."""
    require(len(dict(pairs)) == len(pairs), "C4: a key stands twice")
    return dict(pairs)


def refuse(number: str) -> None:
    """For json.loads: what is not to be read."""
    raise Refused(f"C4: {number} is no integer")


def check_manifest(manifest: dict[str, Any]) -> None:
    """C5 to C12."""
    form = member(manifest, "format", dict)
    require(member(form, "name", str) == "dpl" and member(form, "major", int) == 1, "C5: another format or version")
    member(form, "minor", int)
    body = {key: value for key, value in manifest.items() if key != "manifest_sha256"}
    require(digest(manifest, "manifest_sha256") == sha256(canonical(body).encode()), "C6: the manifest's digest")
    require(canonical(member(manifest, "layout", dict)) == LAYOUT, "C7: another layout")
    generator, selection = member(manifest, "generator", dict), member(manifest, "selection", dict)
    source = member(manifest, "source", dict)
    for key in ("name", "version"):
        member(generator, key, str)
    patterns = [*members(selection, "include", str), *members(selection, "exclude", str)]
    left_out = members(selection, "left_out", str)
    require(all(isinstance(value, str) for value in member(source, "general", dict).values()), "C8: `general`")
    for shard in members(source, "shards", dict):
        member(shard, "name", str), member(shard, "size", int), digest(shard, "header_sha256")
    for kind in members(manifest, "skipped", dict):
        member(kind, "type", int), member(kind, "name", str), member(kind, "tensors", int)
        require("nbytes" in kind and (kind["nbytes"] is None or member(kind, "nbytes", int) >= 0), "C8: `nbytes`")
    names = [check_tensor(facts, source["shards"]) for facts in members(manifest, "tensors", dict)]
    require(len(names) > 0, "C8: no tensor")
    require(len(set(names)) == len(names) and "__metadata__" not in names, "C12: names")
    require(set(names).isdisjoint(left_out) and (not left_out or len(patterns) > 0), "C12: `left_out`")


def check_tensor(facts: dict[str, Any], shards: list[dict[str, Any]]) -> str:
    """C8 to C11 for one tensor; returns its name."""
    ne = members(facts, "ne", int)
    elements = prod(int(size) or 1 for size in ne)
    require(1 <= len(ne) <= 4 and ne[0] % 256 == 0 and elements < 1 << 63, "C9: `ne`")
    n, rows = ne[0] // 256, prod(ne[1:])
    derived = {"type": 14, "rows": rows, "n": n, "row_stride": (210 * n + 15) // 16 * 16, "nbytes": rows * n * 210}
    for key, expected in derived.items():
        require(member(facts, key, int) == expected, f"C10: `{key}`")
    shard, offset = member(facts, "shard", int), member(facts, "offset", int)
    require(shard < len(shards), "C11: no such shard")
    require(not facts["nbytes"] or offset + facts["nbytes"] <= shards[shard]["size"], "C11: outside its shard")
    for key in ("nonfinite_d", "zero_d"):
        member(facts, key, int)
    digest(facts, "sha256")
    return str(member(facts, "name", str))


def member(owner: dict[str, Any], key: str, kind: type) -> Any:
    """A member that must be there and of that type (C8); integers in R11's range."""
    require(type(owner.get(key)) is kind, f"C8: `{key}`")
    require(kind is not int or 0 <= owner[key] < 1 << 63, f"C8: `{key}`")
    return owner[key]


def members(owner: dict[str, Any], key: str, kind: type) -> list[Any]:
    """An array whose items must be of that type (C8)."""
    return [member({key: value}, key, kind) for value in member(owner, key, list)]


def digest(owner: dict[str, Any], key: str) -> Any:
    """A SHA-256 in hexadecimal (C8)."""
    require(re.fullmatch("[0-9a-f]{64}", member(owner, key, str)) is not None, f"C8: `{key}`")
    return owner[key]


def sha256(data: Any) -> str:
    """SHA-256 in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def check_data(tensor: Tensor) -> tuple[str, str]:
    """C15 to C17; returns the digests of the tensor's bytes and of its bytes brought back to the GGUF's order."""
    facts, native, bad, zero = tensor.facts, hashlib.sha256(), 0, 0
    for r in range(facts["rows"] if facts["n"] else 0):
        require(not any(tensor.row(r)[210 * facts["n"] :]), "C16: padding is not zero")
        native.update(tensor.native_row(r))
        for (d,) in struct.iter_unpack("<H", tensor.row(r)[208 * facts["n"] : 210 * facts["n"]]):
            bad, zero = bad + (d & 0x7FFF >= 0x7C00), zero + (d & 0x7FFF == 0)
    own = sha256(tensor.data)
    require(own == facts["sha256"], f"C15: SHA-256 {own}")
    require((bad, zero) == (facts["nonfinite_d"], facts["zero_d"]), "C17: counts of d")
    return own, native.hexdigest()


def main(paths: list[str]) -> int:
    """Check every file; returns the exit code."""
    code = 0
    for path in paths:
        try:
            sidecar = Sidecar(path)
            for name, tensor in sidecar.tensors.items():
                plain = "".join(char if " " <= char <= "~" else "?" for char in name)
                print(*check_data(tensor), tensor.facts["rows"], tensor.facts["row_stride"], plain)
            print(f"{path}: ok, {len(sidecar.tensors)} tensors")
        except Refused as error:
            print(f"{path}: refused, {error}")
            code = 3
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
