"""Tensors for the tests on a GPU: rows in arrays, forms that no rule chooses, and what the CPU makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from repack.layout import DEFAULT, TYPES, QuantType, align
from repack.rows import Bytes
from tests.support.rows import packed
from verify.contract.activations import Activations
from verify.contract.emulation import as_bits, decode_digest, decode_forms
from verify.contract.forms import Form, row_form
from verify.contract.quants import contract_of
from verify.gpu.findings import TensorResult, TensorRows
from verify.gpu.launch import packer


def _has_kernel(quant: QuantType) -> bool:
    contract = contract_of(quant)
    return contract is not None and contract.has_kernel


KERNELS = [quant for quant in TYPES.values() if _has_kernel(quant)]
"""The types that can be decoded."""
EXTRA_FORMS = [Form("row", 16, 5, 64), Form("row", 256, 1, 256), Form("row", 4, 2, 128), Form("row", 96, 3, 384)]
"""Not what any rule chooses, for rows of any length."""


def extra_plans(quant: QuantType, n: int) -> list[Form]:
    """The plans that a rule does not choose for rows of this length: two rows at once, and a walk."""
    whole = row_form(quant, n, 1)
    if whole.plan == "turns":
        return []
    threads = whole.lanes * max(1, 128 // whole.lanes)
    plans = [Form("row", whole.lanes, whole.units, threads, 2, 1, "once")]
    return plans + ([Form("row", whole.lanes, 1, threads, 1, 1, "walk")] if whole.units == 1 else [])


def rows_of(native: Bytes, n: int, quant: QuantType = DEFAULT, dpl: Bytes | None = None) -> TensorRows:
    """A tensor that is read from arrays."""
    dpl = packed(native, n, quant) if dpl is None else dpl

    def read_native(row0: int, row1: int, out: Bytes) -> None:
        out[:] = native[row0:row1]

    def read_dpl(row0: int, row1: int, out: Bytes) -> None:
        out[:] = dpl[row0:row1]

    return TensorRows("t.weight", quant, n, len(native), read_native, read_dpl)


def assert_same_as_cpu(
    result: TensorResult, native: Bytes, tensor: TensorRows, vectors: Sequence[Activations], forms: Sequence[Form]
) -> None:
    assert result.proven, (result.difference, result.mismatches, result.unwritten)
    expected = decode_forms(tensor.quant, native, tensor.n, vectors, forms)
    for form in forms:
        np.testing.assert_array_equal(as_bits(result.bits[form]), as_bits(expected[form]), str(form))
        assert decode_digest([result.bits[form]]) == decode_digest([expected[form]])


def stored(vector: Activations, quant: QuantType, form: str = "row") -> Any:
    """Activations on the device, followed by zeros up to a multiple of 16 bytes."""
    import cupy

    packed_vector = packer(quant, form)(vector)
    out = cupy.zeros(align(packed_vector.nbytes), np.uint8)
    out[: packed_vector.nbytes].set(packed_vector)
    return out


def poke(array: Any, byte: int) -> None:
    """Flip a bit on the device."""
    host = array[byte : byte + 1].get()
    array[byte : byte + 1].set(host ^ 0x40)
