"""`repack --restore`: what other people's tools read out of the restored GGUF is what they read out of the model."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest

import repack.restore
from repack import Damaged, UsageError, convert_file, open_sidecar
from repack.restore import restore
from repack.sidecar.container import read_header
from repack.sidecar.manifest import Manifest
from tests.conftest import mixed_model
from tests.support import independent
from tests.support.models import STRING, Model, T, pair, q6_k_tensor

Pair = tuple[Path, Path]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Every rank, a tensor without rows, other types in between; no type that gguf's reader does not know."""
    mixed = mixed_model()
    return replace(mixed, tensors=[t for t in mixed.tensors if t.type != 42]).write(tmp_path / "model.gguf")


def read(path: Path) -> dict[str, tuple[list[int], bytes]]:
    """The Q6_K tensors of a GGUF as gguf's own reader sees them."""
    tensors = [
        tensor for tensor in gguf.GGUFReader(path).tensors if tensor.tensor_type == gguf.GGMLQuantizationType.Q6_K
    ]
    return {tensor.name: ([int(size) for size in tensor.shape], tensor.data.tobytes()) for tensor in tensors}


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "repack", "--restore", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, check=False)


def test_ggufs_reader_sees_the_models_tensors_in_order(pair: Pair, tmp_path: Path) -> None:
    model, sidecar = pair
    done = restore(sidecar, tmp_path / "q6k.gguf")
    expected = read(model)
    assert len(expected) == 6
    assert list(read(done.path).items()) == list(expected.items())
    assert len(gguf.GGUFReader(done.path).tensors) == len(expected)
    assert done.gguf_bytes == done.path.stat().st_size


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_piece_by_piece(pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    monkeypatch.setattr(repack.restore, "rows_per_chunk", lambda _: rows)
    steps: list[int] = []
    restore(pair[1], tmp_path / "q6k.gguf", progress=steps.append)
    assert read(tmp_path / "q6k.gguf") == read(pair[0])
    assert steps == sorted(set(steps))
    assert steps[-1] == sum(len(data) for _, data in read(pair[0]).values())


def test_gemma_in_ggmls_own_arithmetic(gemma: Path, gemma_dpl: Path, tmp_path: Path) -> None:
    """The bytes are the model's, and ggml's C code (libgguf) makes of them what gguf's Python makes of the sidecar."""
    libgguf = pytest.importorskip("libgguf")
    restored = tmp_path / "q6k.gguf"
    assert command(gemma_dpl, "-o", restored, "--quiet").returncode == 0
    with open_sidecar(gemma_dpl) as sidecar:
        tensors = read(restored)
        assert len(tensors) == 9
        assert list(tensors) == list(sidecar)
        for name, (ne, data) in tensors.items():
            with gemma.open("rb") as file:
                file.seek(sidecar[name].entry.offset)
                assert file.read(len(data)) == data
            rows = np.frombuffer(data, np.uint8).reshape(ne[1], -1)
            weights = np.asarray(libgguf.dequantize_rows(rows, libgguf.GGMLQuantizationType.Q6_K))
            np.testing.assert_array_equal(weights.reshape(ne[1], ne[0]), sidecar[name].dequantize())


def test_the_way_back_and_there_again(pair: Pair, tmp_path: Path) -> None:
    """The restored GGUF converts to the same bytes: the round trip closes."""
    restore(pair[1], tmp_path / "q6k.gguf")
    convert_file(tmp_path / "q6k.gguf", tmp_path / "again.dpl")
    first, again = independent.read(pair[1]), independent.read(tmp_path / "again.dpl")
    assert first.raw[first.data_start :] == again.raw[again.data_start :]
    assert first.header == again.header
    assert independent.check(tmp_path / "q6k.gguf", tmp_path / "again.dpl") == 6


def test_the_same_bytes_every_time(pair: Pair, tmp_path: Path) -> None:
    first, second = restore(pair[1], tmp_path / "a.gguf"), restore(pair[1], tmp_path / "b.gguf")
    assert first.path.read_bytes() == second.path.read_bytes()


@pytest.mark.parametrize("known", [True, False])
def test_what_the_model_is_called(tmp_path: Path, known: bool) -> None:
    pairs = [pair("general.architecture", STRING, "gemma3"), pair("general.name", STRING, "Gemma")] if known else []
    Model([q6_k_tensor("a", (256, 2))], pairs).write(tmp_path / "model.gguf")
    convert_file(tmp_path / "model.gguf", tmp_path / "model.dpl")
    fields = gguf.GGUFReader(restore(tmp_path / "model.dpl", tmp_path / "q6k.gguf").path).fields
    found = {key: field.contents() for key, field in fields.items() if key.startswith("general.")}
    expected = {"general.architecture": "gemma3", "general.name": "Gemma"}
    assert found == (expected if known else {"general.architecture": "unknown"})


def test_only_a_tensor_without_rows(tmp_path: Path) -> None:
    Model([q6_k_tensor("a", (256, 1)), T("empty", (512, 0), data=b"")]).write(tmp_path / "model.gguf")
    convert_file(tmp_path / "model.gguf", tmp_path / "model.dpl", include=["empty"])
    assert read(restore(tmp_path / "model.dpl", tmp_path / "q6k.gguf").path) == {"empty": ([512, 0], b"")}


@pytest.mark.parametrize("place", ["first byte", "last byte", "padding", "manifest"])
def test_a_damaged_sidecar_is_refused_and_nothing_left(pair: Pair, tmp_path: Path, place: str) -> None:
    sidecar = pair[1]
    found = independent.read(sidecar)
    begin, _ = found.header["two.dims"]["data_offsets"]  # n = 2: a row has 420 bytes of content, 12 of padding
    at = {"first byte": begin, "last byte": begin + 2 * 432 + 419, "padding": begin + 431, "manifest": 200}[place]
    at += 0 if place == "manifest" else found.data_start
    raw = bytearray(found.raw)
    raw[at] ^= 1
    sidecar.write_bytes(raw)
    before = sorted(tmp_path.iterdir())
    done = command(sidecar, "-o", tmp_path / "q6k.gguf")
    assert done.returncode == 3, done.stderr
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.splitlines()) == 1
    assert place == "manifest" or "two.dims" in done.stderr
    assert sorted(tmp_path.iterdir()) == before


