"""Standard output and error: what is written arrives whole, or it is known that it did not."""

from __future__ import annotations

import errno
import os
import select
import sys

_NOBODY = {errno.EPIPE, errno.EBADF}
"""The reader has gone, as `head` does, or there never was one (``>&-``)."""


class Stream:
    """One of the two descriptors that a command writes text to. Good enough a file for rich."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.asked = False
        """Whether it carries something that was asked for: a report, the version. Tables are told by the way."""
        self._failure: OSError | None = None

    def write(self, text: str) -> int:
        """Write all of a text. It never raises: after a failure nothing more is written, see `undelivered`."""
        rest = memoryview(text.encode(self.encoding, "backslashreplace"))
        try:
            while rest and self._failure is None:
                rest = rest[self._write_some(rest) :]
        except OSError as error:
            self._failure = error
        return len(text)

    def _write_some(self, data: memoryview) -> int:
        try:
            return os.write(self.number, data)
        except BlockingIOError:  # whoever holds the other end made it so, and reads slowly
            select.select([], [self.number], [])
            return 0

    def flush(self) -> None:
        """Nothing is ever held back."""

    def isatty(self) -> bool:
        """Whether a person sees it in a terminal."""
        return os.isatty(self.number)

    def fileno(self) -> int:
        """The descriptor."""
        return self.number

    @property
    def encoding(self) -> str:
        """As the user set it; ASCII where Python found the descriptor closed."""
        stream = sys.stdout if self.number == OUT.number else sys.stderr
        return stream.encoding if stream is not None else "ascii"

    @property
    def undelivered(self) -> OSError | None:
        """Why something did not arrive that somebody waits for. Tables without a reader are no loss."""
        lost = self._failure is not None and (self.asked or self._failure.errno not in _NOBODY)
        return self._failure if lost else None


OUT, ERR = Stream(1), Stream(2)


def occupy() -> None:
    """Make sure that descriptors 0 to 2 are taken, so that no file of ours becomes one of them.

    By the root folder, which is always there: everything written to it fails, as to a closed descriptor.
    """
    while (fd := os.open("/", os.O_RDONLY)) <= ERR.number:
        pass
    os.close(fd)
