"""Every single bit of a small sidecar flipped, and every shorter length: none of it may pass (kinds 4, 33, 39).

`verify` looks at the header first, in the same way with and without a model. So header bits are put to that stage
alone, data bits to the stages that look at bytes, in both forms, and a sample of all bits to the whole command.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from repack.errors import DplError
from repack.gguf.index import GGUFIndex, read_index
from repack.sidecar.container import tensor_offsets
from tests.support.calls import call
from tests.support.independent import TABLE, blocks
from tests.support.models import Model, T
from tests.support.sidecars.by_hand import sidecar_of, write_pair
from verify.pairs import Files, Pair, StageFailure, opened
from verify.stages.contents import check_contents
from verify.stages.header import check_sidecar
from verify.stages.model import check_selection, check_source
from verify.verdict import Status, Verdict

PLACES = (("a", 6, 3), ("b", 39, 2))
"""Tensors of one row: name, type, blocks. Padding stands within rows and at their ends."""
TYPES = (6, 39)
MODEL = Model([T(name, (n * TABLE[kind].weights, 1), kind, blocks(TABLE[kind], n, n)) for name, kind, n in PLACES])
GOOD = sidecar_of(MODEL, types=TYPES)
START = 8 + int.from_bytes(GOOD[:8], "little")


def padding() -> set[int]:
    """The places in the data that hold no field."""
    found, row = set(), 0
    for _, number, n in PLACES:
        kind = TABLE[number]
        ends = [*kind.starts(n)[1:], kind.stride(n)]
        for (_, size, _), start, end in zip(kind.planes, kind.starts(n), ends, strict=True):
            found |= set(range(row + start + size * n, row + end))
        row += kind.stride(n)
    return found


PADDING = padding()


class Inline:
    """Stands in for ThreadPoolExecutor: the same work without threads, which would take nine tenths of the time."""

    def __init__(self, *_: object) -> None: ...

    def __enter__(self) -> Inline:
        return self

    def __exit__(self, *_: object) -> None: ...

    def shutdown(self, **_: object) -> None: ...

    def submit(self, work: Callable[..., Any], *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(work(*arguments))
        return future


class Bench:
    """A pair on disk that can be damaged a bit at a time without opening it anew."""

    def __init__(self, folder: Path) -> None:
        self.model, self.sidecar = write_pair(folder, MODEL, GOOD)
        self.index = read_index(self.model)
        self.fd = os.open(self.sidecar, os.O_RDWR)

    def flips(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Each bit of the bytes from start to stop, flipped in the file while it is this one's turn."""
        for at in range(start, stop):
            for bit in range(8):
                os.pwrite(self.fd, bytes([GOOD[at] ^ 1 << bit]), at)
                yield at, bit
            os.pwrite(self.fd, GOOD[at : at + 1], at)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr("repack.files.pipeline.ThreadPoolExecutor", Inline)
    made = Bench(tmp_path)
    yield made
    os.close(made.fd)


def header_code(files: Files) -> int:
    """0 for a sound header, else the exit code."""
    try:
        check_sidecar(files)
    except StageFailure as failure:
        return failure.error.exit_code if failure.stage in {"container", "manifest"} else -1
    return 0


def byte_stages(files: Files, index: GGUFIndex | None) -> Verdict:
    """As `verify` does it, from the header on."""
    verdict = Verdict(None if index is None else "model", "sidecar")
    manifest, start = check_sidecar(files)
    sources = {} if index is None else check_selection(manifest, index, "sidecar", verdict)
    if index is not None:
        check_source(manifest, index, files, verdict)
    offsets = tensor_offsets(manifest)
    pairs = [
        Pair(entry, start + at, sources.get(entry.name)) for entry, at in zip(manifest.tensors, offsets, strict=False)
    ]
    check_contents(pairs, files, verdict, threads=1)
    return verdict


def test_every_bit_of_the_header(bench: Bench) -> None:
    """The length, the JSON, the manifest in it, and some of the spaces after it."""
    text = len(GOOD[:START].rstrip(b" "))
    with opened(bench.sidecar, None) as files:
        assert header_code(files) == 0
        for span in ((0, text + 8), *((at, at + 1) for at in range(text + 8, START, 41)), (START - 1, START)):
            for at, bit in bench.flips(*span):
                assert header_code(files) == 3, (at, bit)
        assert header_code(files) == 0


@pytest.mark.parametrize("alone", [True, False])
def test_every_bit_of_the_data(alone: bool, bench: Bench) -> None:
    """All planes, and the zeros that round a row up."""
    index = None if alone else bench.index
    with opened(bench.sidecar, index) as files:
        for at, bit in bench.flips(START, len(GOOD)):
            verdict = byte_stages(files, index)
            assert verdict.exit_code == (3 if alone else 1), (at, bit)
            failed = {outcome.stage for outcome in verdict.outcomes if outcome.status is Status.FAILED}
            seen_by = "padding" if at - START in PADDING else "" if alone else "bytes"
            assert failed == {"digests", seen_by} - {""}, (at, bit)
        assert not any(outcome.exit_code for outcome in byte_stages(files, index).outcomes)


def code_with(bench: Bench) -> int:
    """The exit code after the stages up to the bytes, from the model's header on."""
    try:
        index = read_index(bench.model)
    except DplError as error:
        return error.exit_code
    try:
        with opened(bench.sidecar, index) as files:
            return byte_stages(files, index).exit_code
    except DplError as error:
        return error.exit_code
    except StageFailure as failure:
        return failure.error.exit_code


def test_every_length(bench: Bench) -> None:
    with opened(bench.sidecar, None) as files:
        for length in range(len(GOOD) - 1, -1, -1):
            os.ftruncate(bench.fd, length)
            assert header_code(files) == 3, length
        for length in range(len(GOOD) + 1, len(GOOD) + 20):
            os.pwrite(bench.fd, GOOD + bytes(20), 0)
            os.ftruncate(bench.fd, length)
            assert header_code(files) == 3, length


def test_a_sample_of_all_bits_through_the_command(bench: Bench) -> None:
    for at in range(3, len(GOOD), 151):
        bit = at % 8
        os.pwrite(bench.fd, bytes([GOOD[at] ^ 1 << bit]), at)
        assert call("verify", "--quiet", bench.sidecar).code == 3, (at, bit)
        assert call("verify", "--quiet", bench.model, bench.sidecar).code == (1 if at >= START else 3), (at, bit)
        os.pwrite(bench.fd, GOOD[at : at + 1], at)
    assert call("verify", "--quiet", bench.model, bench.sidecar).code == 0


def test_bits_of_the_model(bench: Bench) -> None:
    """Its header, every bit, and its tensors of the sidecar. Other bytes are none of the sidecar's business."""
    raw = bench.model.read_bytes()
    solid = [range(bench.index.shards[0].data_offset)]
    solid += [range(tensor.offset, tensor.offset + (tensor.nbytes or 0)) for tensor in bench.index.tensors]
    step = 7  # of the data, which is compared with the sidecar's, whose every bit is tried above
    for at in (*solid[0], *(at for part in solid[1:] for at in part[::step])):
        for bit in range(8):
            with bench.model.open("r+b") as file:
                file.seek(at)
                file.write(bytes([raw[at] ^ 1 << bit]))
            assert code_with(bench) in ({1, 3} if at < solid[0].stop else {1}), (at, bit)
        with bench.model.open("r+b") as file:
            file.seek(at)
            file.write(raw[at : at + 1])
