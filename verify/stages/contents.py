"""The stages that look at every byte: digests, equality with the GGUF, zero padding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np

from repack.errors import Damaged, Differs, DplError, shown
from repack.files.chunks import Chunk, Slot, chunks_of, slots_for
from repack.files.digests import Digests
from repack.files.pipeline import digest_threads, pump
from repack.layout import QuantType
from repack.rows import count_unusual, paddings, same_bytes, unpack_rows
from verify.pairs import Files, Pair, row_name
from verify.verdict import Verdict

Progress = Callable[[int], None]
"""Called with the number of sidecar bytes that are done."""


@dataclass(slots=True)
class _Found:
    """What the chunks of one tensor have shown so far."""

    nonfinite_d: int = 0
    zero_d: int = 0
    differing_rows: int = 0
    first_difference: str = ""
    first_pad: str = ""

    def merge(self, other: _Found) -> None:
        self.nonfinite_d += other.nonfinite_d
        self.zero_d += other.zero_d
        self.differing_rows += other.differing_rows
        self.first_difference = self.first_difference or other.first_difference
        self.first_pad = self.first_pad or other.first_pad


def check_contents(
    pairs: Sequence[Pair], files: Files, verdict: Verdict, *, threads: int, progress: Progress = lambda _: None
) -> None:
    """Stages digests, bytes and padding for every row of every pair, whatever was found before."""
    found = [_Found() for _ in pairs]
    entries = [pair.entry for pair in pairs]
    streams = digest_threads(threads)
    done = 0

    def work(chunk: Chunk, slot: Slot) -> _Found:
        return _examine(pairs[chunk.tensor], chunk, slot, files)

    with Digests(entries, streams) as digests:

        def finish(chunk: Chunk, slot: Slot, more: _Found) -> Future[None]:
            nonlocal done
            found[chunk.tensor].merge(more)
            pair = pairs[chunk.tensor]
            dpl = slot.dpl(chunk.rows, pair.entry)
            if pair.source is not None:
                verdict.bytes_compared += chunk.rows * pair.entry.n * pair.entry.quant.block_bytes
            done += dpl.size
            progress(done)
            return digests.feed(chunk, dpl)

        pump(chunks_of(entries, streams), slots_for(entries, threads + streams + 1), work, finish, threads)
    for pair, facts, digest in zip(pairs, found, digests.in_hex(), strict=True):
        _conclude(pair, facts, digest, files, verdict)


def _examine(pair: Pair, chunk: Chunk, slot: Slot, files: Files) -> _Found:
    n = pair.entry.n
    dpl = slot.dpl(chunk.rows, pair.entry)
    files.read_dpl(pair, chunk.row, dpl)
    found = _Found(*count_unusual(dpl, pair.entry.quant, n))
    pad = next((zeros for _, zeros in paddings(dpl, pair.entry.quant, n) if zeros.any()), None)
    if pad is not None:
        row, byte = (int(at[0]) for at in np.nonzero(pad))
        found.first_pad = f"{row_name(pair.entry.ne, chunk.row + row)}, padding byte {byte}"
    if pair.source is None:
        return found
    native, back = slot.native(chunk.rows, pair.entry), slot.back(chunk.rows, pair.entry)
    files.read_native(pair, chunk.row, native)
    unpack_rows(dpl, back, pair.entry.quant, n)
    if not same_bytes(native, back):
        different = native != back
        found.differing_rows = int(different.any(axis=1).sum())
        row = int(different.any(axis=1).argmax())
        byte = int(different[row].argmax())
        found.first_difference = (
            f"{row_name(pair.entry.ne, chunk.row + row)}, {place_in_block(pair.entry.quant, byte)}: "
            f"{back[row, byte]:#04x} in the sidecar, {native[row, byte]:#04x} in the model"
        )
    return found


def place_in_block(quant: QuantType, byte: int) -> str:
    """A byte of a native row in the format's terms."""
    block, field, rest = quant.locate_native(byte)
    return f"block {block}, {field.name}[{rest}]"


def _conclude(pair: Pair, found: _Found, sha256: str, files: Files, verdict: Verdict) -> None:
    entry, name = pair.entry, pair.entry.name
    where = f"{files.sidecar_name}: tensor {shown(name)}"
    own: type[DplError] = Differs if files.shards else Damaged
    facts = [
        ("the sidecar's bytes are not those the manifest was made for (SHA-256)", sha256, entry.sha256),
        ("the manifest's count of non-finite d is wrong", found.nonfinite_d, entry.nonfinite_scales),
        ("the manifest's count of zero d is wrong", found.zero_d, entry.zero_scales),
    ]
    wrong = next((fact for fact in facts if fact[1] != fact[2]), None)
    if wrong is None:
        verdict.passed("digests", name)
    else:
        verdict.failed("digests", own(wrong[0], where=where, found=wrong[1], expected=wrong[2]), name)
    if not entry.nbytes:
        verdict.skipped("bytes", "the tensor has no rows", name)
    elif pair.source is None:
        why = "no tensor in the model to compare with" if files.shards else "no model given"
        verdict.skipped("bytes", why, name)
    elif found.differing_rows:
        what = f"{found.differing_rows} of {entry.rows} rows differ from the model, first {found.first_difference}"
        verdict.failed("bytes", Differs(what, where=where), name)
    else:
        verdict.passed("bytes", name)
    if found.first_pad:
        verdict.failed("padding", own(f"padding is not zero, first {found.first_pad}", where=where), name)
    else:
        verdict.passed("padding", name)
