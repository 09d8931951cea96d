"""A file's place on the disk, taken before the work: a full disk then shows at once, and writing costs a third less."""

from __future__ import annotations

import ctypes
import errno
import os
from functools import cache
from typing import Any

_NOT_HERE = {errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENODEV, errno.EINTR}


def allocate(fd: int, size: int) -> None:
    """Give an open file its size and, where the file system can, its place. Raises OSError if there is no room."""
    try:
        fallocate(fd, size)
    except OSError as error:
        if error.errno not in _NOT_HERE:
            raise
        os.ftruncate(fd, size)


def fallocate(fd: int, size: int) -> None:
    """Linux's system call, which a file system without it refuses.

    Not posix_fallocate, which then writes a byte to each block: as slow as writing the file. Other systems have none.
    """
    function = _system_call()
    if function is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if size and function(fd, 0, 0, size):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


@cache
def _system_call() -> Any:
    """Python has no name for it, the C library has."""
    library = ctypes.CDLL(None, use_errno=True)
    function = getattr(library, "fallocate64", None) or getattr(library, "fallocate", None)
    if function is not None:
        function.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return function
