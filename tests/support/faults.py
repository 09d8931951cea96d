"""Strike at the n-th thing a process asks of the file system; for forked children only, for nothing is undone."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from repack.files import allocation

_EVENTS = {"open", "os.link", "os.rename", "os.remove", "os.truncate", "os.chmod", "os.chown"}
_CALLS = ("pwrite", "preadv", "fsync", "fstatvfs")


class Faults:
    """Counts operations below `folder` and on open files; before the one number `at` it calls `strike`.

    `log` names the operations: what was asked, and of which file where that is known.
    """

    def __init__(self, folder: Path, at: int = -1, strike: Callable[[], None] = lambda: None) -> None:
        self._folder, self._at, self._strike = os.fspath(folder), at, strike
        self.log: list[str] = []
        self._busy = False

    def install(self) -> None:
        """From now on operations are counted."""
        sys.addaudithook(self._hook)
        for name in _CALLS:
            setattr(os, name, self._wrapped(name, getattr(os, name)))
        setattr(allocation, "fallocate", self._wrapped("fallocate", allocation.fallocate))  # noqa: B010 - as in `replace`

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in _EVENTS and not self._busy:
            subject = arguments[0]
            if isinstance(subject, int):
                subject = _path(subject)
            if os.fspath(subject).startswith(self._folder):
                self._count(f"{event.removeprefix('os.')} {Path(subject).name}")

    def _wrapped(self, name: str, honest: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(fd: int, *arguments: Any) -> Any:
            self._count(f"{name} {Path(_path(fd)).name}")
            return honest(fd, *arguments)

        return wrapper

    def _count(self, what: str) -> None:
        self.log.append(what)
        if len(self.log) - 1 == self._at:
            self._busy = True
            self._strike()
            self._busy = False


def _path(fd: int) -> str:
    try:
        return os.fspath(Path(f"/proc/self/fd/{fd}").readlink())
    except OSError:
        return "?"


def replace(name: str, function: Callable[..., Any]) -> None:
    """Put something else in the place of a function of `os`."""
    setattr(os, name, function)


def kill() -> None:
    """As a machine's power ends."""
    os.kill(os.getpid(), signal.SIGKILL)


def error(number: int) -> Callable[[], None]:
    """The operation fails with this errno."""

    def strike() -> None:
        raise OSError(number, os.strerror(number))

    return strike


def send(number: int) -> Callable[[], None]:
    """Somebody sends this signal to the process."""
    return lambda: os.kill(os.getpid(), number)
