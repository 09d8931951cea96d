"""What the two command lines have in common: how they report a mistake, and options of the same kinds."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from repack.command.console import Console
from repack.errors import UsageError, shown
from repack.version import NAME, VERSION

LONGEST_QUOTE = 300
MAX_THREADS = 256


class Parser(argparse.ArgumentParser):
    """argparse with our way of reporting: a mistake is one line and exit code 2, and so is an option given twice."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.register("action", None, _Once)

    def error(self, message: str) -> NoReturn:
        """Raise UsageError instead of printing the usage. argparse quotes what it was given, of any length."""
        if len(message) > LONGEST_QUOTE:
            message = f"{message[:LONGEST_QUOTE]}..."
        raise UsageError(message, hint=f"see {self.prog} --help")

    def add_patterns(self, name: str, what: str) -> None:
        """Add an option that takes regular expressions for tensor names, any number of times."""
        text = f"{what} RE, a regular expression found anywhere in the name; may be repeated"
        self.add_argument(f"--{name}", action="append", default=[], metavar="RE", help=text)

    def add_common(self) -> None:
        """Add the options that both commands end with."""
        self.add_argument(
            "--threads",
            type=number("a number of threads", 0, MAX_THREADS),
            default=0,
            metavar="N",
            help="worker threads (default: by the number of processors, at most 4)",
        )
        self.add_argument("--json", metavar="FILE", help="write the result as JSON; - is standard output")
        self.add_argument("--quiet", action="store_true", help="no tables and no progress, only errors")
        self.add_argument(
            "--version", action="version", version=f"{self.prog} ({NAME}) {VERSION}", help="show the version and exit"
        )

    def _print_message(self, message: str, file: object = None) -> None:
        """Where argparse prints the help and the version."""
        del file
        Console().data(message)


class _Once(argparse.Action):
    """An option whose second value would silently replace the first."""

    _given = False

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        if self._given:
            parser.error(f"{option_string} is given twice")
        self._given = True
        setattr(namespace, self.dest, values)


def file_path(text: str) -> Path:
    """For argparse: the path of a file, which is neither empty nor ends like a folder's."""
    if not text or text.endswith(os.sep):
        raise argparse.ArgumentTypeError(f"{shown(text)} does not name a file")
    return Path(text)


def number(what: str, low: int, high: int) -> Callable[[str], int]:
    """For argparse: a plain decimal number from `low` to `high`."""

    def parse(text: str) -> int:
        if text.isascii() and text.isdigit() and len(text) <= len(str(high)) and low <= int(text) <= high:
            return int(text)
        raise argparse.ArgumentTypeError(f"{shown(text)} is not {what} from {low} to {high}")

    return parse
