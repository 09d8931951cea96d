"""The stages that look at every byte: digests, equality with the GGUF, zero padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from repack.errors import Damaged, Differs, DplError, shown
from repack.files.pipeline import Chunk, Progress, pump
from repack.layout import QuantType
from repack.rows import count_unusual, paddings, same_bytes, unpack_rows
from verify.pairs import Files, Pair, row_name
from verify.verdict import Verdict

NOTHING = "the tensor is empty"


@dataclass(slots=True)
class _Found:
    """What the chunks of one tensor have shown so far."""

    nonfinite: int = 0
    zero: int = 0
    padding: int = 0
    """Bytes of padding that were looked at."""
    compared: int = 0
    """Native bytes compared with the model's."""
    differing_rows: int = 0
    first_difference: str = ""
    first_pad: str = ""

    def merge(self, other: _Found) -> None:
        self.nonfinite += other.nonfinite
        self.zero += other.zero
        self.padding += other.padding
        self.compared += other.compared
        self.differing_rows += other.differing_rows
        self.first_difference = self.first_difference or other.first_difference
        self.first_pad = self.first_pad or other.first_pad


def check_contents(
    pairs: Sequence[Pair], files: Files, verdict: Verdict, *, threads: int, progress: Progress = lambda _: None
) -> None:
    """Stages digests, bytes and padding for every row of every pair, whatever was found before.

    progress: called with the sidecar's bytes that are done. Memory: that of `repack.files.pipeline.pump`.
    """
    found = [_Found() for _ in pairs]
    done = 0

    def work(chunk: Chunk) -> _Found:
        return _examine(pairs[chunk.tensor], chunk, files)

    def finish(chunk: Chunk, more: _Found) -> None:
        nonlocal done
        found[chunk.tensor].merge(more)
        done += chunk.dpl.size
        progress(done)

    digests = pump([pair.entry for pair in pairs], work, finish, threads)
    for pair, facts, digest in zip(pairs, found, digests, strict=True):
        verdict.bytes_compared += facts.compared
        _conclude(pair, facts, digest, files, verdict)


def _examine(pair: Pair, chunk: Chunk, files: Files) -> _Found:
    quant, n = pair.entry.quant, pair.entry.n
    dpl, native, back = chunk.dpl, chunk.native, chunk.back
    files.read_dpl(pair, chunk.row, dpl)
    zeros = paddings(dpl, quant, n)
    found = _Found(*count_unusual(dpl, quant, n), padding=sum(pad.size for _, pad in zeros))
    for start, pad in zeros:
        if pad.any():
            row, byte = (int(at[0]) for at in np.nonzero(pad))
            found.first_pad = f"{row_name(pair.entry.ne, chunk.row + row)}, {_place(quant, start + byte, n)}"
            break
    if pair.source is None:
        return found
    files.read_native(pair, chunk.row, native)
    unpack_rows(dpl, back, quant, n)
    found.compared = native.size
    if not same_bytes(native, back):
        different = native != back
        found.differing_rows = int(different.any(axis=1).sum())
        row = int(different.any(axis=1).argmax())
        byte = int(different[row].argmax())
        found.first_difference = (
            f"{row_name(pair.entry.ne, chunk.row + row)}, {place_in_block(quant, byte)}: "
            f"{back[row, byte]:#04x} in the sidecar, {native[row, byte]:#04x} in the model"
        )
    return found


def place_in_block(quant: QuantType, byte: int) -> str:
    """A byte of a native row in the format's terms."""
    block, field, rest = quant.locate_native(byte)
    return f"block {block}, {field.name}[{rest}]"


def _place(quant: QuantType, byte: int, n: int) -> str:
    """A byte of padding: after which plane, and which of its zeros."""
    starts = quant.plane_starts(n)
    index = max(index for index, start in enumerate(starts) if start <= byte)
    return (
        f"padding byte {byte - starts[index] - quant.planes[index].nbytes * n} after plane {quant.planes[index].name}"
    )


def _conclude(pair: Pair, found: _Found, sha256: str, files: Files, verdict: Verdict) -> None:
    entry, name = pair.entry, pair.entry.name
    where = f"{files.sidecar_name}: tensor {shown(name)}"
    with_model = len(files.shards) > 0
    own: type[DplError] = Differs if with_model else Damaged
    facts: tuple[tuple[str, object, object], ...] = (
        ("the sidecar's bytes are not those the manifest was made for (SHA-256)", sha256, entry.sha256),
        ("the manifest's count of non-finite scales is wrong", found.nonfinite, entry.nonfinite_scales),
        ("the manifest's count of zero scales is wrong", found.zero, entry.zero_scales),
    )
    wrong = next((fact for fact in facts if fact[1] != fact[2]), None)
    if wrong is None:
        verdict.passed("digests", name)
    else:
        verdict.failed("digests", own(wrong[0], where=where, found=wrong[1], expected=wrong[2]), name)
    if not entry.nbytes:
        verdict.skipped("bytes", NOTHING, name)
    elif pair.source is None:
        why = "no tensor in the model to compare with" if with_model else "no model given"
        verdict.skipped("bytes", why, name)
    elif found.differing_rows:
        what = f"{found.differing_rows} of {entry.rows} rows differ from the model, first {found.first_difference}"
        verdict.failed("bytes", Differs(what, where=where), name)
    else:
        verdict.passed("bytes", name)
    if found.first_pad:
        verdict.failed("padding", own(f"padding is not zero, first {found.first_pad}", where=where), name)
    elif found.padding:
        verdict.passed("padding", name)
    else:
        verdict.skipped("padding", "rows of this length have no padding" if entry.nbytes else NOTHING, name)
