"""What is made once in a run of the tests, although pytest-xdist runs them in several processes."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

_FOLDER = "GGUF_DPL_TESTS"


def begin() -> bool:
    """Make the run's folder; False in a worker, which finds it in its environment."""
    if _FOLDER in os.environ:
        return False
    os.environ[_FOLDER] = tempfile.mkdtemp(prefix="gguf-dpl-tests-")
    return True


def end() -> None:
    """Remove it with all that was made."""
    shutil.rmtree(os.environ.pop(_FOLDER))


def once(name: str, make: Callable[[Path], Path]) -> Path:
    """The path that `make` returns, given a folder of its own. Other processes wait for it. Not to be changed."""
    folder = Path(os.environ[_FOLDER]) / name
    folder.mkdir(exist_ok=True)
    done = folder / "made"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            done.write_text(os.fspath(make(folder)))
    return Path(done.read_text())
