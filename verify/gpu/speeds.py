"""How fast shapes were decoded, and what that makes for one token. Facts and sums; nothing is measured here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from repack.layout import QuantType
from verify.contract.forms import LAYOUTS

STAGED = "staged"
"""The native layout again, its rows copied to shared memory first; form `row` only."""
READ = "read"
WAITING = "waiting"
"""Dependent launches only: the same, but waiting for a word of the kernel before, as a decode must."""
READERS = (READ, WAITING)


@dataclass(frozen=True, slots=True)
class Timing:
    """One kernel over one layout. Times in microseconds a launch; GB are 10^9 bytes."""

    form: str
    """A form, or one of `READERS` for kernels that only read."""
    layout: str
    minimum: float
    median: float
    maximum: float
    content: float
    """GB/s of content: the blocks' own bytes."""
    moved: float
    """GB/s of all bytes of the layout."""
    share: float
    """The read-only kernel's time over the same bytes, divided by this time."""

    @property
    def above_ceiling(self) -> bool:
        """Faster than reading the same bytes: the figure is not to be trusted."""
        return self.form not in READERS and self.share > 1


@dataclass(frozen=True, slots=True)
class ShapeTimings:
    """All timings for one type and shape."""

    quant: QuantType
    rows: int
    n: int
    """Blocks in a row."""
    fits_l2: bool
    """The tensor is smaller than the L2: in use it may be read from there, so these cold figures say less."""
    copies: int
    """Copies of the weights that were rotated, in the layout with the fewest."""
    launches: int
    """Launches in a graph, in the layout with the fewest."""
    identical: bool
    """Every form gave the same bits over all layouts here."""
    timings: tuple[Timing, ...]
    dependent: bool = False
    """Each launch depends on the one before (verify/gpu/dependent.py)."""


@dataclass(frozen=True, slots=True)
class Use:
    """How one token uses the tensors of one type and shape."""

    quant: QuantType
    rows: int
    n: int
    """Blocks in a row."""
    times: int
    """Tensors of this type and shape that one token is multiplied with."""


def best(shape: ShapeTimings) -> dict[str, Timing]:
    """The fastest decode of a shape from each layout that was timed (staged counts as native)."""
    found: dict[str, Timing] = {}
    for timing in shape.timings:
        layout = "native" if timing.layout == STAGED else timing.layout
        if timing.form not in READERS and (layout not in found or timing.median < found[layout].median):
            found[layout] = timing
    return found


def token_milliseconds(uses: Sequence[Use], shapes: Sequence[ShapeTimings]) -> dict[str, float]:
    """Milliseconds that one token's products take in each layout: for each shape its fastest form, times its uses.

    With ordinary launches, whatever else was measured. A layout that was not timed for every use is left out.
    """
    times = {(shape.quant, shape.rows, shape.n): best(shape) for shape in shapes if not shape.dependent}
    return {
        layout: sum(times[use.quant, use.rows, use.n][layout].median * use.times for use in uses) / 1e3
        for layout in LAYOUTS
        if uses and all(layout in times.get((use.quant, use.rows, use.n), {}) for use in uses)
    }
