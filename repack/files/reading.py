"""Plain positioned reads.

Nothing here maps memory, so a file that shrinks while it is read is an error with a name and never a signal.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from repack.errors import Damaged, UsageError, os_failure, shown

_NO_SUCH_FILE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG}


def open_input(path: Path) -> int:
    """Open a regular file and return its descriptor. FIFOs, devices and folders are refused, not waited for."""
    where = shown(path)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in _NO_SUCH_FILE:
            why = "" if error.errno == errno.ENOENT else f" ({(error.strerror or '').lower()})"
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
