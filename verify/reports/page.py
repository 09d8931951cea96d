"""A verdict to look at: one HTML page that needs nothing but itself. Style and script are fixed by their digests."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from repack.command.ledger import LEDGER_HEADER, dead
from repack.errors import plain
from repack.version import VERSION
from verify.gpu.speeds import READ, READERS, ShapeTimings, Timing, best
from verify.reports.speeds import shape_name, times_a_token, token_line
from verify.reports.summary import (
    closing_line,
    file_name,
    ledger_rows,
    meaning,
    problems,
    result,
    stages,
    tensors,
    total,
)
from verify.verdict import STAGES, Status, Verdict

_Bar = tuple[Any, ...]
"""What the macro `bar` takes: label; parts (class, start, width); words; where a line crosses. Shares of the width."""


def to_html(verdict: Verdict) -> str:
    """The page, ASCII only."""
    style, script = _resource("page.css"), _resource("page.js")
    word, _, sentence = closing_line(verdict).partition(": ")
    rows = sorted(tensors(verdict), key=lambda summary: summary.status is not Status.FAILED)
    return (
        _environment()
        .from_string(_resource("page.html"))
        .render(
            policy=f"default-src 'none'; img-src data:; style-src '{_digest(style)}'; script-src '{_digest(script)}'",
            style=Markup(style),  # noqa: S704 - our own file
            script=Markup(script),  # noqa: S704
            version=VERSION,
            verdict=verdict,
            result=result(verdict),
            names=[file_name(path) for path in (verdict.model, verdict.sidecar) if path is not None],
            word=word,
            sentence=sentence,
            meaning=meaning(verdict),
            problems=problems(verdict),
            stages=stages(verdict),
            ledger=_ledger(verdict) if verdict.tensors else (),
            ledger_header=LEDGER_HEADER,
            ledger_rows=ledger_rows(verdict),
            token=token_line(verdict),
            shapes=_shapes(verdict),
            tensors=rows,
            checks=[stage for stage in STAGES if any(stage in summary.outcomes for summary in rows)],
            circumstances=_circumstances(verdict),
        )
    )


def _environment() -> Environment:
    """Jinja2, so that text from outside cannot become markup, nor anything but printable ASCII."""
    environment = Environment(
        autoescape=True,
        finalize=lambda value: value if isinstance(value, Markup) else plain(str(value)),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["percent"] = lambda share: f"{share:.3%}"
    environment.filters["number"] = lambda count: f"{count:,}"
    return environment


def _resource(name: str) -> str:
    return files("verify.reports").joinpath(name).read_text("ascii")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("ascii")).digest()).decode("ascii")


def _ledger(verdict: Verdict) -> list[_Bar]:
    """Bytes of all checked tensors in each layout as bars, dead bytes set off."""
    found = total(verdict)
    most = max(found.padded, found.dpl, 1)
    bars: list[_Bar] = [("native", [("native", 0, found.native / most)], f"{found.native:,} bytes")]
    for name, nbytes in (("padded", found.padded), ("dpl", found.dpl)):
        parts = [(name, 0, found.native / most), ("dead", found.native / most, (nbytes - found.native) / most)]
        bars.append((name, parts, f"{nbytes:,} bytes, {dead(nbytes, found.native)} dead"))
    return bars


def _shapes(verdict: Verdict) -> list[dict[str, Any]]:
    """Decode speeds of every type and shape that was measured, as bars; all on one scale."""
    fastest = 1.005 * max((timing.content for shape in verdict.bandwidth for timing in shape.timings), default=1)
    return [
        {
            "name": shape_name(shape),
            "notes": _notes(shape, times_a_token(verdict, shape)),
            "forms": _forms(shape, fastest),
        }
        for shape in verdict.bandwidth
    ]


def _notes(shape: ShapeTimings, times: int) -> list[str]:
    notes = [f"{times} in a token"] if times else []
    found = best(shape)
    if {"padded", "dpl"} <= set(found):
        ratio = found["padded"].median / found["dpl"].median
        notes.append(f"dpl {ratio:.3f} times as fast as padded, each with its fastest form")
    if shape.fits_l2:
        notes.append("fits the L2: in use it may be read from there")
    if not shape.identical:
        notes.append("the layouts gave different bits")
    return notes


def _forms(shape: ShapeTimings, fastest: float) -> dict[str, list[_Bar]]:
    ceilings = {timing.layout: timing for timing in shape.timings if timing.form == READ}
    forms: dict[str, list[_Bar]] = {}
    for timing in shape.timings:
        if timing.form not in READERS:
            ceiling = ceilings.get(timing.layout, ceilings.get("native"))
            line = ceiling.content / fastest if ceiling else None
            part = (timing.layout, 0, timing.content / fastest)
            forms.setdefault(timing.form, []).append((timing.layout, [part], _words(timing), line))
    return forms


def _words(timing: Timing) -> str:
    words = f"{timing.content:,.0f} GB/s, {timing.median:.2f} us, {timing.share:.1%} of reading"
    return f"{words}; above the ceiling, not to be trusted" if timing.above_ceiling else words


def _circumstances(verdict: Verdict) -> list[tuple[str, str]]:
    facts = {"sidecar": verdict.sidecar} | ({} if verdict.model is None else {"model": verdict.model})
    facts |= {f"--{key}": _option(value) for key, value in verdict.options.items()}
    facts |= {key: value for key, value in verdict.environment.items() if key != "gpu"}  # that stands above
    facts |= {f"{name}, seconds": f"{seconds:.3f}" for name, seconds in verdict.timings.items()}
    return list(facts.items())


def _option(value: str | int | list[str] | None) -> str:
    if isinstance(value, list):
        return ", ".join(value) or "none"
    return "all" if value is None else str(value)
