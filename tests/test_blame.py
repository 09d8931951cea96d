"""An error lands on the stage that answers for it, whatever was going on; a file that changes proves nothing."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from repack import convert_file
from repack.errors import EnvironmentFailure
from repack.files.reading import Stamp, stamp
from repack.rows import Bytes
from tests.support.judging import failures, flip, judge
from tests.support.models import STRING, U16, Model, T, q6_k, q6_k_tensor
from tests.support.models import pair as key_value
from tests.support.sidecars import by_hand
from verify.pairs import Files, Pair, StageFailure, blamed
from verify.run import Options
from verify.stages import contents, oracle
from verify.verdict import Status

CPU = Options(device="cpu")
FilesPair = tuple[Path, Path]


def before(monkeypatch: pytest.MonkeyPatch, method: str, act: Callable[[], object]) -> None:
    """Do something before the first read of a file's rows."""
    read = getattr(Files, method)
    done: list[object] = []

    def reading(self: Files, pair: Pair, row: int, out: Bytes) -> None:
        if not done:
            done.append(act())
        read(self, pair, row, out)

    monkeypatch.setattr(Files, method, reading)


@pytest.mark.parametrize(("method", "which", "stage"), [("read_native", 0, "source"), ("read_dpl", 1, "container")])
def test_a_file_cut_short_while_it_is_read(
    pair: FilesPair, monkeypatch: pytest.MonkeyPatch, method: str, which: int, stage: str
) -> None:
    before(monkeypatch, method, lambda: os.truncate(pair[which], 300))
    verdict = judge(*pair, CPU)
    assert verdict.exit_code == 3
    assert set(failures(verdict)) == {stage}
    assert pair[which].name in failures(verdict)[stage]
    assert {outcome.detail for outcome in verdict.of("digests")} == {f"not run, because {stage} failed"}


@pytest.mark.parametrize(("which", "stage"), [(0, "source"), (1, "container")])
def test_a_file_that_changes_while_it_is_checked(
    pair: FilesPair, monkeypatch: pytest.MonkeyPatch, which: int, stage: str
) -> None:
    """Even if all that was read was good: it is not known what is in the file now."""
    before(monkeypatch, "read_dpl", lambda: os.utime(pair[which], (1, 1)))
    verdict = judge(*pair, CPU)
    assert verdict.exit_code == 3
    assert set(failures(verdict)) == {stage}
    assert "changed" in failures(verdict)[stage]


def test_inode_numbers_that_change_are_no_change(pair: FilesPair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some mounts give a file another one at every look."""
    numbers = iter(range(10**6))
    real = os.fstat

    def fstat(fd: int) -> os.stat_result:
        return os.stat_result((*real(fd)[:1], next(numbers), *real(fd)[2:]), {"st_mtime_ns": real(fd).st_mtime_ns})

    monkeypatch.setattr(os, "fstat", fstat)
    assert judge(*pair, CPU).exit_code == 0


def test_identity_is_size_and_time(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"abc")
    with path.open("rb") as file:
        first: Stamp = stamp(file.fileno())
        os.utime(path, ns=(5, 7))
        assert stamp(file.fileno()) == (3, 7) != first


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't start new thread"), ZeroDivisionError("ours")])
def test_the_machine_in_the_way_of_the_bytes(
    pair: FilesPair, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(contents, "unpack_rows", fail)
    verdict = judge(*pair, CPU)
    assert verdict.exit_code == 4
    assert set(failures(verdict)) == {"bytes"}


def test_a_gguf_that_does_not_know_the_type_is_the_oracles_failure(
    pair: FilesPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*_: object) -> None:
        raise EnvironmentFailure("the installed gguf does not know Q6_K")

    monkeypatch.setattr(oracle, "dequantize", unknown)
    verdict = judge(*pair, CPU)
    assert verdict.exit_code == 4
    assert set(failures(verdict)) == {"oracle"}
    assert {outcome.status for outcome in verdict.of("bytes")} >= {Status.PASSED}, "what was found stays found"


def test_an_inner_stage_answers_before_an_outer_one() -> None:
    with pytest.raises(StageFailure) as caught, blamed("bytes"), blamed("source"):
        raise MemoryError
    assert (caught.value.stage, caught.value.error.exit_code) == ("source", 4)


def test_metadata_that_the_sidecar_leaves_out_or_adds(pair: FilesPair, tmp_path: Path) -> None:
    """`general.*` in the manifest is the model's, in both directions."""
    model = Model([q6_k_tensor("a", (256, 2))], (key_value("general.architecture", STRING, "test"),))
    for general, code in (({"general.architecture": "test"}, 0), ({}, 1), ({"general.architecture": "tset"}, 1)):
        manifest = by_hand.manifest_of(model)
        manifest["source"]["general"] = general
        paths = by_hand.write_pair(tmp_path, model, by_hand.sidecar_of(model, manifest))
        assert judge(*paths, CPU).exit_code == code, general


def test_shards_are_opened_when_they_are_read(tmp_path: Path) -> None:
    """Far more files than may be open at a time; the error names the one that differs."""
    count = 60
    for number in range(count):
        keys = [key_value("split.no", U16, number), key_value("split.count", U16, count)]
        keys += [key_value("general.architecture", STRING, "test")] if not number else []
        name = f"m-{number + 1:05}-of-{count:05}.gguf"
        Model([T(f"t{number}", (256, 1), 14, q6_k(1, number))], keys).write(tmp_path / name)
    first = tmp_path / f"m-00001-of-{count:05}.gguf"
    convert_file(first, tmp_path / "m.dpl")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (len([*Path("/proc/self/fd").iterdir()]) + 24, hard))
        assert judge(first, tmp_path / "m.dpl", CPU).exit_code == 0
        last = tmp_path / f"m-{count:05}-of-{count:05}.gguf"
        flip(last, last.stat().st_size - 100)
        verdict = judge(first, tmp_path / "m.dpl", CPU)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert verdict.exit_code == 1
    assert "`t59`" in failures(verdict)["bytes"]
