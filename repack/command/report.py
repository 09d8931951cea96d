"""What `repack` did, or would do, or could not do, as JSON: docs/conversion.schema.json."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repack.command.ledger import token_ledger
from repack.command.report_files import json_text
from repack.command.summary import why_left
from repack.convert import Conversion
from repack.errors import PROVEN, DplError
from repack.files.reading import utf8
from repack.layout import TYPES
from repack.plan import Ledger, Plan
from repack.sidecar.manifest import Entry
from repack.version import NAME, VERSION

FORMAT = {"name": "gguf-dpl conversion", "major": 2, "minor": 0}
"""`major` changes when a key is removed or means something else, `minor` when one is added."""


@dataclass(slots=True)
class Report:
    """What is known so far; filled in as the work goes on."""

    model: Path
    output: Path | None
    dry_run: bool
    plan: Plan | None = None
    conversion: Conversion | None = None
    error: DplError | None = None

    def to_json(self, exit_code: int = PROVEN) -> str:
        """The report as text. exit_code: what the process will return if there was no error."""
        done = "planned" if self.dry_run else "converted"
        return json_text(
            {
                "format": FORMAT,
                "tool": {"name": NAME, "version": VERSION},
                "result": "failed" if self.error else done,
                "exit_code": self.error.exit_code if self.error else exit_code,
                "error": str(self.error) if self.error else None,
                "model": utf8(os.fspath(self.model)),
                "output": None if self.output is None else utf8(os.fspath(self.output)),
                "plan": None if self.plan is None else _plan(self.plan),
                "conversion": None if self.conversion is None else _conversion(self.conversion),
            }
        )


def _plan(plan: Plan) -> dict[str, Any]:
    return {
        "shards": [{"name": shard.name, "size": shard.size} for shard in plan.index.shards],
        "tensors": len(plan.index.tensors),
        "selected": [tensor.name for tensor in plan.selected],
        "selection": {
            "types": [quant.name for quant in plan.types],
            "include": list(plan.include),
            "exclude": list(plan.exclude),
            "left_out": list(plan.left_out),
        },
        "skipped": [
            {
                "type": kind.type,
                "name": kind.name,
                "tensors": kind.tensors,
                "nbytes": kind.nbytes,
                "why": why_left(kind, plan),
                "convertible": kind in plan.convertible,
            }
            for kind in plan.skipped
        ],
        "ledger": {
            **_bytes(plan.ledger),
            "types": [
                {
                    "type": TYPES[number].name,
                    "tensors": sum(tensor.type == number for tensor in plan.selected),
                    **_bytes(ledger),
                }
                for number, ledger in plan.ledgers.items()
            ],
        },
        "token": _bytes(token_ledger(plan)),
    }


def _bytes(ledger: Ledger) -> dict[str, int]:
    return {"native": ledger.native, "padded": ledger.padded, "dpl": ledger.dpl}


def _conversion(conversion: Conversion) -> dict[str, Any]:
    return {
        "sidecar_bytes": conversion.sidecar_bytes,
        "seconds": conversion.seconds,
        "sources": [
            {"name": source.name, "size": source.size, "header_sha256": source.header_sha256}
            for source in conversion.manifest.sources
        ],
        "tensors": [_tensor(entry) for entry in conversion.manifest.tensors],
    }


def _tensor(entry: Entry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "type": entry.quant.name,
        "ne": list(entry.ne),
        "row_stride": entry.row_stride,
        "nbytes": entry.nbytes,
        "padded_nbytes": entry.padded_nbytes,
        "dpl_nbytes": entry.dpl_nbytes,
        "sha256": entry.sha256,
        "nonfinite_scales": entry.nonfinite_scales,
        "zero_scales": entry.zero_scales,
    }
