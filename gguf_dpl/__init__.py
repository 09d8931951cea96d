"""How both commands start. Importing this package makes the process one of them; nothing else should import it.

Imports take a fifth of a second, and they can fail: a package is missing or broken, or the user presses Ctrl-C. Python
would end with a traceback and 1, which here means "differs". So these handlers come first, after as few imports as can
be: one line, and an exit code that means nothing else. Once all is imported, `repack.command.ending.run` takes over.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType, TracebackType

ENVIRONMENT = 4
"""`repack.errors.EnvironmentFailure.exit_code`; nothing of `repack` can be imported yet."""
INSTALLATION = "docs/quickstart.md, section Install"
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def leave(line: str, code: int) -> None:
    """End the process at once. Nothing has been written yet, so nothing is left behind."""
    try:
        os.write(2, f"error: {' '.join(line.split())}\n".encode("ascii", "backslashreplace"))
    finally:
        os._exit(code)


def _interrupted(number: int, frame: FrameType | None) -> None:
    del frame
    leave(f"interrupted by {signal.Signals(number).name}, nothing was done", 128 + number)


def _failed(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    try:
        if os.environ.get("DPL_DEBUG") == "1":
            sys.__excepthook__(kind, error, trace)
        if isinstance(error, ModuleNotFoundError):
            leave(f"the Python package `{error.name}` is missing; see {INSTALLATION}", ENVIRONMENT)
        if isinstance(error, MemoryError):
            leave("out of memory", ENVIRONMENT)
        while error.__cause__ is not None:
            error = error.__cause__
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        where = f" at {trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace is not None else ""
        text = next(iter(str(error).strip().splitlines()), "no details")
        leave(f"cannot start, {type(error).__name__}{where}: {text}; see {INSTALLATION}", ENVIRONMENT)
    finally:  # out of memory
        os._exit(ENVIRONMENT)


def hand_over() -> None:
    """Give the signals back: all is imported, and `repack.command.ending.run` is about to take them."""
    for number in _SIGNALS:
        if signal.getsignal(number) is _interrupted:
            signal.signal(number, signal.SIG_DFL)


for _number in _SIGNALS:
    if signal.getsignal(_number) is not signal.SIG_IGN:  # nohup stays in force
        signal.signal(_number, _interrupted)
sys.excepthook = _failed
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # we bring our own threads; NumPy's would only spin
