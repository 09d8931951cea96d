"""A GGUF's metadata: scalars and short strings are kept, arrays and long strings are passed over by their length."""

from __future__ import annotations

import struct
from collections.abc import Mapping

from repack.errors import Damaged, shown
from repack.gguf.cursor import Cursor
from repack.gguf.types import GGUF_DEFAULT_ALIGNMENT, GGUFValueType

Scalar = int | float | bool | str

MAX_KEPT_STRING = 4096
MAX_ALIGNMENT = 1 << 30
MAX_ARRAY_DEPTH = 4

_SCALARS: dict[int, struct.Struct] = {
    int(kind): struct.Struct("<" + code)
    for kind, code in (
        (GGUFValueType.UINT8, "B"),
        (GGUFValueType.INT8, "b"),
        (GGUFValueType.UINT16, "H"),
        (GGUFValueType.INT16, "h"),
        (GGUFValueType.UINT32, "I"),
        (GGUFValueType.INT32, "i"),
        (GGUFValueType.FLOAT32, "f"),
        (GGUFValueType.BOOL, "?"),
        (GGUFValueType.UINT64, "Q"),
        (GGUFValueType.INT64, "q"),
        (GGUFValueType.FLOAT64, "d"),
    )
}


def read_metadata(cursor: Cursor, count: int) -> dict[str, Scalar]:
    """Walk over `count` key-value pairs. Raises Damaged if one is out of bounds or unknown."""
    kept: dict[str, Scalar] = {}
    seen: set[str] = set()
    for _ in range(count):
        key = cursor.name("a metadata key")
        if key in seen:
            raise Damaged(f"metadata key {shown(key)} stands twice", where=cursor.where)
        seen.add(key)
        kind = cursor.unsigned(4, f"the type of {shown(key)}")
        value = _value(cursor, kind, key, 0)
        if value is not None:
            kept[key] = value
        if key == "general.alignment" and kind != GGUFValueType.UINT32:
            raise Damaged("general.alignment has the wrong type", where=cursor.where, found=kind, expected="UINT32")
    return kept


def _value(cursor: Cursor, kind: int, key: str, depth: int) -> Scalar | None:
    """Read one value, or skip it (None) if it is an array or a long string."""
    what = f"the value of {shown(key)}"
    if kind in _SCALARS:
        scalar: Scalar = _SCALARS[kind].unpack(cursor.take(_SCALARS[kind].size, what))[0]
        return scalar
    if kind == GGUFValueType.STRING:
        length = cursor.unsigned(8, what)
        if length > MAX_KEPT_STRING:
            cursor.skip(length, what)
            return None
        return cursor.text(length, what).decode("utf-8", "replace")
    if kind != GGUFValueType.ARRAY:
        raise Damaged(f"metadata key {shown(key)} has an unknown value type", where=cursor.where, found=kind)
    if depth == MAX_ARRAY_DEPTH:
        raise Damaged(f"metadata key {shown(key)} nests arrays deeper than {MAX_ARRAY_DEPTH}", where=cursor.where)
    item, count = cursor.unsigned(4, what), cursor.unsigned(8, what)
    if item in _SCALARS:
        cursor.skip(count * _SCALARS[item].size, what)
    elif item == GGUFValueType.STRING:
        cursor.skip_strings(count, what)
    elif item == GGUFValueType.ARRAY:
        cursor.check(count * 12, what)
        cursor.spend(count, "strings in arrays")
        for _ in range(count):
            _value(cursor, item, key, depth + 1)
    else:
        raise Damaged(f"metadata key {shown(key)} has an unknown item type", where=cursor.where, found=item)
    return None


def alignment_of(metadata: Mapping[str, Scalar], where: str) -> int:
    """``general.alignment``, or the format's default of 32."""
    alignment = metadata.get("general.alignment", GGUF_DEFAULT_ALIGNMENT)
    assert isinstance(alignment, int)
    if not 0 < alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        raise Damaged(
            "general.alignment is out of range", where=where, found=alignment, expected="a power of two up to 2^30"
        )
    return alignment
