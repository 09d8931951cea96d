"""The sidecar's container: a safetensors file of fixed form, its header built here, and read back and checked here.

    8 bytes   length of the JSON, little endian
    JSON      {"__metadata__":{"dpl":MANIFEST},NAME:{"dtype":"U8","shape":[...],"data_offsets":[begin,end]},...}
              padded with spaces so that the data begins at a multiple of 4096
    data      the tensors in the order of the GGUF's tensor table, without holes

Everything in the header but the number of trailing spaces follows from the manifest. So a reader rebuilds the header
from the manifest and compares bytes: there is no second opinion about names, shapes or offsets.

Own code beside safetensors, and why: the stock saver pads the header to 8 bytes only, needs every tensor in memory,
orders metadata at random and writes mode 0600. What is written opens with the stock reader; the tests do it.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from repack.errors import Damaged, shown
from repack.files.reading import read_bytes
from repack.sidecar.canonical import canonical
from repack.sidecar.checks import from_json
from repack.sidecar.manifest import RESERVED_NAME, Manifest, to_json

DATA_ALIGNMENT = 4096
MAX_HEADER = 32 << 20
"""Longest header written or read; some 40,000 tensors. (The stock reader stops at 100 MB.)"""
_BEGINNING = f'{{"{RESERVED_NAME}":{{"dpl":'.encode()


def encode_header(manifest: Manifest, data_start: int = 0) -> bytes:
    """The bytes before the data. `data_start` fixes their number; 0 takes the smallest multiple of 4096."""
    return _frame(_header_text(manifest, to_json(manifest)), data_start)


def tensor_offsets(manifest: Manifest) -> list[int]:
    """Byte offset of every tensor in the data section, and at the end the section's size."""
    return list(accumulate((entry.dpl_nbytes for entry in manifest.tensors), initial=0))


def _header_text(manifest: Manifest, manifest_json: str) -> str:
    offsets = tensor_offsets(manifest)
    members = [f'"{RESERVED_NAME}":{canonical({"dpl": manifest_json})}']
    for entry, begin, end in zip(manifest.tensors, offsets, offsets[1:], strict=False):
        shape = ",".join(str(size) for size in entry.shape)
        members.append(f'{canonical(entry.name)}:{{"dtype":"U8","shape":[{shape}],"data_offsets":[{begin},{end}]}}')
    return "{" + ",".join(members) + "}"


def _frame(text: str, data_start: int) -> bytes:
    raw = text.encode("ascii")
    start = data_start or -(-(8 + len(raw)) // DATA_ALIGNMENT) * DATA_ALIGNMENT
    if len(raw) > start - 8 or start - 8 > MAX_HEADER:
        raise Damaged(f"the sidecar's header would need {len(raw)} bytes", expected=f"<= {min(start - 8, MAX_HEADER)}")
    return (start - 8).to_bytes(8, "little") + raw.ljust(start - 8)


@dataclass(frozen=True, slots=True)
class Container:
    """What stands before the data, as found: nothing in it has been checked against the manifest yet."""

    raw: bytes
    """The JSON without its trailing spaces."""
    data_start: int
    manifest_json: str


def read_container(fd: int, where: str) -> Container:
    """Read the header of a safetensors file that carries a dpl manifest. Raises Damaged if it is something else."""
    raw, start = _raw_header(fd, os.fstat(fd).st_size, where)
    return Container(raw.rstrip(b" "), start, _manifest_json(raw, where))


def check_container(container: Container, manifest: Manifest, size: int, where: str) -> None:
    """Raise Damaged unless the header, the data's place and the file size are what the manifest implies."""
    start, text = container.data_start, container.raw
    if start % DATA_ALIGNMENT:
        raise Damaged(
            "the data is misaligned", where=where, found=f"offset {start}", expected=f"a multiple of {DATA_ALIGNMENT}"
        )
    expected = _header_text(manifest, container.manifest_json).encode("ascii")
    if text != expected:
        common = min(len(text), len(expected))
        different = np.frombuffer(text, np.uint8, common) != np.frombuffer(expected, np.uint8, common)
        at = int(different.argmax()) if different.any() else common
        raise Damaged("the header does not follow from the manifest", where=f"{where} at byte {8 + at}")
    end = start + tensor_offsets(manifest)[-1]
    if size != end:
        what = "is cut short" if size < end else "has bytes after its last tensor"
        raise Damaged(what, where=where, found=f"{size} bytes", expected=end)


def read_header(fd: int, where: str) -> tuple[Manifest, int]:
    """Read and check everything before the data: the manifest, and the byte offset at which the data begins."""
    container = read_container(fd, where)
    manifest = from_json(container.manifest_json, where)
    check_container(container, manifest, os.fstat(fd).st_size, where)
    return manifest, container.data_start


def _raw_header(fd: int, size: int, where: str) -> tuple[bytes, int]:
    head = read_bytes(fd, min(size, 9), 0, where)
    if head[:4] == b"GGUF":
        raise Damaged("is a GGUF model, not a dpl sidecar", where=where, hint="were the arguments swapped?")
    length = int.from_bytes(head[:8], "little")
    if len(head) < 9 or head[8:] != b"{":
        raise Damaged("is not a dpl sidecar", where=where, found=f"{shown(head.hex(' '))} at its beginning")
    if length > MAX_HEADER:
        raise Damaged("the header is too long", where=where, found=f"{length} bytes", expected=f"<= {MAX_HEADER}")
    if 8 + length > size:
        raise Damaged("is cut short within its header", where=where, found=f"{size} bytes", expected=8 + length)
    return read_bytes(fd, length, 8, where), 8 + length


def _manifest_json(raw: bytes, where: str) -> str:
    """The manifest, which stands first. No other part of the header is parsed: it has to follow from the manifest."""
    if not raw.startswith(_BEGINNING):
        raise Damaged("is a safetensors file without a dpl manifest, not a dpl sidecar", where=where)
    try:
        manifest, _ = json.JSONDecoder().raw_decode(raw.decode("ascii"), len(_BEGINNING))
    except ValueError:
        raise Damaged("the header is not JSON", where=where) from None
    if not isinstance(manifest, str):
        raise Damaged("the manifest is not a string", where=where)
    return manifest
