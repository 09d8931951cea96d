"""Stage bandwidth: every type and shape of the sidecar measured on the GPU, as one token uses them.

Figures never decide. What keeps them from being measured is the reason why the stage is skipped; only bits that differ
between the layouts are a failure, and one of stage decode.
"""

from __future__ import annotations

from collections.abc import Sequence

from repack.command.ledger import rows_of_a_token
from repack.errors import Differs, as_failure
from repack.gguf.index import GGUFIndex
from repack.layout import QuantType
from repack.sidecar.manifest import Entry
from verify.contract.quants import contract_of
from verify.gpu.dependent import can_launch_dependent
from verify.gpu.speeds import Use
from verify.gpu.timing import measure
from verify.verdict import Status, Verdict

NOT_DEPENDENT = "dependent ones need the package cuda-bindings and compute capability 9.0"


def uses(entries: Sequence[Entry], index: GGUFIndex) -> list[Use]:
    """The distinct types and shapes among the tensors that one token is multiplied with, where there is a kernel.

    Of an expert stack only the experts that are used count, and a table of which one row is looked up does not.
    """
    counts: dict[tuple[QuantType, int, int], int] = {}
    for entry in entries:
        contract = contract_of(entry.quant)
        rows = rows_of_a_token(entry, index)
        if entry.nbytes and contract is not None and contract.has_kernel and (rows > 1 or entry.rows == 1):
            key = entry.quant, rows, entry.n
            counts[key] = counts.get(key, 0) + 1
    return [Use(*key, times) for key, times in counts.items()]


def check_bandwidth(found: Sequence[Use], l2_bytes: int, verdict: Verdict) -> None:
    """Measure every shape on the current device, with dependent launches as well where they can be made."""
    if any(outcome.status is Status.FAILED for outcome in verdict.outcomes):
        verdict.skipped("bandwidth", "not measured, because a check failed")
        return
    if not found:
        verdict.skipped("bandwidth", "no tensor that a token is multiplied with and for whose type there is a kernel")
        return
    verdict.uses += found
    try:
        launches = (False, True) if can_launch_dependent() else (False,)
        for use, dependent in ((use, dependent) for use in found for dependent in launches):
            timings = measure(use.quant, use.rows, use.n, l2_bytes, dependent=dependent)
            if not timings.identical:
                where = f"{use.quant.name} {use.rows} x {use.quant.block_weights * use.n}, random weights"
                verdict.failed(
                    "decode", Differs("the layouts gave different bits while they were measured", where=where)
                )
                verdict.skipped("bandwidth", "ended, because the layouts gave different bits")
                return
            verdict.bandwidth.append(timings)
    except Exception as error:  # whatever it is, what was proven before stays proven
        verdict.skipped("bandwidth", f"not measured: {as_failure(error)}")
        return
    how = "ordinary and dependent launches" if len(launches) == 2 else f"ordinary launches only: {NOT_DEPENDENT}"
    verdict.passed("bandwidth", detail=f"{len(found)} shape{'s' * (len(found) > 1)} measured, {how}")