def test_a_sidecar_cut_short_while_it_is_read(pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    def cut_afterwards(fd: int, where: str) -> tuple[Manifest, int]:
        found = read_header(fd, where)
        os.truncate(pair[1], found[1] + 100)
        return found

    monkeypatch.setattr(repack.restore, "read_header", cut_afterwards)
    with pytest.raises(Damaged, match=r"two\.dims"):
        restore(pair[1], tmp_path / "q6k.gguf")
    assert not list(tmp_path.glob("q6k*"))


def test_nothing_is_overwritten_without_being_asked(pair: Pair, tmp_path: Path) -> None:
    target = tmp_path / "q6k.gguf"
    target.write_text("old")
    assert command(pair[1], "-o", target).returncode == 2
    assert target.read_text() == "old"
    assert command(pair[1], "-o", target, "--force").returncode == 0
    assert read(target) == read(pair[0])


def test_the_input_is_never_the_output(pair: Pair) -> None:
    before = pair[1].read_bytes()
    with pytest.raises(UsageError):
        restore(pair[1], pair[1], force=True)
    assert pair[1].read_bytes() == before


@pytest.mark.parametrize("option", ["--include=x", "--exclude=x", "--threads=2", "--dry-run", "--json=-"])
def test_options_that_mean_nothing_here(pair: Pair, tmp_path: Path, option: str) -> None:
    done = command(pair[1], "-o", tmp_path / "q6k.gguf", option)
    assert done.returncode == 2
    assert option.partition("=")[0] in done.stderr


def test_a_model_instead_of_a_sidecar(pair: Pair, tmp_path: Path) -> None:
    done = command(pair[0], "-o", tmp_path / "q6k.gguf")
    assert done.returncode == 3
    assert "GGUF" in done.stderr
    assert not (tmp_path / "q6k.gguf").exists()
