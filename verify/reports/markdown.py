"""A verdict in Markdown, for a job summary or a comment. Text from outside stands in code spans and blocks only."""

from __future__ import annotations

from collections.abc import Sequence

from repack.command.ledger import LEDGER_HEADER
from repack.errors import plain
from verify.reports.speeds import NOTE, TIMING_HEADER, gain_header, gain_rows, timing_rows, token_line
from verify.reports.summary import (
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

MOST_FAILURES = 50
MARKS = {Status.PASSED: "passed", Status.FAILED: "**FAILED**", Status.SKIPPED: "skipped"}


def to_markdown(verdict: Verdict, *, with_tensors: bool = True) -> str:
    """The text, ASCII only. with_tensors: a row for each tensor and all failures; else short enough for any place."""
    names = [file_name(path) for path in (verdict.model, verdict.sidecar) if path is not None]
    parts = [
        f"## {closing_line(verdict)}",
        "<!-- gguf-dpl -->",  # by this mark a later run knows that it may replace the file
        " against ".join(map(_code, reversed(names))),
        meaning(verdict).replace("--", r"\--"),
        _failures(verdict, None if with_tensors else MOST_FAILURES),
        _table(
            ("stage", "result", "detail"),
            [(stage.stage, MARKS[stage.status], _code(stage.detail)) for stage in stages(verdict)],
        ),
        _block([f"No GPU was used: {plain(verdict.no_gpu)}"]) if verdict.no_gpu else "",
        _ledger(verdict),
        _speeds(verdict),
        _tensors(verdict) if with_tensors else f"{len(verdict.tensors)} tensors, too many to list here.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _failures(verdict: Verdict, most: int | None) -> str:
    lines = [f"{outcome.stage}: {plain(outcome.detail)}" for outcome in problems(verdict)]
    more = len(lines[most:]) if most is not None else 0
    return _block(lines[:most] + ([f"{more} more checks failed; --json FILE lists all"] if more else []))


def _ledger(verdict: Verdict) -> str:
    return _table(LEDGER_HEADER, ledger_rows(verdict), right=range(1, 7)) if verdict.tensors else ""


def _speeds(verdict: Verdict) -> str:
    if not verdict.bandwidth:
        return ""
    timings = _table(TIMING_HEADER, timing_rows(verdict), right=(3, 5, 6, 7))
    gains = _table(gain_header(verdict), gain_rows(verdict), right=range(1, 8))
    details = f"<details><summary>Every timing</summary>\n\n{timings}\n\n</details>"
    return "\n\n".join(part for part in (gains, token_line(verdict), NOTE, details) if part)


def _tensors(verdict: Verdict) -> str:
    rows = [
        (
            _code(plain(summary.tensor.name)),
            summary.type_name,
            dimensions(summary.tensor.ne),
            f"{summary.tensor.nbytes:,}",
            MARKS[summary.status],
            ", ".join(summary.stages(summary.status)),
        )
        for summary in tensors(verdict)
    ]
    if not rows:
        return ""
    table = _table(("tensor", "type", "ne", "bytes", "result", "checks"), rows, right=(3,))
    return f"<details><summary>{len(rows)} tensors</summary>\n\n{table}\n\n</details>"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    rule = ["---:" if index in right else "---" for index in range(len(header))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, rule, *rows))


def _block(lines: Sequence[str]) -> str:
    """A block of lines as they are. None may begin with a backtick."""
    return "\n".join(("````text", *lines, "````")) if lines else ""


def _code(text: str) -> str:
    """A code span that nothing in `text` can end, nor the table's cell."""
    safe = text.replace("`", "'").replace("|", "\\x7c")
    return f"`{safe}`" if safe else ""
