"""Others at work at the same time: on the same output, on the input while it is read, on odd file systems."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from repack.command.ending import run
from repack.errors import EnvironmentFailure
from repack.sidecar.reader import Sidecar
from tests.support import faults
from tests.support.calls import COMMANDS, Child, call, listing
from tests.support.models import Model, q6_k_tensor
from tests.support.sidecars.by_hand import tiny_model, write_pair


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny_model().write(tmp_path / "model.gguf")


def once(path: str, act: Callable[[], object], after: int = 0) -> Callable[[], None]:
    """For `before`: when the file of this name has been read `after` times, do something to it."""

    def install() -> None:
        honest, seen = os.preadv, 0

        def preadv(fd: int, *arguments: Any) -> int:
            nonlocal seen
            if Path(f"/proc/self/fd/{fd}").readlink().name == path:
                seen += 1
                if seen == after + 1:
                    act()
            return honest(fd, *arguments)

        faults.replace("preadv", preadv)

    return install


@pytest.mark.parametrize("force", [False, True])
def test_many_conversions_to_one_output(force: bool, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    start = time.time() + 0.3
    arguments = ["--quiet", str(model), "-o", str(out), *["--force"][:force]]

    def at_once() -> int:
        time.sleep(max(start - time.time(), 0))
        return run(COMMANDS["repack"], arguments)

    done = [child.finish() for child in [Child(at_once) for _ in range(8)]]
    codes = [one.code for one in done]
    assert 0 in codes
    assert set(codes) <= ({0, 4} if force else {0, 2, 4})
    assert force or codes.count(0) == 1
    assert all("another process" in one.err for one in done if one.code == 4)
    assert listing(tmp_path).keys() == {"model.gguf", "out"}
    assert call("verify", model, out).code == 0


def test_a_file_being_written_is_left_alone(model: Path, tmp_path: Path) -> None:
    partial = tmp_path / "out.partial"
    with partial.open("wb") as file:
        file.write(b"half")
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        call("repack", model, "-o", tmp_path / "out").refused(4, "another process is writing")
    assert partial.read_bytes() == b"half"
    assert call("repack", model, "-o", tmp_path / "out").code == 0
    assert not partial.exists()


def no_locks(*_: object) -> None:
    raise OSError(errno.ENOLCK, "no locks available")


def test_without_locks_a_leftover_is_not_taken_for_dead(model: Path, tmp_path: Path) -> None:
    def before() -> None:
        setattr(fcntl, "flock", no_locks)  # noqa: B010 - a typed module takes no other function

    (tmp_path / "out.partial").write_bytes(b"who knows")
    call("repack", model, "-o", tmp_path / "out", before=before).refused(4, "out.partial", "no locks", "remove it")
    (tmp_path / "out.partial").unlink()
    assert call("repack", model, "-o", tmp_path / "out", before=before).code == 0


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK])
def test_without_hard_links(number: int, model: Path, tmp_path: Path) -> None:
    def no_links(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    def rival(*_: object, **__: object) -> None:
        (tmp_path / "rival").write_bytes(b"first")
        no_links()

    def and_a_rival() -> None:
        faults.replace("link", rival)

    assert call("repack", model, "-o", tmp_path / "out", before=lambda: faults.replace("link", no_links)).code == 0
    assert listing(tmp_path).keys() == {"model.gguf", "out"}
    call("repack", model, "-o", tmp_path / "rival", before=and_a_rival).refused(2, "exists already")
    assert (tmp_path / "rival").read_bytes() == b"first"


def test_an_output_that_appears_meanwhile_is_not_replaced(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    act = once("model.gguf", lambda: out.write_bytes(b"rival"), 3)
    call("repack", model, "-o", out, before=act).refused(2, "exists already")
    assert out.read_bytes() == b"rival"
    assert listing(tmp_path).keys() == {"model.gguf", "out"}


def test_an_output_that_appears_at_the_last_moment(model: Path, tmp_path: Path) -> None:
    """After the last look at the name, before it is given: only a link refuses to replace what is there."""
    out = tmp_path / "out"

    def before() -> None:
        honest = os.link

        def link(*arguments: Any, **options: Any) -> None:
            out.write_bytes(b"rival")
            honest(*arguments, **options)

        faults.replace("link", link)

    call("repack", model, "-o", out, before=before).refused(2, "appeared while")
    assert listing(tmp_path) == {"model.gguf": model.read_bytes(), "out": b"rival"}


@pytest.mark.parametrize("force", [False, True])
def test_an_output_that_turns_into_a_folder_meanwhile(force: bool, model: Path, tmp_path: Path) -> None:
    act = once("model.gguf", (tmp_path / "out").mkdir, 3)
    call("repack", model, "-o", tmp_path / "out", *["--force"][:force], before=act).refused(2, "regular file")
    assert listing(tmp_path).keys() == {"model.gguf", "out"}


@pytest.mark.parametrize("replaced", [False, True])
def test_a_partial_file_taken_away_meanwhile(replaced: bool, model: Path, tmp_path: Path) -> None:
    partial = tmp_path / "out.partial"

    def take() -> None:
        partial.unlink()
        if replaced:
            partial.write_bytes(b"of another")

    call("repack", model, "-o", tmp_path / "out", before=once("model.gguf", take, 3)).refused(4, "out.partial")
    assert listing(tmp_path).get("out.partial") == (b"of another" if replaced else None)
    assert not (tmp_path / "out").exists()


def test_a_folder_removed_meanwhile(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()

    def remove() -> None:
        (folder / "out.partial").unlink()
        folder.rmdir()

    call("repack", model, "-o", folder / "out", before=once("model.gguf", remove, 3)).refused(4)
    assert listing(tmp_path).keys() == {"model.gguf"}


READS = range(4)
"""A model is read four times: index, digest of the header, two tensors."""


@pytest.mark.parametrize("after", READS)
def test_a_model_cut_while_it_is_converted(after: int, model: Path, tmp_path: Path) -> None:
    act = once("model.gguf", lambda: os.truncate(model, 400), after)
    call("repack", model, "-o", tmp_path / "out", before=act).refused(3, "model.gguf")
    assert listing(tmp_path).keys() == {"model.gguf"}


@pytest.mark.parametrize("after", READS)
def test_a_model_changed_while_it_is_converted(after: int, model: Path, tmp_path: Path) -> None:
    other = Model([q6_k_tensor("a", (256, 2), 9), *tiny_model().tensors[1:]]).to_bytes()

    def rewrite() -> None:
        time.sleep(0.01)  # the file system's clock ticks every few milliseconds
        model.write_bytes(other)

    call("repack", model, "-o", tmp_path / "out", before=once("model.gguf", rewrite, after)).refused(3, "changed")
    assert listing(tmp_path).keys() == {"model.gguf"}


@pytest.mark.parametrize("after", READS)
def test_a_model_replaced_while_it_is_converted(after: int, model: Path, tmp_path: Path) -> None:
    """Before it is opened for the data that is an error; later the old file is converted, and verify says it is old."""
    other = Model([q6_k_tensor("a", (256, 2), 9), *tiny_model().tensors[1:]]).write(tmp_path / "other.gguf")
    os.utime(other, ns=(0, 1))
    done = call("repack", model, "-o", tmp_path / "out", before=once("model.gguf", lambda: other.rename(model), after))
    if done.code:
        done.refused(3, "changed since it was indexed")
        assert not (tmp_path / "out").exists()
    else:
        assert call("verify", "--quiet", model, tmp_path / "out").code == 1
        tiny_model().write(model)
        assert call("verify", "--quiet", model, tmp_path / "out").code == 0


@pytest.mark.parametrize("name", ["model.gguf", "model.dpl"])
@pytest.mark.parametrize("after", range(6))
def test_a_file_cut_while_it_is_verified(after: int, name: str, tmp_path: Path) -> None:
    model, sidecar = write_pair(tmp_path, tiny_model())
    act = once(name, lambda: os.truncate(tmp_path / name, 300), after)
    done = call("verify", "--quiet", model, sidecar, before=act)
    assert done.code == 3, done
    assert name in done.err
    assert all(line.startswith("error: ") for line in done.err.splitlines())


def test_an_output_on_another_file_system(model: Path) -> None:
    shared = Path("/dev/shm")
    if not shared.is_dir() or not os.access(shared, os.W_OK):
        pytest.skip("no memory file system")
    with tempfile.TemporaryDirectory(dir=shared) as folder:
        out = Path(folder) / "out"
        assert out.parent.stat().st_dev != model.stat().st_dev
        assert call("repack", model, "-o", out).code == 0
        assert call("verify", model, out).code == 0


def test_a_reader_where_files_cannot_be_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, sidecar = write_pair(tmp_path, tiny_model())

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENODEV, "No such device")

    monkeypatch.setattr(mmap, "mmap", refuse)
    with pytest.raises(EnvironmentFailure, match="cannot be mapped"):
        Sidecar(sidecar)
    assert call("verify", sidecar).code == 0
