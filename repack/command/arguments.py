"""What the two command lines have in common: how they report a mistake, file names, threads, and a few options."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import NoReturn

from repack.errors import UsageError, shown

LONGEST_QUOTE = 300
MAX_THREADS = 256


class Parser(argparse.ArgumentParser):
    """argparse with our way of reporting: one line, exit code 2."""

    def error(self, message: str) -> NoReturn:
        """Raise UsageError instead of printing the usage. argparse quotes what it was given, of any length."""
        if len(message) > LONGEST_QUOTE:
            message = f"{message[:LONGEST_QUOTE]}..."
        raise UsageError(message, hint=f"see {self.prog} --help")

    def add_common(self) -> None:
        """Add the options that both commands end with."""
        self.add_argument(
            "--threads", type=_threads, default=0, metavar="N", help="threads (default: as many as help, <= 4)"
        )
        self.add_argument("--json", metavar="FILE", help="write the result as JSON, - for standard output")
        self.add_argument("--quiet", action="store_true", help="no table, no progress")
        self.add_argument("--version", action="store_true", help="show the version and exit")


def file_path(text: str) -> Path:
    """For argparse: the path of a file, which is neither empty nor ends like a folder's."""
    if not text or text.endswith(os.sep):
        raise argparse.ArgumentTypeError(f"{shown(text)} does not name a file")
    return Path(text)


def _threads(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 3 or int(text) > MAX_THREADS:
        raise argparse.ArgumentTypeError(f"{shown(text)} is not a number from 0 (automatic) to {MAX_THREADS}")
    return int(text)
