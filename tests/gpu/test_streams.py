"""Nothing on our streams may run ahead of what was put on another one."""

from __future__ import annotations

import numpy as np
import pytest

from repack.layout import TYPES, QuantType
from tests.gpu.tensors import assert_same_as_cpu, rows_of
from tests.support.rows import random_rows
from verify.contract.activations import seeded
from verify.contract.forms import forms_for
from verify.gpu.device import preflight
from verify.gpu.tensor import check_tensor

cupy = pytest.importorskip("cupy")
pytestmark = pytest.mark.gpu

SPIN = """
extern "C" __global__ void spin(long long cycles) {
    const long long start = clock64();
    while (clock64() - start < cycles) {}
}
"""


@pytest.mark.parametrize("quant", [TYPES[14], TYPES[8]], ids=lambda quant: quant.name)
def test_activations_that_arrive_late_are_waited_for(quant: QuantType) -> None:
    """The vectors are copied on the default stream; here that one is busy for some 100 ms before."""
    preflight()
    n, rows = 54, 37
    weights = quant.block_weights * n
    native, vectors = random_rows(rows, n, quant=quant), [seeded(weights, 1)]
    forms, tensor = forms_for(quant, n, rows), rows_of(native, n, quant)
    spin = cupy.RawModule(code=SPIN).get_function("spin")
    check_tensor(tensor, [seeded(weights, 2)], forms)  # compiles the kernels, and leaves another vector behind
    spin((1,), (1,), (np.int64(200_000_000),))
    assert_same_as_cpu(check_tensor(tensor, vectors, forms), native, tensor, vectors, forms)
