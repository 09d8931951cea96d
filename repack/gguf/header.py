"""A GGUF's header, byte by byte: is it a GGUF at all, and which metadata has it.

Nothing that it claims is believed unless the bytes that are left allow it. Scalars and short strings of the metadata
are kept; arrays and long strings are passed over by their length.
"""

from __future__ import annotations

import os
import struct

from repack.errors import Damaged, shown
from repack.files.reading import read_bytes
from repack.gguf.types import DEFAULT_ALIGNMENT, ValueType

Scalar = int | float | bool | str

MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 16
MAX_NAME_BYTES = 1 << 16
MAX_HEADER_BYTES = 256 << 20
"""Longest header walked over, arrays included. A sparse file may be of any size and costs its maker nothing."""
MAX_KEPT_BYTES = 32 << 20
"""Names and short strings kept in memory, in all."""
MAX_STRINGS = 1 << 22
"""Strings and inner arrays of arrays, in all: some 0.5 s. (Vocabularies have 262,144 and as many merges.)"""
MAX_KEPT_STRING = 4096
MAX_ARRAY_DEPTH = 4
MAX_ALIGNMENT = 1 << 30
_WINDOW = 1 << 20

_SCALARS: dict[int, struct.Struct] = {
    ValueType.UINT8: struct.Struct("<B"),
    ValueType.INT8: struct.Struct("<b"),
    ValueType.UINT16: struct.Struct("<H"),
    ValueType.INT16: struct.Struct("<h"),
    ValueType.UINT32: struct.Struct("<I"),
    ValueType.INT32: struct.Struct("<i"),
    ValueType.FLOAT32: struct.Struct("<f"),
    ValueType.BOOL: struct.Struct("<?"),
    ValueType.UINT64: struct.Struct("<Q"),
    ValueType.INT64: struct.Struct("<q"),
    ValueType.FLOAT64: struct.Struct("<d"),
}


