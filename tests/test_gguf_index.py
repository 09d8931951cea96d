from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import gguf
import pytest

from repack.errors import Damaged, UsageError
from repack.gguf.index import header_sha256, read_index, type_name
from tests.conftest import mixed_model
from tests.support.models import (
    ARRAY,
    F32_TENSOR,
    I32,
    Q8_0,
    STRING,
    U8,
    U16,
    U32,
    Model,
    T,
    pair,
    q6_k_tensor,
    scalar,
    string,
)

ARCHITECTURE = pair("general.architecture", STRING, "test")


def as_library_sees_it(path: Path) -> list[tuple[str, int, tuple[int, ...], int, int]]:
    return [
        (t.name, int(t.tensor_type), tuple(map(int, t.shape)), int(t.data_offset), int(t.n_bytes))
        for t in gguf.GGUFReader(path).tensors
    ]


def as_we_see_it(path: Path) -> list[tuple[str, int, tuple[int, ...], int, int | None]]:
    return [(t.name, t.type, t.ne, t.offset, t.nbytes) for t in read_index(path).tensors]


def aligned(alignment: int) -> Model:
    tensors = [q6_k_tensor("a", (256, 1)), q6_k_tensor("b", (256, 3))]
    return Model(tensors, (pair("general.alignment", U32, alignment),), alignment=alignment)


GOOD = {
    "plain": Model([q6_k_tensor("a", (512, 3)), T("b", (32, 2), Q8_0), T("c", (5,), F32_TENSOR)]),
    "version 2": Model([q6_k_tensor("a", (256, 2))], version=2),
    "alignment 64": aligned(64),
    "alignment 1024": aligned(1024),
    "arrays": Model(
        [q6_k_tensor("a", (256, 1))],
        (pair("s", STRING, ["x", "", "yz"]), pair("i", I32, [1, -2]), pair("e", U8, []), pair("l", STRING, "z" * 9000)),
    ),
    "no padding at the end": Model([q6_k_tensor("a", (256, 3))], tail=False),
    "4-D": Model([q6_k_tensor("a", (256, 2, 3, 4))]),
}


@pytest.mark.parametrize("case", GOOD)
def test_the_table_is_the_librarys(case: str, tmp_path: Path) -> None:
    path = GOOD[case].write(tmp_path / "m.gguf")
    assert as_we_see_it(path) == as_library_sees_it(path)


def test_gemma_in_well_under_a_second(gemma: Path) -> None:
    started = time.perf_counter()
    index = read_index(gemma)
    assert time.perf_counter() - started < 1
    assert len(index.tensors) == 236
    q6_k = [tensor for tensor in index.tensors if tensor.type == 14]
    assert [tensor.ne for tensor in q6_k] == [(2048, 640)] * 9
    assert index.metadata["general.architecture"] == "gemma3"


def test_unknown_types_are_kept_by_number(tmp_path: Path) -> None:
    kinds = (42, 4, 156, 2**31)
    tensors = [T(f"t{kind}", (3, 2), kind, b"\x07" * 6) for kind in kinds]
    path = Model([tensors[0], q6_k_tensor("q", (256, 2)), *tensors[1:]]).write(tmp_path / "m.gguf")
    index = read_index(path)
    assert [(t.type, t.nbytes) for t in index.tensors if t.type != 14] == [(kind, None) for kind in kinds]
    assert [type_name(kind) for kind in (14, 42)] == ["Q6_K", "type 42"]


def test_metadata_keeps_scalars_and_short_strings_only(tmp_path: Path) -> None:
    pairs = (ARCHITECTURE, pair("n", I32, -5), pair("long", STRING, "x" * 5000), pair("list", U8, [1]))
    path = Model([q6_k_tensor("a", (256, 1))], pairs).write(tmp_path / "m.gguf")
    assert read_index(path).metadata == {"general.architecture": "test", "n": -5}


