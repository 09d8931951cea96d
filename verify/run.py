"""All stages in their order: from two paths to one verdict."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from repack.command.ending import show_traceback
from repack.errors import EnvironmentFailure, NothingToDo, UsageError
from repack.files.pipeline import worker_threads
from repack.gguf.index import GGUFIndex, read_index
from repack.plan import census
from repack.sidecar.container import tensor_offsets
from verify.contract.forms import FORM_NAMES
from verify.gpu.device import DeviceInfo, preflight
from verify.gpu.tensor import check_tensor
from verify.pairs import Files, Pair, StageFailure, blamed, opened
from verify.stages.bandwidth import check_bandwidth, uses
from verify.stages.contents import check_contents
from verify.stages.decode import Request, decoding
from verify.stages.header import check_sidecar
from verify.stages.model import Meter, check_provenance, check_selection, check_source
from verify.verdict import STAGES, Status, Verdict

_WITH_MODEL = {"selection", "source", "provenance", "bytes", "decode", "oracle", "bandwidth"}
"""Stages that have nothing to look at without the model."""


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

    @property
    def needs_gpu(self) -> bool:
        """Whether a GPU was asked for, so that it is a failure if none is used."""
        return self.require_gpu or self.device not in {"auto", "cpu"}


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
    ended_by = ""
    try:
        _run(model, sidecar, options, meter, verdict)
    except StageFailure as failure:
        ended_by = failure.stage
        verdict.failed(failure.stage, failure.error)
        show_traceback(failure)
    _fill_in(verdict, options, ended_by)
    verdict.seconds = time.perf_counter() - started
    return verdict


def _run(model: Path | None, sidecar: Path, options: Options, meter: Meter, verdict: Verdict) -> None:
    with blamed("decode"):
        gpu, why_not = _find_gpu(options, verdict, model)
    with blamed("source"):
        index = None if model is None else read_index(model)
    with opened(sidecar, index) as files:
        if options.expect_sha256:
            with blamed("provenance"):
                check_provenance(options.expect_sha256, files, meter, verdict)
        pairs = _pairs(index, files, options, verdict)
        with blamed("bytes" if index else "digests"):
            _check_data(pairs, index, files, options, gpu, meter, verdict)
        files.refuse_changed()
    if index is None:
        return
    decoded = {outcome.status for outcome in verdict.of("decode")}
    if options.needs_gpu and decoded <= {Status.SKIPPED}:
        verdict.skipped("decode", "nothing was decoded on the GPU that was asked for", code=NothingToDo.exit_code)
    if gpu is None:
        verdict.skipped("bandwidth", why_not)
    elif not options.bench:
        verdict.skipped("bandwidth", "--no-bench")
    else:
        check_bandwidth(uses([pair.entry for pair in pairs], index), gpu.l2_bytes, verdict)


def _find_gpu(options: Options, verdict: Verdict, model: Path | None) -> tuple[DeviceInfo | None, str]:
    """Choose and try the GPU; or in a few words why none is used. Raises EnvironmentFailure if one is required."""
    if model is None:
        if options.needs_gpu:
            raise UsageError("there is nothing to do on a GPU without the model", hint="give MODEL.gguf too")
        return None, "no model given"
    if options.device == "cpu":
        if options.require_gpu:
            raise UsageError("--device cpu and --require-gpu contradict each other")
        return None, "--device cpu"
    try:
        info = preflight(int(options.device) if options.device.isdigit() else None)
    except EnvironmentFailure as error:
        if options.needs_gpu:
            raise
        verdict.no_gpu = str(error)
        return None, "no usable GPU"
    verdict.gpu = info.facts()
    return info, ""


def _pairs(index: GGUFIndex | None, files: Files, options: Options, verdict: Verdict) -> list[Pair]:
    """The stages that look at headers; returns the tensors to be checked. Raises StageFailure if there are none."""
    manifest, data_start = check_sidecar(files)
    verdict.passed("container")
    verdict.passed("manifest")
    comparable = {}
    if index is not None:
        with blamed("source"):
            check_source(manifest, index, files, verdict)
        with blamed("selection"):
            comparable = check_selection(manifest, index, files.sidecar_name, verdict)
        held = {entry.name for entry in manifest.tensors}
        verdict.not_counted += census(tensor for tensor in index.tensors if tensor.name not in held)
    offsets = tensor_offsets(manifest)
    pairs = [
        Pair(entry, data_start + offset, comparable.get(entry.name))
        for entry, offset in zip(manifest.tensors, offsets, strict=False)
        if not options.include or any(pattern.search(entry.name) for pattern in options.include)
    ]
    verdict.tensors += [pair.entry for pair in pairs]
    if not pairs:
        raise StageFailure("selection", NothingToDo("--include leaves no tensor to check", where=files.sidecar_name))
    return pairs


def _check_data(
    pairs: Sequence[Pair],
    index: GGUFIndex | None,
    files: Files,
    options: Options,
    gpu: DeviceInfo | None,
    meter: Meter,
    verdict: Verdict,
) -> None:
    threads = worker_threads(options.threads)
    request = Request(options.rows, options.seed, options.forms, check_tensor if gpu else None, threads)
    beside: AbstractContextManager[None] = decoding(pairs, files, request, verdict) if index else nullcontext()
    with beside, meter("checking", sum(pair.entry.dpl_nbytes for pair in pairs)) as progress:
        check_contents(pairs, files, verdict, threads=threads, progress=progress)


def _fill_in(verdict: Verdict, options: Options, ended_by: str) -> None:
    """Say of every stage that left no word why it was not run."""
    reasons = {} if options.bench else {"bandwidth": "--no-bench"}
    if not options.expect_sha256:
        reasons["provenance"] = "not asked for"
    if verdict.model is None:
        reasons = dict.fromkeys(_WITH_MODEL, "no model given")
    for stage in STAGES:
        if not any(True for _ in verdict.of(stage)):
            verdict.skipped(stage, reasons.get(stage) or f"not run, because {ended_by} failed")
