"""Ends in the middle of the work: the old file, no file or the whole new one; nothing beside it."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from repack.command.ending import run
from repack.files.signals import ENDING, raise_on_signals
from tests.support import faults
from tests.support.calls import COMMANDS, Done, call, call_function, listing
from tests.support.sidecars.by_hand import tiny_model

OLD = b"what was there before"
STEP = int(os.environ.get("DPL_EVERY_LINE", "3"))
"""Of the lines in test_a_signal_at_every_line every third is tried; all of them with DPL_EVERY_LINE=1."""
SIGNALS = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2),
    *(signal.SIGALRM, signal.SIGXCPU, signal.SIGRTMAX),
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """What a conversion that nobody disturbs gives."""
    folder = tmp_path_factory.mktemp("whole")
    model = tiny_model().write(folder / "model.gguf")
    assert call("repack", model, "-o", folder / "out").code == 0
    return (folder / "out").read_bytes()


def prepare(folder: Path, *, old: bool) -> list[str]:
    folder.mkdir(exist_ok=True)
    tiny_model().write(folder / "model.gguf")
    if old:
        (folder / "out").write_bytes(OLD)
    return ["--quiet", "--threads", "1", str(folder / "model.gguf"), "-o", str(folder / "out"), *["--force"][:old]]


def struck(folder: Path, arguments: list[str], at: int, strike: Callable[[], None]) -> Done:
    watch = faults.Faults(folder, at, strike)
    return call("repack", *arguments, before=watch.install)


def operations(folder: Path, *, old: bool) -> list[str]:
    """What an undisturbed conversion asks of the file system, in order."""
    arguments = prepare(folder, old=old)
    watch = faults.Faults(folder)

    def report() -> int:
        code = run(COMMANDS["repack"], arguments)
        print("\n".join(watch.log))
        return code

    done = call_function(report, before=watch.install)
    assert done.code == 0, done.err
    return done.out.splitlines()


def without_leftover(folder: Path) -> bytes | None:
    """The output's bytes, after checking that there is nothing but model and output."""
    files = listing(folder)
    assert files.pop("model.gguf") == tiny_model().to_bytes()
    out = files.pop("out", None)
    assert not files
    return out


@pytest.mark.parametrize("old", [False, True])
def test_what_is_written_is_durable_before_it_has_its_name(old: bool, tmp_path: Path) -> None:
    log = operations(tmp_path, old=old)
    last_write = max(at for at, what in enumerate(log) if what == "pwrite out.partial")
    synced, named = log.index("fsync out.partial"), log.index(f"{'rename' if old else 'link'} out.partial")
    read_back = max(at for at, what in enumerate(log) if what == "preadv out.partial")
    assert last_write < read_back < synced < named < log.index(f"fsync {tmp_path.name}")


@pytest.mark.parametrize("old", [False, True])
def test_killed_at_every_operation(old: bool, whole: bytes, tmp_path: Path) -> None:
    count = len(operations(tmp_path / "count", old=old))
    assert count > 20
    seen = set()
    for at in range(count):
        folder = tmp_path / str(at)
        arguments = prepare(folder, old=old)
        assert struck(folder, arguments, at, faults.kill).code == -signal.SIGKILL
        out = (folder / "out").read_bytes() if (folder / "out").exists() else None
        assert out in ({OLD, whole} if old else {None, whole})
        seen.add(out)
        again = call("repack", *arguments, *([] if old or out is None else ["--force"]))
        assert (again.code, again.err) == (0, "")
        assert without_leftover(folder) == whole
    assert len(seen) == 2, "the strikes went beyond the rename"


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("old", [False, True])
def test_an_error_at_every_operation(old: bool, number: int, whole: bytes, tmp_path: Path) -> None:
    log = operations(tmp_path / "count", old=old)
    for at, what in enumerate(log):
        folder = tmp_path / str(at)
        done = struck(folder, prepare(folder, old=old), at, faults.error(number))
        if what == "remove out.partial":  # the clean-up itself is refused; the sidecar is in place
            assert done.code == 4
            continue
        out = without_leftover(folder)
        if done.code == 0:  # owner and mode are kept as far as it goes; a link that fails is tried as a rename
            assert what.split()[0] in {"chown", "chmod", "link"}, what
            assert out == whole
            continue
        done.refused(4, os.strerror(number).lower())
        assert out in {OLD if old else None, whole}
        assert (out == whole) == ("might not survive" in done.err), (what, done.err)


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_at_every_operation(old: bool, number: int, whole: bytes, tmp_path: Path) -> None:
    count = len(operations(tmp_path / "count", old=old))
    for at in range(SIGNALS.index(number), count, len(SIGNALS)):  # they take turns: their handling is the same
        folder = tmp_path / str(at)
        done = struck(folder, prepare(folder, old=old), at, faults.send(number))
        out = without_leftover(folder)
        assert out in {OLD if old else None, whole}
        done.refused(128 + number, f"interrupted by {signal.Signals(number).name}")


