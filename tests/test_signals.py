"""Signals: all that would end a process are noted, none is lost, and what others have set stays."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator

import pytest

from repack.command.ending import run
from repack.files import signals
from repack.files.signals import ENDING, Interrupted
from tests.support.calls import call_function

STAYS = {"SIGCHLD", "SIGCONT", "SIGURG", "SIGWINCH"}  # ignored by default
STOPS = {"SIGSTOP", "SIGTSTP", "SIGTTIN", "SIGTTOU"}
FAULTS = {"SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL"}


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """All handlers as they were."""
    before = {number: signal.getsignal(number) for number in signal.valid_signals()}
    yield
    for number, handler in before.items():
        if handler != signal.getsignal(number):
            signal.signal(number, handler)
    signals._State.held = signals._State.pending = 0


def test_the_list_is_what_ends_a_process() -> None:
    """Tried out: a child that gets the signal with the default action ends, or does not."""
    for number in sorted(signal.valid_signals() - {signal.SIGKILL}):
        name = getattr(number, "name", "")
        if name in STOPS:
            assert number not in ENDING
            continue
        child = os.fork()
        if not child:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            os._exit(0)
        ended = os.WIFSIGNALED(os.waitpid(child, 0)[1])
        assert ended == (name not in STAYS), name
        assert (number in ENDING) == (ended and name not in FAULTS), name


def test_the_first_one_is_raised_and_the_others_are_ignored() -> None:
    for number in ENDING:
        signal.signal(number, signal.SIG_DFL)
    signals.raise_on_signals()
    with pytest.raises(Interrupted, match=r"^SIGUSR2$") as raised:
        signal.raise_signal(signal.SIGUSR2)
    assert raised.value.number == signal.SIGUSR2
    for number in ENDING:
        signal.raise_signal(number)


def test_what_is_held_back_is_raised_later() -> None:
    signal.signal(signal.SIGPWR, signal.SIG_DFL)
    signals.raise_on_signals()
    signals.hold()
    signals.check()
    signal.raise_signal(signal.SIGPWR)
    signals.release()
    with pytest.raises(Interrupted, match=r"^SIGPWR$"):
        signals.check()


def test_what_others_have_set_stays() -> None:
    heard = []
    signal.signal(signal.SIGUSR1, lambda number, _: heard.append(number))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signals.raise_on_signals()
    for number in (signal.SIGUSR1, signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ):
        signal.raise_signal(number)
    assert heard == [signal.SIGUSR1]


def test_names_of_real_time_signals() -> None:
    numbers = (signal.SIGRTMIN, signal.SIGRTMIN + 1, signal.SIGRTMAX)
    assert [str(Interrupted(number)) for number in numbers] == ["SIGRTMIN", "SIGRTMIN+1", "SIGRTMAX"]


def test_every_one_of_them_is_one_line_and_its_exit_code() -> None:
    def command(number: int) -> int:
        os.kill(os.getpid(), number)
        return 0

    for number in ENDING:
        if signal.getsignal(number) is signal.SIG_IGN:
            continue

        def default(number: int = number) -> None:
            signal.signal(number, signal.SIG_DFL)

        done = call_function(lambda number=number: run(lambda _: command(number), []), before=default)  # type: ignore[misc]
        done.refused(128 + number, f"interrupted by {Interrupted(number)}")
