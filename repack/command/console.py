"""The one place that prints, for both commands, and the one that turns exceptions into exit codes.

stdout carries data: tables, JSON. stderr carries progress, notes and errors. Text is ASCII but for the lines that rich
draws where the encoding allows them. Without a terminal there are no bars and nothing is cut.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import textwrap
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import zip_longest
from typing import Any, TextIO

from repack.errors import PROVEN, DplError, EnvironmentFailure, one_line, os_failure
from repack.files.signals import Interrupted, hold, raise_on_signals

SECONDS_BETWEEN_LINES = 5.0


class Console:
    """Where a command's words go. quiet: only data that was asked for, and errors. data_only: stdout is for JSON."""

    def __init__(self, *, quiet: bool = False, data_only: bool = False) -> None:
        self._quiet = quiet
        self._tables_to: TextIO = sys.stderr if data_only else sys.stdout

    def data(self, text: str) -> None:
        """Write data that was asked for to stdout."""
        _write(sys.stdout, text)

    def note(self, text: str) -> None:
        """Tell a person something by the way."""
        if not self._quiet:
            _write(sys.stderr, f"{text}\n")

    def facts(self, title: str, facts: Sequence[tuple[str, str]]) -> None:
        """Show a title and aligned lines of label and value."""
        if self._quiet:
            return
        width = max(len(label) for label, _ in facts)
        room = shutil.get_terminal_size().columns - width - 4 if self._tables_to.isatty() else sys.maxsize
        lines = [title]
        for label, value in facts:
            folded = textwrap.wrap(value, max(room, 20), break_long_words=False) or [""]
            lines += [f"  {name:<{width}}  {part}" for name, part in zip_longest([label], folded, fillvalue="")]
        _write(self._tables_to, "\n".join(lines) + "\n")

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> None:
        """Show a table; columns whose index is in `right` are aligned to the right. Cells are never cut."""
        if self._quiet:
            return
        if not self._tables_to.isatty():
            _write(self._tables_to, "\n" + _columns([header, *rows], right))
            return
        from rich.box import SIMPLE_HEAD  # noqa: PLC0415 - 0.1 s that a log need not pay
        from rich.table import Table  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        table = Table(box=SIMPLE_HEAD, padding=(0, 1), show_edge=False, pad_edge=False, header_style="bold")
        for index, name in enumerate(header):
            table.add_column(name, justify="right" if index in right else "left", overflow="fold")
        for row in rows:
            table.add_row(*(Text(cell, style=_style(cell)) for cell in row))
        self._rich(table)

    def verdict(self, text: str, *, good: bool) -> None:
        """Show the one line that says how it ended."""
        if self._quiet:
            return
        if not self._tables_to.isatty():
            _write(self._tables_to, f"\n{text}\n")
            return
        from rich.text import Text  # noqa: PLC0415

        self._rich(Text(text, style="bold green" if good else "bold red"))

    def _rich(self, thing: Any) -> None:
        """Let rich draw something as the terminal allows, after an empty line."""
        from rich.console import Console as Rich  # noqa: PLC0415

        rich = Rich(file=self._tables_to, markup=False, emoji=False, highlight=False)
        with rich.capture() as page:  # rich would end the process if the reader has gone
            rich.print(thing)
        _write(self._tables_to, "\n" + "".join(f"{line.rstrip()}\n" for line in page.get().splitlines()))

    def meter(self, label: str, total: int) -> AbstractContextManager[Callable[[int], None]]:
        """Progress over `total` bytes: a bar in a terminal, else a line every few seconds. Yields the callback."""
        if self._quiet or not total:
            return contextlib.nullcontext(lambda _: None)
        return _bar(label, total) if sys.stderr.isatty() else _lines(label, total)


