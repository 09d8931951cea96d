"""Signals that end a command, turned into an exception so that nothing half-written stays."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
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
    for number in _ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup stays in force
            signal.signal(number, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    del frame
    for ending in _ENDING:
        signal.signal(ending, signal.SIG_IGN)
    if _State.held:
        _State.pending = number
    else:
        raise Interrupted(number)


@contextmanager
def held() -> Iterator[None]:
    """Within the block no signal raises; one that came is raised at its end."""
    _State.held += 1
    try:
        yield
    finally:
        _State.held -= 1
    if _State.pending:
        raise Interrupted(_State.pending)
