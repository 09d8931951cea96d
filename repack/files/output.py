"""An output file that appears under its name whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

from repack.errors import EnvironmentFailure, UsageError, os_failure, shown
from repack.files.allocation import allocate
from repack.files.partial import create, is_at, partial_of
from repack.files.signals import check, hold, release

_NOT_DURABLE = {errno.EIO, errno.ENOSPC, errno.EDQUOT}


class OutputFile:
    """A file that appears under its name whole or not at all; to be used in a ``with`` block.

    Data goes to ``<path>.partial`` beside it (see `repack.files.partial`). `commit` makes it durable and renames it;
    leaving the block in any other way removes it and leaves an older file as it was. A new file gets mode 0666
    & ~umask, a replaced one keeps its mode and, where that is allowed, its owner. inputs: files that must be neither
    the output nor its ``.partial``.
    """

    def __init__(self, path: Path, *, replace: bool, inputs: Iterable[Path] = ()) -> None:
        self.path = _target(path)
        self.where = shown(path)
        self._replace = replace
        self._old = self._check_target()
        self._partial = partial_of(self.path)
        self.fd = -1
        refuse_inputs(path, inputs)

    def __enter__(self) -> OutputFile:
        hold()
        try:
            self.fd = create(self._partial, self.where)
        except BaseException:
            release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if is_at(self.fd, self._partial):  # after a rename it is gone, after a link it still has to go
                self._partial.unlink(missing_ok=True)
        finally:
            os.close(self.fd)
            release()
        if kind is None:
            check()

    def write_at(self, data: memoryview | bytes, offset: int) -> None:
        """Write all of `data` at byte `offset`."""
        view, done = memoryview(data), 0
        try:
            while done < len(view):
                written = os.pwrite(self.fd, view[done:], offset + done)
                if not written:
                    raise OSError(errno.EIO, "nothing was written")
                done += written
        except OSError as error:
            raise os_failure(error, f"{self.where}: writing failed") from None

    def reserve(self, size: int) -> None:
        """Give the file its final size and, where the file system can, its place. Raises EnvironmentFailure if full."""
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
            allocate(self.fd, size)
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
        check()
        try:
            self._check_target()
            if self._old is not None:
                self._take_over(self._old)
            if not is_at(self.fd, self._partial):
                raise EnvironmentFailure("was removed or replaced meanwhile", where=shown(self._partial))
            if self._replace:
                self._partial.replace(self.path)
            else:
                self._link_new()
        except OSError as error:
            raise os_failure(error, f"{self.where}: cannot be given its final name") from None
        self._sync_folder()

    def _check_target(self) -> os.stat_result | None:
        """The status of the file to be replaced. Raises UsageError if it must not be."""
        try:
            status = self.path.lstat()
        except FileNotFoundError:
            return None
        except NotADirectoryError:
            raise UsageError("the folder does not exist", where=self.where) from None
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                raise UsageError("the name is too long", where=self.where, hint="choose a shorter one") from None
            raise os_failure(error, f"{self.where}: cannot be written") from None
        if not stat.S_ISREG(status.st_mode):
            raise UsageError("is not a regular file, it will not be replaced", where=self.where)
        if not self._replace:
            raise UsageError("exists already", where=self.where, hint="--force replaces it")
        return status

    def _take_over(self, old: os.stat_result) -> None:
        """Owner and mode of the file to be replaced, as far as the file system and our rights go."""
        with contextlib.suppress(OSError):
            os.fchown(self.fd, old.st_uid, old.st_gid)
        with contextlib.suppress(OSError):
            os.fchmod(self.fd, stat.S_IMODE(old.st_mode) & 0o777)

    def _link_new(self) -> None:
        """Give the file its name as a second one, which never replaces a file that appeared in the meantime."""
        try:
            os.link(self._partial, self.path, follow_symlinks=False)
        except FileExistsError:
            raise UsageError(
                "appeared while it was being written", where=self.where, hint="--force replaces it"
            ) from None
        except OSError:  # a file system without hard links
            self._check_target()
            self._partial.rename(self.path)

    def _sync_folder(self) -> None:
        """Make the new name durable. Some file systems, and folders that we may not read, do not allow that."""
        try:
            folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            if error.errno in _NOT_DURABLE:
                raise os_failure(error, f"{self.where}: is in place but might not survive a power cut") from None


def write_whole(path: Path, data: bytes, inputs: Iterable[Path] = ()) -> None:
    """Write a small file (a report) whole or not at all, replacing an older one."""
    with OutputFile(path, replace=True, inputs=inputs) as out:
        out.write_at(data, 0)
        out.commit()


def refuse_inputs(out: Path, inputs: Iterable[Path]) -> None:
    """Raise UsageError if writing `out` would overwrite one of `inputs`, by whatever spelling or link."""
    target = _target(out)
    for path in inputs:
        if _is(target, path):
            raise UsageError("is an input too; it would be overwritten", where=shown(out), hint="choose another name")
        if target.name and _is(partial := partial_of(target), path):
            what = f"would be written as {shown(partial.name)} first, which is an input"
            raise UsageError(what, where=shown(out), hint="choose another name")


def _is(candidate: Path, path: Path) -> bool:
    if os.path.realpath(candidate) == os.path.realpath(path):  # without any inode number, see `partial.is_at`
        return True
    try:
        return candidate.samefile(path)
    except OSError:
        return False


def _target(path: Path) -> Path:
    """Where the bytes go. A symlink to a regular file means that file (the link stays); a dangling one is refused."""
    if not os.path.islink(path):  # noqa: PTH114 - unlike Path.is_symlink it raises nothing
        return path
    try:
        return path.resolve(strict=True)
    except (OSError, RuntimeError):
        raise UsageError("is a symlink that leads nowhere", where=shown(path)) from None
