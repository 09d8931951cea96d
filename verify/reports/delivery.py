"""One verdict, delivered: to the terminal, and to every report that was asked for."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path

from repack.command.console import Console, attempt, undelivered
from repack.command.report_files import STDOUT, prepare, write_report
from repack.errors import os_failure, shown
from verify.reports.table import show
from verify.verdict import Verdict

SUMMARY_VARIABLE = "GITHUB_STEP_SUMMARY"
SUMMARY_LIMIT = 1 << 20
"""What GitHub accepts for one step; a longer summary would be lost whole."""

_FILES = {"junit": "junit.to_junit", "markdown": "markdown.to_markdown", "html": "page.to_html"}


def prepare_reports(options: Namespace, model: Path | None, sidecar: Path) -> None:
    """Check where the reports are to go, before the work. Raises UsageError."""
    wanted = {f"--{name}": getattr(options, name) for name in ("json", *_FILES) if getattr(options, name) is not None}
    taken = {"the sidecar": sidecar} | ({"the model": model} if model is not None else {})
    prepare(wanted, taken)


def deliver(verdict: Verdict, options: Namespace, console: Console) -> int:
    """Show a verdict and write its reports; returns the exit code of the process.

    The code is the verdict's. Only a success becomes 4 if a report that was asked for could not be written. The JSON
    is written last, so that the code in it is the one returned.
    """
    show(verdict, console)
    code = verdict.exit_code or undelivered()
    for name, renderer in _FILES.items():
        path = getattr(options, name)
        if path is not None:
            code = _first(code, partial(_write, _loaded(renderer), verdict, path))
    summary = os.environ.get(SUMMARY_VARIABLE)
    if options.markdown is not None and summary:
        code = _first(code, partial(_append_summary, verdict, Path(summary)))
    if options.json is not None:
        to_json = partial(_loaded("as_json.to_json"), exit_code=code)
        if options.json == STDOUT:
            console.data(to_json(verdict))
        else:
            code = _first(code, partial(_write, to_json, verdict, options.json))
    return code


def _loaded(renderer: str) -> Callable[..., str]:
    """A renderer of verify.reports, loaded when it is asked for: together they take 0.1 s."""
    module, name = renderer.split(".")
    found: Callable[..., str] = getattr(import_module(f"verify.reports.{module}"), name)
    return found


def _first(code: int, step: Callable[[], None]) -> int:
    failed = attempt(step)  # not skipped when the code is set: a failure is reported all the more
    return code or failed


def _write(render: Callable[[Verdict], str], verdict: Verdict, path: str) -> None:
    write_report(render(verdict), path)


def _append_summary(verdict: Verdict, path: Path) -> None:
    to_markdown = _loaded(_FILES["markdown"])
    text = to_markdown(verdict)
    try:
        with path.open("a", encoding="utf-8") as file:
            if file.tell() + len(text) > SUMMARY_LIMIT:
                text = to_markdown(verdict, with_tensors=False)
            file.write(text)
    except OSError as error:
        raise os_failure(error, f"{SUMMARY_VARIABLE} {shown(path)}: cannot be written") from None
