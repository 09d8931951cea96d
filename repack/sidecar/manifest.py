"""The manifest: what a sidecar says about itself and its source. Frozen facts, canonical JSON, checked on the way in.

The published form is docs/manifest.schema.json. Values that follow from others (rows, n, row_stride, nbytes) stand in
the JSON for the reader's convenience and are checked, not believed. Unknown keys are ignored; the digest covers them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from repack import layout
from repack.errors import Damaged, shown
from repack.sidecar.canonical import BOUND, StrictObject, canonical, parse

FORMAT_MAJOR, FORMAT_MINOR = 1, 0
Q6_K = 14
"""The ggml type number of the only type this layout is for."""
RESERVED_NAME = "__metadata__"
"""The one name that safetensors does not give to a tensor."""
_DIGEST_KEY = "manifest_sha256"


@dataclass(frozen=True, slots=True)
class Source:
    """One GGUF file of the model the sidecar was made from."""

    name: str
    """Base name of the file."""
    size: int
    header_sha256: str
    """SHA-256 of all bytes before the data section."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One converted tensor."""

    name: str
    ne: tuple[int, ...]
    """Dimensions, row length first, as in the GGUF."""
    shard: int
    offset: int
    """Absolute byte offset of the native bytes in the shard's file."""
    sha256: str
    """SHA-256 of the tensor's bytes in the sidecar, padding included."""
    nonfinite_d: int
    """Super-blocks whose d is NaN or infinite."""
    zero_d: int
    """Super-blocks whose d is +0 or -0."""

    @property
    def quant(self) -> layout.QuantType:
        """The quantization type."""
        return layout.DEFAULT

    @property
    def n(self) -> int:
        """Super-blocks in a row."""
        return self.ne[0] // layout.BLOCK_WEIGHTS

    @property
    def rows(self) -> int:
        """Rows over all outer dimensions."""
        return prod(self.ne[1:])

    @property
    def row_stride(self) -> int:
        """Bytes from one row to the next in the sidecar."""
        return layout.row_stride(self.n)

    @property
    def nbytes(self) -> int:
        """Bytes in the GGUF."""
        return self.rows * self.n * layout.BLOCK_BYTES

    @property
    def padded_nbytes(self) -> int:
        """Bytes in the padded layout."""
        return self.rows * self.n * layout.PADDED_BLOCK_BYTES

    @property
    def dpl_nbytes(self) -> int:
        """Bytes in the sidecar."""
        return self.rows * self.row_stride

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape in the sidecar: outer dimensions slowest first, then the row's bytes."""
        return (*reversed(self.ne[1:]), self.row_stride) if len(self.ne) > 1 else (1, self.row_stride)


