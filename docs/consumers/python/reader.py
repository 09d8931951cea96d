"""A reader of dpl sidecars in one file, written from docs/format.md: the standard library, no NumPy, no code of ours.

    python reader.py MODEL.dpl ...

prints for every tensor the SHA-256 of its bytes, that of its bytes brought back to the GGUF's order, its type, rows and
row stride, and its name as a JSON string; exits with 3 if a file is refused or damaged (the reason goes to stderr). The
second digest stands nowhere in the file: compare it with that of the GGUF's own bytes. Copy the reader, and keep what
you need: `Sidecar` is what an engine wants. With NumPy, ``np.frombuffer(tensor.data, np.uint8).reshape(tensor.shape)``
is a view of the map.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import re
import struct
import sys
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any

PREFIX = '{"__metadata__":{"dpl":'
MAX_HEADER, MAX_DEPTH, MAX_MARKS, MAX_BLOCK, MAX_PLANES, LIMIT = 1 << 25, 16, 1 << 20, 1 << 16, 16, 1 << 63
STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)


@dataclass(frozen=True)
class Layout:
    """A type's block in the GGUF, and its planes in order: name, bytes in a block, offset in the block (R1, R3)."""

    number: int
    name: str
    weights: int
    planes: tuple[tuple[str, int, int], ...]

    @property
    def size(self) -> int:
        """Bytes of a block in the GGUF."""
        return sum(size for _, size, _ in self.planes)

    def stride(self, n: int) -> int:
        """Bytes from one row of `n` blocks to the next."""
        return sum((size * n + 15) // 16 * 16 for _, size, _ in self.planes)

    def start(self, name: str, n: int) -> int:
        """Where the plane of that name begins in a row."""
        at = [plane[0] for plane in self.planes].index(name)
        return sum((size * n + 15) // 16 * 16 for _, size, _ in self.planes[:at])

    def text(self) -> str:
        """Its member of `layouts` (R14)."""
        planes = [{"bytes": size, "name": name, "offset": offset} for name, size, offset in self.planes]
        sizes = {"block_bytes": self.size, "block_weights": self.weights}
        return canonical({**sizes, "name": self.name, "planes": planes, "type": self.number})


TYPES = {
    layout.number: layout
    for layout in (
        Layout(2, "Q4_0", 32, (("qs", 16, 2), ("d", 2, 0))),
        Layout(3, "Q4_1", 32, (("qs", 16, 4), ("dm", 4, 0))),
        Layout(6, "Q5_0", 32, (("qs", 16, 6), ("qh", 4, 2), ("d", 2, 0))),
        Layout(7, "Q5_1", 32, (("qs", 16, 8), ("qh", 4, 4), ("dm", 4, 0))),
        Layout(8, "Q8_0", 32, (("qs", 32, 2), ("d", 2, 0))),
        Layout(10, "Q2_K", 256, (("qs", 64, 16), ("scales", 16, 0), ("dm", 4, 80))),
        Layout(11, "Q3_K", 256, (("qs", 64, 32), ("hmask", 32, 0), ("scales", 12, 96), ("d", 2, 108))),
        Layout(14, "Q6_K", 256, (("ql", 128, 0), ("qh", 64, 128), ("scales", 16, 192), ("d", 2, 208))),
        Layout(20, "IQ4_NL", 32, (("qs", 16, 2), ("d", 2, 0))),
        Layout(23, "IQ4_XS", 256, (("qs", 128, 8), ("scales_l", 4, 4), ("scales_h", 2, 2), ("d", 2, 0))),
        Layout(39, "MXFP4", 32, (("qs", 16, 1), ("e", 1, 0))),
    )
}


class Refused(Exception):
    """Not a sound sidecar; the message begins with the number of the check."""


def require(condition: bool, check: str) -> None:
    """Refuse the file unless `condition` holds."""
    if not condition:
        raise Refused(check)


@dataclass
class Tensor:
    """One tensor; `facts` is its member of the manifest's `tensors`. Rows are counted over all outer dimensions."""

    facts: dict[str, Any]
    layout: Layout
    shape: list[int]
    data: memoryview

    def row(self, r: int) -> memoryview:
        """One row as it stands in the file. Raises IndexError if there is no such row."""
        if type(r) is not int or not 0 <= r < self.facts["rows"]:
            raise IndexError(f"row {r} of {self.facts['rows']}")
        stride = self.shape[-1]
        return self.data[r * stride : (r + 1) * stride]

    def plane(self, r: int, name: str) -> memoryview:
        """One plane of a row. Raises ValueError if the type has no plane of that name."""
        n, start = self.facts["n"], self.layout.start(name, self.facts["n"])
        (size,) = (size for plane, size, _ in self.layout.planes if plane == name)
        return self.row(r)[start : start + size * n]

    def native_row(self, r: int) -> bytes:
        """A row in the GGUF's order (R3 read backwards)."""
        whole, out = self.layout.size, bytearray(self.layout.size * self.facts["n"])
        for name, size, offset in self.layout.planes:
            plane = self.plane(r, name)
            for b in range(size):
                out[offset + b :: whole] = plane[b::size]
        return bytes(out)

    def dequantize(self, r: int) -> Any:
        """A row's weights, float32 ``[ne0]``: by the package gguf, if it knows the type."""
        import gguf  # noqa: PLC0415 - with NumPy, for this one function
        import numpy as np  # noqa: PLC0415

        native = np.frombuffer(self.native_row(r), np.uint8)
        return gguf.dequantize(native, gguf.GGMLQuantizationType(self.layout.number))


class Sidecar:
    """Opens a file, makes the checks C1 to C14, and holds the tensors by name."""

    def __init__(self, path: str | bytes) -> None:
        require(os.path.isfile(path), "not a file that can be read")  # noqa: PTH113 - a path may be bytes
        with open(path, "rb") as file:  # noqa: PTH123
            require(file.seek(0, 2) >= 9, "C1: shorter than a header")
            self.map = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        (length,) = struct.unpack("<Q", self.map[:8])
        require(0 < length <= MAX_HEADER and 8 + length <= len(self.map), "C1: the header's length")
        try:
            header = str(self.map[8 : 8 + length], "ascii")
            literal = string_at(header, PREFIX)
            text = json.loads(literal)
            require(canonical(text) == literal, "C3: the manifest as a string")
            self.manifest = parse(text)
        except (ValueError, RecursionError) as error:
            raise Refused(f"C4: {error}") from None
        require((8 + length) % 4096 == 0, "C2: where the data begins")
        layouts = check_manifest(self.manifest)
        self.tensors: dict[str, Tensor] = {}
        members, begin, start = [f"{PREFIX}{literal}}}"], 0, 8 + length
        for facts in self.manifest["tensors"]:
            outer = facts["ne"][1:] or [1]
            shape = [*reversed(outer), facts["row_stride"]]
            end = begin + prod(shape)
            name, sizes = canonical(facts["name"]), ",".join(map(str, shape))
            members.append(f'{name}:{{"dtype":"U8","shape":[{sizes}],"data_offsets":[{begin},{end}]}}')
            data = self.map[start + begin : start + end]
            self.tensors[facts["name"]] = Tensor(facts, layouts[facts["type"]], shape, data)
            begin = end
        require(header.rstrip(" ") == ",".join(members) + "}", "C13: the header does not follow from the manifest")
        require(len(self.map) == start + begin, "C14: where the file ends")


def string_at(header: str, prefix: str) -> str:
    """The JSON string behind `prefix`, quotes included."""
    found = STRING.match(header, len(prefix)) if header.startswith(prefix) else None
    if found is None:
        raise Refused("C3: the header's beginning")
    return found[0]


def parse(text: str) -> dict[str, Any]:
    """The manifest: C4, and of C5 the version before anything that another version may have changed."""
    bare = STRING.sub('""', text)
    require(sum(map(bare.count, ",[{")) <= MAX_MARKS, "C4: too many values")
    depth = 0
    for bracket in re.findall(r"[\[\]{}]", bare):
        depth += 1 if bracket in "[{" else -1
        require(depth <= MAX_DEPTH, "C4: nested too deeply")
    manifest = json.loads(text, object_pairs_hook=unique, parse_int=integer, parse_float=refuse, parse_constant=refuse)
    require(isinstance(manifest, dict), "C4: no object")
    form = member(manifest, "format", dict)
    require(member(form, "name", str) == "dpl", "C5: not dpl")
    major = member(form, "major", int)
    require(major == 2, f"C5: format {major}, {'convert again' if major < 2 else 'a newer version'}")
    require(canonical(manifest) == text, "C4: canonical JSON")
    return manifest  # type: ignore[no-any-return]


def canonical(value: Any) -> str:
    """JSON as R11 has it. Raises ValueError if it cannot be written so."""
    json.dumps(value, ensure_ascii=False).encode()  # an unpaired surrogate is an error here
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """For json.loads: no key twice."""
    require(len(dict(pairs)) == len(pairs), "C4: a key stands twice")
    return dict(pairs)


def integer(digits: str) -> int:
    """For json.loads: no integer of 2^63 or more."""
    require(len(digits) <= 20 and -LIMIT < int(digits) < LIMIT, "C4: an integer out of range")
    return int(digits)


def refuse(number: str) -> None:
    """For json.loads: what is not to be read."""
    raise Refused(f"C4: {number} is no integer")


def check_manifest(manifest: dict[str, Any]) -> dict[int, Layout]:
    """C5 to C12; returns the layouts by type."""
    member(manifest["format"], "minor", int)
    body = {key: value for key, value in manifest.items() if key != "manifest_sha256"}
    require(digest(manifest, "manifest_sha256") == sha256(canonical(body).encode()), "C6: the manifest's digest")
    layouts = {layout.number: layout for layout in map(check_layout, members(manifest, "layouts", dict))}
    require(ascending([layout["type"] for layout in manifest["layouts"]]), "C7: the order of the layouts")
    generator, source = member(manifest, "generator", dict), member(manifest, "source", dict)
    for key in ("name", "version"):
        member(generator, key, str)
    require(all(isinstance(value, str) for value in member(source, "general", dict).values()), "C8: `general`")
    for shard in members(source, "shards", dict):
        name = member(shard, "name", str)
        require(re.search(r"[/\\\0]", name) is None and name not in {"", ".", ".."}, "C11: no base name")
        member(shard, "size", int), digest(shard, "header_sha256")
    for kind in members(manifest, "skipped", dict):
        member(kind, "type", int), member(kind, "name", str), member(kind, "tensors", int)
        require("nbytes" in kind and (kind["nbytes"] is None or member(kind, "nbytes", int) >= 0), "C8: `nbytes`")
    tensors = members(manifest, "tensors", dict)
    names = [check_tensor(facts, layouts, source["shards"]) for facts in tensors]
    require(len(names) > 0, "C8: no tensor")
    used = {facts["type"] for facts in tensors}
    require(used == set(layouts), "C7: a layout that no tensor uses")
    require(len(set(names)) == len(names) and "__metadata__" not in names, "C12: names")
    check_selection(member(manifest, "selection", dict), used, names)
    return layouts


def check_selection(selection: dict[str, Any], used: set[int], names: list[str]) -> None:
    """C12 for what was asked for and left out."""
    types = members(selection, "types", int)
    require(ascending(types) and used <= set(types), "C12: `types`")
    patterns = [*members(selection, "include", str), *members(selection, "exclude", str)]
    left_out = members(selection, "left_out", str)
    require(set(names).isdisjoint(left_out) and (not left_out or len(patterns) > 0), "C12: `left_out`")


def check_layout(item: dict[str, Any]) -> Layout:
    """C7 for one type: that of the table, or any whose planes make up its block."""
    planes = members(item, "planes", dict)
    fields = tuple((member(p, "name", str), member(p, "bytes", int), member(p, "offset", int)) for p in planes)
    weights = member(item, "block_weights", int)
    layout = Layout(member(item, "type", int), member(item, "name", str), weights, fields)
    layout = TYPES.get(layout.number, layout)
    require(canonical(item) == layout.text(), f"C7: another layout of type {layout.number}")
    require(1 <= layout.weights <= MAX_BLOCK and 1 <= layout.size <= MAX_BLOCK, "C7: the size of a block")
    require(len(planes) <= MAX_PLANES and len({name for name, _, _ in fields}) == len(fields), "C7: the planes")
    end = 0
    for offset, size in sorted((offset, size) for _, size, offset in fields):
        require(offset == end and size > 0, "C7: planes that do not make up the block")
        end += size
    return layout


def check_tensor(facts: dict[str, Any], layouts: dict[int, Layout], shards: list[dict[str, Any]]) -> str:
    """C8 to C11 for one tensor; returns its name."""
    require(member(facts, "type", int) in layouts, "C10: a type that is not in `layouts`")
    layout, ne = layouts[facts["type"]], members(facts, "ne", int)
    elements = prod(int(size) or 1 for size in ne)
    require(1 <= len(ne) <= 4 and ne[0] % layout.weights == 0 and elements < LIMIT, "C9: `ne`")
    n, rows = ne[0] // layout.weights, prod(ne[1:])
    stride = layout.stride(n)
    require(stride < LIMIT and rows * stride < LIMIT, "C9: more bytes than a file can have")
    derived = {"rows": rows, "n": n, "row_stride": stride, "nbytes": rows * n * layout.size}
    for key, expected in derived.items():
        require(member(facts, key, int) == expected, f"C10: `{key}`")
    shard, offset = member(facts, "shard", int), member(facts, "offset", int)
    require(shard < len(shards), "C11: no such shard")
    require(not facts["nbytes"] or offset + facts["nbytes"] <= shards[shard]["size"], "C11: outside its shard")
    if layout.number in TYPES or "nonfinite_scales" in facts or "zero_scales" in facts:
        member(facts, "nonfinite_scales", int), member(facts, "zero_scales", int)
    digest(facts, "sha256")
    return str(member(facts, "name", str))


def member(owner: dict[str, Any], key: str, kind: type) -> Any:
    """A member that must be there and of that type (C8); integers are at least 0."""
    require(type(owner.get(key)) is kind, f"C8: `{key}`")
    require(kind is not int or owner[key] >= 0, f"C8: `{key}`")
    return owner[key]


def members(owner: dict[str, Any], key: str, kind: type) -> list[Any]:
    """An array whose items must be of that type (C8)."""
    return [member({key: value}, key, kind) for value in member(owner, key, list)]


def ascending(numbers: list[int]) -> bool:
    """Whether each is larger than the one before."""
    return all(one < other for one, other in pairwise(numbers))


def digest(owner: dict[str, Any], key: str) -> Any:
    """A SHA-256 in hexadecimal (C8)."""
    require(re.fullmatch("[0-9a-f]{64}", member(owner, key, str)) is not None, f"C8: `{key}`")
    return owner[key]


def sha256(data: Any) -> str:
    """SHA-256 in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def check_data(tensor: Tensor) -> tuple[str, str]:
    """C15 to C17; returns the digests of the tensor's bytes and of its bytes brought back to the GGUF's order."""
    facts, layout, native, bad, zero = tensor.facts, tensor.layout, hashlib.sha256(), 0, 0
    known = layout.number in TYPES
    for r in range(facts["rows"] if facts["n"] else 0):
        at, row = 0, tensor.row(r)
        for name, size, _ in layout.planes:
            used = at + size * facts["n"]
            at += (size * facts["n"] + 15) // 16 * 16
            require(not any(row[used:at]), "C16: padding is not zero")
            if known and name in {"d", "dm"}:
                for (half,) in struct.iter_unpack("<H", tensor.plane(r, name)):
                    bad, zero = bad + (half & 0x7FFF >= 0x7C00), zero + (half & 0x7FFF == 0)
            elif name == "e":
                bad += bytes(tensor.plane(r, name)).count(255)
        native.update(tensor.native_row(r))
    own = sha256(tensor.data)
    require(own == facts["sha256"], f"C15: SHA-256 {own}")
    require(not known or (bad, zero) == (facts["nonfinite_scales"], facts["zero_scales"]), "C17: counts of scales")
    return own, native.hexdigest()


def main(paths: list[str]) -> int:
    """Check every file; returns the exit code."""
    code, out = 0, sys.stdout.buffer
    for path in map(os.fsencode, paths):
        try:
            sidecar = Sidecar(path)
            for name, tensor in sidecar.tensors.items():
                facts = tensor.facts
                line = (*check_data(tensor), facts["type"], facts["rows"], facts["row_stride"], canonical(name))
                out.write(" ".join(map(str, line)).encode() + b"\n")
            out.write(path + b": ok, %d tensors\n" % len(sidecar.tensors))
        except (Refused, OSError) as error:
            out.write(path + b": refused\n")
            print(f"{os.fsdecode(path)!a}: {error}", file=sys.stderr)  # noqa: T201 - an example prints
            code = 3
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
