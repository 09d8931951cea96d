"""Nothing on our streams may run ahead of what was put on another one."""

from __future__ import annotations

import numpy as np
import pytest

from tests.gpu.test_decode import assert_same_as_cpu, rows_of
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


def test_activations_that_arrive_late_are_waited_for() -> None:
    """The vectors are copied on the default stream; here that one is busy for some 100 ms before."""
    preflight()
    n, rows = 54, 37
    native, vectors = random_rows(rows, n), [seeded(n, 1)]
    forms = forms_for(n, rows)
    spin = cupy.RawModule(code=SPIN).get_function("spin")
    check_tensor(rows_of(native, n), [seeded(n, 2)], forms)  # compiles the kernels, and leaves another vector behind
    spin((1,), (1,), (np.int64(200_000_000),))
    assert_same_as_cpu(check_tensor(rows_of(native, n), vectors, forms), native, n, vectors, forms)
