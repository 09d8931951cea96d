"""The sidecar's container: a safetensors file of fixed form, its header built here and read back here.

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

import contextlib
import json
import mmap
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from repack import layout
from repack.errors import Damaged, os_failure, shown
from repack.files.reading import open_input, read_bytes
from repack.rows import Bytes, plane, unpack_rows
from repack.sidecar.canonical import canonical
from repack.sidecar.manifest import RESERVED_NAME, Entry, Manifest, from_json, to_json

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


class Planes(NamedTuple):
    """The four planes of a range of rows, as views of the sidecar."""

    ql: npt.NDArray[np.uint8]
    """uint8 ``[rows, 128 n]``"""
    qh: npt.NDArray[np.uint8]
    """uint8 ``[rows, 64 n]``"""
    scales: npt.NDArray[np.int8]
    """int8 ``[rows, 16 n]``"""
    d: npt.NDArray[np.float16]
    """float16 ``[rows, n]``"""


@dataclass(frozen=True, slots=True)
class SidecarTensor:
    """One tensor of an open sidecar. Rows are counted over all outer dimensions, outermost slowest."""

    entry: Entry
    rows: npt.NDArray[np.uint8]
    """uint8 ``[..., row_stride]``, a read-only view of the mapped file; outer dimensions outermost first."""

    def _range(self, start: int, stop: int | None) -> Bytes:
        return self.rows.reshape(self.entry.rows, self.entry.row_stride)[start:stop]

    def planes(self, start: int = 0, stop: int | None = None) -> Planes:
        """The planes of rows `start` to `stop`, without copying."""
        rows = self._range(start, stop)
        return Planes(*(plane(rows, self.entry.quant, index, self.entry.n) for index in range(4)))

    def unpack(self, start: int = 0, stop: int | None = None) -> Bytes:
        """Rows `start` to `stop` in the GGUF's own form, uint8 ``[rows, 210 n]``."""
        return self._native(self._range(start, stop))

    def dequantize(self, start: int = 0, stop: int | None = None) -> npt.NDArray[np.float32]:
        """Rows `start` to `stop` as float32 ``[rows, ne0]``, by gguf's dequantizer."""
        return self._weights(self._range(start, stop))

    def get_rows(self, rows: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """Rows by number, as an embedding lookup needs them: float32 ``[*shape of rows, ne0]``.

        Reads these rows and no other byte of the file. Raises IndexError if a number is no row of the tensor.
        """
        numbers = np.asarray(rows, np.int64)
        weights = self._weights(self._range(0, None)[numbers.reshape(-1)])
        return weights.reshape(*numbers.shape, self.entry.ne[0])

    def _native(self, rows: Bytes) -> Bytes:
        native = np.empty((len(rows), layout.BLOCK_BYTES * self.entry.n), np.uint8)
        unpack_rows(rows, native, self.entry.quant, self.entry.n)
        return native

    def _weights(self, rows: Bytes) -> npt.NDArray[np.float32]:
        from repack.gguf.types import dequantize_q6_k  # noqa: PLC0415 - 20 ms that readers of bytes need not pay

        return dequantize_q6_k(self._native(rows))


class Sidecar(Mapping[str, SidecarTensor]):
    """An open sidecar: tensor names to tensors, memory-mapped and read-only. Use it in a ``with`` block, or `close` it.

    Opening checks the whole header against the manifest and the file size; the data is checked by `verify` only.
    Raises Damaged if the file is not a sidecar of format version 1.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        fd = open_input(self.path)
        try:
            self.manifest, self.data_start = read_header(fd, shown(self.path))
            self._map = mmap.mmap(fd, 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise os_failure(error, f"{shown(self.path)}: cannot be mapped into memory") from None
        finally:
            os.close(fd)
        offsets = tensor_offsets(self.manifest)
        self._at = {
            entry.name: (entry, self.data_start + offset)
            for entry, offset in zip(self.manifest.tensors, offsets, strict=False)
        }

    def __getitem__(self, name: str) -> SidecarTensor:
        entry, offset = self._at[name]
        flat = (
            np.frombuffer(self._map, np.uint8, entry.dpl_nbytes, offset) if entry.dpl_nbytes else np.empty(0, np.uint8)
        )
        return SidecarTensor(entry, flat.reshape(entry.shape))

    def __iter__(self) -> Iterator[str]:
        return iter(self._at)

    def __len__(self) -> int:
        return len(self._at)

    def close(self) -> None:
        """Unmap the file. Raises BufferError while arrays that view it are alive."""
        self._map.close()

    def __enter__(self) -> Sidecar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(BufferError):  # arrays outlive the block; the mapping goes with the last of them
            self.close()


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
    if any(entry.name == RESERVED_NAME for entry in manifest.tensors):
        raise Damaged(f"a tensor is named {shown(RESERVED_NAME)}, which safetensors reserves", where=where)
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
