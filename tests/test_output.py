"""An output file: its unfinished form beside it, its place on the disk, and whose fault it is when it cannot be."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from repack.errors import EnvironmentFailure, UsageError
from repack.files import allocation
from repack.files.allocation import allocate
from repack.files.output import OutputFile, refuse_inputs, write_whole
from repack.files.partial import partial_of
from repack.files.reading import open_input
from tests.support.calls import call_function


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    os.chdir("/")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# --- names


@pytest.mark.parametrize("length", [247, 248, 255])
@pytest.mark.parametrize("letter", ["n", "ä"])
def test_a_name_as_long_as_a_name_may_be(length: int, letter: str, tmp_path: Path) -> None:
    size = len(letter.encode())
    name = letter * (length // size) + "n" * (length % size)
    with OutputFile(tmp_path / name, replace=False) as output:
        beside = names(tmp_path)
        assert (beside == [f"{name}.partial"]) == (length == 247)
        assert beside[0].endswith(".partial")
        output.write_at(b"whole", 0)
        output.commit()
    assert names(tmp_path) == [name]
    assert (tmp_path / name).read_bytes() == b"whole"


def test_long_names_that_begin_alike_do_not_meet(tmp_path: Path) -> None:
    first, second = (tmp_path / ("n" * 254 + end) for end in "ab")
    with OutputFile(first, replace=False) as one, OutputFile(second, replace=False) as two:
        one.write_at(b"1", 0)
        two.write_at(b"2", 0)
        one.commit()
        two.commit()
    assert (first.read_bytes(), second.read_bytes()) == (b"1", b"2")


def test_a_name_that_is_too_long_is_told_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"`[^`]*nnn[^`]*`: the name is too long"):
        OutputFile(tmp_path / ("n" * 256), replace=False)


def test_a_shorter_limit_is_the_file_systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pathconf", lambda *asked: {"PC_NAME_MAX": 143}[asked[1]])
    assert partial_of(tmp_path / ("n" * 135)).name == "n" * 135 + ".partial"
    assert len(partial_of(tmp_path / ("n" * 136)).name) < 143


def test_where_no_limit_is_known_it_is_the_usual_one(tmp_path: Path) -> None:
    assert partial_of(tmp_path / "none" / ("n" * 247)).name == "n" * 247 + ".partial"
    assert len(partial_of(tmp_path / "none" / ("n" * 248)).name) < 255


def test_the_unfinished_form_is_no_input_either(tmp_path: Path) -> None:
    for name in ("out", "n" * 250):
        beside = partial_of(tmp_path / name)
        beside.write_bytes(b"a model")
        with pytest.raises(UsageError, match="which is an input"):
            refuse_inputs(tmp_path / name, [beside])
        refuse_inputs(tmp_path / f"x{name[1:]}", [beside])


# --- identity


class OtherInodes:
    """A mount that gives every file another inode number at every look."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, times_too: bool) -> None:
        self._looks, self._times_too = 1 << 40, times_too
        fstat, lstat, stat = os.fstat, os.lstat, os.stat
        monkeypatch.setattr(os, "fstat", lambda fd: self._changed(fstat(fd)))
        monkeypatch.setattr(os, "lstat", lambda path: self._changed(lstat(path)))
        monkeypatch.setattr(os, "stat", lambda path, **options: self._changed(stat(path, **options)))

    def _changed(self, found: os.stat_result) -> os.stat_result:
        self._looks += 1
        facts = list(found)
        facts[1] = self._looks
        times = {"st_mtime_ns": found.st_mtime_ns, "st_ctime_ns": found.st_ctime_ns}
        if self._times_too:
            times["st_ctime_ns"] = self._looks
        return os.stat_result(facts, times)


def test_where_inode_numbers_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "out.partial").write_bytes(b"of a killed process")
    (tmp_path / "out").write_bytes(b"old")
    OtherInodes(monkeypatch, times_too=False)
    with OutputFile(tmp_path / "out", replace=True) as output:
        assert names(tmp_path) == ["out", "out.partial"]
        output.write_at(b"new", 0)
        output.commit()
    assert names(tmp_path) == ["out"]
    assert (tmp_path / "out").read_bytes() == b"new"
    with pytest.raises(ZeroDivisionError), OutputFile(tmp_path / "other", replace=False):
        raise ZeroDivisionError
    assert names(tmp_path) == ["out"]


def test_where_nothing_tells_files_apart_it_ends_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    OtherInodes(monkeypatch, times_too=True)
    with (
        pytest.raises(EnvironmentFailure, match=r"out\.partial`: cannot be told .* inode numbers change; choose"),
        OutputFile(tmp_path / "out", replace=False),
    ):
        pass
    assert names(tmp_path) == []


def test_an_input_is_known_by_its_path_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").write_bytes(b"")
    (tmp_path / "sub").mkdir()
    OtherInodes(monkeypatch, times_too=True)
    with pytest.raises(UsageError, match="input too"):
        refuse_inputs(tmp_path / "sub" / ".." / "model", [tmp_path / "model"])


