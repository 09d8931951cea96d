"""How both commands start. Importing this package makes the process one of them; nothing else should import it.

Imports take a fifth of a second, and they can fail: a package is missing or broken, somebody else's `repack` or
`verify` stands in the place of ours, the user presses Ctrl-C. Python would end with a traceback and 1, which here means
"differs". So these handlers come first: one line, and an exit code that means nothing else. Once all is imported,
`repack.command.ending.run` takes over.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from importlib.util import find_spec
from pathlib import Path
from types import FrameType, TracebackType

_ENVIRONMENT = 4
"""`repack.errors.EnvironmentFailure.exit_code`; nothing of `repack` can be imported yet."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_WHERE = "see docs/quickstart.md, section Install"


def _leave(line: str, code: int) -> None:
    """End the process at once: nothing has been written yet, so nothing is left behind."""
    with contextlib.suppress(OSError):
        os.write(2, f"error: {' '.join(line.split())}\n".encode("ascii", "backslashreplace"))
    os._exit(code)


def _interrupted(number: int, frame: FrameType | None) -> None:
    del frame
    _leave(f"interrupted by {signal.Signals(number).name}, nothing was done", 128 + number)


def _failed(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    try:
        if os.environ.get("DPL_DEBUG") == "1":
            sys.__excepthook__(kind, error, trace)
        if isinstance(error, ModuleNotFoundError):
            _leave(f"the Python package `{error.name}` is missing; {_WHERE}", _ENVIRONMENT)
        while error.__cause__ is not None:
            error = error.__cause__
        text = next(iter(str(error).strip().splitlines()), "no details")
        _leave(f"cannot start ({type(error).__name__}: {text}); {_WHERE}", _ENVIRONMENT)
    finally:  # out of memory
        os._exit(_ENVIRONMENT)


def _refuse_strangers() -> None:
    """Other projects are called `repack` and `verify` too, and installed later they replace our files."""
    home = Path(__file__).resolve().parents[1]
    for name in ("repack", "verify"):
        ours = home / name / "__init__.py"
        spec = find_spec(name)
        found = Path(spec.origin).resolve() if spec is not None and spec.origin is not None else None
        if found != ours or b"dpl" not in ours.read_bytes():
            what = f"the package `{name}` at {found} is not the one of gguf-dpl at {ours.parent}"
            _leave(f"{what}; give gguf-dpl an environment of its own, {_WHERE}", _ENVIRONMENT)


def hand_over() -> None:
    """Give the signals back: all is imported, and `repack.command.ending.run` is about to take them."""
    for number in _SIGNALS:
        if signal.getsignal(number) is _interrupted:
            signal.signal(number, signal.SIG_DFL)


sys.excepthook = _failed
for _number in _SIGNALS:
    if signal.getsignal(_number) is not signal.SIG_IGN:  # nohup stays in force
        signal.signal(_number, _interrupted)
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # we bring our own threads; NumPy's would only spin
_refuse_strangers()
