"""The pipeline: read rows -> pack -> write -> read back and compare -> digest, in chunks over a few threads.

worker threads   read a chunk, pack it, write it, read it back from the file, unpack that and compare it with the
                 source's bytes; count unusual d
two threads      SHA-256 of the native bytes and of the sidecar's bytes as read back, in file order
calling thread   hands out chunks (`repack.pipeline`)
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from repack import layout
from repack.errors import Damaged, EnvironmentFailure, shown
from repack.files import open_input, read_into, stamp
from repack.gguf_index import header_sha256
from repack.manifest import Entry, Manifest, Source
from repack.output import OutputFile
from repack.pipeline import pump, rows_per_chunk
from repack.plan import Plan, as_entry
from repack.sidecar import encode_header, read_header, tensor_offsets
from repack.version import NAME, VERSION

GENERAL_KEYS = ("general.architecture", "general.name", "general.type")

FLUSH_BYTES = 32 << 20
"""The disk is given so much to write at a time, while the rest is packed: the last flush then has little left to do."""

Progress = Callable[[int], None]
"""Called with the number of native bytes that are done, from the calling thread."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """What a conversion did."""

    path: Path
    manifest: Manifest
    sidecar_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class _Chunk:
    tensor: int
    source: int
    offset: int
    """Byte offset of the first row in the source file."""
    target: int
    """Byte offset of the first row in the sidecar."""
    rows: int
    n: int


class _Slot:
    """The buffers of one chunk in flight."""

    def __init__(self, native_bytes: int, dpl_bytes: int) -> None:
        self.native = np.empty(native_bytes, np.uint8)
        self.back = np.empty(native_bytes, np.uint8)
        self.dpl = np.empty(dpl_bytes, np.uint8)


def convert(
    plan: Plan, out: str | os.PathLike[str], *, threads: int = 0, force: bool = False, progress: Progress | None = None
) -> Conversion:
    """Write the sidecar of a planned model.

    threads: packing threads, 0 for the number of processors (at most 4). force: replace an existing file. The output
    depends on neither. Raises Damaged if a source cannot be read as indexed, EnvironmentFailure on a full disk or an
    I/O error, UsageError if `out` cannot be an output; nothing is left under `out` or beside it then.
    """
    started = time.perf_counter()
    threads = threads or min(os.cpu_count() or 1, 4)
    path = Path(out)
    with ExitStack() as stack:
        fds = []
        for shard in plan.index.shards:
            fds.append(open_input(shard.path))
            stack.callback(os.close, fds[-1])
        _refuse_changed(plan, fds, "changed since it was indexed")
        sources = [shard.path for shard in plan.index.shards]
        draft = _draft(plan, fds)
        head = encode_header(draft)
        size = len(head) + tensor_offsets(draft)[-1]
        with OutputFile(path, replace=force, inputs=sources) as output:
            output.reserve(size)
            entries = _pump(_Job(plan, draft, fds, output, len(head)), threads, progress or (lambda _: None))
            manifest = replace(draft, tensors=tuple(entries))
            output.write_at(encode_header(manifest, len(head)), 0)
            if read_header(output.fd, output.where) != (manifest, len(head)):
                raise EnvironmentFailure("the header reads back differently", where=output.where, hint="check the disk")
            _refuse_changed(plan, fds, "changed while it was being read")
            output.commit()
    return Conversion(path, manifest, size, time.perf_counter() - started)


def _draft(plan: Plan, fds: list[int]) -> Manifest:
    """The manifest before the data is known: as long as it can get, so that the header's place can be fixed."""
    metadata = plan.index.metadata
    return Manifest(
        generator=NAME,
        generator_version=VERSION,
        sources=tuple(
            Source(shard.name, shard.size, header_sha256(fd, shard))
            for shard, fd in zip(plan.index.shards, fds, strict=True)
        ),
        general={key: str(metadata[key]) for key in GENERAL_KEYS if isinstance(metadata.get(key), str)},
        include=plan.include,
        exclude=plan.exclude,
        left_out=plan.left_out,
        tensors=tuple(as_entry(tensor) for tensor in plan.selected),
        skipped=plan.skipped,
    )