def test_a_signal_at_every_line(whole: bytes, tmp_path: Path) -> None:
    """The window between two lines is where clean-ups fail: all of them in the files that write, in the main thread."""
    arguments = prepare(tmp_path, old=False)
    files = {"ending.py", "console.py", "output.py", "partial.py", "convert.py", "pipeline.py", "signals.py"}

    def convert_and_strike(at: int) -> tuple[int, int]:
        lines = 0

        def trace(frame, event, argument):  # type: ignore[no-untyped-def]
            nonlocal lines
            path = Path(frame.f_code.co_filename)
            if "repack" not in path.parts[-3:-1] or path.name not in files:
                return None
            if event in {"line", "return"}:
                if lines == at:
                    signal.raise_signal(signal.SIGTERM)
                lines += 1
            return trace

        for number in ENDING:
            if signal.getsignal(number) is not None:
                signal.signal(number, signal.SIG_DFL)
        raise_on_signals()  # as in a process of its own; the run before this one has left them ignored
        sys.settrace(trace)
        code = run(COMMANDS["repack"], arguments)
        sys.settrace(None)
        return code, lines

    def all_lines() -> int:
        faults.replace("fsync", lambda _: None)  # its place is tested above; here it would only cost time
        _, count = convert_and_strike(-1)
        assert count > 300
        for at in range(1, count, STEP):  # number 0 is before the handlers are in place
            (tmp_path / "out").unlink(missing_ok=True)
            code, _ = convert_and_strike(at)
            late = at > count - 10  # all is done and said
            assert code in ({0, 128 + signal.SIGTERM} if late else {128 + signal.SIGTERM}), (at, count, code)
            assert without_leftover(tmp_path) in {None, whole}, at
        return 0

    done = call_function(all_lines, seconds=120)
    assert done.code == 0, done.err[-2000:]


def test_no_traceback_when_a_process_is_interrupted(tmp_path: Path) -> None:
    """As a process of its own, from outside, at any time: also while Python itself still starts."""
    arguments = prepare(tmp_path, old=False)
    for delay in (0.15, 0.3, 0.45):
        process = subprocess.Popen(
            [sys.executable, "-m", "repack", *arguments, "--force"], stderr=subprocess.PIPE, text=True
        )
        try:
            process.wait(delay)
        except subprocess.TimeoutExpired:
            process.terminate()
        err = process.communicate(timeout=20)[1]
        assert "Traceback" not in err
        assert process.returncode in {0, 143, -15}
        without_leftover(tmp_path)


def test_nohup_stays_in_force(tmp_path: Path) -> None:
    arguments = prepare(tmp_path, old=False)

    def ignore_and_watch() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        faults.Faults(tmp_path, 5, faults.send(signal.SIGHUP)).install()

    assert call("repack", *arguments, before=ignore_and_watch).code == 0


def test_the_second_signal_does_not_disturb_the_clean_up(tmp_path: Path) -> None:
    arguments = prepare(tmp_path, old=True)

    def twice() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)

    done = struck(tmp_path, arguments, 12, twice)
    assert done.code in {130, 143}
    assert without_leftover(tmp_path) == OLD


def test_a_file_size_limit(tmp_path: Path) -> None:
    arguments = prepare(tmp_path, old=True)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))

    call("repack", *arguments, before=limit).refused(4, "too large", "ulimit -f")
    assert without_leftover(tmp_path) == OLD


@pytest.fixture
def small_disk(tmp_path: Path):  # type: ignore[no-untyped-def]
    """A file system of 64 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], capture_output=True, check=False)
    if made.returncode:
        pytest.skip("no right to mount a tmpfs")
    yield disk
    subprocess.run(["umount", disk], check=True)


def test_a_full_disk(small_disk: Path, tmp_path: Path) -> None:
    model = tiny_model().write(tmp_path / "model.gguf")
    assert call("repack", model, "-o", small_disk / "first").code == 0
    (small_disk / "filler").write_bytes(bytes(52 << 10))
    before = listing(small_disk)
    call("repack", model, "-o", small_disk / "out").refused(4, "disk is too full", "bytes free")
    assert listing(small_disk) == before

    def no_counts() -> None:  # as some network file systems: it is full, and does not say so
        honest = os.fstatvfs
        faults.replace("fstatvfs", lambda fd: os.statvfs_result((*honest(fd)[:2], 0, 0, 0, *honest(fd)[5:])))

    call("repack", model, "-o", small_disk / "out", before=no_counts).refused(4, "no space left")
    call("repack", model, "-o", small_disk / "first", "--force", before=no_counts).refused(4, "no space left")
    assert listing(small_disk) == before
    done = call("verify", model, small_disk / "first", "--json", small_disk / "report.json")
    assert done.code in {0, 4}
    assert (done.code == 0) == (small_disk / "report.json").exists()
    assert not (small_disk / "report.json.partial").exists()


def test_short_reads_and_writes_change_nothing(whole: bytes, tmp_path: Path) -> None:
    arguments = prepare(tmp_path, old=False)
    read, write = os.preadv, os.pwrite

    def in_bits() -> None:
        faults.replace("preadv", lambda fd, buffers, offset: read(fd, [buffers[0][:7]], offset))
        faults.replace("pwrite", lambda fd, data, offset: write(fd, data[:5], offset))

    assert call("repack", *arguments, before=in_bits).code == 0
    assert without_leftover(tmp_path) == whole
    done = call("verify", tmp_path / "model.gguf", tmp_path / "out", before=in_bits)
    assert done.code == 0


def test_a_write_that_writes_nothing_ends(tmp_path: Path) -> None:
    arguments = prepare(tmp_path, old=False)

    call("repack", *arguments, before=lambda: faults.replace("pwrite", lambda *_: 0)).refused(4, "nothing was written")
    assert without_leftover(tmp_path) is None
