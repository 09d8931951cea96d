"""How both commands talk: tables, facts, progress, the verdict's line.

Standard output carries what was asked for: tables, or a report alone. Standard error carries progress, notes and
errors. rich draws for terminals and logs alike; in a log nothing is folded or cut, there are no bars and no lines but
text. Text is ASCII but for what rich draws in a terminal.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, TextIO, cast

from rich.box import SIMPLE_HEAD
from rich.console import Console as Rich
from rich.console import RenderableType
from rich.padding import Padding
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table
from rich.text import Text

from repack.command.streams import ERR, OUT, Stream
from repack.errors import one_line

SECONDS_BETWEEN_LINES = 5.0
WIDE = 1 << 20
"""Columns of a log: room for any line."""
NARROWEST = 60
"""Columns of a terminal that tables still fold to. In a narrower one its own line breaks serve better."""
_STYLES = {"passed": "green", "FAILED": "bold red", "skipped": "dim"}


class Console:
    """Where a command's words go.

    quiet: only what was asked for, and errors. data_only: standard output is for a report, tables go to the other.
    """

    def __init__(self, *, quiet: bool = False, data_only: bool = False) -> None:
        self._quiet = quiet
        self._out = ERR if data_only else OUT

    def data(self, text: str) -> None:
        """Write something that was asked for to standard output."""
        OUT.asked = True
        OUT.write(text)

    def note(self, text: str) -> None:
        """Tell a person something by the way."""
        if not self._quiet:
            ERR.write(f"{one_line(text)}\n")

    def facts(self, title: str, facts: Sequence[tuple[str, str]]) -> None:
        """Show a title and aligned lines of label and value."""
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(no_wrap=True)
        grid.add_column(overflow="fold")
        for label, value in facts:
            grid.add_row(Text(label), Text(value))
        self._show(Text(title), *([Padding(grid, (0, 0, 0, 2), expand=False)] if facts else []))

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> None:
        """Show a table; columns whose index is in `right` are aligned to the right. Cells are never cut."""
        terminal = self._out.isatty()
        table = Table(
            box=SIMPLE_HEAD if terminal else None,
            padding=(0, 1, 0, 0) if terminal else (0, 2, 0, 0),
            show_edge=False,
            pad_edge=False,
            header_style="",
        )
        for index, name in enumerate(header):
            justify: Literal["left", "right"] = "right" if index in right else "left"
            table.add_column(Text(name, style="bold"), justify=justify, overflow="fold")
        for row in rows:
            table.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in row))
        self._show("", table)

    def paragraph(self, text: str) -> None:
        """Show a text after an empty line, folded at a terminal's width."""
        self._show("", Text(text))

    def verdict(self, text: str, *, good: bool) -> None:
        """Show the one line that says how it ended."""
        self._show("", Text(text, style="bold green" if good else "bold red"))

    def _show(self, *things: RenderableType) -> None:
        if not self._quiet:
            self._out.write(_drawn(_rich(self._out), *things))

    @contextlib.contextmanager
    def meter(self, label: str, total: int) -> Iterator[Callable[[int], None]]:
        """Progress over `total` bytes: a bar in a terminal, else a line every few seconds. Yields the callback."""
        rich = _rich(ERR)
        live = ERR.isatty() and not rich.is_dumb_terminal
        columns: list[ProgressColumn] = [
            TextColumn("{task.description}"),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
        ]
        columns[1:1] = [BarColumn()] * live
        progress = Progress(*columns, console=rich, transient=True, redirect_stdout=False, redirect_stderr=False)
        task = progress.add_task(label, total=total)
        last = time.monotonic()

        def show(done: int) -> None:
            nonlocal last
            progress.update(task, completed=done)
            if not live and time.monotonic() - last >= SECONDS_BETWEEN_LINES:
                last = time.monotonic()
                self.note(_drawn(rich, progress.get_renderable()).rstrip())

        with progress if live and not self._quiet else contextlib.nullcontext():
            yield show


def _rich(stream: Stream) -> Rich:
    """As wide as the terminal; in a log there is all the room in the world."""
    rich = Rich(file=cast(TextIO, stream), markup=False, emoji=False, highlight=False)
    rich.width = max(rich.width, NARROWEST) if stream.isatty() else WIDE
    return rich


def _drawn(rich: Rich, *things: RenderableType) -> str:
    with rich.capture() as page:
        for thing in things:
            rich.print(thing)
    return "".join(f"{line.rstrip()}\n" for line in page.get().splitlines())


def error_line(error: object) -> None:
    """Write one error to standard error."""
    ERR.write(f"error: {one_line(str(error))}\n")
