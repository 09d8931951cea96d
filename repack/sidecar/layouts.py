"""What a sidecar says about the layout of its types: one object for each, which a reader needs to bring rows back.

For a type of the project's table it is exactly the table's text. Another type, of a later minor version, is described
by its object alone: its bytes can be proven and brought back, not dequantized.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from repack.errors import Damaged
from repack.layout import TYPES, Field, QuantType
from repack.sidecar.canonical import StrictObject, canonical

MAX_SIZE = 1 << 16
"""Most weights, and most bytes, of a block."""
MAX_PLANES = 16


def layout_json(quant: QuantType) -> dict[str, Any]:
    """A type as it stands in the manifest's `layouts`."""
    return {
        "type": quant.number,
        "name": quant.name,
        "block_weights": quant.block_weights,
        "block_bytes": quant.block_bytes,
        "planes": [{"name": field.name, "bytes": field.nbytes, "offset": field.offset} for field in quant.planes],
    }


def read_layouts(root: StrictObject) -> dict[int, QuantType]:
    """The types of a manifest by number. Raises Damaged if one contradicts itself or the table."""
    items = root.objects("layouts")
    types = [_read(item) for item in items]
    for one, other in pairwise(types):
        if one.number >= other.number:
            raise Damaged("the layouts are not in ascending order of their types", where=root.where)
    return {quant.number: quant for quant in types}


def _read(item: StrictObject) -> QuantType:
    number = item.integer("type")
    quant = TYPES.get(number) or _described(item, number)
    if canonical(item.items) != canonical(layout_json(quant)):
        raise Damaged(f"the manifest describes another layout of type {number}", where=item.where)
    return quant


def _described(item: StrictObject, number: int) -> QuantType:
    """A type that the table does not have, as its object describes it."""
    weights, size, planes = item.integer("block_weights"), item.integer("block_bytes"), item.objects("planes")
    if not 1 <= weights <= MAX_SIZE:
        raise item.wrong("block_weights", f"1 to {MAX_SIZE}")
    if not 1 <= size <= MAX_SIZE:
        raise item.wrong("block_bytes", f"1 to {MAX_SIZE}")
    if not 1 <= len(planes) <= MAX_PLANES:
        raise item.wrong("planes", f"1 to {MAX_PLANES} planes")
    fields = tuple(Field(plane.text("name"), plane.integer("bytes"), plane.integer("offset")) for plane in planes)
    end = 0
    for field in sorted(fields, key=lambda field: field.offset):
        if field.offset != end or field.nbytes == 0:
            raise item.wrong("planes", "planes whose fields are the block, without a hole or an overlap")
        end += field.nbytes
    if end != size or len({field.name for field in fields}) != len(fields):
        raise item.wrong("planes", f"planes of different names and {size} bytes together")
    return QuantType(item.text("name"), number, weights, fields)
