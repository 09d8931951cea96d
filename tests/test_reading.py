"""Reading: regular files only, exactly the bytes asked for, and few files open however many a model has."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from repack.errors import Damaged, UsageError
from repack.files import reading
from repack.files.reading import OPEN_FILES, Inputs, open_input, read_bytes, stamp


def stamped(path: Path) -> tuple[Path, reading.Stamp]:
    status = path.stat()
    return path, (status.st_size, status.st_mtime_ns)


@pytest.fixture
def many(tmp_path: Path) -> list[Path]:
    """More files than may be open; each holds its number."""
    paths = [tmp_path / f"{number:03d}" for number in range(3 * OPEN_FILES)]
    for number, path in enumerate(paths):
        path.write_bytes(number.to_bytes(4, "little"))
    return paths


def open_now(folder: Path) -> list[str]:
    """Names of the files of a folder that this process has open, by what the system says."""
    targets = []
    for link in Path("/proc/self/fd").iterdir():
        try:
            targets.append(link.readlink())
        except FileNotFoundError:  # the descriptor of this listing
            continue
    return sorted(target.name for target in targets if target.parent == folder)


def number_in(inputs: Inputs, number: int) -> int:
    buffer = bytearray(4)
    inputs.read_into(number, memoryview(buffer), 0, "the number")
    return int.from_bytes(buffer, "little")


def test_many_files_few_of_them_open(many: list[Path], tmp_path: Path) -> None:
    with Inputs(map(stamped, many)) as inputs:
        assert len(inputs) == len(many)
        assert open_now(tmp_path) == []
        for number in range(len(many)):
            assert number_in(inputs, number) == number
            assert len(open_now(tmp_path)) <= OPEN_FILES
        assert open_now(tmp_path) == [path.name for path in many[-OPEN_FILES:]], "those read last"
        number_in(inputs, len(many) - OPEN_FILES)
        number_in(inputs, 0)
        assert many[-OPEN_FILES].name in open_now(tmp_path), "it has just been read again"
    assert open_now(tmp_path) == []


def test_a_file_in_use_stays_open(many: list[Path], tmp_path: Path) -> None:
    with Inputs(map(stamped, many)) as inputs, inputs.opened(0) as fd:
        for number in range(1, len(many)):
            number_in(inputs, number)
        assert read_bytes(fd, 4, 0, "") == bytes(4)
        assert len(open_now(tmp_path)) <= OPEN_FILES
        with inputs.opened(0) as again:
            assert again == fd


def test_threads_read_what_they_ask_for(many: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "OPEN_FILES", 2)
    with Inputs(map(stamped, many)) as inputs, ThreadPoolExecutor(8) as pool:
        wanted = [number * 7 % len(many) for number in range(4000)]
        assert list(pool.map(lambda number: number_in(inputs, number), wanted)) == wanted


@pytest.mark.parametrize("change", ["replaced", "longer", "touched"])
def test_a_file_that_has_changed_is_refused_when_it_is_opened(change: str, many: list[Path]) -> None:
    files = [stamped(path) for path in many]
    with Inputs(files) as inputs:
        number_in(inputs, 0)
        for number in range(1, len(many)):
            number_in(inputs, number)  # by now the first one has been closed
        if change == "longer":
            many[0].write_bytes(bytes(5))
            os.utime(many[0], ns=(0, files[0][1][1]))
        elif change == "touched":
            os.utime(many[0], ns=(0, files[0][1][1] + 1))
        else:
            many[1].rename(many[0])
            os.utime(many[0], ns=(0, 1))
        with pytest.raises(Damaged, match=r"`[^`]*000`: changed since it was indexed"):
            number_in(inputs, 0)
        with pytest.raises(Damaged, match="changed"):
            inputs.refuse_changed()


def test_a_change_of_an_open_file_is_found_at_the_end(many: list[Path]) -> None:
    with Inputs(map(stamped, many[:2])) as inputs:
        assert [number_in(inputs, number) for number in range(2)] == [0, 1]
        inputs.refuse_changed()
        os.utime(many[1], ns=(0, 1))
        assert number_in(inputs, 1) == 1
        with pytest.raises(Damaged, match=r"`[^`]*001`: changed since"):
            inputs.refuse_changed()


def test_an_inode_number_says_nothing(many: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """There are mounts on which a file has another one at every look."""
    honest, looks = os.fstat, 0

    def fstat(fd: int) -> os.stat_result:
        nonlocal looks
        looks += 1
        found = list(honest(fd))
        found[1] = looks
        return os.stat_result(found, {"st_mtime_ns": honest(fd).st_mtime_ns})

    files = [stamped(path) for path in many]
    monkeypatch.setattr(os, "fstat", fstat)
    with Inputs(files) as inputs:
        assert number_in(inputs, 0) == 0
        inputs.refuse_changed()
    fd = open_input(many[3])
    assert stamp(fd) == stamp(fd)
    os.close(fd)


def test_bytes_behind_the_end_are_missed(many: list[Path]) -> None:
    with (
        Inputs([stamped(many[0])]) as inputs,
        pytest.raises(Damaged, match=r"`[^`]*000`: the number: ends too early; found 4 bytes, expected at least 6"),
    ):
        inputs.read_into(0, memoryview(bytearray(4)), 2, "the number")


def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for name, error, why in (
        ("fifo", Damaged, "a pipe"),
        ("", UsageError, "a folder"),
        ("none", UsageError, "no such"),
    ):
        with pytest.raises(error, match=why):
            open_input(tmp_path / name)
