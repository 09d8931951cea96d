"""Convert a model: read rows -> pack -> write -> read back and compare -> digest, in chunks over a few threads.

worker threads   read a chunk, pack it, write it, read it back from the file, unpack that and compare it with the
                 source's bytes; count unusual scales
one thread, two where there are processors: hand out the chunks, and make the SHA-256 of the sidecar's bytes as read
                 back (`repack.files.pipeline`)
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from repack.errors import EnvironmentFailure, shown
from repack.files.output import OutputFile
from repack.files.pipeline import Chunk, Progress, pump, worker_threads
from repack.files.reading import Inputs, read_into
from repack.gguf.index import header_sha256
from repack.plan import Plan, as_entry, make_plan, types_named
from repack.rows import count_unusual, pack_rows, paddings, same_bytes, unpack_rows
from repack.sidecar.container import encode_header, read_header, tensor_offsets
from repack.sidecar.manifest import Entry, Manifest, Source
from repack.version import NAME, VERSION

GENERAL_KEYS = ("general.architecture", "general.name", "general.type")

FLUSH_BYTES = 16 << 20
"""The disk is given so much to write at a time, while the rest is packed: the last flush then has little left to do."""

BUSY = 1
"""Processors that SHA-256 and the writing to the disk keep busy: with two, a second worker is in their way."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """What a conversion did."""

    path: Path
    manifest: Manifest
    sidecar_bytes: int
    seconds: float


def convert_file(
    model: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    types: Iterable[str] = ("Q6_K",),
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    threads: int = 0,
    force: bool = False,
    progress: Progress | None = None,
) -> Conversion:
    """Convert the tensors of some types of a GGUF model into a sidecar.

    model: the GGUF, or the first shard of a split model. types: names of types, as ``("Q6_K", "Q8_0")``, or
    ``("all",)``. include, exclude: regular expressions searched in tensor names. threads: packing threads, 0 for one
    fewer than the processors (at most 4). force: replace an existing `out`. progress: called with the native bytes
    done so far.

    Raises `repack.DplError`: `Damaged` (input damaged or unsupported), `NothingToDo` (no tensor of these types is
    selected), `UsageError` (`out` exists or is no regular file, an unknown type), `EnvironmentFailure` (disk,
    permission). No half-written file is ever left under the name `out`.
    """
    plan = make_plan(model, include, exclude, types_named(types))
    return convert(plan, out, threads=threads, force=force, progress=progress)


def convert(
    plan: Plan, out: str | os.PathLike[str], *, threads: int = 0, force: bool = False, progress: Progress | None = None
) -> Conversion:
    """Write the sidecar of a planned model.

    threads: packing threads, 0 for one fewer than the processors (at most 4). force: replace an existing file. The
    output depends on neither. Raises Damaged if a source cannot be read as indexed, EnvironmentFailure on a full disk
    or an I/O error, UsageError if `out` cannot be an output; nothing is left under `out` or beside it then.
    """
    started = time.perf_counter()
    path = Path(out)
    shards = plan.index.shards
    with Inputs((shard.path, shard.stamp) for shard in shards) as inputs:
        draft = _draft(plan, inputs)
        head = encode_header(draft)
        size = len(head) + tensor_offsets(draft)[-1]
        with OutputFile(path, replace=force, inputs=[shard.path for shard in shards]) as output:
            output.reserve(size)
            offsets = [len(head) + offset for offset in tensor_offsets(draft)]
            entries = _pump(
                _Job(draft, inputs, output, offsets), worker_threads(threads, BUSY), progress or (lambda _: None)
            )
            manifest = replace(draft, tensors=tuple(entries))
            output.write_at(encode_header(manifest, len(head)), 0)
            if read_header(output.fd, output.where) != (manifest, len(head)):
                raise EnvironmentFailure("the header reads back differently", where=output.where, hint="check the disk")
            inputs.refuse_changed()
            output.commit()
    return Conversion(path, manifest, size, time.perf_counter() - started)


def _draft(plan: Plan, inputs: Inputs) -> Manifest:
    """The manifest before the data is known: as long as it can get, so that the header's place can be fixed."""
    metadata, sources = plan.index.metadata, []
    for number, shard in enumerate(plan.index.shards):
        with inputs.opened(number) as fd:
            sources.append(Source(shard.name, shard.size, header_sha256(fd, shard)))
    return Manifest(
        generator=NAME,
        generator_version=VERSION,
        sources=tuple(sources),
        general={key: str(metadata[key]) for key in GENERAL_KEYS if isinstance(metadata.get(key), str)},
        types=tuple(quant.number for quant in plan.types),
        include=plan.include,
        exclude=plan.exclude,
        left_out=plan.left_out,
        tensors=tuple(as_entry(tensor) for tensor in plan.selected),
        skipped=plan.skipped,
    )


@dataclass(frozen=True, slots=True)
class _Job:
    draft: Manifest
    inputs: Inputs
    output: OutputFile
    offsets: list[int]
    """Byte offset of each tensor in the sidecar."""

    def run(self, chunk: Chunk) -> tuple[int, int]:
        """Bring one chunk into the file and prove that it is there; returns the counts of unusual scales."""
        entry = self.draft.tensors[chunk.tensor]
        quant, n = entry.quant, entry.n
        source = entry.offset + chunk.row * quant.block_bytes * n
        target = self.offsets[chunk.tensor] + chunk.row * entry.row_stride
        native, back, dpl = chunk.native, chunk.back, chunk.dpl
        self.inputs.read_into(entry.shard, native.data.cast("B"), source, f"tensor {shown(entry.name)}")
        pack_rows(native, dpl, quant, n)
        self.output.write_at(dpl.data.cast("B"), target)
        read_into(self.output.fd, dpl.data.cast("B"), target, self.output.where)
        unpack_rows(dpl, back, quant, n)
        if not same_bytes(native, back) or any(zeros.any() for _, zeros in paddings(dpl, quant, n)):
            name = shown(entry.name)
            raise EnvironmentFailure(
                f"tensor {name} reads back differently from what was written",
                where=self.output.where,
                hint="check the disk and the memory of this machine",
            )
        return count_unusual(dpl, quant, n)


def _pump(job: _Job, threads: int, progress: Progress) -> list[Entry]:
    """Bring all tensors into the file; returns the finished entries."""
    tensors = job.draft.tensors
    nonfinite, zero = [0] * len(tensors), [0] * len(tensors)
    done = flushed = 0
    flushing: Future[None] | None = None
    with ThreadPoolExecutor(1, "flush") as flusher:

        def finish(chunk: Chunk, counts: tuple[int, int]) -> None:
            nonlocal done, flushed, flushing
            nonfinite[chunk.tensor] += counts[0]
            zero[chunk.tensor] += counts[1]
            done += chunk.native.size
            progress(done)
            if done - flushed >= FLUSH_BYTES and (flushing is None or flushing.done()):
                if flushing is not None:
                    flushing.result()
                flushing, flushed = flusher.submit(job.output.flush), done

        digests = pump(tensors, job.run, finish, threads)
        if flushing is not None:
            flushing.result()
    return [
        replace(entry, sha256=digest, nonfinite_scales=bad, zero_scales=none)
        for entry, digest, bad, none in zip(tensors, digests, nonfinite, zero, strict=True)
    ]
