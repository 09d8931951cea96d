"""How a command ends: every exception becomes one line and an exit code, and what was not delivered becomes 4."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Sequence

from repack.command.console import error_line
from repack.command.streams import ERR, OUT, occupy
from repack.errors import PROVEN, EnvironmentFailure, as_failure, one_line, os_failure
from repack.files.signals import Interrupted, hold, raise_on_signals


def run(command: Callable[[Sequence[str]], int], arguments: Sequence[str] | None = None) -> int:
    """Run a command and return the exit code of the process. No exception gets past this."""
    try:
        occupy()
        raise_on_signals()
        code = _run(command, sys.argv[1:] if arguments is None else arguments)
        hold()  # too late for a signal: all is done and said
    except Interrupted as interrupted:  # during the last words too; there is only one, see repack.files.signals
        error_line(f"interrupted by {interrupted}, no half-written file is left")
        code = 128 + interrupted.number
    return code


def _run(command: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> int:
    try:
        code = command(arguments)
    except SystemExit as leaving:  # argparse, after --help and --version
        code = leaving.code if isinstance(leaving.code, int) else PROVEN
    except Exception as error:  # the last stop of every error
        code = _explain(error)
    if OUT.undelivered:
        error_line(os_failure(OUT.undelivered, "standard output did not take all that was written"))
    return code or undelivered()


def attempt(step: Callable[[], None]) -> int:
    """Deliver a result that is known already: a failure is an error line and 4, and never ends the command."""
    try:
        step()
    except Exception as error:  # whatever it is, the result must not be lost with it
        _explain(error)
        return EnvironmentFailure.exit_code
    return PROVEN


def undelivered() -> int:
    """What the process will return, at best, for what standard output could not take so far: 4, or 0."""
    return EnvironmentFailure.exit_code if OUT.undelivered else PROVEN


def _explain(error: Exception) -> int:
    show_traceback(error)
    failure = as_failure(error)
    error_line(failure)
    return failure.exit_code


def show_traceback(error: Exception) -> None:
    """Where an exception comes from, for who looks for it with DPL_DEBUG=1."""
    if os.environ.get("DPL_DEBUG") == "1":
        for line in "".join(traceback.format_exception(error)).splitlines():
            ERR.write(f"{one_line(line)}\n")