@dataclass(frozen=True, slots=True)
class Skipped:
    """The tensors of one type that were not converted."""

    type: int
    """Raw ggml type number."""
    name: str
    tensors: int
    nbytes: int | None
    """None when the size of the type is not known."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """All facts about a sidecar. `digest` is filled in by `to_json`."""

    generator: str
    generator_version: str
    sources: tuple[Source, ...]
    general: Mapping[str, str]
    """general.architecture, general.name and general.type of the model, where present."""
    include: tuple[str, ...]
    exclude: tuple[str, ...]
    left_out: tuple[str, ...]
    """Names of the Q6_K tensors that the patterns left out; a reader need not run foreign patterns to know them."""
    tensors: tuple[Entry, ...]
    skipped: tuple[Skipped, ...]
    minor: int = field(default=FORMAT_MINOR)


def to_json(manifest: Manifest) -> str:
    """The manifest as canonical JSON, sealed with its own SHA-256."""
    body = {
        "format": {"name": "dpl", "major": FORMAT_MAJOR, "minor": manifest.minor},
        "generator": {"name": manifest.generator, "version": manifest.generator_version},
        "layout": _layout_json(),
        "source": {
            "shards": [
                {"name": shard.name, "size": shard.size, "header_sha256": shard.header_sha256}
                for shard in manifest.sources
            ],
            "general": dict(manifest.general),
        },
        "selection": {
            "include": list(manifest.include),
            "exclude": list(manifest.exclude),
            "left_out": list(manifest.left_out),
        },
        "tensors": [
            {
                "name": entry.name,
                "type": Q6_K,
                "ne": list(entry.ne),
                "rows": entry.rows,
                "n": entry.n,
                "row_stride": entry.row_stride,
                "shard": entry.shard,
                "offset": entry.offset,
                "nbytes": entry.nbytes,
                "sha256": entry.sha256,
                "nonfinite_d": entry.nonfinite_d,
                "zero_d": entry.zero_d,
            }
            for entry in manifest.tensors
        ],
        "skipped": [
            {"type": kind.type, "name": kind.name, "tensors": kind.tensors, "nbytes": kind.nbytes}
            for kind in manifest.skipped
        ],
    }
    return canonical({**body, _DIGEST_KEY: _digest(body)})


def from_json(text: str, where: str) -> Manifest:
    """Read a manifest and check everything that can be checked without the data.

    Raises Damaged, naming what is wrong, on anything that is not format version 1 as docs/format.md has it.
    """
    try:
        return _read(parse(text, where), where)
    except RecursionError:
        raise Damaged("the manifest is nested too deeply", where=where) from None


def _read(root: StrictObject, where: str) -> Manifest:
    version = root.obj("format")
    if version.text("name") != "dpl":
        raise version.wrong("name", "dpl")
    if (major := version.integer("major")) != FORMAT_MAJOR:
        raise Damaged(
            "format version not supported",
            where=where,
            found=major,
            expected=FORMAT_MAJOR,
            hint="update gguf-dpl" if major > FORMAT_MAJOR else "",
        )
    if root.text(_DIGEST_KEY) != _digest({key: value for key, value in root.items.items() if key != _DIGEST_KEY}):
        raise Damaged("the manifest does not match its own digest", where=where)
    if root.obj("layout").items != _layout_json():
        raise Damaged("the manifest describes another layout", where=where)
    source, generator, selection = root.obj("source"), root.obj("generator"), root.obj("selection")
    general = source.obj("general")
    manifest = Manifest(
        generator=generator.text("name"),
        generator_version=generator.text("version"),
        sources=tuple(
            Source(shard.text("name"), shard.integer("size"), shard.sha256("header_sha256"))
            for shard in source.objects("shards")
        ),
        general={key: general.text(key) for key in general.items},
        include=selection.texts("include"),
        exclude=selection.texts("exclude"),
        left_out=selection.texts("left_out"),
        tensors=tuple(_entry(item) for item in root.objects("tensors")),
        skipped=tuple(
            Skipped(
                kind.integer("type"),
                kind.text("name"),
                kind.integer("tensors"),
                None if kind.items.get("nbytes", 0) is None else kind.integer("nbytes"),
            )
            for kind in root.objects("skipped")
        ),
        minor=version.integer("minor"),
    )
    _check_tensors(manifest, where)
    return manifest


def _check_tensors(manifest: Manifest, where: str) -> None:
    names: set[str] = set()
    for entry in manifest.tensors:
        tensor = f"tensor {shown(entry.name)}"
        if entry.name in names:
            raise Damaged(f"{tensor} stands twice in the manifest", where=where)
        names.add(entry.name)
        if entry.shard >= len(manifest.sources):
            raise Damaged(f"{tensor} names a shard that is not listed", where=where, found=entry.shard)
        if entry.offset + entry.nbytes > manifest.sources[entry.shard].size and entry.nbytes:
            raise Damaged(f"{tensor} lies outside its shard", where=where, found=f"offset {entry.offset}")
    if manifest.left_out and not manifest.include and not manifest.exclude:
        raise Damaged("the manifest leaves tensors out without a pattern", where=where)
    if not names.isdisjoint(manifest.left_out):
        raise Damaged("the manifest leaves out a tensor that it lists", where=where)
    if not manifest.tensors:
        raise Damaged("the manifest lists no tensor", where=where)


def _entry(item: StrictObject) -> Entry:
    ne = item.integers("ne")
    if not 1 <= len(ne) <= 4 or ne[0] % layout.BLOCK_WEIGHTS or prod(max(size, 1) for size in ne) >= BOUND:
        raise item.wrong("ne", f"1 to 4 dimensions, the first a multiple of {layout.BLOCK_WEIGHTS}")
    entry = Entry(
        name=item.text("name"),
        ne=ne,
        shard=item.integer("shard"),
        offset=item.integer("offset"),
        sha256=item.sha256("sha256"),
        nonfinite_d=item.integer("nonfinite_d"),
        zero_d=item.integer("zero_d"),
    )
    derived = {
        "type": Q6_K,
        "rows": entry.rows,
        "n": entry.n,
        "row_stride": entry.row_stride,
        "nbytes": entry.nbytes,
    }
    for key, expected in derived.items():
        if item.integer(key) != expected:
            raise item.wrong(key, expected)
    return entry


def _layout_json() -> dict[str, Any]:
    return {
        "block_weights": layout.BLOCK_WEIGHTS,
        "block_bytes": layout.BLOCK_BYTES,
        "row_alignment": layout.ROW_ALIGNMENT,
        "fields": [
            {"name": field.name, "block_bytes": field.nbytes, "plane_offset": field.offset} for field in layout.FIELDS
        ],
    }


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical(body).encode("ascii")).hexdigest()
