"""What a program calls: one function to convert, one to open."""

from __future__ import annotations

import os
from collections.abc import Sequence

from repack.convert import Conversion, Progress, convert
from repack.plan import make_plan
from repack.sidecar.reader import Sidecar


def convert_file(
    model: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    threads: int = 0,
    force: bool = False,
    progress: Progress | None = None,
) -> Conversion:
    """Convert the Q6_K tensors of a GGUF model into a sidecar.

    model: the GGUF, or the first shard of a split model. include, exclude: regular expressions searched in tensor
    names. threads: packing threads, 0 for one fewer than the processors (at most 4). force: replace an existing
    `out`. progress: called with the native bytes done so far.

    Raises `repack.DplError`: `Damaged` (input damaged or unsupported), `NothingToDo` (no Q6_K tensor selected),
    `UsageError` (`out` exists or is no regular file), `EnvironmentFailure` (disk, permission). No half-written file is
    ever left under the name `out`.
    """
    return convert(make_plan(model, include, exclude), out, threads=threads, force=force, progress=progress)


def open_sidecar(path: str | os.PathLike[str]) -> Sidecar:
    """Open a sidecar as a read-only mapping from tensor names to `SidecarTensor`; use it in a ``with`` block.

    Raises `repack.Damaged` if the file is no sound sidecar of format version 1.
    """
    return Sidecar(path)
