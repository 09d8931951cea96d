"""Stage bandwidth: every distinct shape of the model measured on the GPU, and what that makes for one token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from repack.errors import EnvironmentFailure
from repack.gguf.header import Scalar
from repack.layout import DEFAULT
from repack.sidecar.manifest import Entry
from verify.gpu.dependent import can_launch_dependent
from verify.gpu.speeds import Use
from verify.gpu.timing import measure
from verify.verdict import Verdict

NOT_DEPENDENT = "dependent ones need cuda.bindings (extra `dependent`) and compute capability 9.0"


def uses(entries: Sequence[Entry], metadata: Mapping[str, Scalar]) -> list[Use]:
    """The distinct shapes among the model's tensors, as one token uses them.

    Of an expert stack (3-D) only ``expert_used_count`` experts are read, where the metadata has it. A token embedding
    is not multiplied if there is an output matrix of its own; it is measured but counted 0 times.
    """
    names = {entry.name for entry in entries}
    used = metadata.get(f"{metadata.get('general.architecture')}.expert_used_count")
    counts: dict[tuple[int, int], int] = {}
    for entry in entries:
        if not entry.nbytes:
            continue
        rows = entry.rows
        if len(entry.ne) == 3 and isinstance(used, int) and 0 < used < entry.ne[2]:
            rows = entry.ne[1] * used
        looked_up = entry.name == "token_embd.weight" and "output.weight" in names
        counts[rows, entry.n] = counts.get((rows, entry.n), 0) + (not looked_up)
    return [Use(DEFAULT, rows, n, times) for (rows, n), times in counts.items()]


def check_bandwidth(found: Sequence[Use], l2_bytes: int, verdict: Verdict) -> None:
    """Measure every shape on the current device, with dependent launches as well where they can be made.

    Figures decide nothing, unless the bits differ while measuring.
    """
    launches = (False, True) if can_launch_dependent() else (False,)
    for use, dependent in ((use, dependent) for use in found for dependent in launches):
        try:
            timings = measure(use.rows, use.n, l2_bytes, dependent=dependent)
        except EnvironmentFailure as error:
            verdict.failed("bandwidth", error)
            return
        verdict.bandwidth.append(timings)
        if not timings.identical:
            what = "the layouts gave different bits while they were measured"
            verdict.failed("bandwidth", EnvironmentFailure(what, where=f"{use.rows} x {256 * use.n}"))
            return
    verdict.uses += found
    how = "ordinary and dependent launches" if len(launches) == 2 else f"ordinary launches only: {NOT_DEPENDENT}"
    verdict.passed("bandwidth", detail=f"{len(found)} shapes measured, {how}")
