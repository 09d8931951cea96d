"""One verdict, delivered: to the terminal, and to every report that was asked for."""

from __future__ import annotations

import os
import stat
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

from repack.command.console import Console
from repack.command.ending import attempt, undelivered
from repack.command.report_files import UNFINISHED, prepare, supersede, write_report
from repack.errors import DplError, UsageError, os_failure, shown
from verify.reports.as_json import to_json
from verify.reports.junit import to_junit
from verify.reports.markdown import to_markdown
from verify.reports.page import to_html
from verify.reports.table import show
from verify.verdict import STAGES, Verdict

SUMMARY_VARIABLE = "GITHUB_STEP_SUMMARY"
SUMMARY_LIMIT = 1 << 20
"""What GitHub accepts for one step; a longer summary would be lost whole."""

_RENDERERS: dict[str, Callable[[Verdict, int], str]] = {
    "junit": lambda verdict, _: to_junit(verdict),
    "markdown": lambda verdict, _: to_markdown(verdict),
    "html": lambda verdict, _: to_html(verdict),
    "json": to_json,
}
"""In the order in which they are written: the JSON last, so that the exit code in it is the one returned."""


def prepare_reports(options: Namespace, model: Path | None, sidecar: Path) -> None:
    """Check where the reports are to go, before the work, and take the place of older ones. Raises a DplError."""
    wanted = _wanted(options)
    taken = {"the sidecar": sidecar} | ({"the model": model} if model is not None else {})
    summary = _summary(options)
    prepare(wanted, taken, {f"${SUMMARY_VARIABLE} {shown(summary)}": summary} if summary is not None else {})
    unfinished = without_proof(model, sidecar, UNFINISHED)
    for kind, path in wanted.items():
        supersede(kind, path, lambda kind=kind: _RENDERERS[kind](unfinished, unfinished.exit_code))  # type: ignore[misc]


def without_proof(model: Path | None, sidecar: Path, error: DplError) -> Verdict:
    """The verdict of a run that came to no end: nothing was compared."""
    verdict = Verdict(None if model is None else os.fspath(model), os.fspath(sidecar))
    verdict.skipped(STAGES[0], str(error), code=error.exit_code)
    for stage in STAGES[1:]:
        verdict.skipped(stage, "not run")
    return verdict


def deliver(verdict: Verdict, options: Namespace, console: Console) -> int:
    """Show a verdict and write its reports; returns the exit code of the process.

    The code is the verdict's. Only a success becomes 4 if something that was asked for could not be delivered.
    """
    wanted = _wanted(options)
    summary = _summary(options)
    code = _after(verdict.exit_code, lambda: show(verdict, console)) or undelivered()
    if summary is not None:
        code = _after(code, lambda: _append_summary(verdict, summary))
    for kind, path in wanted.items():
        code = _after(code, lambda: write_report(kind, path, _RENDERERS[kind](verdict, code), console))  # noqa: B023
    return code


def _after(code: int, step: Callable[[], None]) -> int:
    failed = attempt(step)  # not skipped when the code is set: a failure is reported all the more
    return code or failed


def _wanted(options: Namespace) -> dict[str, str]:
    """The reports that were asked for, in the order in which they are written: kind to path."""
    return {kind: getattr(options, kind) for kind in _RENDERERS if getattr(options, kind) is not None}


def _summary(options: Namespace) -> Path | None:
    """The job's summary, which gets the Markdown where there is one."""
    path = os.environ.get(SUMMARY_VARIABLE)
    return Path(path) if path and options.markdown is not None else None


def _append_summary(verdict: Verdict, path: Path) -> None:
    """Add the Markdown to a summary: all of it, without the tensors if it would be too long, or nothing."""
    where = f"${SUMMARY_VARIABLE} {shown(path)}"
    try:
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
        with os.fdopen(fd, "ab", buffering=0) as file:
            before = os.fstat(fd)
            if not stat.S_ISREG(before.st_mode):
                raise UsageError("is not a regular file", where=where)
            text = to_markdown(verdict)
            if before.st_size + len(text) > SUMMARY_LIMIT:
                text = to_markdown(verdict, with_tensors=False)
            try:
                rest = memoryview(text.encode())
                while rest:
                    rest = rest[file.write(rest) :]
            except OSError:
                file.truncate(before.st_size)
                raise
    except OSError as error:
        raise os_failure(error, f"{where}: cannot be written") from None
