"""What is put to the GPU for one tensor, and what comes of it. No CUDA here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from repack.layout import QuantType
from repack.rows import Bytes
from verify.contract.activations import Activations
from verify.contract.emulation import Bits
from verify.contract.forms import LAYOUTS, Form

Reader = Callable[[int, int, Bytes], None]
"""``read(row0, row1, out)`` fills out, uint8 ``[row1 - row0, row bytes]``."""

UNWRITTEN = 0xFFFFFFFF
"""What outputs are filled with before decoding: a NaN with its sign set, which no operation of a GPU yields."""
NOTHING = 2**64 - 1
"""What the device's searches for a first place return when there is none."""


@dataclass(frozen=True, slots=True)
class TensorRows:
    """Where the rows of one tensor come from, in both layouts."""

    name: str
    quant: QuantType
    n: int
    """Blocks in a row, at least 1."""
    rows: int
    read_native: Reader
    read_dpl: Reader


@dataclass(frozen=True, slots=True)
class ByteDifference:
    """The first place where the dpl rows on the device are not what the native rows say."""

    row: int
    block: int
    """-1 in the padding."""
    field: str
    """A field's name, or `padding`."""
    byte: int
    """Offset in the field."""


@dataclass(frozen=True, slots=True)
class Output:
    """One output value: of which form and layout, for which activations, in which row."""

    form: Form
    layout: str
    activations: str
    row: int


@dataclass(frozen=True, slots=True)
class Seconds:
    """Where the time went. The host's reading and the device's work overlap; the parts need not sum to the whole."""

    total: float = 0.0
    read: float = 0.0
    upload: float = 0.0
    compare: float = 0.0
    decode: float = 0.0


@dataclass(frozen=True, slots=True)
class TensorResult:
    """What the GPU says about one tensor."""

    bits: dict[Form, Bits]
    """For each form the outputs over the native layout, uint32 ``[vectors, rows]``."""
    difference: ByteDifference | None
    mismatches: tuple[Output, ...]
    """For each form and layout the first output that is not the native layout's, over the whole tensor."""
    unwritten: tuple[Output, ...]
    """For each form and layout the first output that the kernel left alone."""
    seconds: Seconds

    @property
    def proven(self) -> bool:
        """All layouts hold the same bytes and every form gave the same bits on them."""
        return self.difference is None and not self.mismatches and not self.unwritten


class Results:
    """Collects what the chunks of a tensor show, in the order of the rows."""

    def __init__(self, tensor: TensorRows, vectors: Sequence[Activations], forms: Sequence[Form]) -> None:
        self.tensor, self.vectors, self.forms = tensor, vectors, forms
        self.bits = {form: np.full((len(vectors), tensor.rows), UNWRITTEN, np.uint32) for form in forms}
        self.difference: ByteDifference | None = None
        self.mismatches: dict[tuple[Form, str], Output] = {}
        self.unwritten: dict[tuple[Form, str], Output] = {}
        self.seconds = np.zeros(4)

    def add_difference(self, row0: int, first: int) -> None:
        """`first`: byte offset over the chunk's dpl rows, or all ones."""
        if first != NOTHING and self.difference is None:
            quant, n = self.tensor.quant, self.tensor.n
            row, byte = divmod(first, quant.row_stride(n))
            block, field, rest = quant.locate(byte, n)
            self.difference = ByteDifference(row0 + row, block, field.name if field else "padding", rest)

    def add_outputs(self, row0: int, bits: Bits, firsts: npt.NDArray[np.uint64]) -> None:
        """bits: native outputs ``[forms, vectors, rows]``; firsts: ``[layouts, forms, 2]``, as `check` left them."""
        count = bits.shape[-1]
        for f, form in enumerate(self.forms):
            self.bits[form][:, row0 : row0 + count] = bits[f]
            for number, layout in enumerate(LAYOUTS):
                for found, first in zip((self.mismatches, self.unwritten), firsts[number, f].tolist(), strict=True):
                    if first != NOTHING:
                        vector, row = divmod(first, count)
                        output = Output(form, layout, self.vectors[vector].name, row0 + row)
                        found.setdefault((form, layout), output)

    def finish(self, total: float) -> TensorResult:
        """Everything found, in one piece."""
        return TensorResult(
            self.bits,
            self.difference,
            tuple(self.mismatches.values()),
            tuple(self.unwritten.values()),
            Seconds(total, *map(float, self.seconds)),
        )
