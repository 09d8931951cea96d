"""The first bytes of a model: whether it is a GGUF, of which version, and how much it claims to hold."""

from __future__ import annotations

import re
from pathlib import Path

from repack.errors import Damaged, shown
from repack.gguf.cursor import Cursor, ascii_text

MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 16


def read_preamble(cursor: Cursor, path: Path) -> tuple[int, int, int]:
    """The version, and the counts of tensors and of keys. Raises Damaged if this is no GGUF that we can read."""
    head = cursor.peek(64)
    if head[:4] != b"GGUF":
        raise Damaged(f"is not a GGUF file: {_looks_like(head)}", where=cursor.where)
    cursor.skip(4, "the magic")
    version = cursor.unsigned(4, "the version")
    if version not in {2, 3}:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        if swapped in {1, 2, 3}:
            raise Damaged("is a big-endian GGUF", where=cursor.where, expected="little endian")
        raise Damaged("GGUF version not supported", where=cursor.where, found=version, expected="2 or 3")
    counts = []
    for what, smallest, most in (("tensor", 24, MAX_TENSORS), ("key", 13, MAX_KEYS)):
        count = cursor.unsigned(8, f"the {what} count")
        if count > most or count * smallest > cursor.size:
            raise Damaged(
                f"claims {count} {what}s, more than its {cursor.size} bytes can hold"
                if count * smallest > cursor.size
                else f"has {count} {what}s, more than the {most} supported",
                where=cursor.where,
                hint="join the parts first (cat)" if re.search(r"part|split", path.suffix) else "",
            )
        counts.append(count)
    return version, counts[0], counts[1]


def _looks_like(head: bytes) -> str:
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if not head:
        return "it is empty"
    if text.startswith(b"version https://git-lfs"):
        return "it is a git-lfs pointer; run `git lfs pull` to fetch the model"
    if head[8:9] == b"{":
        return "it looks like a safetensors file or a dpl sidecar; were the arguments swapped?"
    if text[:1] == b"<":
        return f"it looks like an HTML or XML page, beginning {shown(ascii_text(head[:24]))}; was the download refused?"
    if text[:1] in {b"{", b"["}:
        return f"it looks like JSON, beginning {shown(ascii_text(head[:24]))}; was the download refused?"
    if head[:2] == b"PK":
        return "it is a zip archive (a PyTorch checkpoint?)"
    if head[:4] in {b"lmgg", b"tjgg", b"fmgg", b"algg"}:
        return "it is a model in a ggml format older than GGUF; convert it first"
    return f"it begins with {shown(ascii_text(head[:16]))}"