def _columns(lines: Sequence[Sequence[str]], right: Sequence[int]) -> str:
    """A table for a log: no lines, nothing cut."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = []
    for line in lines:
        cells = enumerate(zip(line, widths, strict=True))
        row = [cell.rjust(width) if at in right else cell.ljust(width) for at, (cell, width) in cells]
        text.append("   ".join(row).rstrip() + "\n")
    return "".join(text)


def error_line(error: object) -> None:
    """Write one error to stderr."""
    _write(sys.stderr, f"error: {one_line(str(error))}\n")


def run(command: Callable[[Sequence[str]], int], arguments: Sequence[str] | None = None) -> int:
    """Run a command and return the exit code of the process. No exception gets past this."""
    try:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # we bring our own threads; NumPy's would only spin
        _open_standard_files()
        raise_on_signals()
        code = _run(command, sys.argv[1:] if arguments is None else arguments)
        hold()  # too late for a signal: all is done and said
    except Interrupted as interrupted:  # during the last words too; there is only one, see repack.signals
        error_line(f"interrupted by {interrupted}, no half-written file is left")
        code = 128 + interrupted.number
    return code


def _run(command: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> int:
    try:
        code = command(arguments)
    except SystemExit as leaving:  # argparse, after --help and --version
        code = leaving.code if isinstance(leaving.code, int) else 0
    except Exception as error:  # the last stop of every error
        code = _explain(error)
    return _deliver(code)


def attempt(step: Callable[[], None]) -> int:
    """Deliver a result that is known already: a failure is an error line and 4, and never ends the command."""
    try:
        step()
    except Exception as error:  # whatever it is, the result must not be lost with it
        _explain(error)
        return EnvironmentFailure.exit_code
    return PROVEN


def _explain(error: Exception) -> int:
    if os.environ.get("DPL_DEBUG") == "1":
        traceback.print_exc()
    if isinstance(error, MemoryError):
        error = EnvironmentFailure("out of memory")
    elif isinstance(error, RuntimeError) and "start new thread" in str(error):
        error = EnvironmentFailure("the system allows no more threads or memory", hint="raise the limits (ulimit)")
    elif isinstance(error, OSError):
        error = os_failure(error, str(error.filename) if error.filename else "the operating system refused")
    elif not isinstance(error, DplError):
        what = f"internal error: {type(error).__name__}: {error}".splitlines()[0]
        error = EnvironmentFailure(what, hint="please report it, with the output under DPL_DEBUG=1")
    error_line(error)
    assert isinstance(error, DplError)
    return error.exit_code


def _deliver(code: int) -> int:
    """What cannot be delivered turns a success into a failure, and changes no failure."""
    _write(sys.stdout, "")
    if _undelivered:
        error_line(os_failure(_undelivered[0], "standard output cannot be written"))
    return code or undelivered()


_undelivered: list[OSError] = []


def undelivered() -> int:
    """What the process will return, at best, for what standard output could not take so far: 4, or 0."""
    return EnvironmentFailure.exit_code if _undelivered else PROVEN


def _write(stream: TextIO, text: str) -> None:
    """Write and flush. A reader that has gone (`| head`) changes nothing; a full disk is remembered."""
    try:
        stream.write(text)
        stream.flush()
    except OSError as error:
        if stream is sys.stdout and not isinstance(error, BrokenPipeError):
            _undelivered.append(error)
        _silence(stream)


def _silence(stream: TextIO) -> None:
    """What is still buffered, and what comes later, goes nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    with contextlib.suppress(OSError, ValueError):
        os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _open_standard_files() -> None:
    """Make sure that descriptors 0 to 2 exist, so that no file of ours becomes one of them, and that text fits."""
    while True:
        fd = os.open(os.devnull, os.O_RDWR)
        if fd > 2:
            os.close(fd)
            break
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, os.fdopen(number, "w", encoding="ascii", errors="backslashreplace", closefd=False))
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _style(cell: str) -> str:
    return {"passed": "green", "FAILED": "bold red", "skipped": "dim"}.get(cell, "")


@contextlib.contextmanager
def _bar(label: str, total: int) -> Iterator[Callable[[int], None]]:
    from rich.console import Console as Rich  # noqa: PLC0415
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Rich(stderr=True), transient=True) as progress:
        task = progress.add_task(label, total=total)
        yield lambda done: progress.update(task, completed=done)


@contextlib.contextmanager
def _lines(label: str, total: int) -> Iterator[Callable[[int], None]]:
    started = last = time.monotonic()

    def show(done: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= SECONDS_BETWEEN_LINES and done:
            last = now
            rate = done / (now - started)
            left = (total - done) / rate
            _write(
                sys.stderr,
                f"{label}: {done / total:.0%}, {done / 1e9:.2f} of {total / 1e9:.2f} GB, "
                f"{rate / 1e9:.2f} GB/s, {left:.0f} s left\n",
            )

    yield show
