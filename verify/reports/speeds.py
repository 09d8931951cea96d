"""Decode speeds in words and cells: every timing, what dpl gains for each shape, and what that makes for one token."""

from __future__ import annotations

from verify.gpu.timing import ShapeTimings
from verify.stages.bandwidth import best, token_milliseconds
from verify.verdict import Verdict

TIMING_HEADER = ("shape", "form", "layout", "us", "spread", "content GB/s", "moved GB/s", "of ceiling")
GAIN_HEADER = ("shape", "a token", "native us", "padded us", "dpl us", "dpl over padded", "dpl over native")


def shape_name(shape: ShapeTimings) -> str:
    """Rows and columns, and whether the launches depend on each other."""
    return f"{shape.rows} x {256 * shape.n}" + (", dependent" if shape.dependent else "")


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


def gain_rows(verdict: Verdict) -> list[tuple[str, ...]]:
    """A row for each shape under `GAIN_HEADER`: every layout with the form that is fastest for it."""
    times = {(use.rows, use.n): use.times for use in verdict.uses}
    rows: list[tuple[str, ...]] = []
    for shape in verdict.bandwidth:
        found = best(shape)
        if {"padded", "dpl"} <= set(found):
            native, padded, dpl = (
                found[layout].median if layout in found else 0 for layout in ("native", "padded", "dpl")
            )
            rows.append(
                (
                    shape_name(shape),
                    f"{times.get((shape.rows, shape.n), 0)} x",
                    f"{native:.2f}" if native else "-",
                    f"{padded:.2f}",
                    f"{dpl:.2f}",
                    f"{padded / dpl:.3f}",
                    f"{native / dpl:.3f}" if native else "-",
                )
            )
    return rows


def token_line(verdict: Verdict) -> str:
    """One sentence on what the layouts cost one token, or nothing if that was not measured."""
    found = token_milliseconds(verdict.uses, verdict.bandwidth)
    if not found.get("dpl") or not found.get("padded"):
        return ""
    parts = ", ".join(f"{milliseconds:.3f} ms {layout}" for layout, milliseconds in found.items())
    return f"One token's Q6_K products, cold: {parts}; dpl takes {found['dpl'] / found['padded']:.3f} of padded's time."
