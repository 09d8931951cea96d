"""A verdict for programs: JSON of a versioned form, docs/verdict.schema.json."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from repack.command.report_files import json_text
from repack.files.reading import utf8
from repack.version import NAME, VERSION
from verify.gpu.speeds import ShapeTimings, Timing, token_milliseconds
from verify.reports.speeds import times_a_token
from verify.reports.summary import TensorSummary, closing_line, ledgers, meaning, result, stages, tensors, total
from verify.verdict import Outcome, Verdict

FORMAT = {"name": "gguf-dpl verdict", "major": 2, "minor": 0}
"""`major` changes when a key is removed or means something else, `minor` when one is added."""


def to_json(verdict: Verdict, exit_code: int) -> str:
    """Everything a verdict holds. exit_code: what the process will return."""
    return json_text(as_dict(verdict, exit_code))


def as_dict(verdict: Verdict, exit_code: int) -> dict[str, Any]:
    """The same, before it becomes text."""
    return {
        "format": FORMAT,
        "tool": {"name": NAME, "version": VERSION},
        "result": result(verdict),
        "exit_code": exit_code,
        "summary": closing_line(verdict),
        "meaning": meaning(verdict),
        "model": None if verdict.model is None else utf8(verdict.model),
        "sidecar": utf8(verdict.sidecar),
        "options": verdict.options,
        "environment": verdict.environment,
        "seconds": verdict.seconds,
        "timings": verdict.timings,
        "bytes_compared": verdict.bytes_compared,
        "ledger": {
            **asdict(total(verdict)),
            "types": [{"type": name, "tensors": count, **asdict(ledger)} for name, count, ledger in ledgers(verdict)],
        },
        "stages": [
            {
                "stage": stage.stage,
                "status": stage.status.value,
                "counts": {status.value: count for status, count in stage.counts.items()},
                "detail": stage.detail,
                "outcomes": [{"tensor": outcome.tensor, **_outcome(outcome)} for outcome in verdict.of(stage.stage)],
            }
            for stage in stages(verdict)
        ],
        "tensors": [_tensor(summary) for summary in tensors(verdict)],
        "decoded": [
            {
                "tensor": decoded.tensor,
                "form": decoded.form,
                "rows": decoded.rows,
                "digest": decoded.digest,
                "all_rows_digest": decoded.all_rows_digest,
            }
            for decoded in verdict.decoded
        ],
        "bandwidth": [_shape(shape, verdict) for shape in verdict.bandwidth],
        "token_ms": token_milliseconds(verdict.uses, verdict.bandwidth),
        "not_counted": [
            {"type": kind.name, "tensors": kind.tensors, "nbytes": kind.nbytes} for kind in verdict.not_counted
        ],
    }


def _outcome(outcome: Outcome) -> dict[str, Any]:
    return {"status": outcome.status.value, "detail": outcome.detail, "exit_code": outcome.exit_code}


def _tensor(summary: TensorSummary) -> dict[str, Any]:
    tensor = summary.tensor
    return {
        "name": tensor.name,
        "type": tensor.quant.name,
        "ne": list(tensor.ne),
        "nbytes": tensor.nbytes,
        "padded_nbytes": tensor.padded_nbytes,
        "dpl_nbytes": tensor.dpl_nbytes,
        "nonfinite_scales": tensor.nonfinite_scales,
        "zero_scales": tensor.zero_scales,
        "sha256": tensor.sha256,
        "status": summary.status.value,
        "stages": {stage: _outcome(outcome) for stage, outcome in summary.outcomes.items()},
    }


def _shape(shape: ShapeTimings, verdict: Verdict) -> dict[str, Any]:
    return {
        "type": shape.quant.name,
        "rows": shape.rows,
        "n": shape.n,
        "ne0": shape.n * shape.quant.block_weights,
        "dependent": shape.dependent,
        "uses_per_token": times_a_token(verdict, shape),
        "fits_l2": shape.fits_l2,
        "copies": shape.copies,
        "launches": shape.launches,
        "identical": shape.identical,
        "timings": [_timing(timing) for timing in shape.timings],
    }


def _timing(timing: Timing) -> dict[str, Any]:
    return {
        "form": timing.form,
        "layout": timing.layout,
        "us": {"minimum": timing.minimum, "median": timing.median, "maximum": timing.maximum},
        "content_gb_s": timing.content,
        "moved_gb_s": timing.moved,
        "share_of_ceiling": timing.share,
        "above_ceiling": timing.above_ceiling,
    }
