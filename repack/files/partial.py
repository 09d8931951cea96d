"""The unfinished form of an output: a file beside it, held under a lock, of which nothing stays."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import stat
from pathlib import Path

from repack.errors import EnvironmentFailure, UsageError, os_failure, shown
from repack.files.reading import working_folder_is_gone
from repack.files.signals import check

PARTIAL = ".partial"
"""What is added to the name of a file while it is being written."""

_TRIES = 16
"""Another process may take our new file for a leftover once, or twice."""
_NO_LOCKS = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS}
_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def partial_of(path: Path) -> Path:
    """Where a file is written until it is whole: ``NAME.partial``, or, if that is too long a name, a digest of NAME."""
    name = f"{path.name}{PARTIAL}"
    try:
        longest = os.pathconf(path.parent, "PC_NAME_MAX")
    except OSError:
        longest = 255
    if len(os.fsencode(name)) > longest:
        name = hashlib.sha256(os.fsencode(path.name)).hexdigest()[:32] + PARTIAL
    return path.with_name(name)


def create(partial: Path, where: str) -> int:
    """Create the file and lock it; returns its descriptor. A leftover of a killed process is replaced.

    where: the output, for an error. Raises UsageError if there is no such folder, EnvironmentFailure if another process
    is writing the file or it cannot be written.
    """
    left_behind = False
    try:
        for _ in range(_TRIES):
            check()
            try:
                fd = os.open(partial, _FLAGS | os.O_CREAT | os.O_EXCL, 0o666)
            except FileExistsError:
                _remove_leftover(partial, where)
                continue
            if _lock(fd) is not False and is_at(fd, partial):
                return fd
            left_behind = os.fstat(fd).st_nlink > 0  # else another process took it for a leftover in this very moment
            os.close(fd)
    except FileNotFoundError:
        gone = working_folder_is_gone(partial)
        what = "the working directory has been deleted" if gone else "the folder does not exist"
        raise UsageError(what, where=where) from None
    except OSError as error:
        raise os_failure(error, f"{where}: cannot be written") from None
    if left_behind:
        with contextlib.suppress(OSError):
            partial.unlink()
    what = "cannot be told from other files of this folder, whose inode numbers change"
    raise EnvironmentFailure(what, where=shown(partial), hint="choose a folder on a local disk")


def is_at(fd: int, path: Path) -> bool:
    """Whether an open file still has this name.

    Where inode numbers change from call to call, a file that has a name and the same size and times will be it.
    """
    try:
        ours, there = os.fstat(fd), path.lstat()
    except FileNotFoundError:
        return False
    facts = [(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_mode) for status in (ours, there)]
    return os.path.samestat(ours, there) or (ours.st_nlink > 0 and facts[0] == facts[1])


def _remove_leftover(partial: Path, where: str) -> None:
    try:
        if not stat.S_ISREG(partial.lstat().st_mode):
            raise UsageError("is in the way and not a regular file", where=shown(partial))
        fd = os.open(partial, _FLAGS)
    except FileNotFoundError:
        return
    except OSError as error:
        raise _in_the_way(partial, error) from None
    try:
        free = _lock(fd)
        if free is None:
            what = "exists, and this file system has no locks to tell whether another process is writing it"
            raise EnvironmentFailure(what, where=shown(partial), hint="remove it if none is")
        if not free:
            raise EnvironmentFailure("another process is writing this file", where=where)
        if is_at(fd, partial):
            partial.unlink()
    except OSError as error:
        raise _in_the_way(partial, error) from None
    finally:
        os.close(fd)


def _in_the_way(partial: Path, error: OSError) -> EnvironmentFailure:
    reason = (error.strerror or str(error)).lower()
    what = f"is in the way, left by another process, and cannot be removed ({reason})"
    return EnvironmentFailure(what, where=shown(partial), hint="have its owner remove it, or choose another output")


def _lock(fd: int) -> bool | None:
    """Whether the lock is ours; None on a file system without locks."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return None
        raise
    return True
