"""Report files: refused before the work if they cannot be meant, written after it whole or not at all.

A report replaces an older report without being asked twice; so it must be sure not to replace anything else. It never
goes to an input, an output or another report, nor over a file that is not text, as models and sidecars are not.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from repack.errors import UsageError, shown
from repack.files.output import PARTIAL, write_whole

STDOUT = "-"
_HEAD = 16
"""GGUF files and sidecars have a zero byte among as many first ones (a version, a length); text has none."""


def prepare(reports: Mapping[str, str], taken: Mapping[str, Path]) -> None:
    """Check the paths of reports before the work starts, and remove older reports under them.

    reports: option to path. taken: what must not be overwritten, by its name in an error. A report that is there at
    the end is then this run's. Raises UsageError.
    """
    others = dict(taken)
    for what, path in taken.items():
        others[f"the unfinished form of {what}"] = Path(f"{path}{PARTIAL}")
    paths = [(option, Path(path)) for option, path in reports.items() if path != STDOUT]
    for option, path in paths:
        where = f"{option} {shown(path)}"
        _refuse_unfit(path, where)
        for what, other in others.items():
            if _same(path, other):
                raise UsageError(f"is {what}, which a report must not overwrite", where=where)
            if _same(Path(f"{path}{PARTIAL}"), other):
                raise UsageError(f"with {PARTIAL} is {what}, which a report must not overwrite", where=where)
        others[f"the file of {option}"] = path
    for _, path in paths:
        if not path.is_symlink():
            with contextlib.suppress(OSError):  # if it cannot be removed, writing it will fail and say why
                path.unlink(missing_ok=True)


def write_report(text: str, path: str) -> None:
    """Write an ASCII or Unicode text as UTF-8. Raises a DplError if it cannot be written."""
    _refuse_unfit(Path(path), shown(path))
    write_whole(Path(path), text.encode("utf-8"))


def _refuse_unfit(path: Path, where: str) -> None:
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise UsageError("the folder does not exist", where=where) from None
        return
    except (OSError, ValueError):
        return  # no permission to look: writing it will fail and say why
    if not stat.S_ISREG(mode):
        raise UsageError("is not a regular file", where=where, hint="give a report a file name of its own")
    with contextlib.suppress(OSError), path.open("rb") as file:
        if b"\0" in file.read(_HEAD):
            raise UsageError("is not text, a report will not replace it", where=where, hint="choose another name")


def _same(path: Path, other: Path) -> bool:
    if os.path.realpath(path) == os.path.realpath(other):
        return True
    try:
        return os.path.samefile(path, other)  # noqa: PTH121 - Path.samefile raises for the same reasons
    except OSError:
        return False
