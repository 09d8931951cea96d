"""The kernel forms, where each applies, and how the tuned one is configured for a type and shape."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from repack.layout import DEFAULT, QuantType
from verify.contract.quants import contract_of

WARP = 32
LAYOUTS = ("native", "padded", "dpl")
FORM_NAMES = ("loop", "pf", "row")
PLANS = ("turns", "once", "walk")


@dataclass(frozen=True, slots=True)
class Form:
    """One way to compute a matrix-vector product; `name` and `lanes` alone determine its bits."""

    name: str
    """`loop`, `pf` or `row`."""
    lanes: int = 256
    """Threads that share a row."""
    units: int = 1
    """`row`: units of weights that a lane has in flight at once."""
    threads: int = 256
    """Threads in a block; ``threads / lanes`` groups."""
    rows: int = 1
    """`row`: rows that a group of lanes takes at once; in a walk, rows that it has in flight."""
    blocks: int = 1
    """`row`: blocks a multiprocessor that the compiler must leave registers for."""
    plan: str = "turns"
    """`row`: in `turns` over rows of any length; `once`, which a row must fit; or `walk`, too: ``blocks`` blocks a
    multiprocessor go over all rows."""

    def __post_init__(self) -> None:
        lanes = self.lanes
        if lanes < 1 or (lanes % WARP if lanes > WARP else lanes & (lanes - 1)):
            raise ValueError(f"{lanes} lanes: expected a power of two up to {WARP}, or whole warps")
        if self.threads % lanes or self.threads % WARP or not 0 < self.threads <= 1024:
            raise ValueError(f"{self.threads} threads: expected whole rows of {lanes} lanes, whole warps, at most 1024")
        if self.plan not in PLANS:
            raise ValueError(f"plan {self.plan}: expected one of {PLANS}")

    def __str__(self) -> str:
        if self.name != "row":
            return self.name
        numbers = f"{self.lanes},{self.units},{self.threads}"
        numbers += f",{self.rows},{self.blocks}" if self.rows * self.blocks > 1 else ""
        return f"row({numbers}{'' if self.plan == 'turns' else ',' + self.plan})"

    @property
    def defines(self) -> tuple[str, ...]:
        """Compiler options for row.cu."""
        values = {
            "LANES": self.lanes,
            "UNITS": self.units,
            "THREADS": self.threads,
            "ROWS": self.rows,
            "BLOCKS": self.blocks,
            "PLAN": PLANS.index(self.plan),
        }
        return tuple(f"-DDPL_{name}={value}" for name, value in values.items())

    def options(self, rows: int, n: int, dependent: bool) -> tuple[str, ...]:
        """Compiler options for row.cu if it is only for such rows, such a number of them, and one kind of launch.

        The instruction that waits also keeps loads where they are written. Only a lane with one unit can do without:
        with two, or in a walk, the compiler would fetch later.
        """
        shape = (f"-DDPL_N={n}",) if self.plan != "turns" else ()
        taken = self.groups * self.rows
        whole = ("-DDPL_WHOLE=1",) if self.plan == "once" and taken > 1 and rows % taken == 0 else ()
        waits = dependent or self.plan != "once" or self.units > 1
        return self.defines + shape + whole + (() if waits else ("-DDPL_DEPENDENT=0",))

    @property
    def groups(self) -> int:
        """Groups of lanes in a thread block."""
        return self.threads // self.lanes

    def grid(self, rows: int, multiprocessors: int) -> int:
        """Thread blocks to launch for `rows` rows."""
        if self.plan == "walk":
            return min(-(-rows // self.groups), self.blocks * multiprocessors)
        return -(-rows // (self.groups * self.rows))

    def fits(self, units: int) -> bool:
        """Say whether rows of `units` units are not too long for the plan."""
        return self.plan == "turns" or units <= self.lanes * self.units


LOOP = Form("loop")
PF = Form("pf")


def pf_applies(n: int) -> bool:
    """The reference engine's gate, 8192 < id <= 16384: every thread has one or two of the 8 n units."""
    return 1 < 8 * n / LOOP.threads <= 2


def units_of(quant: QuantType, n: int) -> int:
    """Units in a row of `n` blocks, for `row`; 0 for a type without a kernel."""
    contract = contract_of(quant)
    return contract.units * n if contract is not None else 0