class Cursor:
    """A bounded walk over the header through a window of 1 MiB."""

    def __init__(self, fd: int, where: str) -> None:
        self.where = where
        self.size = os.fstat(fd).st_size
        self.position = 0
        self._fd = fd
        self._start = 0
        self._window = b""
        self._left = {"bytes of names and strings": MAX_KEPT_BYTES, "strings in arrays": MAX_STRINGS}

    def check(self, count: int, what: str) -> None:
        """Refuse a claim of `count` more bytes that the file does not hold."""
        if count > self.size - self.position:
            raise Damaged(
                f"ends within {what}",
                where=f"{self.where} at byte {self.position}",
                found=f"{self.size - self.position} bytes",
                expected=count,
                hint="the file is cut short or damaged",
            )
        if self.position + count > MAX_HEADER_BYTES:
            raise Damaged("the header is longer than supported", where=self.where, expected=f"<= {MAX_HEADER_BYTES}")

    def spend(self, count: int, what: str) -> None:
        """Count what costs memory or time, and refuse a file that has more of it than any model."""
        self._left[what] -= count
        if self._left[what] < 0:
            raise Damaged(f"the header holds more {what} than supported", where=self.where)

    def peek(self, count: int) -> bytes:
        """Up to `count` of the next bytes, fewer at the end of the file."""
        at = self.position - self._start
        if not 0 <= at <= len(self._window) - count:
            want = min(max(count, _WINDOW), self.size - self.position)
            self._window = read_bytes(self._fd, want, self.position, self.where)
            self._start, at = self.position, 0
        return self._window[at : at + count]

    def take(self, count: int, what: str) -> bytes:
        """Exactly `count` bytes."""
        self.check(count, what)
        data = self.peek(count)
        self.position += count
        return data

    def skip(self, count: int, what: str) -> None:
        """Pass over `count` bytes without reading them."""
        self.check(count, what)
        self.position += count

    def unsigned(self, width: int, what: str) -> int:
        """An unsigned little-endian integer of `width` bytes."""
        return int.from_bytes(self.take(width, what), "little")

    def name(self, what: str) -> str:
        """A length-prefixed UTF-8 string that names something."""
        length = self.unsigned(8, what)
        self.check(length, what)
        if length > MAX_NAME_BYTES:
            found, expected = f"{length} bytes", f"<= {MAX_NAME_BYTES}"
            raise Damaged(f"{what} is too long", where=self.where, found=found, expected=expected)
        raw = self.text(length, what)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            raise Damaged(f"{what} is not UTF-8", where=self.where, found=shown(_ascii(raw))) from None

    def text(self, length: int, what: str) -> bytes:
        """The bytes of a string that is going to be kept."""
        self.spend(length, "bytes of names and strings")
        return self.take(length, what)

    def skip_strings(self, count: int, what: str) -> None:
        """Skip `count` strings: a vocabulary of 262,144 in some 40 ms."""
        self.check(count * 8, what)
        self.spend(count, "strings in arrays")
        length_at = struct.Struct("<Q").unpack_from
        while count:
            self.check(8, what)
            self.peek(min(_WINDOW // 2, self.size - self.position))
            at = self.position - self._start
            while count and at <= len(self._window) - 8:
                at += 8 + length_at(self._window, at)[0]
                count -= 1
            self.skip(at - (self.position - self._start), what)


def read_counts(cursor: Cursor) -> tuple[int, int, int]:
    """The version, and the counts of tensors and of keys. Raises Damaged if this is no GGUF that we can read."""
    head = cursor.peek(64)
    if head[:4] != b"GGUF":
        raise Damaged(f"is not a GGUF file: {_looks_like(head)}", where=cursor.where)
    cursor.skip(4, "the magic")
    version = cursor.unsigned(4, "the version")
    if version not in {2, 3}:
        if int.from_bytes(version.to_bytes(4, "little"), "big") in {1, 2, 3}:
            raise Damaged("is a big-endian GGUF", where=cursor.where, expected="little endian")
        raise Damaged("GGUF version not supported", where=cursor.where, found=version, expected="2 or 3")
    counts = []
    for what, smallest, most in (("tensor", 24, MAX_TENSORS), ("key", 13, MAX_KEYS)):
        count = cursor.unsigned(8, f"the {what} count")
        if count * smallest > cursor.size:
            raise Damaged(
                f"claims {count} {what}s, more than its {cursor.size} bytes can hold",
                where=cursor.where,
                hint="if it is a part of a file, join the parts first (cat)",
            )
        if count > most:
            raise Damaged(f"has {count} {what}s, more than the {most} supported", where=cursor.where)
        counts.append(count)
    return version, counts[0], counts[1]


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
        if key == "general.alignment" and kind != ValueType.UINT32:
            raise Damaged("general.alignment has the wrong type", where=cursor.where, found=kind, expected="UINT32")
    return kept


def alignment_of(metadata: dict[str, Scalar], where: str) -> int:
    """``general.alignment``, or the format's default of 32."""
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    assert isinstance(alignment, int)
    if not 0 < alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        expected = "a power of two up to 2^30"
        raise Damaged("general.alignment is out of range", where=where, found=alignment, expected=expected)
    return alignment


def _value(cursor: Cursor, kind: int, key: str, depth: int) -> Scalar | None:
    """Read one value, or skip it (None) if it is an array or a long string."""
    what = f"the value of {shown(key)}"
    if kind in _SCALARS:
        scalar: Scalar = _SCALARS[kind].unpack(cursor.take(_SCALARS[kind].size, what))[0]
        return scalar
    if kind == ValueType.STRING:
        length = cursor.unsigned(8, what)
        if length > MAX_KEPT_STRING:
            cursor.skip(length, what)
            return None
        return cursor.text(length, what).decode("utf-8", "replace")
    if kind != ValueType.ARRAY:
        raise Damaged(f"metadata key {shown(key)} has an unknown value type", where=cursor.where, found=kind)
    if depth == MAX_ARRAY_DEPTH:
        raise Damaged(f"metadata key {shown(key)} nests arrays deeper than {MAX_ARRAY_DEPTH}", where=cursor.where)
    item, count = cursor.unsigned(4, what), cursor.unsigned(8, what)
    if item in _SCALARS:
        cursor.skip(count * _SCALARS[item].size, what)
    elif item == ValueType.STRING:
        cursor.skip_strings(count, what)
    elif item == ValueType.ARRAY:
        cursor.check(count * 12, what)
        cursor.spend(count, "strings in arrays")
        for _ in range(count):
            _value(cursor, item, key, depth + 1)
    else:
        raise Damaged(f"metadata key {shown(key)} has an unknown item type", where=cursor.where, found=item)
    return None


def _looks_like(head: bytes) -> str:
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if not head:
        return "it is empty"
    if text.startswith(b"version https://git-lfs"):
        return "it is a git-lfs pointer; run `git lfs pull` to fetch the model"
    if head[8:9] == b"{":
        return "it looks like a safetensors file or a dpl sidecar; were the arguments swapped?"
    for beginnings, what in (((b"<",), "an HTML or XML page"), ((b"{", b"["), "JSON")):
        if text.startswith(beginnings):
            return f"it looks like {what}, beginning {shown(_ascii(head[:24]))}; was the download refused?"
    if head[:2] == b"PK":
        return "it is a zip archive (a PyTorch checkpoint?)"
    if head[:4] in {b"lmgg", b"tjgg", b"fmgg", b"algg"}:
        return "it is a model in a ggml format older than GGUF; convert it first"
    return f"it begins with {shown(_ascii(head[:16]))}"


def _ascii(data: bytes) -> str:
    """Foreign bytes as ASCII text, the rest as escapes."""
    return data.decode("ascii", "backslashreplace")
