"""A verdict for programs: JSON of a versioned form, docs/verdict.schema.json."""

from __future__ import annotations

import json
from typing import Any

from repack.files.reading import utf8
from repack.version import NAME, VERSION
from verify.reports.summary import closing_line, ledger, meaning, result, stages, tensor_bytes, tensors
from verify.stages.bandwidth import token_milliseconds
from verify.verdict import Outcome, Verdict

FORMAT = {"name": "gguf-dpl verdict", "major": 1, "minor": 1}
"""`major` changes when a key is removed or means something else, `minor` when one is added."""


def to_json(verdict: Verdict, exit_code: int) -> str:
    """Everything a verdict holds. exit_code: what the process will return."""
    return json.dumps(as_dict(verdict, exit_code), indent=1, allow_nan=False) + "\n"


def as_dict(verdict: Verdict, exit_code: int) -> dict[str, Any]:
    """The same, before it becomes text."""
    total = ledger(verdict)
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
        "ledger": {"native": total.native, "padded": total.padded, "dpl": total.dpl},
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
        "tensors": [
            {
                "name": summary.tensor.name,
                "ne": list(summary.tensor.ne),
                "nbytes": summary.tensor.nbytes,
                "padded_nbytes": tensor_bytes(summary.tensor).padded,
                "dpl_nbytes": summary.tensor.dpl_nbytes,
                "nonfinite_d": summary.tensor.nonfinite_d,
                "zero_d": summary.tensor.zero_d,
                "sha256": summary.tensor.sha256,
                "status": summary.status.value,
                "stages": {stage: _outcome(outcome) for stage, outcome in summary.outcomes.items()},
            }
            for summary in tensors(verdict)
        ],
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
        "bandwidth": _bandwidth(verdict),
        "token_ms": token_milliseconds(verdict.uses, verdict.bandwidth),
    }


def _outcome(outcome: Outcome) -> dict[str, Any]:
    return {"status": outcome.status.value, "detail": outcome.detail, "exit_code": outcome.exit_code}


def _bandwidth(verdict: Verdict) -> list[dict[str, Any]]:
    times = {(use.rows, use.n): use.times for use in verdict.uses}
    return [
        {
            "rows": shape.rows,
            "n": shape.n,
            "dependent": shape.dependent,
            "uses_per_token": times.get((shape.rows, shape.n)),
            "fits_l2": shape.fits_l2,
            "copies": shape.copies,
            "launches": shape.launches,
            "identical": shape.identical,
            "timings": [
                {
                    "form": timing.form,
                    "layout": timing.layout,
                    "us": {"minimum": timing.minimum, "median": timing.median, "maximum": timing.maximum},
                    "content_gb_s": timing.content,
                    "moved_gb_s": timing.moved,
                    "share_of_ceiling": timing.share,
                    "above_ceiling": timing.above_ceiling,
                }
                for timing in shape.timings
            ],
        }
        for shape in verdict.bandwidth
    ]
