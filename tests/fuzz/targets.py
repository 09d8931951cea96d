"""What is fuzzed: bytes in, and what has to hold whatever they are. Used by atheris (run.py) and by hypothesis.

Each target either ends with one of the project's own errors or finds that what was accepted is true. Anything else, a
foreign exception or a failing assertion, is a finding.
"""

from __future__ import annotations

import contextlib
import json
import os
from math import prod
from pathlib import Path

from safetensors import deserialize

from repack.errors import DplError
from repack.gguf.index import header_sha256, read_index
from repack.layout import TYPES
from repack.plan import as_entry, make_plan
from repack.sidecar.reader import Sidecar
from tests.support.independent import TABLE, blocks, pack
from tests.support.models import Model, T
from tests.support.sidecars import by_hand as sidecars
from tests.support.sidecars.forge import canonical
from verify.pairs import Pair, StageFailure, opened
from verify.stages import model
from verify.stages.contents import check_contents
from verify.stages.header import check_sidecar
from verify.verdict import Status, Verdict

ASKED = (8, 14, 39)
MODEL = Model(
    [
        *sidecars.tiny_model().tensors,
        T("d", (96, 3), 8, blocks(TABLE[8], 9)),
        T("e", (32,), 39, blocks(TABLE[39], 1)),
        T("f", (256, 1), 10, blocks(TABLE[10], 1)),
    ]
)
"""Three types that are asked for, and two others."""
MANIFEST = sidecars.manifest_of(MODEL, types=ASKED)
DATA = sidecars.data_of(MODEL, ASKED)


class MemoryFile:
    """A regular file without a disk, with a path of its own."""

    def __init__(self, data: bytes = b"") -> None:
        self._fd = os.memfd_create("fuzz")
        self.path = Path(f"/proc/self/fd/{self._fd}")
        self.fill(data)

    def fill(self, data: bytes) -> Path:
        os.ftruncate(self._fd, len(data))
        os.pwrite(self._fd, data, 0)
        return self.path


_INPUT = MemoryFile()
_SOURCE = MemoryFile(MODEL.to_bytes())
_INDEX = read_index(_SOURCE.path)


def gguf_index(data: bytes) -> None:
    """A model's header: tensors that are chosen lie in the file, apart from all others, under unique names."""
    path = _INPUT.fill(data)
    with contextlib.suppress(DplError):
        index = read_index(path)
        assert len({tensor.name for tensor in index.tensors}) == len(index.tensors)
        with open(path, "rb") as file:  # noqa: PTH123 - a descriptor is needed
            header_sha256(file.fileno(), index.shards[0])
        chosen = make_plan(path, types=tuple(TYPES.values())).selected
        others = [(t.offset, t.offset + t.nbytes, t.name) for t in index.tensors if t.nbytes]
        for tensor in chosen:
            kind, shard = TABLE[tensor.type], index.shards[0]
            assert 1 <= len(tensor.ne) <= 4
            nbytes = prod(tensor.ne) // kind.weights * kind.size
            assert as_entry(tensor).nbytes == nbytes
            end = tensor.offset + nbytes
            assert not nbytes or end <= len(data)
            assert (tensor.offset - shard.data_offset) % shard.alignment == 0
            clash = [name for begin, stop, name in others if begin < end and tensor.offset < stop]
            assert set(clash) <= {tensor.name}


def sidecar(data: bytes) -> None:
    """A sidecar: what opens here opens with the stock reader, with the same names, and every row can be read."""
    raw = as_sidecar(data)
    with contextlib.suppress(DplError), Sidecar(_INPUT.fill(raw)) as opened_sidecar:
        stock = dict(deserialize(raw))  # type: ignore[no-untyped-call]
        assert stock.keys() == opened_sidecar.keys()
        for name, tensor in opened_sidecar.items():
            assert stock[name]["data"] == tensor.rows.tobytes()
            tensor.unpack()


def verify_checks(data: bytes) -> None:
    """All stages of verify over headers and bytes: what passes holds the model's bytes, each in its place."""
    raw = as_sidecar(data)
    verdict = Verdict("model", "sidecar")
    try:
        with opened(_INPUT.fill(raw), _INDEX) as files:
            manifest, start = check_sidecar(files)
            comparable = model.check_selection(manifest, _INDEX, "sidecar", verdict)
            model.check_source(manifest, _INDEX, files, verdict)
            pairs, offset = [], start
            for entry in manifest.tensors:
                pairs.append(Pair(entry, offset, comparable.get(entry.name)))
                offset += entry.dpl_nbytes
            check_contents(pairs, files, verdict, threads=1)
    except StageFailure:
        return
    if any(outcome.status is Status.FAILED for outcome in verdict.outcomes):
        assert verdict.exit_code in {1, 3}
        return
    left_out = set(manifest.left_out)
    expected = [tensor for tensor in MODEL.tensors if tensor.type in manifest.types and tensor.name not in left_out]
    assert [entry.name for entry in manifest.tensors] == [tensor.name for tensor in expected]
    kinds = [TABLE[tensor.type] for tensor in expected]
    packed = [pack(t.payload(), kind, t.ne[0] // kind.weights) for t, kind in zip(expected, kinds, strict=True)]
    assert raw[start:] == b"".join(packed)


def as_sidecar(data: bytes) -> bytes:
    """Read a fuzzer's bytes: a manifest, to be sealed and framed so that it gets past its digest; data; or a file."""
    if data[:1] == b"{":
        manifest, header = dict(MANIFEST), data
        with contextlib.suppress(Exception):
            manifest = json.loads(data)
            header = sidecars.header_of(manifest).encode()
        return sidecars.framed(header, DATA)
    if data[:1] == b"=":
        return sidecars.framed(sidecars.header_of(MANIFEST), data[1:])
    return data


SEEDS = {
    "gguf_index": [MODEL.to_bytes()],
    "sidecar": [sidecars.sidecar_of(MODEL, types=ASKED), canonical(MANIFEST).encode(), b"=" + DATA],
    "verify_checks": [sidecars.sidecar_of(MODEL, types=ASKED), canonical(MANIFEST).encode(), b"=" + DATA],
}
TARGETS = {"gguf_index": gguf_index, "sidecar": sidecar, "verify_checks": verify_checks}
