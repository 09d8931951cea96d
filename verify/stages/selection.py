"""The stages that compare headers: whether the sidecar is this model's, and holds all that it should."""

from __future__ import annotations

from collections.abc import Sequence

from repack.errors import Differs, shown
from repack.gguf.index import GGUFIndex, Tensor, header_sha256
from repack.layout import DEFAULT
from repack.plan import census
from repack.sidecar.manifest import Manifest, Skipped
from verify.pairs import Files
from verify.verdict import Verdict


def check_selection(manifest: Manifest, index: GGUFIndex, where: str, verdict: Verdict) -> dict[str, Tensor]:
    """Stage selection: the sidecar holds exactly the model's Q6_K tensors, but for those it says it leaves out.

    Returns the tensors that can be compared, by name.
    """
    others = {tensor.name for tensor in index.tensors if tensor.type != DEFAULT.number}
    sources = {tensor.name: tensor for tensor in index.tensors if tensor.type == DEFAULT.number}
    comparable: dict[str, Tensor] = {}
    before = len(verdict.outcomes)
    for entry in manifest.tensors:
        source = sources.get(entry.name)
        if source is None:
            why = "is of another type in the model" if entry.name in others else "is not in the model"
            verdict.failed("selection", _differs(where, entry.name, why), entry.name)
        elif source.ne != entry.ne:
            error = _differs(where, entry.name, "has another shape", f"ne {list(entry.ne)}", f"{list(source.ne)}")
            verdict.failed("selection", error, entry.name)
        else:
            comparable[entry.name] = source
            if (source.shard, source.offset) != (entry.shard, entry.offset):
                why = "stands elsewhere in the model"
                found, expected = f"shard {entry.shard} offset {entry.offset}", f"{source.shard} {source.offset}"
                verdict.failed("selection", _differs(where, entry.name, why, found, expected), entry.name)
    held = {entry.name for entry in manifest.tensors}
    left_out = set(manifest.left_out)
    for name in sources:
        if name not in held and name not in left_out:
            verdict.failed("selection", _differs(where, name, "is missing from the sidecar"), name)
    for name in manifest.left_out:
        if name not in sources:
            verdict.failed("selection", _differs(where, name, "is said to be left out but is not in the model"), name)
    if len(verdict.outcomes) == before:
        _check_order_and_census(manifest, index, held, where, verdict)
    if len(verdict.outcomes) == before:
        count = len(manifest.left_out)
        verdict.passed("selection", detail=f"{count} Q6_K tensors are left out by patterns" if count else "")
    return comparable


def _check_order_and_census(manifest: Manifest, index: GGUFIndex, held: set[str], where: str, verdict: Verdict) -> None:
    order = [tensor.name for tensor in index.tensors if tensor.name in held]
    if [entry.name for entry in manifest.tensors] != order:
        verdict.failed("selection", Differs("the tensors stand in another order than in the model", where=where))
    elif not _same_census(manifest.skipped, census(tensor for tensor in index.tensors if tensor.name not in held)):
        verdict.failed("selection", Differs("the census of other tensors is not the model's", where=where))


def _same_census(ours: Sequence[Skipped], theirs: Sequence[Skipped]) -> bool:
    """Names and sizes come from the installed gguf, which may know more types than the one that converted, or fewer."""
    return [(kind.type, kind.tensors) for kind in ours] == [(kind.type, kind.tensors) for kind in theirs] and all(
        a.nbytes == b.nbytes or None in {a.nbytes, b.nbytes} for a, b in zip(ours, theirs, strict=True)
    )


def check_source(manifest: Manifest, index: GGUFIndex, files: Files, verdict: Verdict) -> None:
    """Stage source: sizes and header digests of all shards are those the sidecar was made from."""
    where = files.sidecar_name
    if len(manifest.sources) != len(index.shards):
        error = Differs("is stale", where=where, found=f"{len(index.shards)} shards", expected=len(manifest.sources))
        verdict.failed("source", error)
        return
    renamed = []
    for source, shard, fd in zip(manifest.sources, index.shards, files.shards, strict=True):
        hint = f"the sidecar was made from another file than {shown(shard.path)}; convert it again"
        if source.size != shard.size:
            error = Differs("is stale", where=where, found=f"{shard.size} bytes", expected=source.size, hint=hint)
        elif header_sha256(fd, shard) != source.header_sha256:
            error = Differs("is stale: the model's header has changed", where=where, hint=hint)
        else:
            renamed += [source.name] if source.name != shard.name else []
            continue
        verdict.failed("source", error)
        return
    general = {key: value for key, value in manifest.general.items() if index.metadata.get(key) != value}
    if general:
        verdict.failed("source", Differs(f"{', '.join(map(shown, sorted(general)))} is not the model's", where=where))
        return
    verdict.passed("source", detail=f"converted under the name {shown(renamed[0])}" if renamed else "")


def _differs(where: str, name: str, why: str, found: str | None = None, expected: str | None = None) -> Differs:
    return Differs(f"tensor {shown(name)} {why}", where=where, found=found, expected=expected)
