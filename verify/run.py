"""All stages in their order: from two paths to one verdict."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from repack.errors import Damaged, DplError, EnvironmentFailure, NothingToDo, UsageError
from repack.files.pipeline import worker_threads
from repack.sidecar.container import tensor_offsets
from verify.contract.forms import FORM_NAMES
from verify.pairs import Files, Pair, opened
from verify.stages.contents import check_contents
from verify.stages.header import check_sidecar
from verify.stages.provenance import check_provenance
from verify.verdict import STAGES, Status, Verdict

if TYPE_CHECKING:
    from repack.gguf.index import GGUFIndex
    from verify.gpu.device import DeviceInfo

Meter = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]
"""Makes a progress display: label and total bytes to a context manager that yields a callback for bytes done."""


@dataclass(frozen=True, slots=True)
class Options:
    """What to check and how closely."""

    include: tuple[re.Pattern[str], ...] = ()
    """Check only tensors whose name one of these is found in; none means all."""
    rows: int | None = 16
    """Rows of each tensor for the float64 oracle and the CPU's decode; None means all."""
    seed: int = 0
    """Seed of the sampled rows and of the activations."""
    threads: int = 0
    device: str = "auto"
    """`auto` (a GPU if there is one), `cpu`, `gpu`, or the number of a GPU."""
    require_gpu: bool = False
    forms: tuple[str, ...] = FORM_NAMES
    bench: bool = True
    expect_sha256: tuple[str, ...] = ()
    """The SHA-256 of each of the model's files, in the order of its shards; none means that it is not looked at."""


def verify(model: Path | None, sidecar: Path, options: Options, meter: Meter) -> Verdict:
    """Check a sidecar against its model, or (model None) by itself. Never raises for what is wrong with the inputs."""
    started = time.perf_counter()
    verdict = Verdict(None if model is None else os.fspath(model), os.fspath(sidecar))
    verdict.options = {
        "include": [pattern.pattern for pattern in options.include],
        "rows": options.rows,
        "seed": options.seed,
        "device": options.device,
        "require_gpu": options.require_gpu,
        "forms": list(options.forms),
        "bench": options.bench,
        "expect_sha256": list(options.expect_sha256),
    }
    stage = "decode"
    try:
        gpu = _find_gpu(options, verdict, model)
        stage = "source"
        index = None if model is None else _index(model)
        stage = "container"
        with opened(sidecar, index) as files:
            _run_stages(index, files, options, gpu, meter, verdict)
    except DplError as error:
        verdict.failed(stage, error)
    except MemoryError:
        verdict.failed(stage, EnvironmentFailure("out of memory"))
    _fill_in(verdict, model)
    verdict.seconds = time.perf_counter() - started
    return verdict


def _index(model: Path) -> GGUFIndex:
    from repack.gguf.index import read_index  # noqa: PLC0415 - of no use without a model

    return read_index(model)


@dataclass(frozen=True, slots=True)
class _Gpu:
    """The GPU that is used, or why none is."""

    info: DeviceInfo | None
    why_not: str = ""


def _no_gpu(why: str) -> _Gpu:
    return _Gpu(None, why)


def _find_gpu(options: Options, verdict: Verdict, model: Path | None) -> _Gpu:
    """Choose and try the GPU. Raises EnvironmentFailure if one is required and there is none."""
    required = options.require_gpu or options.device not in {"auto", "cpu"}
    if model is None:
        if required:
            raise UsageError("there is nothing to do on a GPU without the model", hint="give MODEL.gguf too")
        return _no_gpu("no model given")
    if options.device == "cpu":
        if options.require_gpu:
            raise UsageError("--device cpu and --require-gpu contradict each other")
        return _no_gpu("--device cpu")
    from verify.gpu.device import preflight  # noqa: PLC0415 - here, so that it costs nothing without a model

    try:
        info = preflight(int(options.device) if options.device.isdigit() else None)
    except EnvironmentFailure as error:
        if required:
            raise
        return _no_gpu(f"the GPU stages were not run: {error}")
    verdict.gpu = info.facts()
    return _Gpu(info)


def _run_stages(
    index: GGUFIndex | None, files: Files, options: Options, gpu: _Gpu, meter: Meter, verdict: Verdict
) -> None:
    if options.expect_sha256:
        check_provenance(options.expect_sha256, files, meter, verdict)
    header = check_sidecar(files, verdict)
    if header is None:
        return
    manifest, data_start = header
    comparable = {}
    if index is not None:
        from repack.gguf.index import check_tensors  # noqa: PLC0415
        from verify.stages.selection import check_selection, check_source  # noqa: PLC0415 - of no use without a model

        asked, left_out = set(manifest.types), set(manifest.left_out)
        try:
            check_tensors(index, [one for one in index.tensors if one.type in asked and one.name not in left_out])
        except Damaged as error:
            verdict.failed("source", error)
            return
        comparable = check_selection(manifest, index, files.sidecar_name, verdict)
        check_source(manifest, index, files, verdict)
    offsets = tensor_offsets(manifest)
    pairs = [
        Pair(entry, data_start + offset, comparable.get(entry.name))
        for entry, offset in zip(manifest.tensors, offsets, strict=False)
        if not options.include or any(pattern.search(entry.name) for pattern in options.include)
    ]
    verdict.tensors += [pair.entry for pair in pairs]
    if not pairs:
        verdict.failed("selection", NothingToDo("--include leaves no tensor to check", where=files.sidecar_name))
        return
    threads = worker_threads(options.threads)
    beside = _decoding(pairs, files, options, gpu, verdict) if index else nullcontext()
    with beside, meter("checking", sum(pair.entry.dpl_nbytes for pair in pairs)) as progress:
        check_contents(pairs, files, verdict, threads=threads, progress=progress)
    if index is None:
        return
    if gpu.info is None:
        verdict.skipped("bandwidth", gpu.why_not)
    elif not options.bench:
        verdict.skipped("bandwidth", "--no-bench")
    else:
        from verify.stages.bandwidth import check_bandwidth, uses  # noqa: PLC0415 - of no use without a GPU

        check_bandwidth(uses([pair.entry for pair in pairs], index.metadata), gpu.info.l2_bytes, verdict)


def _decoding(
    pairs: Sequence[Pair], files: Files, options: Options, gpu: _Gpu, verdict: Verdict
) -> AbstractContextManager[None]:
    from verify.stages.decode import Request, decoding  # noqa: PLC0415 - of no use without a model

    check = None
    if gpu.info is not None:
        from verify.gpu.tensor import check_tensor  # noqa: PLC0415

        check = check_tensor
    threads = worker_threads(options.threads)
    return decoding(pairs, files, Request(options.rows, options.seed, options.forms, check, threads), verdict)


def _fill_in(verdict: Verdict, model: Path | None) -> None:
    """Say of every stage that left no word why it was not run."""
    ended = any(outcome.status is Status.FAILED and outcome.tensor is None for outcome in verdict.outcomes)
    for stage in STAGES:
        if not any(True for _ in verdict.of(stage)):
            if model is None and stage in {"selection", "source", "provenance", "bytes", "oracle"}:
                verdict.skipped(stage, "no model given")
            else:
                verdict.skipped(stage, "an earlier stage failed" if ended else "not asked for")
