"""The way back: a sidecar's tensors as a GGUF, in their native bytes, written by gguf's own writer.

What it is for: anyone can prove the round trip with tools that are not ours. Read the result with gguf's GGUFReader or
with llama.cpp and compare its tensors with the model's. It holds the converted tensors and no others, so it is no
model that runs.
"""

from __future__ import annotations

import hashlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from repack.errors import Damaged, EnvironmentFailure, os_failure, shown
from repack.files.output import OutputFile
from repack.files.pipeline import Progress, rows_per_chunk
from repack.files.reading import open_input, read_into
from repack.files.signals import check
from repack.rows import unpack_rows
from repack.sidecar.container import read_header, tensor_offsets
from repack.sidecar.manifest import Entry, Manifest


@dataclass(frozen=True, slots=True)
class Restoration:
    """What was restored."""

    path: Path
    manifest: Manifest
    gguf_bytes: int
    seconds: float


def restore(
    sidecar: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    force: bool = False,
    progress: Progress = lambda _: None,
) -> Restoration:
    """Write the tensors of a sidecar as a GGUF; every digest of the manifest is checked on the way.

    Raises Damaged if the sidecar is damaged anywhere, UsageError if `out` exists (unless `force`) or is the sidecar,
    EnvironmentFailure on a full disk; nothing is left under `out` or beside it then.
    """
    started = time.perf_counter()
    source, target = Path(sidecar), Path(out)
    fd = open_input(source)
    try:
        manifest, data_start = read_header(fd, shown(source))
        with OutputFile(target, replace=force, inputs=[source]) as output:
            try:
                _write(manifest, _Rows(fd, data_start, shown(source), progress), output)
            except OSError as error:
                raise os_failure(error, f"{output.where}: writing failed") from None
            size = os.fstat(output.fd).st_size
            output.commit()
    finally:
        os.close(fd)
    return Restoration(target, manifest, size, time.perf_counter() - started)


def _write(manifest: Manifest, rows: _Rows, output: OutputFile) -> None:
    writer = _writer(manifest, output.fd)
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        sizes = (writer.fout[0].tell(), *(entry.nbytes for entry in manifest.tensors))
        output.reserve(sum(writer.ggml_pad(size, writer.data_alignment) for size in sizes))
        for entry, offset in zip(manifest.tensors, tensor_offsets(manifest), strict=False):
            writer.write_tensor_data(_Native(entry, offset, rows))
    finally:
        writer.close()


def _writer(manifest: Manifest, fd: int) -> Any:
    """A GGUFWriter of gguf, on a file that is open already so that the result appears whole or not at all."""
    from gguf import GGMLQuantizationType, GGUFWriter  # noqa: PLC0415 - 0.4 s that converting need not pay
    from gguf.gguf_writer import WriterState  # noqa: PLC0415

    writer = GGUFWriter(None, manifest.general.get("general.architecture", "unknown"))
    for key, text in manifest.general.items():
        if key != "general.architecture":  # the writer has it
            writer.add_string(key, text)
    for entry in manifest.tensors:
        shape = (*reversed(entry.ne[1:]), entry.n * entry.quant.block_bytes)
        try:
            kind = GGMLQuantizationType(entry.quant.number)
        except ValueError:
            what = f"the installed gguf cannot write tensors of type {shown(entry.quant.name)} ({entry.quant.number})"
            raise EnvironmentFailure(what, hint="update gguf") from None
        writer.add_tensor_info(entry.name, shape, np.uint8, entry.nbytes, raw_dtype=kind)
    writer.fout = [os.fdopen(os.dup(fd), "wb")]
    writer.state = WriterState.EMPTY
    return writer


class _Rows:
    """The sidecar's bytes, read piece by piece."""

    def __init__(self, fd: int, data_start: int, where: str, progress: Progress) -> None:
        self.fd, self.data_start, self.where, self.progress = fd, data_start, where, progress
        self.done = 0


class _Native:
    """One tensor as gguf's writer wants it: `nbytes`, and `tofile`, which takes a few MiB of memory only."""

    def __init__(self, entry: Entry, offset: int, rows: _Rows) -> None:
        self.entry, self.offset, self.rows = entry, offset, rows
        self.nbytes = entry.nbytes

    def tofile(self, file: IO[bytes]) -> None:
        """Write the native bytes. Raises Damaged if the sidecar's are not those of the manifest."""
        entry, rows = self.entry, self.rows
        digest = hashlib.sha256()
        native_row = entry.quant.block_bytes * entry.n
        step = min(rows_per_chunk(native_row), entry.rows)
        dpl, native = np.empty((step, entry.row_stride), np.uint8), np.empty((step, native_row), np.uint8)
        for start in range(0, entry.rows if entry.nbytes else 0, max(step, 1)):
            check()
            packed, unpacked = (buffer[: min(step, entry.rows - start)] for buffer in (dpl, native))
            at = rows.data_start + self.offset + start * entry.row_stride
            read_into(rows.fd, packed.data.cast("B"), at, f"{rows.where}: tensor {shown(entry.name)}")
            unpack_rows(packed, unpacked, entry.quant, entry.n)
            digest.update(packed.data)
            file.write(unpacked.data)
            rows.done += unpacked.nbytes
            rows.progress(rows.done)
        if digest.hexdigest() != entry.sha256:
            raise Damaged(
                f"tensor {shown(entry.name)} is damaged (SHA-256)",
                where=rows.where,
                found=digest.hexdigest(),
                expected=entry.sha256,
                hint="convert the model again",
            )
