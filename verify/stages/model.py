"""Stages selection, source and provenance: whether the sidecar is this model's and whole, and which file that is.

Provenance: all other stages prove that the sidecar equals this GGUF, not that this GGUF is its publisher's. A digest
from the publisher closes that gap as far as the digest itself can be trusted. Each file is read once more for it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from repack.convert import GENERAL_KEYS
from repack.errors import Differs, DplError, UsageError, shown
from repack.files.pipeline import Progress
from repack.files.reading import read_into
from repack.gguf.index import GGUFIndex, Tensor, check_tensors, header_sha256
from repack.gguf.types import GGML_TYPES
from repack.plan import census
from repack.sidecar.manifest import Entry, Manifest, Skipped
from verify.pairs import Files
from verify.verdict import Verdict

Meter = Callable[[str, int], AbstractContextManager[Progress]]
"""Makes a progress display: label and total bytes to a context manager that yields a callback for bytes done."""

_PIECE = 4 << 20
_HEX = frozenset("0123456789abcdef")


def check_selection(manifest: Manifest, index: GGUFIndex, where: str, verdict: Verdict) -> dict[str, Tensor]:
    """Stage selection: the sidecar holds exactly the model's tensors of its types, but for those it says it leaves out.

    Returns the tensors that can be compared, by name.
    """
    sources = {tensor.name: tensor for tensor in index.tensors if tensor.type in manifest.types}
    others = {tensor.name for tensor in index.tensors}
    comparable: dict[str, Tensor] = {}
    before = len(verdict.outcomes)
    for entry in manifest.tensors:
        source = sources.get(entry.name)
        error = None
        if source is None or source.type != entry.quant.number:
            why = "is of another type in the model" if entry.name in others else "is not in the model"
            error = _differs(where, entry.name, why)
        elif source.ne != entry.ne:
            error = _differs(where, entry.name, "has another shape", f"ne {list(entry.ne)}", f"{list(source.ne)}")
        elif not _known_block(entry):
            error = _differs(where, entry.name, "has blocks of another size in the model")
        else:
            comparable[entry.name] = source
            if (source.shard, source.offset) != (entry.shard, entry.offset):
                found, expected = f"shard {entry.shard} offset {entry.offset}", f"{source.shard} {source.offset}"
                error = _differs(where, entry.name, "stands elsewhere in the model", found, expected)
        if error:
            verdict.failed("selection", error, entry.name)
    held = {entry.name for entry in manifest.tensors}
    accounted = held | set(manifest.left_out)
    for name in (name for name in sources if name not in accounted):
        verdict.failed("selection", _differs(where, name, "is missing from the sidecar"), name)
    for name in (name for name in manifest.left_out if name not in sources):
        verdict.failed("selection", _differs(where, name, "is said to be left out but is not in the model"), name)
    if len(verdict.outcomes) == before:
        _check_order_and_census(manifest, index, held, where, verdict)
    if len(verdict.outcomes) == before:
        count = len(manifest.left_out)
        told = f"{count} tensor{'s are' if count > 1 else ' is'} left out by patterns" if count else ""
        verdict.passed("selection", detail=told)
    return comparable


def _known_block(entry: Entry) -> bool:
    """A type that our table does not have is as the sidecar describes it, unless ggml says otherwise."""
    quant = entry.quant
    kind = GGML_TYPES.get(quant.number)
    return kind is None or (kind.block_weights, kind.block_bytes) == (quant.block_weights, quant.block_bytes)


def _check_order_and_census(manifest: Manifest, index: GGUFIndex, held: set[str], where: str, verdict: Verdict) -> None:
    order = [tensor.name for tensor in index.tensors if tensor.name in held]
    if [entry.name for entry in manifest.tensors] != order:
        verdict.failed("selection", Differs("the tensors stand in another order than in the model", where=where))
    elif not _same_census(manifest.skipped, census(tensor for tensor in index.tensors if tensor.name not in held)):
        verdict.failed("selection", Differs("the census of other tensors is not the model's", where=where))


def _same_census(ours: Sequence[Skipped], theirs: Sequence[Skipped]) -> bool:
    """The version that converted may have known the sizes of more types than this one, or of fewer."""
    return [(kind.type, kind.tensors) for kind in ours] == [(kind.type, kind.tensors) for kind in theirs] and all(
        a.nbytes == b.nbytes or None in {a.nbytes, b.nbytes} for a, b in zip(ours, theirs, strict=True)
    )


def check_source(manifest: Manifest, index: GGUFIndex, files: Files, verdict: Verdict) -> None:
    """Stage source: the model can be used, and its shards' sizes and headers are those the sidecar was made from.

    Raises Damaged if tensors of the model that are in question make no sense: then nothing can be compared.
    """
    where = files.sidecar_name
    wanted = [
        tensor
        for tensor in index.tensors
        if tensor.type in manifest.types and tensor.type in GGML_TYPES and tensor.name not in manifest.left_out
    ]
    check_tensors(index, wanted)
    if len(manifest.sources) != len(index.shards):
        stale = Differs("is stale", where=where, found=f"{len(index.shards)} shards", expected=len(manifest.sources))
        verdict.failed("source", stale)
        return
    renamed = []
    for number, (source, shard) in enumerate(zip(manifest.sources, index.shards, strict=True)):
        hint = f"the sidecar was made from another file than {shown(shard.path)}; convert it again"
        with files.shards.opened(number) as fd:
            header = header_sha256(fd, shard)
        if source.size != shard.size:
            stale = Differs("is stale", where=where, found=f"{shard.size} bytes", expected=source.size, hint=hint)
        elif header != source.header_sha256:
            stale = Differs("is stale: the model's header has changed", where=where, hint=hint)
        else:
            renamed += [source.name] if source.name != shard.name else []
            continue
        verdict.failed("source", stale)
        return
    if wrong := _wrong_general(manifest, index):
        verdict.failed("source", Differs(f"{', '.join(map(shown, wrong))} is not the model's", where=where))
        return
    verdict.passed("source", detail=f"converted under the name {shown(renamed[0])}" if renamed else "")


def _wrong_general(manifest: Manifest, index: GGUFIndex) -> list[str]:
    """Keys of the metadata that the sidecar repeats wrongly, or does not repeat."""
    expected = {key: index.metadata[key] for key in GENERAL_KEYS if isinstance(index.metadata.get(key), str)}
    keys = sorted(expected.keys() | manifest.general.keys())
    return [key for key in keys if manifest.general.get(key) != index.metadata.get(key)]


def _differs(where: str, name: str, why: str, found: str | None = None, expected: str | None = None) -> Differs:
    return Differs(f"tensor {shown(name)} {why}", where=where, found=found, expected=expected)


def parse_sha256(text: str) -> str:
    """Give a SHA-256 as 64 lower-case digits. Raises UsageError if it is none."""
    digits = text.lower()
    if len(digits) != 64 or not set(digits) <= _HEX:
        raise UsageError("--expect-sha256 is no SHA-256", found=f"{len(text)} characters", expected="64 hex digits")
    return digits


def check_provenance(expected: Sequence[str], files: Files, meter: Meter, verdict: Verdict) -> None:
    """Stage provenance: the digest of every shard, in their order, is the expected one."""
    count = len(files.shards)
    try:
        if len(expected) != count:
            hint = "give --expect-sha256 once for each file, in the order of the shards"
            raise UsageError("files and digests do not match", found=len(expected), expected=count, hint=hint)
        sizes = [_size(files, number) for number in range(count)]
        with meter("hashing", sum(sizes)) as progress:
            for number, wanted in enumerate(expected):
                found = _sha256(files, number, sizes, progress)
                if found != wanted:
                    where, hint = files.shards.name(number), "this is another file than the one the digest is of"
                    raise Differs("has another SHA-256", where=where, found=found, expected=wanted, hint=hint)
    except DplError as error:
        verdict.failed("provenance", error)
        return
    verdict.passed("provenance", detail="the SHA-256 is the expected one" + (" for every shard" * (count > 1)))


def _size(files: Files, number: int) -> int:
    with files.shards.opened(number) as fd:
        return os.fstat(fd).st_size


def _sha256(files: Files, number: int, sizes: Sequence[int], progress: Progress) -> str:
    digest, piece = hashlib.sha256(), bytearray(_PIECE)
    before = sum(sizes[:number])
    with files.shards.opened(number) as fd:
        for offset in range(0, sizes[number], _PIECE):
            view = memoryview(piece)[: min(_PIECE, sizes[number] - offset)]
            read_into(fd, view, offset, files.shards.name(number))
            digest.update(view)
            progress(before + offset + len(view))
    return digest.hexdigest()
