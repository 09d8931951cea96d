"""A bounded walk over the head of a file: no claim is believed that the bytes left do not allow."""

from __future__ import annotations

import os
import struct

from repack.errors import Damaged, shown
from repack.files.reading import read_bytes

MAX_NAME_BYTES = 1 << 16
MAX_HEADER_BYTES = 256 << 20
"""Longest header walked over, arrays included. A sparse file may be of any size and costs its maker nothing."""
MAX_KEPT_BYTES = 32 << 20
"""Names and short strings kept in memory, in all."""
MAX_STRINGS = 1 << 22
"""Strings and inner arrays of arrays, in all: some 0.5 s. (Vocabularies have 262,144 and as many merges.)"""
_WINDOW = 1 << 20


class Cursor:
    """A bounded walk over the head of a file through a window of 1 MiB."""

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
            raise Damaged(
                f"{what} is too long", where=self.where, found=f"{length} bytes", expected=f"<= {MAX_NAME_BYTES}"
            )
        raw = self.text(length, what)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            raise Damaged(f"{what} is not UTF-8", where=self.where, found=shown(ascii_text(raw))) from None

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
            window, at = self._windowed()
            last = len(window) - 8
            while count and at <= last:
                at += 8 + length_at(window, at)[0]
                count -= 1
            ahead = at - (self.position - self._start)
            self.check(ahead, what)
            self.position += ahead

    def _windowed(self) -> tuple[bytes, int]:
        self.peek(min(_WINDOW // 2, self.size - self.position))
        return self._window, self.position - self._start


def ascii_text(data: bytes) -> str:
    """Foreign bytes as ASCII text, the rest as escapes."""
    return data.decode("ascii", "backslashreplace")
