"""What `repack` did, or would do, or could not do, as JSON: docs/conversion.schema.json."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from repack.command.console import Console, undelivered
from repack.command.report_files import STDOUT, write_report
from repack.errors import DplError
from repack.files.reading import utf8
from repack.version import NAME, VERSION

if TYPE_CHECKING:
    from repack.convert import Conversion
    from repack.plan import Plan
    from repack.sidecar.manifest import Entry

FORMAT = {"name": "gguf-dpl conversion", "major": 1, "minor": 0}
"""`major` changes when a key is removed or means something else, `minor` when one is added."""


@dataclass(slots=True)
class Report:
    """What is known so far; filled in as the work goes on."""

    model: str
    output: str | None
    dry_run: bool
    plan: Plan | None = None
    conversion: Conversion | None = None
    error: DplError | None = None

    def write(self, path: str, console: Console) -> None:
        """Write the report to a file, whole or not at all, or to stdout (`-`)."""
        text = json.dumps(self.as_dict(), indent=1, allow_nan=False) + "\n"
        if path == STDOUT:
            console.data(text)
        else:
            write_report(text, path)

    def as_dict(self) -> dict[str, Any]:
        """The report before it becomes text."""
        done = "planned" if self.dry_run else "converted"
        return {
            "format": FORMAT,
            "tool": {"name": NAME, "version": VERSION},
            "result": "failed" if self.error else done,
            "exit_code": self.error.exit_code if self.error else undelivered(),
            "error": str(self.error) if self.error else None,
            "model": utf8(self.model),
            "output": None if self.output is None else utf8(self.output),
            "plan": None if self.plan is None else _plan(self.plan),
            "conversion": None if self.conversion is None else _conversion(self.conversion),
        }


def _plan(plan: Plan) -> dict[str, Any]:
    ledger = plan.ledger
    return {
        "shards": [{"name": shard.name, "size": shard.size} for shard in plan.index.shards],
        "tensors": len(plan.index.tensors),
        "selected": [tensor.name for tensor in plan.selected],
        "selection": {
            "include": list(plan.include),
            "exclude": list(plan.exclude),
            "left_out": list(plan.left_out),
        },
        "skipped": [
            {"type": kind.type, "name": kind.name, "tensors": kind.tensors, "nbytes": kind.nbytes}
            for kind in plan.skipped
        ],
        "ledger": {"native": ledger.native, "padded": ledger.padded, "dpl": ledger.dpl},
    }


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
        "ne": list(entry.ne),
        "row_stride": entry.row_stride,
        "nbytes": entry.nbytes,
        "padded_nbytes": entry.padded_nbytes,
        "dpl_nbytes": entry.dpl_nbytes,
        "sha256": entry.sha256,
        "nonfinite_scales": entry.nonfinite_scales,
        "zero_scales": entry.zero_scales,
    }
