"""Every way in which the tools can fail, its wording, and its exit code.

An error is one line: where, what, found, expected, what to do next. The classes below are the only place in which
exit codes are named; `repack.command.ending` turns an exception into its line and its code, nothing else does.
"""

from __future__ import annotations

import errno
import re
from typing import ClassVar

PROVEN = 0

INSTALLATION = "docs/quickstart.md, section Install"
"""Where installing is told, in one place; errors only point there."""

_COMMAND_AT_THE_START = re.compile(r"^(\s*):(?=:)")


def shown(value: object, limit: int = 120) -> str:
    """Text from outside, safe to show (`plain`), in backticks, cut at `limit` characters."""
    safe = plain(value if isinstance(value, str) else str(value))
    return f"`{safe if len(safe) <= limit else safe[: limit - 3] + '...'}`"


def plain(text: str) -> str:
    """Text from outside as one line of printable ASCII: escaped, never cut, and no command to a CI server."""
    return _disarmed(text if _printable(text) else text.encode("unicode_escape", "surrogatepass").decode("ascii"))


def one_line(text: str) -> str:
    """A whole message, parts of which may be escaped already: what is still unsafe is escaped, no backslash doubled."""
    return _disarmed(
        "".join(char if _printable(char) else char.encode("unicode_escape").decode("ascii") for char in text)
    )


def _printable(text: str) -> bool:
    return text.isascii() and text.isprintable()


def _disarmed(text: str) -> str:
    """Some CI servers act on ``##[``, ``##vso[`` and ``##teamcity[`` anywhere in a line, and on ``::`` at its start."""
    return _COMMAND_AT_THE_START.sub(r"\1\\x3a", text.replace("##", r"#\x23"))


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
    """The command line asks for something that cannot be done."""

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


def as_failure(error: Exception) -> DplError:
    """Any exception as one of ours, with what to do about it."""
    if isinstance(error, DplError):
        return error
    if isinstance(error, MemoryError):
        return EnvironmentFailure("out of memory")
    if isinstance(error, RuntimeError) and "start new thread" in str(error):
        return EnvironmentFailure("the system allows no more threads or memory", hint="raise the limits (ulimit)")
    if isinstance(error, ImportError):
        package = f"the Python package {shown(error.name.partition('.')[0])}" if error.name else "a Python package"
        what = "is missing" if isinstance(error, ModuleNotFoundError) else f"cannot be imported ({_cause(error)})"
        return EnvironmentFailure(f"{package} {what}", hint=f"see {INSTALLATION}")
    if isinstance(error, OSError):
        return os_failure(error, shown(error.filename) if error.filename else "the operating system refused")
    what = f"internal error: {_cause(error)}"
    return EnvironmentFailure(what, hint="please report it, with the output under DPL_DEBUG=1")


def _cause(error: BaseException) -> str:
    """What an exception goes back to: its class and the first line of its text, if it has one."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
