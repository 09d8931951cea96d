"""A verdict in Markdown, for a job summary or a comment. Text from outside stands in code spans and blocks only."""

from __future__ import annotations

from collections.abc import Sequence

from verify.reports.speeds import GAIN_HEADER, TIMING_HEADER, gain_rows, timing_rows, token_line
from verify.reports.summary import (
    closing_line,
    dead,
    dimensions,
    file_name,
    ledger,
    meaning,
    plain,
    problems,
    stages,
    tensors,
)
from verify.verdict import Status, Verdict

MARKS = {Status.PASSED: "passed", Status.FAILED: "**FAILED**", Status.SKIPPED: "skipped"}


def to_markdown(verdict: Verdict, *, with_tensors: bool = True) -> str:
    """The text, ASCII only. with_tensors: a row for each tensor, which may be long."""
    names = [file_name(path) for path in (verdict.model, verdict.sidecar) if path is not None]
    parts = [
        f"## {closing_line(verdict)}",
        " against ".join(map(_code, reversed(names))),
        meaning(verdict).replace("--", r"\--"),
        _failures(verdict),
        _table(
            ("stage", "result", "detail"),
            [(stage.stage, MARKS[stage.status], _code(stage.detail)) for stage in stages(verdict)],
        ),
        _ledger(verdict),
        _speeds(verdict),
        _tensors(verdict) if with_tensors else f"{len(verdict.tensors)} tensors, too many to list here.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _failures(verdict: Verdict) -> str:
    lines = [f"{outcome.stage}: {plain(outcome.detail)}" for outcome in problems(verdict)]
    return "\n".join(("````text", *lines, "````")) if lines else ""


def _ledger(verdict: Verdict) -> str:
    if not verdict.tensors:
        return ""
    total = ledger(verdict)
    rows = [
        (name, f"{nbytes:,}", dead(nbytes, total.native))
        for name, nbytes in (("native", total.native), ("padded", total.padded), ("dpl", total.dpl))
    ]
    return _table(("layout", "bytes", "of them"), rows, right=(1,))


def _speeds(verdict: Verdict) -> str:
    if not verdict.bandwidth:
        return ""
    tables = (
        _table(TIMING_HEADER, timing_rows(verdict), right=(3, 5, 6, 7)),
        _table(GAIN_HEADER, gain_rows(verdict), right=(1, 2, 3, 4, 5, 6)),
    )
    return "\n\n".join(part for part in (*tables, token_line(verdict)) if part)


def _tensors(verdict: Verdict) -> str:
    rows = [
        (
            _code(plain(summary.tensor.name)),
            dimensions(summary.tensor.ne),
            f"{summary.tensor.nbytes:,}",
            MARKS[summary.status],
            ", ".join(summary.stages(summary.status)),
        )
        for summary in tensors(verdict)
    ]
    if not rows:
        return ""
    table = _table(("tensor", "ne", "bytes", "result", "checks"), rows, right=(2,))
    return f"<details><summary>{len(rows)} tensors</summary>\n\n{table}\n\n</details>"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    rule = ["---:" if index in right else "---" for index in range(len(header))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, rule, *rows))


def _code(text: str) -> str:
    """A code span that nothing in `text` can end, nor the table's cell."""
    safe = text.replace("`", "'").replace("|", "\\x7c")
    return f"`{safe}`" if safe else ""