def whole_lanes(units: int) -> int:
    """Lanes for so many units: a power of two up to a warp, then whole warps."""
    return 1 << max(units - 1, 0).bit_length() if units <= WARP else -(-units // WARP) * WARP


def row_form(quant: QuantType, n: int, rows: int, dependent: bool = False) -> Form:
    """Choose the configuration of `row` for `rows` rows of `n` blocks; `dependent`: for a dependent launch.

    The lanes, and so the bits, depend on the type and on n alone.
    """
    units = units_of(quant, n)
    if quant == DEFAULT:
        return _q6_k_form(units, rows, dependent)
    step = next(step for step in HOPPER.get(quant.number, ANY) if units <= step.units)
    lanes = whole_lanes(-(-units // step.each))
    if lanes > MOST_LANES:
        return Form("row", MOST_LANES, step.each, MOST_LANES)
    threads = lanes if lanes >= step.threads else step.threads // lanes * lanes
    blocks = REGISTERS // (threads * step.registers) if step.registers else 1
    return Form("row", lanes, step.each, threads, step.rows, max(blocks, 1), "once")


def forms_for(quant: QuantType, n: int, rows: int, names: tuple[str, ...] = FORM_NAMES) -> tuple[Form, ...]:
    """Return the forms called `names` that apply to a tensor, in the order of `FORM_NAMES`; none without a kernel."""
    contract = contract_of(quant)
    if contract is None or not contract.has_kernel:
        return ()
    loops = (LOOP, *((PF,) if pf_applies(n) else ())) if contract.loop_values is not None else ()
    forms = (*loops, row_form(quant, n, rows))
    return tuple(form for form in forms if form.name in names)


class Step(NamedTuple):
    """What is best for rows of up to so many units of a type."""

    units: float
    """Units in a row, at most."""
    each: int
    """Units that a lane takes at once."""
    rows: int
    """Rows that a group of lanes takes at once."""
    threads: int = 96
    """Threads in a block, at least about so many."""
    registers: int = 0
    """Registers a thread that the compiler is held to by the number of blocks; 0 leaves it to the compiler."""


MOST_LANES = 640
REGISTERS = 65_536
ANY = (Step(320, 1, 1, 128), Step(math.inf, 2, 1))
"""For a type that nobody has measured."""
_BITS = (Step(128, 1, 2, 128, 48), Step(160, 5, 1, 128), Step(640, 1, 2), Step(math.inf, 2, 2))
_TABLE = (Step(128, 1, 2, threads=256, registers=64), Step(160, 5, 1, 128, 64), Step(math.inf, 2, 2, 96, 64))
HOPPER = {
    2: _BITS,  # Q4_0
    3: _BITS,  # Q4_1
    6: (Step(128, 1, 2, 128, 48), Step(640, 1, 2), Step(math.inf, 2, 2)),  # Q5_0
    7: _BITS,  # Q5_1
    8: (Step(320, 1, 2, threads=256), Step(896, 2, 1), Step(1344, 3, 1), Step(math.inf, 5, 1)),  # Q8_0
    # Q2_K
    10: (Step(32, 1, 1, 128, 64), Step(48, 3, 1, 128, 80), Step(96, 1, 1, 96, 64), Step(math.inf, 1, 2)),
    11: (Step(32, 1, 1, 128), Step(48, 3, 1, 128, 80), Step(math.inf, 1, 1)),  # Q3_K
    20: _TABLE,  # IQ4_NL
    23: _TABLE,  # IQ4_XS
    39: (Step(96, 1, 2, 192, 48), *_TABLE),  # MXFP4
}
"""By ggml's number: what an H200 likes best, ascending by units; docs/lab has the figures. Other chips get the same."""

# Q6_K, measured more closely.
MULTIPROCESSORS = 132
ONE_UNIT_LANES = 416  # one unit a lane up to here
WARPS = 30, 32  # at least so many in flight, of ordinary and of dependent launches: 51 to 68 registers a thread


def _q6_k_form(units: int, rows: int, dependent: bool) -> Form:
    """One unit a lane while a row has at most ONE_UNIT_LANES: a block then lives shortly and many are in flight.

    Narrow rows share a block of 128 threads. Two rows at once where the lanes are many, or many of them are left
    without a unit and there are rows enough, or a dependent launch has few rows, which all fly before it may go on. A
    dependent launch walks if every group of the grid has a second row to fetch and not too many more.
    """
    if units > 480:  # two units a lane; beyond 1024 units, in turns
        lanes = min(whole_lanes(-(-units // 2)), 512)
        blocks = REGISTERS // (lanes * 64)
        return Form("row", lanes, 2, lanes, 1, blocks, "once") if units <= 1024 else Form("row", lanes, 2, lanes)
    lanes = whole_lanes(units)
    if lanes > ONE_UNIT_LANES:
        return Form("row", lanes, 1, lanes, 2, 2, "once")
    if dependent:
        threads = lanes if lanes > 64 else 128 if lanes == 64 else 256
        blocks = REGISTERS // (threads * 56)
        if 1.2 <= rows * lanes / (MULTIPROCESSORS * blocks * threads) < 10:
            return Form("row", lanes, 1, threads, 1, blocks, "walk")
    threads = lanes if lanes > 64 else 128
    if (rows >= 32_768 and units < lanes <= 96) or (dependent and rows <= 2048 and 64 <= lanes <= 128):
        return Form("row", lanes, 1, threads, 2, REGISTERS // (threads * 72), "once")
    if dependent and lanes < 64 and rows <= 2048:  # few blocks: their start is what counts
        threads = 256
    return Form("row", lanes, 1, threads, 1, -(-WARPS[dependent] * WARP // threads), "once")
