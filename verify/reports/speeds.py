"""Decode speeds in words and cells: every timing, what dpl gains for each shape, and what that makes for one token."""

from __future__ import annotations

from verify.gpu.speeds import ShapeTimings, best, token_milliseconds
from verify.reports.summary import others, type_name
from verify.verdict import Verdict

NOTE = (
    "us: microseconds for one launch, the median; cold: the weights come from memory, not from the cache. "
    "Content: the blocks' own bytes, without padding. Of reading: against a kernel that only reads the same bytes."
)
TIMING_HEADER = ("type and shape", "form", "layout", "us", "spread", "content GB/s", "moved GB/s", "of reading")


def shape_name(shape: ShapeTimings) -> str:
    """Type, rows and columns, and whether the launches depend on each other."""
    quant = shape.quant
    name = f"{type_name(quant.name, quant.number)} {shape.rows} x {quant.block_weights * shape.n}"
    return name + (", dependent" if shape.dependent else "")


def times_a_token(verdict: Verdict, shape: ShapeTimings) -> int:
    """How many matrices of this type and shape one token is multiplied with."""
    uses = {(use.quant.number, use.rows, use.n): use.times for use in verdict.uses}
    return uses.get((shape.quant.number, shape.rows, shape.n), 0)


def timing_rows(verdict: Verdict) -> list[tuple[str, ...]]:
    """A row for each timing, under `TIMING_HEADER`."""
    return [
        (
            shape_name(shape) + (" (fits L2)" if shape.fits_l2 else ""),
            timing.form,
            timing.layout,
            f"{timing.median:.2f}",
            f"{timing.minimum:.2f} to {timing.maximum:.2f}",
            f"{timing.content:.0f}",
            f"{timing.moved:.0f}",
            f"{timing.share:.1%}" + (" (above the ceiling: not to be trusted)" if timing.above_ceiling else ""),
        )
        for shape in verdict.bandwidth
        for timing in shape.timings
    ]


def gain_header(verdict: Verdict) -> tuple[str, ...]:
    """What the columns of `gain_rows` are."""
    columns = ("type and shape", "in a token", "padded us", "dpl us", "padded / dpl", "dpl of reading")
    return (*columns, "native us", "native / dpl") if _has_native(verdict) else columns


def gain_rows(verdict: Verdict) -> list[tuple[str, ...]]:
    """A row for each shape under `gain_header`: every layout with the form that is fastest for it."""
    rows: list[tuple[str, ...]] = []
    for shape in verdict.bandwidth:
        found = best(shape)
        if not {"padded", "dpl"} <= set(found):
            continue
        padded, dpl = found["padded"].median, found["dpl"].median
        native = found["native"].median if _has_native(verdict) else None
        rows.append(
            (
                shape_name(shape),
                f"{times_a_token(verdict, shape)} x",
                f"{padded:.2f}",
                f"{dpl:.2f}",
                f"{padded / dpl:.3f}",
                f"{found['dpl'].share:.1%}",
                *(() if native is None else (f"{native:.2f}", f"{native / dpl:.3f}")),
            )
        )
    return rows


def _has_native(verdict: Verdict) -> bool:
    """Native is shown only if it was measured for every shape: with forms searched for it, not with dpl's."""
    return all("native" in best(shape) for shape in verdict.bandwidth)


def token_line(verdict: Verdict) -> str:
    """What the layouts cost one token, and what is not in that sum; nothing if it was not measured."""
    found = token_milliseconds(verdict.uses, verdict.bandwidth)
    if not found.get("dpl") or not found.get("padded"):
        return ""
    parts = ", ".join(f"{milliseconds:.3f} ms {layout}" for layout, milliseconds in found.items())
    line = f"One token's products with the converted tensors, cold: {parts}; "
    line += f"dpl takes {found['dpl'] / found['padded']:.3f} of padded's time."
    left = others(verdict)
    return f"{line} Not counted, because they are not converted: {left}." if left else line
