"""Plain positioned reads.

Nothing here maps memory, so a file that shrinks while it is read is an error with a name and never a signal.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from threading import Lock
from types import TracebackType

from repack.errors import Damaged, UsageError, os_failure, shown

OPEN_FILES = 16
"""Files of `Inputs` that stay open. More than threads read at a time, and far below what any system allows."""

_NO_SUCH_FILE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG}


def open_input(path: Path) -> int:
    """Open a regular file and return its descriptor. FIFOs, devices and folders are refused, not waited for."""
    where = shown(path)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in _NO_SUCH_FILE:
            why = "" if error.errno == errno.ENOENT else f" ({(error.strerror or '').lower()})"
            why = " (the working directory has been deleted)" if working_folder_is_gone(path) else why
            raise UsageError(f"no such file{why}", where=where) from None
        if error.errno == errno.ENXIO:
            raise _not_a_file(where) from None
        raise os_failure(error, f"{where}: cannot be opened") from None
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return fd
    os.close(fd)
    if stat.S_ISDIR(mode):
        raise UsageError("is a folder", where=where, expected="a file")
    raise _not_a_file(where)


def working_folder_is_gone(path: Path) -> bool:
    """Whether the path counts from a working directory that has been deleted."""
    try:
        return not path.is_absolute() and not os.getcwd()  # noqa: PTH109 - as short, and nothing to resolve
    except OSError:
        return True


def _not_a_file(where: str) -> Damaged:
    what = "is a pipe, a socket or a device"
    return Damaged(what, where=where, expected="a regular file", hint="write it to disk first")


Stamp = tuple[int, int]
"""What tells a file from itself after a change, and from another in its place: size, and time of change in ns."""


def stamp(fd: int) -> Stamp:
    """The state of an open file. Without inode numbers: some mounts give a file another one at every look."""
    status = os.fstat(fd)
    return status.st_size, status.st_mtime_ns


def utf8(path: str) -> str:
    """A path as text that every encoding can take: bytes that are not UTF-8 appear as escapes."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def read_into(fd: int, buffer: memoryview, offset: int, where: str) -> None:
    """Fill `buffer` from byte `offset` on. Raises Damaged if the file ends before, EnvironmentFailure on I/O errors."""
    done = 0
    while done < len(buffer):
        try:
            got = os.preadv(fd, [buffer[done:]], offset + done)
        except OSError as error:
            raise os_failure(error, f"{where}: reading at byte {offset + done} failed") from None
        if not got:
            raise Damaged(
                "ends too early",
                where=where,
                found=f"{offset + done} bytes",
                expected=f"at least {offset + len(buffer)}",
            )
        done += got


def read_bytes(fd: int, count: int, offset: int, where: str) -> bytes:
    """`count` bytes from byte `offset` on; the caller has bounded `count` by the file size."""
    buffer = bytearray(count)
    read_into(fd, memoryview(buffer), offset, where)
    return bytes(buffer)


class Inputs:
    """Files that are read at any place, by any number of threads; to be used in a ``with`` block.

    A model may have a thousand files, and a process often no more than 256: a file is opened when it is read, and of
    those not in use the one read longest ago is closed when more than `OPEN_FILES` are open. Every time a file is
    opened it must be in the state it was in when it was indexed, else Damaged is raised.
    """

    def __init__(self, files: Iterable[tuple[Path, Stamp]]) -> None:
        self._files = tuple(files)
        self._lock = Lock()
        self._open: dict[int, int] = {}
        """Number of a file to its descriptor, the one used last at the end."""
        self._users = [0] * len(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def name(self, number: int) -> str:
        """A file's path, made safe to show."""
        return shown(self._files[number][0])

    @contextlib.contextmanager
    def opened(self, number: int) -> Iterator[int]:
        """The descriptor of a file, which stays open for the time of the block."""
        with self._lock:
            fd = self._open.pop(number, None)
            fd = self._checked(number) if fd is None else fd
            self._open[number] = fd
            self._users[number] += 1
        try:
            yield fd
        finally:
            with self._lock:
                self._users[number] -= 1
                idle = [other for other in self._open if not self._users[other]]
                for other in idle[: max(len(self._open) - OPEN_FILES, 0)]:
                    os.close(self._open.pop(other))

    def read_into(self, number: int, buffer: memoryview, offset: int, what: str) -> None:
        """Fill `buffer` from a file's byte `offset` on; `what` it is, for the error."""
        with self.opened(number) as fd:
            read_into(fd, buffer, offset, f"{self.name(number)}: {what}")

    def refuse_changed(self) -> None:
        """Raise Damaged if a file, open or not, has changed since it was indexed."""
        for number in range(len(self)):
            with self.opened(number) as fd:
                self._refuse_changed(number, fd)

    def _checked(self, number: int) -> int:
        fd = open_input(self._files[number][0])
        try:
            self._refuse_changed(number, fd)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _refuse_changed(self, number: int, fd: int) -> None:
        if stamp(fd) != self._files[number][1]:
            raise Damaged("changed since it was indexed", where=self.name(number), hint="run the command again")

    def __enter__(self) -> Inputs:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._open:
            os.close(self._open.popitem()[1])
