"""A command run in a forked child: real descriptors, real signals, limits on memory and time, nothing shared."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import select
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from repack.command import main as repack_cli
from repack.command.ending import run
from verify import command as verify_cli

MIB = 1 << 20
COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {"repack": repack_cli._command, "verify": verify_cli._command}


@dataclass(frozen=True)
class Done:
    """How a child ended. code: its exit code, or minus the signal that killed it."""

    code: int
    out: str
    err: str
    cpu_seconds: float

    def refused(self, code: int, *words: str) -> str:
        """Check that there is exactly one line, an error with these words, and return it."""
        assert self.code == code, (self.code, self.out, self.err)
        assert self.out == ""
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        assert lines[0].startswith("error: ")
        assert lines[0].isascii()
        assert lines[0].isprintable()
        assert len(lines[0]) < 1500
        for word in words:
            assert word in lines[0], lines[0]
        assert self.cpu_seconds < 2
        return lines[0]


def call(
    command: str,
    *arguments: str | bytes | Path,
    memory: int | None = None,
    before: Callable[[], object] = lambda: None,
    seconds: float = 20,
) -> Done:
    """Run `repack` or `verify`. memory: address space on top of what this process has. before: called in the child."""
    texts = [os.fsdecode(argument) for argument in arguments]
    return call_function(lambda: run(COMMANDS[command], texts), memory=memory, before=before, seconds=seconds)


def call_function(
    function: Callable[[], int],
    *,
    memory: int | None = None,
    before: Callable[[], object] = lambda: None,
    seconds: float = 20,
) -> Done:
    """Run a function in a child whose exit code it returns."""
    return Child(function, memory=memory, before=before).finish(seconds)


class Child:
    """A running child; `finish` has to be called."""

    def __init__(
        self, function: Callable[[], int], *, memory: int | None = None, before: Callable[[], object] = lambda: None
    ) -> None:
        _load()
        self._files = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 - `finish` closes them
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # NumPy's idle threads; nothing of theirs is used
            gc.freeze()  # else the child's collector touches, and so copies, all pages of this process
            self.pid = os.fork()
        if not self.pid:
            _child(function, self._files[0].fileno(), self._files[1].fileno(), memory, before)
        gc.unfreeze()

    def finish(self, seconds: float = 20) -> Done:
        """Wait for the end."""
        killed = _wait(self.pid, seconds)
        _, status, usage = os.wait4(self.pid, 0)
        assert not killed, f"still running after {seconds} s"
        texts = []
        for file in self._files:
            file.seek(0)
            texts.append(file.read().decode("utf-8", "replace"))
            file.close()
        return Done(os.waitstatus_to_exitcode(status), texts[0], texts[1], usage.ru_utime + usage.ru_stime)


def _load() -> None:
    """What the commands import late, so that a child need not, again and again."""
    import gguf.quants
    import rich.table

    import repack.command.report
    import repack.convert
    import verify.reports.delivery
    import verify.run

    del gguf, rich, repack, verify
    with contextlib.suppress(Exception):  # an extra, and not every machine can import it
        import cupy

        del cupy


def _child(function: Callable[[], int], out: int, err: int, memory: int | None, before: Callable[[], object]) -> None:
    code = 99
    try:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        for ending in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
            signal.signal(ending, signal.SIG_DFL)
        for number, source in ((0, os.open(os.devnull, os.O_RDONLY)), (1, out), (2, err)):
            os.dup2(source, number)
        sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
        if memory is not None:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            limit = pages * os.sysconf("SC_PAGE_SIZE") + memory
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        before()
        code = function()
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _wait(pid: int, seconds: float) -> bool:
    """Wait for a child's end; kills it and returns True if it takes too long."""
    fd = os.pidfd_open(pid)
    try:
        if select.select([fd], [], [], seconds)[0]:
            return False
        os.kill(pid, signal.SIGKILL)
        return True
    finally:
        os.close(fd)


def listing(folder: Path) -> dict[str, bytes | None]:
    """All files below a folder with their contents; None for what is no regular file."""
    return {
        os.fspath(path.relative_to(folder)): path.read_bytes() if path.is_file() and not path.is_symlink() else None
        for path in folder.rglob("*")
    }
