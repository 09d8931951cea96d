from __future__ import annotations

import hashlib
import os
from pathlib import Path

import gguf
import pytest

from repack.errors import Damaged, UsageError
from repack.gguf.index import check_tensors, header_sha256, read_index
from tests.conftest import mixed_model
from tests.support.models import (
    ARRAY,
    F16_TENSOR,
    F32,
    F32_TENSOR,
    I8,
    I16,
    I32,
    I64,
    Q4_K,
    Q8_0,
    STRING,
    U8,
    U16,
    U32,
    U64,
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


def test_gemma_by_a_few_reads(gemma: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """262,144 words and as many merges are passed over by their length, in pieces of a MiB."""
    honest, reads = os.preadv, []

    def preadv(fd: int, buffers: list[memoryview], offset: int) -> int:
        reads.append(len(buffers[0]))
        return honest(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", preadv)
    index = read_index(gemma)
    assert len(reads) < 24
    assert sum(reads) < 1.5 * index.shards[0].data_offset + (2 << 20)
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


def test_as_many_shards_as_there_are(tmp_path: Path) -> None:
    """One tensor a shard is published; there are models of more than a thousand tensors."""
    count = 700
    for number in range(count):
        values = {"split.no": number, "split.count": count, "split.tensors.count": count}
        pairs = [pair(key, I32 if "tensors" in key else U16, value) for key, value in values.items()]
        Model([q6_k_tensor(f"t{number}", (256, 1))], pairs).write(tmp_path / f"m-{number + 1:05d}-of-{count:05d}.gguf")
    index = read_index(tmp_path / f"m-00001-of-{count:05d}.gguf")
    assert [tensor.name for tensor in index.tensors] == [f"t{number}" for number in range(count)]
    assert len({shard.path for shard in index.shards}) == count


@pytest.mark.parametrize("kind", [U8, I8, U16, I16, U32, I32, U64, I64])
def test_the_keys_of_a_split_may_be_integers_of_any_type(tmp_path: Path, kind: int) -> None:
    for number in range(2):
        keys = (pair("split.no", kind, number), pair("split.count", kind, 2), pair("split.tensors.count", kind, 2))
        Model([q6_k_tensor(f"t{number}", (256, 1))], keys).write(tmp_path / f"m-{number + 1:05d}-of-00002.gguf")
    assert len(read_index(tmp_path / "m-00001-of-00002.gguf").tensors) == 2


@pytest.mark.parametrize("name", ["m-00002-of-00003.gguf", "m-00001-of-00003.gguf", "m-00003-of-00003.GGUF"])
@pytest.mark.parametrize("keys", [(), (pair("split.count", U16, 0),), (pair("split.count", U16, 1),)])
def test_a_shard_by_its_name_alone_is_not_taken_for_a_model(tmp_path: Path, name: str, keys: tuple[bytes, ...]) -> None:
    path = Model([q6_k_tensor("a", (256, 1))], keys).write(tmp_path / name)
    with pytest.raises(Damaged, match=r"one of 3 shards.*rename"):
        read_index(path)


@pytest.mark.parametrize("value", [pair("split.count", F32, 2.0), pair("split.count", STRING, "2")])
def test_a_count_of_shards_that_is_no_integer(tmp_path: Path, value: bytes) -> None:
    path = Model([q6_k_tensor("a", (256, 1))], (value, pair("split.no", U16, 0))).write(tmp_path / "m.gguf")
    with pytest.raises(Damaged, match=r"split\.count is no integer"):
        read_index(path)


@pytest.mark.parametrize(
    ("key", "why"),
    [
        (pair("split.no", U16, 1), "its place in a split model makes no sense"),
        (pair("split.tensors.count", I32, 2), "does not hold all of its tensors; found 1, expected `2`"),
    ],
)
def test_a_shard_that_says_so_by_another_key(tmp_path: Path, key: bytes, why: str) -> None:
    with pytest.raises(Damaged, match=why):
        read_index(Model([q6_k_tensor("a", (256, 1))], (key,)).write(tmp_path / "m.gguf"))


def test_a_split_model_that_was_merged(tmp_path: Path) -> None:
    """llama-gguf-split leaves the keys of the first shard and sets the count to zero."""
    keys = (pair("split.no", U16, 0), pair("split.count", U16, 0), pair("split.tensors.count", I32, 2))
    path = Model([q6_k_tensor("a", (256, 1)), q6_k_tensor("b", (256, 1))], keys).write(tmp_path / "m.gguf")
    assert len(read_index(path).tensors) == 2


@pytest.mark.parametrize("name", ["m-00001-of-00001.gguf", "m-1-of-3.gguf", "m-00001-of-00003.gguf.part"])
def test_a_name_that_is_no_shards(tmp_path: Path, name: str) -> None:
    assert len(read_index(Model([q6_k_tensor("a", (256, 1))], ()).write(tmp_path / name)).shards) == 1


@pytest.mark.parametrize("key", ["split.no", "split.count"])
def test_a_shard_of_another_model(tmp_path: Path, key: str) -> None:
    with pytest.raises(Damaged, match="does not belong"):
        read_index(split(tmp_path, **{key: 7})[0])


def test_a_shard_of_another_architecture(tmp_path: Path) -> None:
    paths = split(tmp_path)
    keys = [pair("split.no", U16, 1), pair("split.count", U16, 3), pair("general.architecture", STRING, "other")]
    Model([q6_k_tensor("blk.2.w", (256, 3)), q6_k_tensor("blk.3.w", (256, 4))], keys).write(paths[1])
    with pytest.raises(Damaged, match=r"does not belong.*`other`, expected `test`"):
        read_index(paths[0])


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


# --- tensors that are not converted


def noted(path: Path, *tensors: T, tail: bool = True) -> dict[str, int | None]:
    """Index a model of these tensors; the sizes of all, after those of Q6_K have been found sound."""
    index = read_index(Model(tensors, tail=tail).write(path / "m.gguf"))
    check_tensors(index, [tensor for tensor in index.tensors if tensor.type == 14])
    return {tensor.name: tensor.nbytes for tensor in index.tensors}


GOOD_TENSOR = q6_k_tensor("good", (256, 2))
COUNTED = {
    "five dimensions": (T("x", (2, 1, 3, 1, 2), F16_TENSOR, bytes(24)), 24),
    "64 dimensions": (T("x", (1,) * 64, F32_TENSOR, bytes(4)), 4),
    "no dimension": (T("x", (), F32_TENSOR, bytes(4)), 4),
    "rows that are no whole blocks": (T("x", (48, 2), Q8_0, bytes(102)), None),
    "an offset that is not aligned": (T("x", (1,), F32_TENSOR, b"", 424), 4),
    "the size of a type that another program gave the number to": (T("x", (1 << 20,), 39, bytes(64)), None),
    "the same, of no whole blocks": (T("x", (77,), 40, bytes(64)), None),
    "a shape without end, of an unknown type": (T("x", (1 << 63, 1 << 63), 156, bytes(4)), None),
    "a type that fits its room": (T("x", (64,), 39, bytes(34)), 34),
    "nothing, somewhere": (T("x", (0, 1 << 63), F32_TENSOR, b"", 1 << 63), 0),
}


@pytest.mark.parametrize("kind", COUNTED)
@pytest.mark.parametrize("last", [False, True])
def test_what_is_not_converted_is_counted_and_no_more(kind: str, last: bool, tmp_path: Path) -> None:
    tensor, nbytes = COUNTED[kind]
    after = [q6_k_tensor("after", (256, 1))] if not last or "aligned" in kind else []
    assert noted(tmp_path, GOOD_TENSOR, tensor, *after)["x"] == nbytes


def test_tensors_that_are_not_converted_may_share_their_bytes(tmp_path: Path) -> None:
    tied = T("tied", (4,), F32_TENSOR, b"", 448)
    assert noted(tmp_path, GOOD_TENSOR, T("x", (8,), F32_TENSOR), tied) == {"good": 420, "x": 32, "tied": 16}


@pytest.mark.parametrize(
    ("tensors", "pairs"),
    [
        ([T("x", (256, 2), 39, bytes(272)), T("y", (256,), 14, b"", 0)], "`x` and `y`|`y` and `x`"),
        ([T("x", (256, 2), 14), T("y", (1,), F32_TENSOR, b"", 32)], "`x` and `y`"),
        ([T("x", (600,), F32_TENSOR), T("a", (1,), F32_TENSOR, b"", 32), T("y", (256,), 14, b"", 64)], "`x` and `y`"),
        ([T("x", (256, 4), 14), T("a", (256,), 14, b"", 864), T("y", (7,), 99, b"", 320)], "`x` and `y`"),
    ],
)
def test_a_tensor_that_is_converted_shares_no_byte(tensors: list[T], pairs: str, tmp_path: Path) -> None:
    """Not with its neighbour in the file only: a short one may stand between."""
    with pytest.raises(Damaged, match=f"tensors ({pairs}) overlap"):
        noted(tmp_path, *tensors, T("end", (999,), F32_TENSOR))


def test_a_type_is_believed_when_it_is_chosen(tmp_path: Path) -> None:
    """MXFP4 that reaches over the next tensor, or behind the end, is passed over, but not converted."""
    for tensors, why in (
        ([T("x", (256, 4), 39, bytes(64)), T("y", (999,), F32_TENSOR)], "overlap"),
        ([T("y", (64,), F32_TENSOR), T("x", (2560, 4), 39, bytes(64))], "cut short"),
    ):
        index = read_index(Model(tensors).write(tmp_path / "m.gguf"))
        check_tensors(index, [])
        with pytest.raises(Damaged, match=why):
            check_tensors(index, [tensor for tensor in index.tensors if tensor.type == 39])


@pytest.mark.parametrize("kind", [F32_TENSOR, F16_TENSOR, Q8_0, Q4_K])
def test_a_file_cut_short_is_refused_wherever_the_sizes_are_beyond_doubt(kind: int, tmp_path: Path) -> None:
    path = Model([GOOD_TENSOR, T("last", (256, 2), kind)], tail=False).write(tmp_path / "m.gguf")
    size = path.stat().st_size
    read_index(path)
    os.truncate(path, size - 1)
    with pytest.raises(Damaged, match=f"cut short: tensor `last` needs bytes .* to {size}; found {size - 1} bytes"):
        read_index(path)


def test_a_tensor_of_any_type_has_to_begin_in_the_file(tmp_path: Path) -> None:
    path = Model([GOOD_TENSOR, T("last", (3,), 99, b"123")], tail=False).write(tmp_path / "m.gguf")
    begins = path.stat().st_size - 3
    os.truncate(path, begins + 1)
    read_index(path)
    os.truncate(path, begins)
    with pytest.raises(Damaged, match="cut short: tensor `last`"):
        read_index(path)


@pytest.mark.parametrize(
    ("tensor", "why"),
    [
        (T("x", (), 14, b""), "0 dimensions"),
        (T("x", (256, 1, 1, 1, 1), 14), "5 dimensions"),
        (T("x", (256, 0, 1 << 63), 14, b""), "larger than any file"),
        (T("x", (384, 2), 14, bytes(999)), "no multiple of 256"),
        (T("x", (256,), 14, bytes(210), 8), "not aligned"),
        (T("x", (256, 0), 14, b"", 1 << 20), "cut short"),
    ],
)
def test_what_is_converted_has_to_make_sense(tensor: T, why: str, tmp_path: Path) -> None:
    with pytest.raises(Damaged, match=why):
        noted(tmp_path, tensor, T("y", (99,), F32_TENSOR))


@pytest.mark.parametrize("dims", [65, 1_000_000])
def test_a_number_of_dimensions_that_is_none(dims: int, tmp_path: Path) -> None:
    head = bytearray(Model([T("x", (1,) * 65, F32_TENSOR, bytes(4))]).to_bytes())
    at = head.index(b"x" + (65).to_bytes(4, "little")) + 1
    head[at : at + 4] = dims.to_bytes(4, "little")
    (tmp_path / "m.gguf").write_bytes(head)
    with pytest.raises(Damaged, match=f"found {dims} dimensions"):
        read_index(tmp_path / "m.gguf")


def test_a_table_that_ends_before_its_count(tmp_path: Path) -> None:
    path = Model([GOOD_TENSOR], tensor_count=2).write(tmp_path / "m.gguf")
    with pytest.raises(Damaged, match="the entry of tensor `` makes no sense; found 0 dimensions"):
        read_index(path)


@pytest.mark.parametrize(
    ("name", "told"), [(b"plain \xc3\xa4.gguf", "plain ä.gguf"), (b"\xff\\x.gguf", "\ufffd\ufffdx.gguf")]
)
def test_the_name_of_a_shard_is_text_and_no_path(name: bytes, told: str, tmp_path: Path) -> None:
    path = Model([GOOD_TENSOR]).write(tmp_path / os.fsdecode(name))
    assert read_index(path).shards[0].name == told
