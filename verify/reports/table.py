"""A verdict for a person at a terminal, or for the log of a job."""

from __future__ import annotations

from repack.command.console import Console, error_line
from repack.command.ledger import LEDGER_HEADER
from repack.errors import plain
from verify.reports.speeds import NOTE, TIMING_HEADER, gain_header, gain_rows, timing_rows, token_line
from verify.reports.summary import (
    TensorSummary,
    closing_line,
    dimensions,
    file_name,
    ledger_rows,
    meaning,
    problems,
    stages,
    tensors,
)
from verify.verdict import Status, Verdict

MOST_ERRORS = 20
"""Error lines shown; the tables and the other reports hold all of them."""
WORDS = {Status.PASSED: "passed", Status.FAILED: "FAILED", Status.SKIPPED: "skipped"}


def show(verdict: Verdict, console: Console) -> None:
    """Print a verdict: what was compared, the stages, the tensors, the speeds, what failed, and one closing line."""
    _facts(verdict, console)
    rows = [(stage.stage, WORDS[stage.status], stage.detail) for stage in stages(verdict)]
    console.table(("stage", "result", "detail"), rows)
    if verdict.no_gpu:
        console.paragraph(f"No GPU was used: {plain(verdict.no_gpu)}")
    if verdict.tensors:
        console.table(LEDGER_HEADER, ledger_rows(verdict), right=range(1, 7))
        rows_of_tensors = [_tensor_row(summary) for summary in tensors(verdict)]
        console.table(("tensor", "type", "ne", "bytes", "result", "checks"), rows_of_tensors, right=(3,))
    if verdict.bandwidth:
        console.table(TIMING_HEADER, timing_rows(verdict), right=(3, 5, 6, 7))
        console.table(gain_header(verdict), gain_rows(verdict), right=range(1, 8))
        for text in filter(None, (NOTE, token_line(verdict))):
            console.paragraph(text)
    errors = problems(verdict)
    for outcome in errors[:MOST_ERRORS]:
        error_line(f"{outcome.stage}: {plain(outcome.detail)}")
    if len(errors) > MOST_ERRORS:
        error_line(f"{len(errors) - MOST_ERRORS} more checks failed; --json FILE lists all")
    console.verdict(closing_line(verdict), good=not verdict.exit_code)


def _facts(verdict: Verdict, console: Console) -> None:
    title = file_name(verdict.sidecar)
    if verdict.model is not None:
        title = f"{title} against {file_name(verdict.model)}"
    facts = []
    if verdict.gpu:
        facts.append(("gpu", plain(verdict.gpu["gpu name"])))
    if not verdict.exit_code:
        facts.append(("proves", meaning(verdict)))
    console.facts(title, facts)


def _tensor_row(summary: TensorSummary) -> tuple[str, ...]:
    tensor, status = summary.tensor, summary.status
    unusual = f"; {tensor.nonfinite_scales:,} scales not finite" if tensor.nonfinite_scales else ""
    checks = ", ".join(summary.stages(status)) + unusual
    return (
        plain(tensor.name), summary.type_name, dimensions(tensor.ne), f"{tensor.nbytes:,}", WORDS[status], checks,
    )  # fmt: skip
