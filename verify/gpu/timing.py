"""How fast the kernels read: decode times for one shape, beside a kernel that only reads the same bytes.

Every figure is taken cold and in company: each variant is a CUDA graph of launches that rotate over copies of the
weights, together more than 5 times the L2; the graphs of all variants are replayed in turn, and timed by events.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from repack.errors import EnvironmentFailure
from repack.layout import BLOCK_BYTES, DEFAULT, PADDED_BLOCK_BYTES, row_stride
from repack.rows import Bytes, pack_rows
from verify.contract.activations import pack_plain, pack_quarters, seeded
from verify.contract.forms import LAYOUTS, Form, forms_for, row_form
from verify.gpu.dependent import launch_dependent
from verify.gpu.device import can_stage, decoder, device_errors, tool
from verify.gpu.speeds import READ, READERS, STAGED, ShapeTimings, Timing

LAUNCHES = 30
REPLAYS = 11
WARM_UP = 2
L2_TIMES = 5
_TILE_BYTES = 8 << 20
_READ_THREADS = 256
_READ_LOADS = (2, 4, 8)


@dataclass(frozen=True, slots=True)
class _Weights:
    """Copies of one matrix on the device, in one layout."""

    copies: list[Any]
    nbytes: int


def measure(
    rows: int,
    n: int,
    l2_bytes: int,
    variants: Sequence[tuple[Form, str]] | None = None,
    replays: int = REPLAYS,
    dependent: bool = False,
) -> ShapeTimings:
    """Time decoding `rows` rows of `n` super-blocks on the current device.

    variants: forms and layouts (`staged` too); by default all that apply. dependent: launch all of them, the
    read-only kernel as well, as dependent on the one before (verify/gpu/dependent.py; form `row` only). Raises
    EnvironmentFailure.
    """
    with device_errors(f"bandwidth of {rows} x {256 * n}"):
        chosen = list(variants or all_variants(rows, n, dependent))
        return _measure(rows, n, l2_bytes, chosen, replays, dependent)


def all_variants(rows: int, n: int, dependent: bool = False) -> list[tuple[Form, str]]:
    """Every form that applies to the shape over every layout; of dependent launches, `row` alone."""
    if dependent:
        return [(row_form(n, rows, dependent=True), layout) for layout in LAYOUTS]
    variants = [(form, layout) for form in forms_for(n, rows) for layout in LAYOUTS]
    form = variants[-1][0]
    return variants + ([(form, STAGED)] if can_stage(form, n) else [])


def _measure(
    rows: int, n: int, l2_bytes: int, variants: list[tuple[Form, str]], replays: int, dependent: bool
) -> ShapeTimings:
    import cupy  # noqa: PLC0415 - an optional extra

    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        weights = _weights(rows, n, l2_bytes)
        blocks = max(weight.nbytes for weight in weights.values()) // (16 * _READ_THREADS * min(_READ_LOADS)) + 1
        out = cupy.empty(max(rows, blocks + 4), np.uint32)
        activations = seeded(n, 0)
        plain, quarters = cupy.asarray(pack_plain(activations)), cupy.asarray(pack_quarters(activations))
        stream.synchronize()
        launches: dict[tuple[str, str], tuple[str, Callable[[Any], None]]] = {}
        bits: dict[tuple[str, int], npt.NDArray[np.uint32]] = {}
        identical = True
        for form, layout in variants:
            source = "native" if layout == STAGED else layout
            vector = quarters if form.name == "row" else plain
            launch = _decode(form, layout, vector, out, rows, n, dependent)
            out.data.memset_async(0xFF, out.nbytes, stream)
            launch(weights[source].copies[-1])
            found = out[:rows].get(stream=stream)
            identical &= np.array_equal(found, bits.setdefault((form.name, form.lanes), found))
            launches[str(form), layout] = source, launch
        for layout in dict.fromkeys(source for source, _ in launches.values()):
            for loads in _READ_LOADS:
                for reader in READERS if dependent else (READ,):
                    launch = _read(f"{reader}{loads}", loads, out, weights[layout].nbytes, dependent)
                    launch(weights[layout].copies[0])
                    launches[f"{reader}{loads}", layout] = layout, launch
        stream.synchronize()
        graphs, counts = {}, {}
        for key, (source, launch) in launches.items():
            graphs[key], counts[key] = _graph(stream, launch, weights[source].copies)
        spans = _replay(stream, graphs, replays)
        times = {key: [span / counts[key] for span in spans[key]] for key in spans}
    return ShapeTimings(
        DEFAULT,
        rows,
        n,
        fits_l2=row_stride(n) * rows < l2_bytes,
        copies=min(len(weight.copies) for weight in weights.values()),
        launches=min(counts.values()),
        identical=bool(identical),
        timings=_timings(
            times, {key: source for key, (source, _) in launches.items()}, weights, BLOCK_BYTES * n * rows
        ),
        dependent=dependent,
    )


def _decode(
    form: Form, layout: str, activations: Any, out: Any, rows: int, n: int, dependent: bool
) -> Callable[[Any], None]:
    run = decoder(form, layout, dependent)
    return lambda weights: run(weights, activations, out, rows, n)


def _read(name: str, loads: int, out: Any, nbytes: int, dependent: bool) -> Callable[[Any], None]:
    kernel, items = tool(name), nbytes // 16
    grid = -(-items // (_READ_THREADS * loads))
    arguments = (out, np.int64(items), np.uint32(0x9E3779B9))
    if dependent:
        return lambda weights: launch_dependent(kernel, grid, _READ_THREADS, (weights, *arguments))
    return lambda weights: kernel((grid,), (_READ_THREADS,), (weights, *arguments))


def _weights(rows: int, n: int, l2_bytes: int) -> dict[str, _Weights]:
    """Random rows in each layout, on the current stream: a tile of some MiB, repeated; every copy alike."""
    import cupy  # noqa: PLC0415

    tile = min(rows, max(1, _TILE_BYTES // (BLOCK_BYTES * n)))
    native = _random_rows(tile, n)
    dpl = np.empty((tile, row_stride(n)), np.uint8)
    pack_rows(native, dpl, DEFAULT, n)
    padded = cupy.empty(tile * PADDED_BLOCK_BYTES * n, np.uint8)
    tool("pad")((tile,), (256,), (cupy.asarray(native), padded, np.int32(n)))
    weights = {}
    for layout, rows_of_tile in zip(LAYOUTS, (cupy.asarray(native), padded, cupy.asarray(dpl)), strict=True):
        width = rows_of_tile.nbytes // tile
        nbytes = width * rows
        copies = [cupy.empty(nbytes, np.uint8) for _ in range(L2_TIMES * l2_bytes // nbytes + 1)]
        for copy in copies:
            for row in range(0, rows, tile):
                part = copy[row * width : (row + tile) * width]
                part.data.copy_from_device_async(rows_of_tile.data, part.nbytes)
        weights[layout] = _Weights(copies, nbytes)
    return weights


def _random_rows(rows: int, n: int) -> Bytes:
    generator = np.random.Generator(np.random.PCG64(0))
    native = np.frombuffer(generator.bytes(rows * n * BLOCK_BYTES), np.uint8).copy().reshape(rows, n * BLOCK_BYTES)
    d = generator.normal(0, 2e-4, (rows, n)).astype("<f2")  # random bits would be NaN now and then
    native.reshape(rows, n, BLOCK_BYTES)[..., -2:] = d[..., None].view(np.uint8)
    return native


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
    import cupy  # noqa: PLC0415

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
    times: dict[tuple[str, str], list[float]],
    sources: dict[tuple[str, str], str],
    weights: dict[str, _Weights],
    content: int,
) -> tuple[Timing, ...]:
    """Reduce the times; of the kernels that only read the fastest over each layout is kept, `read` as the ceiling."""
    if not all(min(spans) > 0 for spans in times.values()):
        raise EnvironmentFailure("the device's clock did not move")
    fastest: dict[tuple[str, str], list[float]] = {}
    for (form, layout), spans in times.items():
        key = form.rstrip("0123456789"), layout
        if key[0] in READERS and np.median(spans) < np.median(fastest.get(key, [np.inf])):
            fastest[key] = spans
    kept = {key: spans for key, spans in times.items() if not key[0].startswith(READERS)} | fastest
    timings = []
    for (form, layout), spans in kept.items():
        source = sources.get((form, layout), layout)
        median = float(np.median(spans))
        share = float(np.median(fastest[READ, source])) / median
        rates = content / median / 1e3, weights[source].nbytes / median / 1e3
        timings.append(Timing(form, layout, min(spans), median, max(spans), *rates, share))
    return tuple(timings)
