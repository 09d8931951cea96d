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
    MODEL: "435152302bea0b95d46d815f35d241f86f07afe5832387025a1c59a9e77b4a0e",
    SIDECAR: "a682709188a0b557625304fa927af4cfcbead243d28133b640e39779950326a2",
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
    convert_file(MODEL, tmp_path / "tiny.dpl", types=("all",))
    assert (tmp_path / "tiny.dpl").read_bytes() == SIDECAR.read_bytes()


def test_the_reader_brings_every_tensor_back() -> None:
    with open_sidecar(SIDECAR) as sidecar:
        assert len(sidecar) == 11
        for tensor in make.TENSORS:
            if tensor.type:
                assert sidecar[tensor.name].unpack().tobytes() == tensor.native()
