"""Format version 2, frozen: a tiny model with a tensor of every type and its sidecar, compared byte for byte.

If this test fails, files in the field are no longer what the tool writes: that is a new format version.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import gguf
import pytest

import repack.convert
from repack import convert_file, open_sidecar
from tests.golden import make
from tests.support.independent import KINDS, check

MODEL, SIDECAR = make.FOLDER / "tiny.gguf", make.FOLDER / "tiny.dpl"
DIGESTS = {
    MODEL: "629b835ff4f0f413e8b5b1f9353942f960233143af959f1ad6bffb2ddc2a9487",
    SIDECAR: "73170134541b5990a1beee4f9204d1e860e7f3710f492f843cd46a999792a8d9",
}


@pytest.mark.parametrize("path", DIGESTS, ids=lambda path: path.name)
def test_the_files_are_frozen(path: Path) -> None:
    assert hashlib.sha256(path.read_bytes()).hexdigest() == DIGESTS[path]


def test_the_files_are_those_written_down_by_hand() -> None:
    assert b"".join(make.model()) == MODEL.read_bytes()
    assert make.sidecar() == SIDECAR.read_bytes()


def test_there_is_a_tensor_of_every_type_and_rank() -> None:
    tensors = [tensor for tensor in make.TENSORS if tensor.type]
    assert sorted(tensor.type for tensor in tensors) == [kind.number for kind in KINDS]
    assert {len(tensor.ne) for tensor in tensors} == {1, 2, 3, 4}


def test_gguf_reads_the_model() -> None:
    found = gguf.GGUFReader(MODEL).tensors
    assert [(t.name, int(t.tensor_type), t.data.tobytes()) for t in found] == [
        (tensor.name, tensor.type, tensor.native()) for tensor in make.TENSORS
    ]


def test_the_independent_checker_agrees() -> None:
    assert check(MODEL, SIDECAR, tuple(kind.number for kind in KINDS)) == 11


def test_the_converter_writes_the_committed_sidecar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repack.convert, "VERSION", make.VERSION)
    convert_file(MODEL, tmp_path / "tiny.dpl", types=[kind.name for kind in KINDS])
    assert (tmp_path / "tiny.dpl").read_bytes() == SIDECAR.read_bytes()


def test_the_reader_brings_every_tensor_back() -> None:
    with open_sidecar(SIDECAR) as sidecar:
        assert len(sidecar) == 11
        for tensor in make.TENSORS:
            if tensor.type:
                assert sidecar[tensor.name].unpack().tobytes() == tensor.native()
