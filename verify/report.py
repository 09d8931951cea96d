"""One verdict, shown."""

from __future__ import annotations

from repack.console import Console, error_line
from repack.errors import shown
from verify.verdict import STAGES, Status, Verdict

_PER_TENSOR = ("digests", "bytes", "padding", "decode", "oracle")
_WORDS = {Status.PASSED: "passed", Status.FAILED: "FAILED", Status.SKIPPED: "skipped"}


def show(verdict: Verdict, console: Console) -> None:
    """Print a verdict: the stages, the tensors, what failed, and one closing line."""
    console.table(("stage", "result", "detail"), [_stage_row(verdict, stage) for stage in STAGES])
    if verdict.tensors:
        rows = [_tensor_row(verdict, index) for index in range(len(verdict.tensors))]
        console.table(("tensor", "ne", "bytes", *_PER_TENSOR), rows, right=(2,))
    for outcome in verdict.outcomes:
        if outcome.status is Status.FAILED:
            error_line(f"{outcome.stage}: {outcome.detail}")
    console.verdict(closing_line(verdict), good=not verdict.exit_code)


def closing_line(verdict: Verdict) -> str:
    """The verdict in one sentence."""
    count = len(verdict.tensors)
    if verdict.exit_code:
        failed = sum(outcome.status is Status.FAILED for outcome in verdict.outcomes)
        return f"NOT PROVEN: {failed} checks failed" if failed else "NOT PROVEN: nothing was compared"
    if verdict.model is None:
        return f"SOUND: {count} tensors match the manifest; that they equal a GGUF is not proven without it"
    return (
        f"PROVEN: {count} tensors, {verdict.bytes_compared:,} bytes, equal the model's "
        f"({verdict.seconds:.2f} s, {verdict.bytes_compared / max(verdict.seconds, 1e-9) / 1e9:.2f} GB/s)"
    )


def _stage_row(verdict: Verdict, stage: str) -> tuple[str, str, str]:
    outcomes = list(verdict.of(stage))
    status = next(
        (wanted for wanted in (Status.FAILED, Status.PASSED) if any(o.status is wanted for o in outcomes)),
        Status.SKIPPED,
    )
    matching = [outcome for outcome in outcomes if outcome.status is status]
    if len(matching) == 1 and matching[0].tensor is None:
        detail = matching[0].detail
    else:
        detail = f"{len(matching)} of {len(outcomes)} tensors"
    return stage, _WORDS[status], detail


def _tensor_row(verdict: Verdict, index: int) -> tuple[str, ...]:
    tensor = verdict.tensors[index]
    results = {outcome.stage: outcome.status for outcome in verdict.outcomes if outcome.tensor == tensor.name}
    words = (_WORDS[results.get(stage, Status.SKIPPED)] for stage in _PER_TENSOR)
    return shown(tensor.name)[1:-1], " x ".join(map(str, tensor.ne)), f"{tensor.nbytes:,}", *words
