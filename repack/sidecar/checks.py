"""A manifest read back: everything that can be checked without the data is checked here, or it is no manifest.

Members that the format does not name are ignored; the digest covers them.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from math import prod

from repack.errors import Damaged, shown
from repack.layout import TYPES, QuantType
from repack.sidecar.canonical import BOUND, StrictObject, parse, require_canonical
from repack.sidecar.layouts import read_layouts
from repack.sidecar.manifest import DIGEST_KEY, FORMAT_MAJOR, RESERVED_NAME, Entry, Manifest, Skipped, Source, digest_of


def from_json(text: str, where: str) -> Manifest:
    """Read a manifest and check everything that can be checked without the data.

    Raises Damaged, naming what is wrong, on anything that is not format version 2 as docs/format.md has it. The
    version is looked at first, so that a file of another version is told by that word and not by what follows from it.
    """
    root = parse(text, where)
    minor = _check_version(root.obj("format"), where)
    require_canonical(root, text)
    if root.text(DIGEST_KEY) != digest_of({key: value for key, value in root.items.items() if key != DIGEST_KEY}):
        raise Damaged("the manifest does not match its own digest", where=where)
    layouts = read_layouts(root)
    source, generator, selection = root.obj("source"), root.obj("generator"), root.obj("selection")
    general = source.obj("general")
    manifest = Manifest(
        generator=generator.text("name"),
        generator_version=generator.text("version"),
        sources=tuple(_source(shard) for shard in source.objects("shards")),
        general={key: general.text(key) for key in general.items},
        types=selection.integers("types"),
        include=selection.texts("include"),
        exclude=selection.texts("exclude"),
        left_out=selection.texts("left_out"),
        tensors=tuple(_entry(item, layouts) for item in root.objects("tensors")),
        skipped=tuple(_skipped(kind) for kind in root.objects("skipped")),
        minor=minor,
    )
    if not manifest.tensors:
        raise Damaged("the manifest lists no tensor", where=where)
    if unused := set(layouts) - {entry.quant.number for entry in manifest.tensors}:
        raise Damaged("the manifest has layouts that no tensor uses", where=where, found=f"types {sorted(unused)}")
    _check_selection(manifest, where)
    _check_tensors(manifest, where)
    return manifest


def _check_version(version: StrictObject, where: str) -> int:
    if version.text("name") != "dpl":
        raise version.wrong("name", "dpl")
    if (major := version.integer("major")) != FORMAT_MAJOR:
        raise Damaged(
            f"format {major}, {'convert again' if major < FORMAT_MAJOR else 'update gguf-dpl'}",
            where=where,
            hint=f"this program reads format version {FORMAT_MAJOR}",
        )
    return version.integer("minor")


def _source(shard: StrictObject) -> Source:
    name = shard.text("name")
    if not set("/\\\0").isdisjoint(name) or name in {"", ".", ".."}:
        raise shard.wrong("name", "the name of a file, without a folder")
    return Source(name, shard.integer("size"), shard.sha256("header_sha256"))


def _skipped(kind: StrictObject) -> Skipped:
    nbytes = None if kind.items.get("nbytes", 0) is None else kind.integer("nbytes")
    return Skipped(kind.integer("type"), kind.text("name"), kind.integer("tensors"), nbytes)


def _entry(item: StrictObject, layouts: Mapping[int, QuantType]) -> Entry:
    quant = layouts.get(item.integer("type"))
    if quant is None:
        raise item.wrong("type", "a type of `layouts`")
    ne = item.integers("ne")
    if not 1 <= len(ne) <= 4 or ne[0] % quant.block_weights or prod(max(size, 1) for size in ne) >= BOUND:
        raise item.wrong("ne", f"1 to 4 dimensions, the first a multiple of {quant.block_weights}")
    nonfinite, zero = _counts(item, quant)
    entry = Entry(
        name=item.text("name"),
        quant=quant,
        ne=ne,
        shard=item.integer("shard"),
        offset=item.integer("offset"),
        sha256=item.sha256("sha256"),
        nonfinite_scales=nonfinite,
        zero_scales=zero,
    )
    if max(entry.row_stride, entry.dpl_nbytes) >= BOUND:
        raise item.wrong("ne", "rows, and a tensor, of fewer than 2^63 bytes")
    derived = {"rows": entry.rows, "n": entry.n, "row_stride": entry.row_stride, "nbytes": entry.nbytes}
    for key, expected in derived.items():
        if item.integer(key) != expected:
            raise item.wrong(key, expected)
    return entry


def _counts(item: StrictObject, quant: QuantType) -> tuple[int, int]:
    """Unusual scales; of a type that is not in the table they may be absent, and cannot be checked: none."""
    keys = ("nonfinite_scales", "zero_scales")
    known = quant.number in TYPES
    if not known and not item.items.keys() & set(keys):
        return 0, 0
    nonfinite, zero = map(item.integer, keys)
    return (nonfinite, zero) if known else (0, 0)


def _check_selection(manifest: Manifest, where: str) -> None:
    if any(one >= other for one, other in pairwise(manifest.types)):
        raise Damaged("the types asked for are not in ascending order", where=where)
    if more := {entry.quant.number for entry in manifest.tensors} - set(manifest.types):
        raise Damaged("the manifest lists tensors of types not asked for", where=where, found=f"types {sorted(more)}")
    if manifest.left_out and not manifest.include and not manifest.exclude:
        raise Damaged("the manifest leaves tensors out without a pattern", where=where)
    if not {entry.name for entry in manifest.tensors}.isdisjoint(manifest.left_out):
        raise Damaged("the manifest leaves out a tensor that it lists", where=where)


def _check_tensors(manifest: Manifest, where: str) -> None:
    names: set[str] = set()
    for entry in manifest.tensors:
        tensor = f"tensor {shown(entry.name)}"
        if entry.name in names:
            raise Damaged(f"{tensor} is there twice in the manifest", where=where)
        if entry.name == RESERVED_NAME:
            raise Damaged(f"a tensor is named {shown(RESERVED_NAME)}, which safetensors reserves", where=where)
        names.add(entry.name)
        if entry.shard >= len(manifest.sources):
            raise Damaged(f"{tensor} names a shard that is not listed", where=where, found=entry.shard)
        if entry.offset + entry.nbytes > manifest.sources[entry.shard].size and entry.nbytes:
            raise Damaged(f"{tensor} lies outside its shard", where=where, found=f"offset {entry.offset}")
