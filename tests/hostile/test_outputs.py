"""Where the output may go, kinds 28, 29, 57 and 60, and what an input may be, kinds 24 and 25."""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import stat
import struct
from pathlib import Path

import pytest

from repack import convert_file
from repack.files import allocation
from repack.files.output import OutputFile
from tests.support.calls import call, listing
from tests.support.models import Model
from tests.support.sidecars.by_hand import tiny_model, write_pair

NOBODY = 65534


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny_model().write(tmp_path / "model.gguf")


def without_privilege() -> None:
    """Give up root's right to pass over permissions (CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH), and nothing else."""
    libc = ctypes.CDLL(None, use_errno=True)
    header, sets = struct.pack("=Ii", 0x20080522, 0), ctypes.create_string_buffer(24)
    assert libc.capget(header, sets) == 0
    words = list(struct.unpack("=6I", sets.raw))
    words[0] &= ~0b110
    assert libc.capset(header, struct.pack("=6I", *words)) == 0


# --- inputs that are no files


def fifo(path: Path) -> None:
    os.mkfifo(path)


def link_nowhere(path: Path) -> None:
    path.symlink_to("nowhere")


def link_loop(path: Path) -> None:
    path.symlink_to(path.name)


def listener(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.fspath(path))


@pytest.mark.parametrize(
    ("make", "code", "words"),
    [
        (Path.exists, 2, "no such file"),
        (link_nowhere, 2, "no such file"),
        (link_loop, 2, "no such file"),
        (Path.mkdir, 2, "is a folder"),
        (fifo, 3, "is a pipe"),
        (listener, 3, "is a pipe, a socket"),
    ],
)
def test_an_input_that_is_no_file(make, code: int, words: str, tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.chdir(tmp_path)  # a socket's name is short
    path = Path("x")
    make(path)
    model, sidecar = write_pair(tmp_path, tiny_model())
    call("repack", path, "-o", "out.dpl").refused(code, "`x`", words)
    call("verify", "--quiet", path).refused(code, "`x`", words)
    call("verify", "--quiet", path, sidecar).refused(code, "`x`", words)
    call("verify", "--quiet", model, path).refused(code, "`x`", words)
    assert not Path("out.dpl").exists()


def test_a_file_below_a_file(model: Path, tmp_path: Path) -> None:
    call("repack", model / "x.gguf", "-o", tmp_path / "out").refused(2, "no such file", "not a directory")
    call("repack", model, "-o", model / "x.dpl").refused(2, "folder does not exist")
    call("repack", "n" * 300, "-o", tmp_path / "out").refused(2, "no such file", "too long")
    call("repack", model, "-o", tmp_path / ("n" * 300)).refused(2, "too long")
    call("repack", model, "-o", tmp_path / "no" / "out").refused(2, "folder does not exist")


def test_without_permission(model: Path, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir()
    closed.chmod(0o555)
    call("repack", model, "-o", closed / "out", before=without_privilege).refused(4, "closed/out", "permission")
    model.chmod(0o000)
    call("repack", model, "-o", tmp_path / "out", before=without_privilege).refused(4, "model.gguf", "permission")
    call("verify", "--quiet", model, before=without_privilege).refused(4, "model.gguf", "permission")
    assert listing(tmp_path).keys() == {"model.gguf", "closed"}


def test_a_folder_that_can_be_written_but_not_read(model: Path, tmp_path: Path) -> None:
    box = tmp_path / "box"
    box.mkdir()
    box.chmod(0o333)
    assert call("repack", model, "-o", box / "out", before=without_privilege).code == 0
    assert listing(box).keys() == {"out"}


# --- outputs that are no files


def hard_link(path: Path) -> None:
    path.hardlink_to(path.parent / "model.gguf")


def soft_link(path: Path) -> None:
    path.symlink_to(path.parent / "model.gguf")


def partial_link(path: Path) -> None:
    Path(f"{path}.partial").symlink_to(path.parent / "model.gguf")


def partial_hard_link(path: Path) -> None:
    Path(f"{path}.partial").hardlink_to(path.parent / "model.gguf")


def partial_folder(path: Path) -> None:
    Path(f"{path}.partial").mkdir()


def partial_fifo(path: Path) -> None:
    os.mkfifo(f"{path}.partial")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (Path.mkdir, "not a regular file"),
        (fifo, "not a regular file"),
        (link_nowhere, "leads nowhere"),
        (link_loop, "leads nowhere"),
        (hard_link, "input"),
        (soft_link, "input"),
        (partial_link, "input"),
        (partial_hard_link, "input"),
        (partial_folder, "in the way"),
        (partial_fifo, "in the way"),
    ],
)
def test_an_output_that_must_not_be_replaced(make, words: str, model: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    out = tmp_path / "out.dpl"
    make(out)
    before = listing(tmp_path)
    call("repack", model, "-o", out, "--force").refused(2, words)
    assert listing(tmp_path) == before


def test_a_device_node_is_not_replaced(model: Path, tmp_path: Path) -> None:
    node = tmp_path / "node"
    try:
        os.mknod(node, stat.S_IFCHR | 0o600, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("no right to make a device node")
    call("repack", model, "-o", node, "--force").refused(2, "not a regular file")
    assert stat.S_ISCHR(node.stat().st_mode)
    call("repack", node, "-o", tmp_path / "out").refused(3, "device")


@pytest.mark.parametrize("spelling", ["model.gguf", "./model.gguf", "../{folder}/model.gguf", "sub/../model.gguf"])
def test_the_input_is_never_the_output(
    spelling: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path)
    before = model.read_bytes()
    call("repack", model, "-o", spelling.format(folder=tmp_path.name), "--force").refused(2, "input")
    assert model.read_bytes() == before


def test_a_model_under_the_name_of_a_leftover_survives(tmp_path: Path) -> None:
    model = tiny_model().write(tmp_path / "out.dpl.partial")
    call("repack", model, "-o", tmp_path / "out.dpl").refused(2, "out.dpl.partial", "input")
    assert listing(tmp_path) == {"out.dpl.partial": tiny_model().to_bytes()}


@pytest.mark.parametrize("option", ["--json", "--junit", "--markdown", "--html"])
def test_no_report_replaces_an_input(option: str, tmp_path: Path) -> None:
    model, sidecar = write_pair(tmp_path, tiny_model())
    link = tmp_path / "link"
    link.hardlink_to(sidecar)
    before = listing(tmp_path)
    for report in (model, sidecar, link):
        assert call("verify", model, sidecar, option, report).code == 2
    assert call("verify", sidecar, option, sidecar).code == 2
    assert listing(tmp_path) == before


def test_no_report_replaces_the_model_or_the_output(model: Path, tmp_path: Path) -> None:
    before = listing(tmp_path)
    for report in (model, tmp_path / "out.dpl", tmp_path / "out.dpl.partial"):
        call("repack", model, "-o", tmp_path / "out.dpl", "--json", report).refused(2)
    assert listing(tmp_path) == before


def test_no_report_replaces_the_model_under_the_name_of_its_leftover(tmp_path: Path) -> None:
    sidecar = write_pair(tmp_path, tiny_model())[1]
    model = tiny_model().write(tmp_path / "r.json.partial")
    before = listing(tmp_path)
    assert call("verify", model, sidecar, "--json", tmp_path / "r.json").code == 2
    assert call("repack", model, "-o", tmp_path / "out", "--json", tmp_path / "r.json").code == 2
    assert listing(tmp_path) == before


# --- modes and owners


def test_an_existing_file_needs_force(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_bytes(b"old")
    call("repack", model, "-o", out).refused(2, "exists already", "--force")
    assert out.read_bytes() == b"old"
    assert call("repack", "--quiet", model, "-o", out, "--force").code == 0
    assert out.read_bytes() != b"old"


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077, 0o777])
def test_a_new_file_follows_the_umask(umask: int, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert call("repack", model, "-o", out, before=lambda: os.umask(umask)).code == 0
    assert stat.S_IMODE(out.stat().st_mode) == 0o666 & ~umask


def test_a_replaced_file_keeps_its_mode_and_owner(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_bytes(b"old")
    out.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(out, NOBODY, NOBODY)
    owner = out.stat().st_uid
    assert call("repack", model, "-o", out, "--force", before=lambda: os.umask(0o077)).code == 0
    assert stat.S_IMODE(out.stat().st_mode) == 0o640
    assert out.stat().st_uid == owner


def test_a_symlink_to_a_file_stays_and_the_file_is_replaced(model: Path, tmp_path: Path) -> None:
    target, link = tmp_path / "sub" / "target.dpl", tmp_path / "link.dpl"
    target.parent.mkdir()
    target.write_bytes(b"old")
    link.symlink_to(target)
    assert call("repack", model, "-o", link, "--force").code == 0
    assert link.is_symlink()
    assert len(target.read_bytes()) > 1000
    assert listing(target.parent).keys() == {"target.dpl"}


def test_two_runs_give_the_same_bytes(tmp_path: Path) -> None:
    """Kind 30, for any number of threads, hash seed and name of the output."""
    model = Model([*tiny_model().tensors]).write(tmp_path / "model.gguf")
    for number in range(3):
        assert call("repack", model, "-o", tmp_path / f"out{number}", "--threads", str(number + 1)).code == 0
    assert len({(tmp_path / f"out{number}").read_bytes() for number in range(3)}) == 1


def test_a_file_has_its_place_on_the_disk_before_the_work(tmp_path: Path) -> None:
    with OutputFile(tmp_path / "out", replace=False) as out:
        out.reserve(3 << 20)
        status = os.fstat(out.fd)
        assert status.st_size == 3 << 20
        assert status.st_blocks * 512 >= 3 << 20


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS])
def test_a_file_system_that_cannot_allocate(
    number: int, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int, size: int) -> None:
        raise OSError(number, os.strerror(number))

    convert_file(model, tmp_path / "allocated.dpl")
    monkeypatch.setattr(allocation, "fallocate", refuse)
    convert_file(model, tmp_path / "grown.dpl")
    assert (tmp_path / "grown.dpl").read_bytes() == (tmp_path / "allocated.dpl").read_bytes()
