"""Plain positioned reads, and an output file that appears whole or not at all.

Nothing here maps memory, so a file that shrinks while it is read is an error with a name and never a signal.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from pathlib import Path
from types import TracebackType

from repack.errors import Damaged, EnvironmentFailure, UsageError, os_failure, shown
from repack.signals import held

_PARTIAL = ".partial"


def open_input(path: Path) -> int:
    """Open a regular file and return its descriptor. FIFOs, devices and folders are refused, not waited for."""
    where = shown(path)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise UsageError("no such file", where=where) from None
    except OSError as error:
        raise os_failure(error, f"{where}: cannot be opened") from None
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return fd
    os.close(fd)
    if stat.S_ISDIR(mode):
        raise UsageError("is a folder", where=where, expected="a file")
    raise Damaged("is a pipe or a device", where=where, expected="a regular file", hint="write it to disk first")


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


class OutputFile:
    """A file that appears under its name whole or not at all.

    Data goes to ``<path>.partial`` beside it, held under an exclusive lock. `commit` makes it durable and renames it;
    leaving the ``with`` block in any other way removes it and leaves an older file as it was. A leftover of a killed
    process is replaced; a live one is an error. A new file gets mode 0666 & ~umask, a replaced one keeps its mode.
    """

    def __init__(self, path: Path, *, replace: bool) -> None:
        self.path = _target(path)
        self.where = shown(path)
        self._old_mode = self._check_target(replace=replace)
        self._replace = replace
        self._partial = self.path.with_name(self.path.name + _PARTIAL)
        self._renamed = False
        with held():  # a signal between the creation and this assignment would leave the file behind
            self.fd = self._open_partial()

    def _check_target(self, *, replace: bool) -> int | None:
        try:
            status = self.path.lstat()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise os_failure(error, f"{self.where}: cannot be written") from None
        if not stat.S_ISREG(status.st_mode):
            raise UsageError("is not a regular file, it will not be replaced", where=self.where)
        if not replace:
            raise UsageError("exists already", where=self.where, hint="--force replaces it")
        return stat.S_IMODE(status.st_mode)

    def _open_partial(self) -> int:
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            while True:
                try:
                    fd = os.open(self._partial, flags | os.O_CREAT | os.O_EXCL, 0o666)
                except FileExistsError:
                    self._remove_leftover(flags)
                    continue
                if _lock(fd) and _same(fd, self._partial):
                    return fd
                os.close(fd)  # another process took it for a leftover in this very moment
        except FileNotFoundError:
            raise UsageError("the folder does not exist", where=self.where) from None
        except OSError as error:
            raise os_failure(error, f"{self.where}: cannot be written") from None

    def _remove_leftover(self, flags: int) -> None:
        try:
            if not stat.S_ISREG(self._partial.lstat().st_mode):
                raise UsageError("is in the way and not a regular file", where=shown(self._partial))
            fd = os.open(self._partial, flags)
        except FileNotFoundError:
            return
        try:
            if not _lock(fd):
                raise EnvironmentFailure("another process is writing this file", where=self.where)
            if _same(fd, self._partial):
                self._partial.unlink()
        finally:
            os.close(fd)

    def write_at(self, data: memoryview | bytes, offset: int) -> None:
        """Write all of `data` at byte `offset`."""
        view, done = memoryview(data), 0
        try:
            while done < len(view):
                done += os.pwrite(self.fd, view[done:], offset + done)
        except OSError as error:
            raise os_failure(error, f"{self.where}: writing failed") from None

    def reserve(self, size: int) -> None:
        """Give the file its final size, after checking that the disk has room for it."""
        try:
            status = os.fstatvfs(self.fd)
            free = status.f_bavail * status.f_frsize
            if status.f_blocks and size > free:
                raise EnvironmentFailure(
                    "the disk is too full",
                    where=self.where,
                    found=f"{free} bytes free",
                    expected=size,
                    hint="free some space or choose another folder",
                )
            os.ftruncate(self.fd, size)
        except OSError as error:
            raise os_failure(error, f"{self.where}: writing failed") from None

    def flush(self) -> None:
        """Wait until what was written is on the disk."""
        try:
            os.fsync(self.fd)
        except OSError as error:
            raise os_failure(error, f"{self.where}: writing failed") from None

    def commit(self) -> None:
        """Make the file durable and give it its name."""
        self.flush()
        try:
            if self._old_mode is not None:
                os.fchmod(self.fd, self._old_mode)
            if self._replace:
                self._partial.replace(self.path)
                self._renamed = True
            else:
                self._link_new()
            folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise os_failure(error, f"{self.where}: cannot be given its final name") from None

    def _link_new(self) -> None:
        """Rename without ever replacing a file that appeared in the meantime."""
        try:
            os.link(self._partial, self.path, follow_symlinks=False)
        except FileExistsError:
            raise UsageError(
                "appeared while it was being written", where=self.where, hint="--force replaces it"
            ) from None
        except OSError:  # a file system without hard links
            if os.path.lexists(self.path):
                raise UsageError("exists already", where=self.where, hint="--force replaces it") from None
            self._partial.rename(self.path)
        else:
            self._partial.unlink()
        self._renamed = True

    def __enter__(self) -> OutputFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if not self._renamed and _same(self.fd, self._partial):
                self._partial.unlink(missing_ok=True)
        finally:
            os.close(self.fd)


def write_whole(path: Path, data: bytes) -> None:
    """Write a small file (a report) whole or not at all, replacing an older one."""
    with OutputFile(path, replace=True) as out:
        out.write_at(data, 0)
        out.commit()


def _target(path: Path) -> Path:
    """Where the bytes go. A symlink to a regular file means that file (the link stays); a dangling one is refused."""
    if not path.is_symlink():
        return path
    try:
        return path.resolve(strict=True)
    except (OSError, RuntimeError):
        raise UsageError("is a symlink that leads nowhere", where=shown(path)) from None


def _lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS}:
            return True  # a file system without locks: O_EXCL alone has to do
        raise
    return True


def _same(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.lstat())
    except FileNotFoundError:
        return False
