"""Stages container and manifest: whether this is a sound sidecar.

That every tensor, row and plane begins at a multiple of 16 bytes needs no stage: it follows from a container that is
in order, where the data begins at a multiple of 4096 and every stride is the layout's.
"""

from __future__ import annotations

import os

from repack.sidecar.checks import from_json
from repack.sidecar.container import check_container, read_container
from repack.sidecar.manifest import Manifest
from verify.pairs import Files, blamed


def check_sidecar(files: Files) -> tuple[Manifest, int]:
    """Stages container and manifest. Returns the manifest and where the data begins, else raises a StageFailure."""
    where = files.sidecar_name
    with blamed("container"):
        container = read_container(files.sidecar, where)
    with blamed("manifest"):
        manifest = from_json(container.manifest_json, where)
    with blamed("container"):
        check_container(container, manifest, os.fstat(files.sidecar).st_size, where)
    return manifest, container.data_start
