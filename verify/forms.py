"""The kernel forms, where each applies, and how the tuned one is configured for a shape."""

from __future__ import annotations

from dataclasses import dataclass

WARP = 32
LAYOUTS = ("native", "padded", "dpl")
FORM_NAMES = ("loop", "pf", "row")
MANY_ROWS = 65_536


@dataclass(frozen=True, slots=True)
class Form:
    """One way to compute a matrix-vector product; `name` and `lanes` alone determine its bits."""

    name: str
    """`loop`, `pf` or `row`."""
    lanes: int = 256
    """Threads that share a row."""
    quarters: int = 1
    """`row`: quarter super-blocks that a lane has in flight at once."""
    threads: int = 256
    """Threads in a block; ``threads / lanes`` rows."""

    def __post_init__(self) -> None:
        lanes = self.lanes
        if lanes < 1 or (lanes % WARP if lanes > WARP else lanes & (lanes - 1)):
            raise ValueError(f"{lanes} lanes: expected a power of two up to {WARP}, or whole warps")
        if self.threads % lanes or self.threads % WARP or not 0 < self.threads <= 1024:
            raise ValueError(f"{self.threads} threads: expected whole rows of {lanes} lanes, whole warps, at most 1024")

    def __str__(self) -> str:
        return f"row({self.lanes},{self.quarters},{self.threads})" if self.name == "row" else self.name

    @property
    def defines(self) -> tuple[str, ...]:
        """Compiler options for row.cu."""
        return f"-DDPL_LANES={self.lanes}", f"-DDPL_QUARTERS={self.quarters}", f"-DDPL_THREADS={self.threads}"

    @property
    def rows_per_block(self) -> int:
        """Rows that one thread block computes."""
        return self.threads // self.lanes


LOOP = Form("loop")
PF = Form("pf")


def pf_applies(n: int) -> bool:
    """The reference engine's gate, 8192 < id <= 16384: every thread has one or two of the 8 n units."""
    return 256 < 8 * n <= 512


def row_form(n: int, rows: int) -> Form:
    """Choose the configuration of `row` for `rows` rows of `n` super-blocks.

    One quarter a lane up to 160 lanes, then two: enough loads in flight, and little time between a block's first load
    and its last instruction. Lanes in whole warps (up to 32, a power of two), at most 256; longer rows take more turns.
    The exception is a very tall matrix whose 65 to 80 quarters would leave a sixth of three warps idle: 16 lanes with
    five quarters each fit.
    """
    quarters = 4 * n
    if rows >= MANY_ROWS and 64 < quarters <= 80:
        return Form("row", 16, 5, 64)
    each = 1 if quarters <= 160 else 2
    wanted = -(-quarters // each)
    lanes = 1 << (wanted - 1).bit_length() if wanted <= WARP else min(-(-wanted // WARP) * WARP, 256)
    return Form("row", lanes, each, max(lanes, 64))


def forms_for(n: int, rows: int, names: tuple[str, ...] = FORM_NAMES) -> tuple[Form, ...]:
    """Return the forms called `names` that apply to a tensor, in the order of `FORM_NAMES`."""
    forms = (LOOP, *((PF,) if pf_applies(n) else ()), row_form(n, rows))
    return tuple(form for form in forms if form.name in names)