@dataclass(frozen=True, slots=True)
class _Job:
    plan: Plan
    draft: Manifest
    fds: list[int]
    output: OutputFile
    data_start: int

    def chunks(self) -> Iterator[_Chunk]:
        for index, (entry, offset) in enumerate(zip(self.draft.tensors, tensor_offsets(self.draft), strict=False)):
            native_row = layout.BLOCK_BYTES * entry.n
            step = rows_per_chunk(native_row)
            for row in range(0, entry.rows if native_row else 0, step):
                yield _Chunk(
                    index,
                    self.fds[entry.shard],
                    entry.offset + row * native_row,
                    self.data_start + offset + row * entry.row_stride,
                    min(step, entry.rows - row),
                    entry.n,
                )

    def slots(self, count: int) -> list[_Slot]:
        """Buffers that fit the largest chunk."""
        native = dpl = 0
        for entry in self.draft.tensors:
            rows = min(rows_per_chunk(layout.BLOCK_BYTES * entry.n), entry.rows)
            native = max(native, rows * layout.BLOCK_BYTES * entry.n)
            dpl = max(dpl, rows * entry.row_stride)
        return [_Slot(native, dpl) for _ in range(count)]

    def run(self, chunk: _Chunk, slot: _Slot) -> tuple[int, int]:
        """Bring one chunk into the file and prove that it is there; returns the counts of non-finite and zero d."""
        native_row, stride = layout.BLOCK_BYTES * chunk.n, layout.row_stride(chunk.n)
        native = slot.native[: chunk.rows * native_row].reshape(chunk.rows, native_row)
        back = slot.back[: native.size].reshape(native.shape)
        dpl = slot.dpl[: chunk.rows * stride].reshape(chunk.rows, stride)
        read_into(chunk.source, native.data.cast("B"), chunk.offset, self._source_name(chunk))
        layout.pack_rows(native, dpl, chunk.n)
        self.output.write_at(dpl.data.cast("B"), chunk.target)
        read_into(self.output.fd, dpl.data.cast("B"), chunk.target, self.output.where)
        layout.unpack_rows(dpl, back, chunk.n)
        if not layout.same_bytes(native, back) or dpl[:, layout.pad_start(chunk.n) :].any():
            name = shown(self.draft.tensors[chunk.tensor].name)
            raise EnvironmentFailure(
                f"tensor {name} reads back differently from what was written",
                where=self.output.where,
                hint="check the disk and the memory of this machine",
            )
        return count_unusual_d(dpl, chunk.n)

    def _source_name(self, chunk: _Chunk) -> str:
        entry = self.draft.tensors[chunk.tensor]
        return f"{shown(self.plan.index.shards[entry.shard].path)}: tensor {shown(entry.name)}"


def count_unusual_d(dpl: layout.Bytes, n: int) -> tuple[int, int]:
    """Count non-finite (NaN, Inf) and zero d in dpl rows; a fact about the model, never an error."""
    bits = layout.plane(dpl, layout.FIELDS[-1], n).view("<u2") & 0x7FFF
    return int(np.count_nonzero(bits >= 0x7C00)), int(bits.size - np.count_nonzero(bits))


def _pump(job: _Job, threads: int, progress: Progress) -> list[Entry]:
    """Drive all chunks through the pipeline; returns the finished entries."""
    tensors = job.draft.tensors
    native_digests, dpl_digests = ([hashlib.sha256() for _ in tensors] for _ in range(2))
    nonfinite, zero = [0] * len(tensors), [0] * len(tensors)
    done = 0
    flushing: Future[None] | None = None
    flushed = 0
    with (
        ThreadPoolExecutor(1, "sha-native") as native_sha,
        ThreadPoolExecutor(1, "sha-dpl") as dpl_sha,
        ThreadPoolExecutor(1, "flush") as flusher,
    ):

        def finish(chunk: _Chunk, slot: _Slot, counts: tuple[int, int]) -> tuple[Future[None], ...]:
            nonlocal done, flushed, flushing
            nonfinite[chunk.tensor] += counts[0]
            zero[chunk.tensor] += counts[1]
            native = slot.native[: chunk.rows * layout.BLOCK_BYTES * chunk.n]
            dpl = slot.dpl[: chunk.rows * layout.row_stride(chunk.n)]
            done += native.size
            progress(done)
            if done - flushed >= FLUSH_BYTES and (flushing is None or flushing.done()):
                if flushing is not None:
                    flushing.result()
                flushing, flushed = flusher.submit(job.output.flush), done
            return (
                native_sha.submit(native_digests[chunk.tensor].update, native.data),
                dpl_sha.submit(dpl_digests[chunk.tensor].update, dpl.data),
            )

        pump(job.chunks(), job.slots(threads + 2), job.run, finish, threads)
        if flushing is not None:
            flushing.result()
    return [
        replace(entry, native_sha256=native.hexdigest(), sha256=dpl.hexdigest(), nonfinite_d=bad, zero_d=none)
        for entry, native, dpl, bad, none in zip(tensors, native_digests, dpl_digests, nonfinite, zero, strict=True)
    ]


def _refuse_changed(plan: Plan, fds: list[int], what: str) -> None:
    for shard, fd in zip(plan.index.shards, fds, strict=True):
        if stamp(fd) != shard.stamp:
            raise Damaged(what, where=shown(shard.path), hint="convert it again")
