"""A sidecar for programs: its tensors by name, as read-only views of the mapped file."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import index
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from repack.errors import os_failure, shown
from repack.files.reading import open_input
from repack.gguf.dequantize import dequantize
from repack.rows import Bytes, plane, unpack_rows
from repack.sidecar.container import read_header, tensor_offsets
from repack.sidecar.manifest import Entry


@dataclass(frozen=True, slots=True)
class SidecarTensor:
    """One tensor of an open sidecar. Rows are counted over all outer dimensions, outermost slowest.

    Ranges of rows are `start` up to, not including, `stop`; without `stop`, up to the end. A number that is no row of
    the tensor raises IndexError, and what is no integer TypeError: nothing is cut or counted from the end.
    """

    entry: Entry
    rows: npt.NDArray[np.uint8]
    """uint8 ``[..., row_stride]``, a read-only view of the mapped file; outer dimensions outermost first."""

    def planes(self, start: int = 0, stop: int | None = None) -> dict[str, npt.NDArray[Any]]:
        """The planes of some rows by the name of their field, without copying.

        Each ``[rows, bytes * n / itemsize]`` in its field's dtype: for Q6_K ql and qh uint8, scales int8, d float16.
        """
        rows, quant = self._range(start, stop), self.entry.quant
        return {field.name: plane(rows, quant, at, self.entry.n) for at, field in enumerate(quant.planes)}

    def unpack(self, start: int = 0, stop: int | None = None) -> Bytes:
        """Some rows in the GGUF's own form, uint8 ``[rows, block_bytes * n]``."""
        return self._native(self._range(start, stop))

    def dequantize(self, start: int = 0, stop: int | None = None) -> npt.NDArray[np.float32]:
        """Some rows as float32 ``[rows, ne0]``, by gguf's dequantizer."""
        return self._weights(self._range(start, stop))

    def get_rows(self, rows: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """Rows by number, as an embedding lookup needs them: float32 ``[*shape of rows, ne0]``.

        Reads these rows and no other byte of the file.
        """
        numbers = _row_numbers(rows, self.entry.rows)
        weights = self._weights(self._range(0, None)[numbers.reshape(-1)])
        return weights.reshape(*numbers.shape, self.entry.ne[0])

    def _range(self, start: int, stop: int | None) -> Bytes:
        count = self.entry.rows
        first, end = _integer(start), count if stop is None else _integer(stop)
        if not 0 <= first <= end <= count:
            raise IndexError(f"rows {first} to {end} of a tensor of {count} rows")
        return self.rows.reshape(count, self.entry.row_stride)[first:end]

    def _native(self, rows: Bytes) -> Bytes:
        quant, n = self.entry.quant, self.entry.n
        native = np.empty((len(rows), quant.block_bytes * n), np.uint8)
        unpack_rows(rows, native, quant, n)
        return native

    def _weights(self, rows: Bytes) -> npt.NDArray[np.float32]:
        return dequantize(self._native(rows), self.entry.quant)


def _integer(value: object) -> int:
    """An int, or an integer of NumPy; not a bool, which is one for Python."""
    if isinstance(value, (bool, np.bool_)):
        raise TypeError("a row's number was expected, not a truth value")
    return index(value)  # type: ignore[arg-type] # raises TypeError


def _row_numbers(rows: npt.ArrayLike, count: int) -> npt.NDArray[np.int64]:
    """Numbers of rows as they came, in their shape. Raises IndexError or TypeError (see `SidecarTensor`)."""
    numbers = np.asarray(rows)
    if numbers.dtype.kind not in "iu" or not isinstance(rows, np.ndarray):
        numbers = np.asarray(rows, object)  # a list of True and 2 would be one of integers by now
    for number in numbers.reshape(-1) if numbers.dtype == object else ():
        _integer(number)
    if outside := [int(number) for number in numbers[(numbers < 0) | (numbers >= count)][:1]]:
        raise IndexError(f"row {outside[0]} of a tensor of {count} rows")
    return numbers.astype(np.int64)


class Sidecar(Mapping[str, SidecarTensor]):
    """An open sidecar: tensor names to tensors, memory-mapped and read-only. Use it in a ``with`` block, or `close` it.

    Opening checks the whole header against the manifest and the file size; the data is checked by `verify` only.
    Raises Damaged if the file is not a sidecar of format version 2.
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


def open_sidecar(path: str | os.PathLike[str]) -> Sidecar:
    """Open a sidecar as a read-only mapping from tensor names to `SidecarTensor`; use it in a ``with`` block.

    Raises `repack.Damaged` if the file is no sound sidecar of format version 2.
    """
    return Sidecar(path)
