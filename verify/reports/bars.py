"""The parts of the page that are drawn: bytes in each layout, and decode speeds against the measured ceiling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from verify.gpu.timing import READ, READERS
from verify.reports.markup import Markup, element, joined
from verify.reports.speeds import token_line
from verify.reports.summary import dead, ledger
from verify.stages.bandwidth import best
from verify.verdict import Verdict

if TYPE_CHECKING:
    from verify.gpu.timing import ShapeTimings, Timing


def ledger_section(verdict: Verdict) -> Markup:
    """Bytes of the checked tensors, native, padded and dpl; dead bytes set off."""
    total = ledger(verdict)
    if not total.native:
        return Markup()
    most = max(total.padded, total.dpl)
    rows = [
        _row(
            name,
            _bar([(name, total.native / most), ("dead", (nbytes - total.native) / most)]),
            f"{nbytes:,} bytes, {dead(nbytes, total.native)}" if name != "native" else f"{nbytes:,} bytes",
        )
        for name, nbytes in (("native", total.native), ("padded", total.padded), ("dpl", total.dpl))
    ]
    return element("section", element("h2", "Bytes"), element("div", *rows, class_="chart"))


def speed_section(verdict: Verdict) -> Markup:
    """Decode speeds of every shape that was measured; nothing if none was."""
    if not verdict.bandwidth:
        return Markup()
    fastest = 1.005 * max(timing.content for shape in verdict.bandwidth for timing in shape.timings)
    legend = element(
        "p",
        "Content read per second, 210 bytes a super-block; cold. The line ",
        element("span", class_="key"),
        " is the ceiling: a kernel that only reads the same bytes.",
        class_="legend",
    )
    times = {(use.rows, use.n): use.times for use in verdict.uses}
    shapes = [_shape(shape, times.get((shape.rows, shape.n)), fastest) for shape in verdict.bandwidth]
    token = element("p", token_line(verdict))
    return element("section", element("h2", "Decode speed"), token, legend, *shapes)


def _shape(shape: ShapeTimings, times: int | None, fastest: float) -> Markup:
    ceilings = {timing.layout: timing for timing in shape.timings if timing.form == READ}
    forms: dict[str, list[Timing]] = {}
    for timing in shape.timings:
        if timing.form not in READERS:
            forms.setdefault(timing.form, []).append(timing)
    notes = [f"{times} a token"] if times else []
    if shape.dependent:
        notes.append("dependent launches")
    found = best(shape)
    if {"padded", "dpl"} <= set(found):
        notes.append(
            f"dpl {found['padded'].median / found['dpl'].median:.3f} times as fast as padded, each at its best"
        )
    if shape.fits_l2:
        notes.append("fits the L2: in use it may be read from there")
    if not shape.identical:
        notes.append("the layouts gave different bits")
    charts = [
        element("div", element("h4", form), *(_speed(timing, ceilings, fastest) for timing in timings), class_="chart")
        for form, timings in forms.items()
    ]
    heading = element("h3", f"{shape.rows:,} x {256 * shape.n:,}", element("small", "; ".join(notes)))
    return element("article", heading, *charts)


def _speed(timing: Timing, ceilings: dict[str, Timing], fastest: float) -> Markup:
    ceiling = ceilings.get(timing.layout, ceilings.get("native"))
    words = f"{timing.content:,.0f} GB/s, {timing.median:.2f} us, {timing.share:.1%} of the ceiling"
    if timing.above_ceiling:
        words += "; above it, not to be trusted"
    place = ceiling.content / fastest if ceiling else None
    return _row(timing.layout, _bar([(timing.layout, timing.content / fastest)], place), words)


def _row(label: str, bar: Markup, words: str) -> Markup:
    return element("div", element("b", label), bar, element("span", words), class_="row")


def _bar(parts: list[tuple[str, float]], line: float | None = None) -> Markup:
    """Draw parts one after the other, and a line across; all are shares of the full width."""
    shapes, start = [element("rect", width="100%", height="100%", class_="track")], 0.0
    for name, share in parts:
        shapes.append(element("rect", x=f"{start:.3%}", width=f"{share:.3%}", height="100%", class_=name))
        start += share
    if line is not None:
        x = f"{line:.3%}"
        shapes.append(element("line", x1=x, x2=x, y1="0", y2="100%", class_="ceiling"))
    return element("svg", joined(*shapes), class_="bar", aria_hidden="true")
