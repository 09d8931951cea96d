"""The stages that look at the sidecar's header: whether this is a sound sidecar."""

from __future__ import annotations

import os

from repack import layout
from repack.errors import Damaged, DplError
from repack.sidecar.checks import from_json
from repack.sidecar.container import Container, check_container, read_container, tensor_offsets
from repack.sidecar.manifest import Manifest
from verify.pairs import Files
from verify.verdict import Verdict


def check_sidecar(files: Files, verdict: Verdict) -> tuple[Manifest, int] | None:
    """Stages container, manifest and alignment. Returns the manifest and where the data begins, or None if damaged."""
    where = files.sidecar_name
    stage = "container"
    try:
        container = read_container(files.sidecar, where)
        stage = "manifest"
        manifest = from_json(container.manifest_json, where)
        stage = "container"
        check_container(container, manifest, os.fstat(files.sidecar).st_size, where)
    except DplError as error:
        verdict.failed(stage, error)
        return None
    verdict.passed("container")
    verdict.passed("manifest")
    _check_alignment(container, manifest, where, verdict)
    return manifest, container.data_start


def _check_alignment(container: Container, manifest: Manifest, where: str, verdict: Verdict) -> None:
    """Every tensor and every row begins at a multiple of 16 bytes of the file."""
    for entry, offset in zip(manifest.tensors, tensor_offsets(manifest), strict=False):
        for what, value in (("offset", container.data_start + offset), ("row stride", entry.row_stride)):
            if value % layout.ROW_ALIGNMENT:
                error = Damaged(f"{what} {value} is not a multiple of {layout.ROW_ALIGNMENT}", where=where)
                verdict.failed("alignment", error, entry.name)
                return
    verdict.passed("alignment")