def test_strings_longer_than_the_window_are_passed_over(tmp_path: Path) -> None:
    big = ["v" * size for size in (0, 1, 3 << 20, 17, 1 << 20, 5)] * 2 + ["end"]
    path = Model([q6_k_tensor("a", (256, 1))], (pair("v", STRING, big), ARCHITECTURE)).write(tmp_path / "m.gguf")
    assert read_index(path).metadata == {"general.architecture": "test"}
    assert as_we_see_it(path) == as_library_sees_it(path)


def test_nested_arrays_are_passed_over_to_a_depth(tmp_path: Path) -> None:
    def nested(depth: int) -> bytes:
        body = scalar(U8, [1, 2])[4:]
        for _ in range(depth):
            body = ARRAY.to_bytes(4, "little") + (1).to_bytes(8, "little") + body
        return string("deep") + ARRAY.to_bytes(4, "little") + body

    path = tmp_path / "m.gguf"
    read_index(Model([q6_k_tensor("a", (256, 1))], (nested(3),)).write(path))
    with pytest.raises(Damaged, match="deeper"):
        read_index(Model([q6_k_tensor("a", (256, 1))], (nested(5),)).write(path))


def test_descending_offsets_and_an_empty_tensor_at_the_end(tmp_path: Path) -> None:
    first, second = q6_k_tensor("a", (256, 1), 1), q6_k_tensor("b", (256, 1), 2)
    first.offset, second.offset = 224, 0
    model = Model([first, second, T("c", (256, 0), offset=448)])
    head, _ = model.parts()
    path = tmp_path / "m.gguf"
    path.write_bytes(head + second.payload() + bytes(14) + first.payload())
    assert [t.offset - len(head) for t in read_index(path).tensors] == [224, 0, 448]


def split(folder: Path, count: int = 3, **changes: object) -> list[Path]:
    """A split model, with an optional wrong value for one key of shard 2."""
    tensors = [q6_k_tensor(f"blk.{i}.w", (256, i + 1), i) for i in range(2 * count)]
    paths = []
    for number in range(count):
        values = {"split.no": number, "split.count": count, "split.tensors.count": len(tensors)}
        if number == 1:
            values |= {key: value for key, value in changes.items() if key in values}  # type: ignore[misc]
        pairs = [pair(key, I32 if "tensors" in key else U16, value) for key, value in values.items()]
        if number == 0:
            pairs.insert(0, ARCHITECTURE)
        paths.append(folder / f"m-{number + 1:05d}-of-{count:05d}.gguf")
        Model(tensors[2 * number : 2 * number + 2], pairs).write(paths[-1])
    return paths


def test_split_models_are_read_whole(tmp_path: Path) -> None:
    index = read_index(split(tmp_path)[0])
    assert [tensor.name for tensor in index.tensors] == [f"blk.{i}.w" for i in range(6)]
    assert [tensor.shard for tensor in index.tensors] == [0, 0, 1, 1, 2, 2]


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    paths = split(tmp_path)
    paths[2].unlink()
    with pytest.raises(Damaged, match=r"m-00003-of-00003\.gguf"):
        read_index(paths[0])


def test_the_second_shard_names_the_first(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"m-00001-of-00003\.gguf"):
        read_index(split(tmp_path)[1])


@pytest.mark.parametrize("key", ["split.no", "split.count"])
def test_a_shard_of_another_model(tmp_path: Path, key: str) -> None:
    with pytest.raises(Damaged, match="does not belong"):
        read_index(split(tmp_path, **{key: 7})[0])


def test_a_renamed_first_shard(tmp_path: Path) -> None:
    path = split(tmp_path)[0].rename(tmp_path / "other.gguf")
    with pytest.raises(Damaged, match=r"NAME-00001-of-00003\.gguf"):
        read_index(path)


def test_header_digest_covers_everything_before_the_data(tmp_path: Path) -> None:
    model = mixed_model()
    path = model.write(tmp_path / "m.gguf")
    fd = os.open(path, os.O_RDONLY)
    try:
        assert header_sha256(fd, read_index(path).shards[0]) == hashlib.sha256(model.parts()[0]).hexdigest()
    finally:
        os.close(fd)
