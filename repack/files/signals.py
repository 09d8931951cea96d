"""Signals that end a command, turned into an exception at places where nothing half-written can stay.

An exception out of a signal handler may strike between any two instructions, in the middle of a clean-up too. So while
an output file is open signals are only noted, and raised where `check` is called: between two chunks, and before a
file gets its name.
"""

from __future__ import annotations

import signal
from types import FrameType

_HARMLESS = ("SIGCHLD", "SIGCONT", "SIGTSTP", "SIGTTIN", "SIGTTOU", "SIGURG", "SIGWINCH")
_FAULTS = ("SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV")
"""The process itself is broken: there is nothing left that could clean up."""
_BEYOND_REACH = ("SIGKILL", "SIGSTOP")

ENDING = tuple(
    sorted(
        int(number)
        for number in signal.valid_signals()
        if getattr(number, "name", "") not in {*_HARMLESS, *_FAULTS, *_BEYOND_REACH}
    )
)
"""All signals that end a process unless it says otherwise, real-time ones included: batch systems send any of them."""


class Interrupted(BaseException):
    """A signal asks the command to end; the process then returns 128 + `number`."""

    def __init__(self, number: int) -> None:
        super().__init__(_name(number))
        self.number = number


class _State:
    """Python runs signal handlers in the main thread between two instructions, so plain attributes do."""

    held = 0
    pending = 0


def raise_on_signals() -> None:
    """From now on the first signal of `ENDING` raises Interrupted; later ones do not disturb the clean-up.

    What somebody ignores (nohup; Python itself SIGPIPE and SIGXFSZ) or handles already stays as it is.
    """
    _State.held = _State.pending = 0
    for number in ENDING:
        if signal.getsignal(number) in {signal.SIG_DFL, signal.default_int_handler}:
            signal.signal(number, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    del frame
    for ending in ENDING:
        if signal.getsignal(ending) is _interrupt:
            signal.signal(ending, signal.SIG_IGN)
    _State.pending = number
    if not _State.held:
        raise Interrupted(number)


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # of the real-time signals only the first and the last have names
        return f"SIGRTMIN+{number - signal.SIGRTMIN}"


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