def test_a_file_under_its_name_with_another_size_is_another(tmp_path: Path) -> None:
    with OutputFile(tmp_path / "out", replace=False) as output:
        (tmp_path / "out.partial").unlink()
        (tmp_path / "out.partial").write_bytes(b"of another")
        with pytest.raises(EnvironmentFailure, match="removed or replaced"):
            output.commit()
    assert (tmp_path / "out.partial").read_bytes() == b"of another"


def test_a_rival_that_takes_every_new_file_for_a_leftover(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest, taken = fcntl.flock, []

    def flock(fd: int, how: int) -> None:
        if Path(f"/proc/self/fd/{fd}").readlink() == tmp_path / "out.partial":
            (tmp_path / "out.partial").unlink()
            taken.append(fd)
        honest(fd, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(EnvironmentFailure), OutputFile(tmp_path / "out", replace=False):
        pass
    assert 1 < len(taken) < 100
    monkeypatch.setattr(fcntl, "flock", lambda fd, how: flock(fd, how) if len(taken) < 20 else honest(fd, how))
    del taken[:18]
    taken.extend([0] * (18 - len(taken)))
    write_whole(tmp_path / "out", b"after two of them")
    assert names(tmp_path) == ["out"]


# --- blame


def test_a_leftover_that_is_another_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leftover = tmp_path / "out.partial"
    leftover.write_bytes(b"theirs")
    honest = os.open

    def not_permitted(*_: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    def refuse(path: object, flags: int, mode: int = 0o777, **options: object) -> int:
        if path == leftover and not flags & os.O_CREAT:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return honest(path, flags, mode, **options)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refuse)
        with pytest.raises(EnvironmentFailure, match=r"out\.partial`: is in the way.*permission denied.*owner"):
            write_whole(tmp_path / "out", b"")
    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", not_permitted)
        with pytest.raises(EnvironmentFailure, match=r"out\.partial`: is in the way.*not permitted.*owner"):
            write_whole(tmp_path / "out", b"")
    assert leftover.read_bytes() == b"theirs"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_a_leftover_of_another_user_in_a_shared_folder() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o1777)
        (Path(folder) / "out.partial").write_bytes(b"root's")

        def somebody() -> int:
            os.setegid(54321)
            os.seteuid(54321)
            try:
                write_whole(Path(folder) / "out", b"")
            except EnvironmentFailure as error:
                print(error)
                return error.exit_code
            return 0

        done = call_function(somebody)
        assert (done.code, done.err) == (4, "")
        assert "out.partial`: is in the way" in done.out


def test_a_working_directory_that_has_been_deleted(here: Path) -> None:
    (here / "gone").mkdir()
    os.chdir(here / "gone")
    (here / "gone").rmdir()
    with pytest.raises(UsageError, match="`out`: the working directory has been deleted"):
        write_whole(Path("out"), b"")
    with pytest.raises(UsageError, match=r"`model`: no such file \(the working directory has been deleted\)"):
        open_input(Path("model"))
    with pytest.raises(UsageError, match=r"no such file$"):
        open_input(here / "model")
    write_whole(here / "out", b"")


def test_a_folder_that_does_not_exist(here: Path) -> None:
    for path in (Path("none/out"), here / "none" / "out"):
        with pytest.raises(UsageError, match="the folder does not exist"):
            write_whole(path, b"")


# --- allocation


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield fd
    os.close(fd)


@pytest.mark.parametrize("size", [0, 1, 1 << 20])
def test_the_place_is_taken(size: int, file: int) -> None:
    allocate(file, size)
    status = os.fstat(file)
    assert status.st_size == size
    assert status.st_blocks * 512 >= size, "not sparse (on a file system of Linux that can)"


def test_no_call_that_writes_a_byte_a_block(file: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "posix_fallocate")  # as on macOS
    allocate(file, 4096)
    assert os.fstat(file).st_size == 4096


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EINTR])
def test_where_the_file_system_cannot_the_size_is_set(number: int, file: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> int:
        ctypes.set_errno(number)
        return -1

    monkeypatch.setattr(allocation, "_system_call", lambda: refuse)
    allocate(file, 1 << 20)
    status = os.fstat(file)
    assert (status.st_size, status.st_blocks) == (1 << 20, 0)


def test_where_there_is_no_such_call_the_size_is_set(file: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocation, "_system_call", lambda: None)
    allocate(file, 5)
    assert os.fstat(file).st_size == 5


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG])
def test_no_room_is_an_error(number: int, file: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> int:
        ctypes.set_errno(number)
        return -1

    monkeypatch.setattr(allocation, "_system_call", lambda: refuse)
    with pytest.raises(OSError, match=os.strerror(number)):
        allocate(file, 1 << 20)
    assert os.fstat(file).st_size == 0


def test_a_size_that_no_file_can_have(file: int) -> None:
    """The system call itself says so, with its own number."""
    with pytest.raises(OSError, match=r"File too large|Invalid argument|No space left"):
        allocate(file, (1 << 63) - 1)
