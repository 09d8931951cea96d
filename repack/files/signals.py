"""Signals that end a command, turned into an exception at places where nothing half-written can stay.

An exception out of a signal handler may strike between any two instructions, in the middle of a clean-up too. So while
an output file is open signals are only noted, and raised where `check` is called: between two chunks, and before a
file gets its name.
"""

from __future__ import annotations

import signal
from types import FrameType

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """A signal asks the command to end; the process then returns 128 + `number`."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class _State:
    """Python runs signal handlers in the main thread between two instructions, so plain attributes do."""

    held = 0
    pending = 0


def raise_on_signals() -> None:
    """From now on the first SIGINT, SIGTERM or SIGHUP raises Interrupted; later ones do not disturb the clean-up."""
    _State.held = _State.pending = 0
    for number in _ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup stays in force
            signal.signal(number, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    del frame
    for ending in _ENDING:
        signal.signal(ending, signal.SIG_IGN)
    _State.pending = number
    if not _State.held:
        raise Interrupted(number)


def hold() -> None:
    """From now on signals are only noted, until `release` has been called as often."""
    _State.held += 1


def release() -> None:
    """Undo one `hold`. What has been noted stays noted: `check` raises it."""
    _State.held -= 1


def check() -> None:
    """Raise Interrupted if a signal has come."""
    if _State.pending:
        raise Interrupted(_State.pending)
