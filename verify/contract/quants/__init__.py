"""What each type means when it is decoded, one file a type: its weights in float64, and what `row` makes of them.

A lane of `row` takes one *unit* of weights at a time and makes one float32 of it. The type says how many weights that
is, how integer sums and float steps give the value, and in which order the kernel wants the activations. How values
become a row's sum is shared (verify/contract/emulation.py).
"""

from __future__ import annotations

from repack.layout import QuantType
from verify.contract.quants import iq4_nl, iq4_xs, mxfp4, q2_k, q3_k, q4_0, q4_1, q5_0, q5_1, q6_k, q8_0
from verify.contract.quants.contract import Contract

_CONTRACTS = {
    contract.quant.number: contract
    for contract in (
        q4_0.CONTRACT,
        q4_1.CONTRACT,
        q5_0.CONTRACT,
        q5_1.CONTRACT,
        q8_0.CONTRACT,
        q2_k.CONTRACT,
        q3_k.CONTRACT,
        q6_k.CONTRACT,
        iq4_nl.CONTRACT,
        iq4_xs.CONTRACT,
        mxfp4.CONTRACT,
    )
}


def contract_of(quant: QuantType) -> Contract | None:
    """The contract of a type, None for one that is not in the table."""
    return _CONTRACTS.get(quant.number)
