"""Every way in which the tools can fail, its wording, and its exit code.

An error is one line: where, what, found, expected, what to do next. The classes below are the only place in which
exit codes are named; `repack.command.console` turns an exception into its line and its code, nothing else does.
"""

from __future__ import annotations

import errno
from typing import ClassVar

PROVEN = 0


def shown(value: object, limit: int = 120) -> str:
    """Text from outside made safe to show: ASCII, escaped, in backticks, cut at `limit` characters."""
    text = value if isinstance(value, str) else str(value)
    safe = text.encode("unicode_escape", "surrogatepass").decode("ascii") if not _plain(text) else text
    if len(safe) > limit:
        safe = f"{safe[: limit - 3]}..."
    return f"`{safe}`"


def one_line(text: str) -> str:
    """Text with everything escaped that is not printable ASCII: an error is one line, whatever it quotes."""
    return "".join(char if _plain(char) else char.encode("unicode_escape").decode("ascii") for char in text)


def _plain(text: str) -> bool:
    return text.isascii() and text.isprintable()


class DplError(Exception):
    """Base of all errors that end a command; `exit_code` is what the process returns.

    where: the file, tensor or offset concerned. found, expected: the facts. hint: what to do next. All optional.
    """

    exit_code: ClassVar[int]

    def __init__(
        self,
        what: str,
        *,
        where: str = "",
        found: object = None,
        expected: object = None,
        hint: str = "",
    ) -> None:
        line = f"{where}: {what}" if where else what
        if found is not None:
            line += f"; found {found}"
        if expected is not None:
            line += f", expected {expected}" if found is not None else f"; expected {expected}"
        if hint:
            line += f"; {hint}"
        super().__init__(line)
        self.what = what
        self.where = where


class Differs(DplError):
    """The artifact is sound by itself but is not what its source says."""

    exit_code = 1


class UsageError(DplError):
    """The command line asks for something that makes no sense."""

    exit_code = 2


class Damaged(DplError):
    """An input is damaged, or of a kind that is not supported."""

    exit_code = 3


class EnvironmentFailure(DplError):
    """The machine is in the way: no GPU where one is required, driver, memory, disk, permission."""

    exit_code = 4


class NothingToDo(DplError):
    """Nothing to convert, or nothing to check. Never a success."""

    exit_code = 5


def os_failure(error: OSError, what: str) -> EnvironmentFailure:
    """An operating system's error as ours, in its own words plus what helps."""
    hints = {
        errno.ENOSPC: "free some space or choose another folder",
        errno.EDQUOT: "free some space or choose another folder",
        errno.EFBIG: "raise the file-size limit (ulimit -f) or choose another file system",
        errno.EACCES: "check the permissions",
        errno.EPERM: "check the permissions",
        errno.EROFS: "choose a folder that can be written",
    }
    reason = (error.strerror or str(error)).lower()
    return EnvironmentFailure(f"{what} ({reason})", hint=hints.get(error.errno or 0, ""))
