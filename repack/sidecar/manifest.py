"""The manifest: what a sidecar says about itself and its source. Frozen facts, and canonical JSON made of them.

The published form is docs/manifest.schema.json. Values that follow from others (rows, n, row_stride, nbytes, layouts)
stand in the JSON for the reader's convenience and are checked, not believed: repack.sidecar.checks reads it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from repack.layout import QuantType
from repack.sidecar.canonical import canonical
from repack.sidecar.layouts import layout_json

FORMAT_MAJOR, FORMAT_MINOR = 2, 0
RESERVED_NAME = "__metadata__"
"""The one name that safetensors does not give to a tensor."""
DIGEST_KEY = "manifest_sha256"


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
    quant: QuantType
    ne: tuple[int, ...]
    """Dimensions, row length first, as in the GGUF."""
    shard: int
    offset: int
    """Absolute byte offset of the native bytes in the shard's file."""
    sha256: str
    """SHA-256 of the tensor's bytes in the sidecar, padding included."""
    nonfinite_scales: int
    """Scales of blocks that are NaN or infinite (`repack.rows.count_unusual`)."""
    zero_scales: int
    """Scales of blocks that are +0 or -0."""

    @property
    def n(self) -> int:
        """Blocks in a row."""
        return self.ne[0] // self.quant.block_weights

    @property
    def rows(self) -> int:
        """Rows over all outer dimensions."""
        return prod(self.ne[1:])

    @property
    def row_stride(self) -> int:
        """Bytes from one row to the next in the sidecar."""
        return self.quant.row_stride(self.n)

    @property
    def nbytes(self) -> int:
        """Bytes in the GGUF."""
        return self.rows * self.n * self.quant.block_bytes

    @property
    def padded_nbytes(self) -> int:
        """Bytes in the padded layout."""
        return self.rows * self.n * self.quant.padded_block_bytes

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
    """All facts about a sidecar. The layouts and the digest follow from them."""

    generator: str
    generator_version: str
    sources: tuple[Source, ...]
    general: Mapping[str, str]
    """general.architecture, general.name and general.type of the model, where present."""
    types: tuple[int, ...]
    """ggml's numbers of the types asked for, ascending."""
    include: tuple[str, ...]
    exclude: tuple[str, ...]
    left_out: tuple[str, ...]
    """Names of the tensors of these types that the patterns left out; a reader need not run foreign patterns."""
    tensors: tuple[Entry, ...]
    skipped: tuple[Skipped, ...]
    minor: int = field(default=FORMAT_MINOR)


def to_json(manifest: Manifest) -> str:
    """The manifest as canonical JSON, sealed with its own SHA-256."""
    layouts = {entry.quant.number: entry.quant for entry in manifest.tensors}
    body = {
        "format": {"name": "dpl", "major": FORMAT_MAJOR, "minor": manifest.minor},
        "generator": {"name": manifest.generator, "version": manifest.generator_version},
        "layouts": [layout_json(layouts[number]) for number in sorted(layouts)],
        "source": {
            "shards": [
                {"name": shard.name, "size": shard.size, "header_sha256": shard.header_sha256}
                for shard in manifest.sources
            ],
            "general": dict(manifest.general),
        },
        "selection": {
            "types": list(manifest.types),
            "include": list(manifest.include),
            "exclude": list(manifest.exclude),
            "left_out": list(manifest.left_out),
        },
        "tensors": [_tensor_json(entry) for entry in manifest.tensors],
        "skipped": [
            {"type": kind.type, "name": kind.name, "tensors": kind.tensors, "nbytes": kind.nbytes}
            for kind in manifest.skipped
        ],
    }
    return canonical({**body, DIGEST_KEY: digest_of(body)})


def _tensor_json(entry: Entry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "type": entry.quant.number,
        "ne": list(entry.ne),
        "rows": entry.rows,
        "n": entry.n,
        "row_stride": entry.row_stride,
        "shard": entry.shard,
        "offset": entry.offset,
        "nbytes": entry.nbytes,
        "sha256": entry.sha256,
        "nonfinite_scales": entry.nonfinite_scales,
        "zero_scales": entry.zero_scales,
    }


def digest_of(body: Mapping[str, Any]) -> str:
    """SHA-256 of a manifest without its digest, in hexadecimal."""
    return hashlib.sha256(canonical(body).encode("ascii")).hexdigest()
