"""Decode times of one type and shape on the current device, beside a kernel that only reads the same bytes.

Every figure is taken cold and in company: each variant is a CUDA graph of launches that rotate over copies of the
weights, together more than 5 times the L2; the graphs of all variants are replayed in turn, and timed by events.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from repack.errors import EnvironmentFailure
from repack.layout import ALIGNMENT, QuantType, align
from repack.rows import Bytes, pack_rows, pad_rows
from verify.contract.activations import seeded
from verify.contract.emulation import Bits
from verify.contract.forms import LAYOUTS, Form, forms_for, row_form
from verify.gpu.dependent import launch_dependent
from verify.gpu.device import device_errors
from verify.gpu.launch import Launch, can_stage, decoder, packer, tool
from verify.gpu.speeds import READ, READERS, STAGED, ShapeTimings, Timing

LAUNCHES = 30
REPLAYS = 11
WARM_UP = 2
L2_TIMES = 5
_TILE_BYTES = 8 << 20
_READ_THREADS = 256
_READ_LOADS = (2, 4, 8)

Variant = tuple[Form, str]
"""A form, and a layout or `STAGED`."""


@dataclass(frozen=True, slots=True)
class _Weights:
    """Copies of one matrix on the device, in one layout."""

    copies: list[Any]
    nbytes: int


def measure(
    quant: QuantType,
    rows: int,
    n: int,
    l2_bytes: int,
    variants: Sequence[Variant] | None = None,
    replays: int = REPLAYS,
    dependent: bool = False,
) -> ShapeTimings:
    """Time decoding `rows` rows of `n` blocks on the current device.

    variants: what is timed; by default `timed`. All of `all_variants` are run once as well, to compare their bits.
    dependent: launch all of them, the read-only kernel too, as dependent on the one before (form `row` only).
    Device memory: for each timed layout 5 times the L2 and one matrix more. Raises EnvironmentFailure.
    """
    with device_errors(f"bandwidth of {quant.name} {rows} x {quant.block_weights * n}"):
        chosen = timed(quant, rows, n, dependent) if variants is None else list(variants)
        return _measure(quant, rows, n, l2_bytes, chosen, replays, dependent)


def timed(quant: QuantType, rows: int, n: int, dependent: bool = False) -> list[Variant]:
    """Every form that applies to the shape, over padded and over dpl rows, which it is configured for.

    Not over native ones: they want other configurations, and a figure that they reach with these would flatter dpl.
    """
    forms = [row_form(quant, n, rows, dependent=True)] if dependent else forms_for(quant, n, rows)
    return [(form, layout) for form in forms for layout in ("padded", "dpl")]


def all_variants(quant: QuantType, rows: int, n: int, dependent: bool = False) -> list[Variant]:
    """Every form of `timed` over every layout, and form `row` over staged rows where they fit."""
    forms = dict.fromkeys(form for form, _ in timed(quant, rows, n, dependent))
    staged = [(form, STAGED) for form in forms if can_stage(quant, form, n) and not dependent]
    return [(form, layout) for form in forms for layout in LAYOUTS] + staged


def identical(outputs: Mapping[Variant, Bits]) -> bool:
    """Whether what must give the same bits does: everything with the same form and number of lanes."""
    first: dict[tuple[str, int], Bits] = {}
    return all(
        np.array_equal(bits, first.setdefault((form.name, form.lanes), bits)) for (form, _), bits in outputs.items()
    )


def _measure(
    quant: QuantType, rows: int, n: int, l2_bytes: int, variants: list[Variant], replays: int, dependent: bool
) -> ShapeTimings:
    import cupy  # noqa: PLC0415 - an optional extra

    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        sources = {_source(layout) for _, layout in variants}
        weights = _weights(quant, rows, n, {layout: L2_TIMES * l2_bytes * (layout in sources) for layout in LAYOUTS})
        blocks = max(weight.nbytes for weight in weights.values()) // (16 * _READ_THREADS * min(_READ_LOADS)) + 1
        out = cupy.empty(max(rows, blocks + 4), np.uint32)
        vector = seeded(quant.block_weights * n, 0)
        checked = dict.fromkeys([*all_variants(quant, rows, n, dependent), *variants])
        names = {form.name for form, _ in checked}
        activations = {name: cupy.asarray(packer(quant, name)(vector)) for name in names}
        stream.synchronize()
        outputs: dict[Variant, Bits] = {}
        launches: dict[tuple[str, str], tuple[str, Callable[[Any], None]]] = {}
        for form, layout in checked:
            launch = _decode(decoder(quant, form, layout, dependent), activations[form.name], out, rows, n)
            out.data.memset_async(0xFF, out.nbytes, stream)
            launch(weights[_source(layout)].copies[-1])
            outputs[form, layout] = out[:rows].get(stream=stream)
            if (form, layout) in variants:
                launches[str(form), layout] = _source(layout), launch
        for layout in sorted(sources, key=LAYOUTS.index):
            for loads in _READ_LOADS:
                for reader in READERS if dependent else (READ,):
                    launch = _read(quant, f"{reader}{loads}", loads, out, weights[layout].nbytes, dependent)
                    launch(weights[layout].copies[0])
                    launches[f"{reader}{loads}", layout] = layout, launch
        stream.synchronize()
        graphs, counts = {}, {}
        for key, (source, launch) in launches.items():
            graphs[key], counts[key] = _graph(stream, launch, weights[source].copies)
        spans = _replay(stream, graphs, replays)
        times = {key: [span / counts[key] for span in spans[key]] for key in spans}
    return ShapeTimings(
        quant,
        rows,
        n,
        fits_l2=quant.row_stride(n) * rows < l2_bytes,
        copies=min(len(weights[source].copies) for source in sources),
        launches=min(counts.values()),
        identical=identical(outputs),
        timings=_timings(times, weights, quant.block_bytes * n * rows),
        dependent=dependent,
    )


def _source(layout: str) -> str:
    """The layout in memory of what a variant reads."""
    return "native" if layout == STAGED else layout


def _decode(run: Launch, activations: Any, out: Any, rows: int, n: int) -> Callable[[Any], None]:
    return lambda weights: run(weights, activations, out, rows, n)


def _read(quant: QuantType, name: str, loads: int, out: Any, nbytes: int, dependent: bool) -> Callable[[Any], None]:
    kernel, items = tool(name, quant), nbytes // ALIGNMENT
    grid = -(-items // (_READ_THREADS * loads))
    arguments = (out, np.int64(items), np.uint32(0x9E3779B9))
    if dependent:
        return lambda weights: launch_dependent(kernel, grid, _READ_THREADS, (weights, *arguments))
    return lambda weights: kernel((grid,), (_READ_THREADS,), (weights, *arguments))


def _weights(quant: QuantType, rows: int, n: int, wanted: Mapping[str, int]) -> dict[str, _Weights]:
    """Random rows in each layout, on the current stream: a tile of some MiB, repeated; every copy alike.

    wanted: bytes that the copies of each layout have to exceed together.
    """
    import cupy  # noqa: PLC0415 - an optional extra

    tile = min(rows, max(1, _TILE_BYTES // (quant.block_bytes * n)))
    native = random_rows(quant, tile, n)
    padded = np.empty((tile, quant.padded_block_bytes * n), np.uint8)
    pad_rows(native, padded, quant, n)
    dpl = np.empty((tile, quant.row_stride(n)), np.uint8)
    pack_rows(native, dpl, quant, n)
    weights = {}
    for layout, rows_of_tile in zip(LAYOUTS, (native, padded, dpl), strict=True):
        width, tiled = rows_of_tile.shape[1], cupy.asarray(rows_of_tile)
        nbytes = width * rows
        copies = [cupy.empty(align(nbytes), np.uint8) for _ in range(wanted[layout] // nbytes + 1)]
        for copy in copies:
            for row in range(0, rows, tile):
                part = copy[row * width : min(row + tile, rows) * width]
                part.data.copy_from_device_async(tiled.data, part.nbytes)
        weights[layout] = _Weights(copies, nbytes)
    return weights


def random_rows(quant: QuantType, rows: int, n: int) -> Bytes:
    """Native rows of random bytes, uint8 ``[rows, block_bytes * n]``, with scales of a model's size: none is NaN."""
    generator = np.random.Generator(np.random.PCG64(0))
    native = np.frombuffer(generator.bytes(rows * n * quant.block_bytes), np.uint8).copy()
    blocks = native.reshape(rows * n, quant.block_bytes)
    for field in quant.planes:
        count = (len(blocks), field.nbytes)
        if field.scale == "f16":
            scales = generator.normal(0, 2e-4, (count[0], count[1] // 2)).astype("<f2").view(np.uint8)
        elif field.scale == "e8m0":
            scales = generator.integers(112, 128, count, dtype=np.uint8)
        else:
            continue
        blocks[:, field.offset : field.offset + field.nbytes] = scales
    return native.reshape(rows, -1)


def _graph(stream: Any, launch: Callable[[Any], None], copies: list[Any]) -> tuple[Any, int]:
    """Capture enough launches to visit all copies equally often; return the graph and how many."""
    rounds = -(-LAUNCHES // len(copies))
    stream.begin_capture()
    for _ in range(rounds):
        for copy in copies:
            launch(copy)
    return stream.end_capture(), rounds * len(copies)


def _replay(stream: Any, graphs: dict[tuple[str, str], Any], replays: int) -> dict[tuple[str, str], list[float]]:
    """Replay all graphs in turn, and return the microseconds of each replay.

    Each turn has an order of its own: after slow kernels the clock is higher for a while, and no variant may always
    have that. Nothing waits until the end: the device always has the next graph at hand, so no gap between launches
    is timed.
    """
    import cupy  # noqa: PLC0415 - an optional extra

    events: dict[tuple[str, str], list[tuple[Any, Any]]] = {key: [] for key in graphs}
    for turn in range(WARM_UP + replays):
        keys = list(graphs)
        np.random.Generator(np.random.PCG64(turn)).shuffle(keys)
        for key in keys:
            pair = cupy.cuda.Event(), cupy.cuda.Event()
            pair[0].record(stream)
            graphs[key].launch(stream)
            pair[1].record(stream)
            events[key].append(pair)
    stream.synchronize()
    return {key: [1e3 * cupy.cuda.get_elapsed_time(*pair) for pair in pairs[WARM_UP:]] for key, pairs in events.items()}


def _timings(
    times: Mapping[tuple[str, str], Sequence[float]], weights: Mapping[str, _Weights], content: int
) -> tuple[Timing, ...]:
    """Reduce the times. Of kernels that only read the fastest over each layout is kept, `read` as the ceiling."""
    if not all(min(spans) > 0 for spans in times.values()):
        raise EnvironmentFailure("the device's clock did not move")
    fastest: dict[tuple[str, str], Sequence[float]] = {}
    for (form, layout), spans in times.items():
        key = form.rstrip("0123456789"), layout
        if key[0] in READERS and np.median(spans) < np.median(fastest.get(key, [np.inf])):
            fastest[key] = spans
    kept = {key: spans for key, spans in times.items() if not key[0].startswith(READERS)} | fastest
    timings = []
    for (form, layout), spans in kept.items():
        source = _source(layout)
        median = float(np.median(spans))
        share = float(np.median(fastest[READ, source])) / median
        rates = content / median / 1e3, weights[source].nbytes / median / 1e3
        timings.append(Timing(form, layout, min(spans), median, max(spans), *rates, share))
    return tuple(timings)
