"""Report files: refused before the work if they cannot be meant, written after it whole or not at all.

A report replaces an older report of its kind without being asked twice, and nothing else: what it replaces has to carry
the mark of this tool, or to be empty. The older report stays until a whole new one takes its place. So that it is not
taken for this run's if the run is ended from outside, one that says "not finished" takes its place first.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from repack.command.console import Console
from repack.command.streams import ERR, OUT
from repack.errors import EnvironmentFailure, UsageError, os_failure, shown
from repack.files.output import write_whole
from repack.files.partial import partial_of
from repack.files.reading import working_folder_is_gone

STDOUT = "-"
UNFINISHED = EnvironmentFailure("this run has not finished; if it is over, it was ended from outside")
"""What a report says of a run that is under way."""
_MARKS = {
    "json": re.compile(rb'\s*\{\s*"format":\s*\{\s*"name":\s*"gguf-dpl (verdict|conversion)"'),
    "junit": re.compile(rb'<\?xml[^>]*>\s*<testsuites name="gguf-dpl"'),
    "markdown": re.compile(rb".*?<!-- gguf-dpl -->", re.DOTALL),
    "html": re.compile(rb'.*?<meta name="generator" content="gguf-dpl', re.DOTALL),
}
_HEAD = 4096
"""Bytes in which a report's mark stands."""


def json_text(document: Any) -> str:
    """A report as JSON, ASCII only, in which no line is a command to a CI server (`##[` and the like)."""
    return json.dumps(document, indent=1, allow_nan=False).replace("##", r"#\u0023") + "\n"


def prepare(reports: Mapping[str, str], taken: Mapping[str, Path], added_to: Mapping[str, Path] | None = None) -> None:
    """Check the paths of reports before the work starts.

    reports: kind (an option without its dashes) to path, ``-`` for standard output. taken: what must not be
    overwritten, by its name in an error. added_to: files that text is appended to, by their name in an error. Raises
    UsageError, or EnvironmentFailure where a file cannot be made.
    """
    others = dict(taken)
    to_stdout = [f"--{kind}" for kind, path in reports.items() if path == STDOUT]
    if len(to_stdout) > 1:
        raise UsageError(f"{' and '.join(to_stdout)} cannot both go to standard output", hint="name files")
    files = {f"--{kind} {shown(path)}": Path(path) for kind, path in reports.items() if path != STDOUT}
    for where, path in (files | dict(added_to or {})).items():
        _refuse_unfit(path, where)
        for what, other in others.items():
            _refuse_same(path, where, other, what)
        others[f"the file of {where.split()[0]}"] = path
    for where, path in (added_to or {}).items():
        refuse_standard_streams(path, where, even_to_append=False)
    for (where, path), kind in zip(files.items(), (kind for kind in reports if reports[kind] != STDOUT), strict=True):
        _refuse_foreign(path, kind, where)
        refuse_standard_streams(path, where)


def refuse_standard_streams(path: Path, where: str, *, even_to_append: bool = True) -> None:
    """Refuse a file that the shell sends standard output or error to: one would overwrite the other."""
    for number, name in ((OUT.number, "output"), (ERR.number, "error")):
        try:
            same = os.path.samestat(os.fstat(number), path.stat())
            appends = fcntl.fcntl(number, fcntl.F_GETFL) & os.O_APPEND
        except OSError:
            continue  # closed, or there is no such file yet
        if same and (even_to_append or not appends):
            raise UsageError(f"is the file that standard {name} goes to", where=where, hint="choose another name")


def supersede(kind: str, path: str, render: Callable[[], str]) -> None:
    """Put a report that says `UNFINISHED` in the place of an older one."""
    if path != STDOUT and Path(path).exists():
        write_report(kind, path, render(), Console())


def write_report(kind: str, path: str, text: str, console: Console) -> None:
    """Write a report to a file, as UTF-8, or to standard output. Raises a DplError if a file cannot be written."""
    if path == STDOUT:
        console.data(text)
        return
    where = f"--{kind} {shown(path)}"
    _refuse_unfit(Path(path), where)
    _refuse_foreign(Path(path), kind, where)
    write_whole(Path(path), text.encode("utf-8"))


def _refuse_unfit(path: Path, where: str) -> None:
    """Refuse what is no regular file, and a place where none can be made."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            hint = "give it a file name of its own; - is standard output"
            raise UsageError("is not a regular file", where=where, hint=hint)
    except OSError as error:
        if os.path.islink(path):  # noqa: PTH114 - unlike Path.is_symlink it raises nothing
            raise UsageError("is a symlink that leads nowhere", where=where) from None
        if working_folder_is_gone(path):
            raise UsageError("the working directory has been deleted", where=where) from None
        if not path.parent.is_dir():
            raise UsageError("the folder does not exist", where=where) from None
        if not isinstance(error, FileNotFoundError):
            raise os_failure(error, f"{where}: cannot be written") from None
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise EnvironmentFailure("its folder cannot be written to", where=where, hint="check the permissions")


def _refuse_foreign(path: Path, kind: str, where: str) -> None:
    """Refuse to replace what does not carry the mark of such a report. An empty file holds nothing to lose."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except FileNotFoundError:
        return
    except OSError as error:
        raise os_failure(error, f"{where}: cannot be read, so it is not replaced") from None
    if head and not _MARKS[kind].match(head):
        what = f"is not a report that --{kind} made, it will not be replaced"
        raise UsageError(what, where=where, hint="choose another name, or remove it")


def _refuse_same(path: Path, where: str, other: Path, what: str) -> None:
    """Refuse two names of one file, and a name that another file has while it is being written."""
    for one, two, words in (
        (path, other, f"is {what}"),
        (partial_of(path), other, f"is {what} while it is being written"),
        (path, partial_of(other), f"is the unfinished form of {what}"),
    ):
        if _same(one, two):
            raise UsageError(f"{words}, which a report must not overwrite", where=where)


def _same(path: Path, other: Path) -> bool:
    if os.path.realpath(path) == os.path.realpath(other):
        return True
    try:
        return os.path.samefile(path, other)  # noqa: PTH121 - Path.samefile raises for the same reasons
    except OSError:
        return False
