"""What a small or sparse file may cost: a header that claims much is refused at once, whatever it claims."""

from __future__ import annotations

import json
import os
import resource
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from repack.errors import Damaged
from repack.gguf.index import read_index
from repack.sidecar.checks import from_json
from repack.sidecar.reader import Sidecar
from tests.support.calls import MIB, Done, call, listing
from tests.support.models import ARRAY, F32_TENSOR, STRING, U8, U16, U32, Model, T, pair, q6_k_tensor, string
from tests.support.sidecars.by_hand import framed, header_of, manifest_of, sealed, tiny_model
from tests.support.sidecars.forge import canonical

TIB = 1 << 40


def sparse(path: Path, head: bytes, size: int) -> Path:
    path.write_bytes(head)
    os.truncate(path, size)
    return path


def refused_cheaply(path: Path, *words: str) -> Done:
    """By both commands, within 256 MiB on top of the interpreter, and 2 s of processor time (checked in `refused`)."""
    before = listing(path.parent) if path.stat().st_size < MIB else None
    done = call("repack", path, "-o", path.with_name("out"), memory=256 * MIB)
    done.refused(3, *words)
    assert not path.with_name("out").exists()
    assert before is None or listing(path.parent) == before
    return done


def model_with(*pairs: bytes, keys: int | None = None) -> bytes:
    return Model([], pairs, pair_count=keys).to_bytes()


def test_a_terabyte_of_empty_strings(tmp_path: Path) -> None:
    head = model_with(string("a") + struct.pack("<IIQ", ARRAY, STRING, 1 << 36))
    refused_cheaply(sparse(tmp_path / "m.gguf", head, TIB), "than supported")


def test_a_terabyte_of_empty_arrays(tmp_path: Path) -> None:
    head = model_with(string("a") + struct.pack("<IIQ", ARRAY, ARRAY, 1 << 36))
    refused_cheaply(sparse(tmp_path / "m.gguf", head, TIB), "than supported")


def test_a_string_of_a_terabyte(tmp_path: Path) -> None:
    for value in (struct.pack("<IQ", STRING, TIB - 100), struct.pack("<IIQ", ARRAY, U8, TIB - 100)):
        head = model_with(string("a") + value)
        refused_cheaply(sparse(tmp_path / "m.gguf", head, TIB), "longer than supported")


def test_a_terabyte_of_keys_and_of_tensors(tmp_path: Path) -> None:
    for counts, words in (((0, 1 << 36), "keys"), ((1 << 34, 0), "tensors")):
        head = b"GGUF" + struct.pack("<IQQ", 3, *counts)
        refused_cheaply(sparse(tmp_path / "m.gguf", head, TIB), words, "supported")


def test_as_many_keys_as_allowed_of_zeros(tmp_path: Path) -> None:
    head = b"GGUF" + struct.pack("<IQQ", 3, 1 << 16, 1 << 16)
    refused_cheaply(sparse(tmp_path / "m.gguf", head, 64 * MIB), "twice")


def test_many_long_names(tmp_path: Path) -> None:
    pairs = [pair(f"{number:05d}" + "n" * 65_000, U8, 1) for number in range(600)]
    (tmp_path / "m.gguf").write_bytes(model_with(*pairs))
    refused_cheaply(tmp_path / "m.gguf", "more bytes of names and strings than supported")


def test_many_short_strings(tmp_path: Path) -> None:
    pairs = [pair(f"{number:05d}", STRING, b"\xff" * 4096) for number in range(9000)]
    (tmp_path / "m.gguf").write_bytes(model_with(*pairs))
    refused_cheaply(tmp_path / "m.gguf", "more bytes of names and strings than supported")


def test_an_alignment_of_a_gibibyte(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(
        Model([q6_k_tensor("a", (256,))], (pair("general.alignment", U32, 1 << 30),)).to_bytes()
    )
    refused_cheaply(tmp_path / "m.gguf", "cut short")


def test_a_model_of_the_most_tensors_supported(tmp_path: Path) -> None:
    """Legal, and it has to be indexed in a time that nobody notices."""
    entry = struct.Struct("<Q5sIQIQ").pack
    table = b"".join(entry(5, b"%05d" % number, 1, 0, 0, 0) for number in range(1 << 16))
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 1 << 16, 0) + table)
    done = call("repack", path, "-o", tmp_path / "out", memory=256 * MIB)
    done.refused(5, "no tensor of type Q6_K", "65536 F32")


def test_a_vocabulary_of_a_million_is_skipped(tmp_path: Path) -> None:
    items = struct.pack("<Q4s", 4, b"word") * (1 << 20)
    value = string("tokenizer.ggml.tokens") + struct.pack("<IIQ", ARRAY, STRING, 1 << 20) + items
    (tmp_path / "m.gguf").write_bytes(Model([T("x", (3,), F32_TENSOR)], (value,)).to_bytes())
    call("repack", tmp_path / "m.gguf", "-o", tmp_path / "out", memory=256 * MIB).refused(5)


def test_a_claim_of_as_many_shards_as_a_name_can_count(tmp_path: Path) -> None:
    for count in (65_535, 99_999):
        pairs = (pair("split.count", U32, count), pair("split.no", U16, 0))
        path = Model([q6_k_tensor("a", (256,))], pairs).write(tmp_path / f"m-00001-of-{count}.gguf")
        refused_cheaply(path, f"{count - 1} of {count} shards are missing")


def test_more_shards_than_files_may_be_open(tmp_path: Path) -> None:
    """One tensor a shard, and no more descriptors than a small container leaves."""
    count, limit = 600, 40
    tensors = [q6_k_tensor(f"t{number}", (256, 2), number) for number in range(count)]
    for number, tensor in enumerate(tensors):
        keys = {"split.count": count, "split.no": number, "split.tensors.count": count}
        pairs = [pair(key, U16, value) for key, value in keys.items()]
        Model([tensor], pairs).write(tmp_path / f"m-{number + 1:05d}-of-{count:05d}.gguf")

    def few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))

    model = tmp_path / f"m-00001-of-{count:05d}.gguf"
    done = call("repack", "--quiet", model, "-o", tmp_path / "out", before=few)
    assert (done.code, done.err) == (0, "")
    done = call("verify", "--quiet", model, tmp_path / "out", before=few)
    assert (done.code, done.err) == (0, "")
    with Sidecar(tmp_path / "out") as sidecar:
        for tensor in tensors:
            assert sidecar[str(tensor.name)].unpack().tobytes() == tensor.payload()


@pytest.mark.parametrize(("kind", "weights", "nbytes"), [(14, 256, 210), (8, 32, 34), (39, 32, 17)])
def test_rows_as_long_as_supported_take_no_more_memory(kind: int, weights: int, nbytes: int, tmp_path: Path) -> None:
    """Rows of 8 MiB, some twenty million weights, with as many threads as anyone asks for."""
    n, rows = (8 << 20) // nbytes, 12
    head, _ = Model([T("long", (n * weights, rows), kind, b"", 0)]).parts()
    path = sparse(tmp_path / "m.gguf", head, len(head) + n * nbytes * rows)
    code = (
        "import sys; from repack import convert_file;"
        "convert_file(sys.argv[1], sys.argv[2], types=['all'], threads=16);"
        "print(*[line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, path, tmp_path / "out"], check=True, capture_output=True, text=True
    )
    assert int(done.stdout) < 110 * 1024, "KiB: the interpreter with NumPy takes 31 MB, the buffers 48"
    (tmp_path / "out").unlink()


def test_shards_that_are_missing_are_listed_but_not_all(tmp_path: Path) -> None:
    pairs = (pair("split.count", U16, 500), pair("split.no", U16, 0))
    Model([q6_k_tensor("a", (256,))], pairs).write(tmp_path / "m-00001-of-00500.gguf")
    refused_cheaply(tmp_path / "m-00001-of-00500.gguf", "499 of 500 shards are missing", "m-00002-of-00500.gguf", "...")


# --- sidecars


BOMBS: dict[str, Callable[[], str]] = {
    "lists": lambda: "[" + "[]," * 10_000_000 + "[]]",
    "objects": lambda: "[" + "{}," * 10_000_000 + "{}]",
    "numbers": lambda: "[" + "1," * 15_000_000 + "1]",
    "texts": lambda: '["' + '","' * 10_000_000 + '"]',
    "brackets": lambda: "[" * 30_000_000,
    "digits": lambda: '{"a":' + "9" * 30_000_000 + "}",
    "a fraction": lambda: '{"a":0.' + "9" * 30_000_000 + "}",
    "an exponent": lambda: '{"a":1e' + "9" * 30_000_000 + "}",
    "escapes": lambda: '{"a":"' + "\\u0041" * 5_000_000 + '"}',
    "one character that needs four bytes": lambda: '{"a":"\\ud83d\\ude00' + "a" * 30_000_000 + '"}',
}


@pytest.mark.parametrize("kind", BOMBS)
def test_json_that_grows(kind: str, tmp_path: Path) -> None:
    header = '{"__metadata__":{"dpl":' + json.dumps(BOMBS[kind]()) + "}}"
    path = tmp_path / "model.dpl"
    path.write_bytes(framed(header, b""))
    done = call("verify", "--quiet", path, memory=400 * MIB)
    done.refused(3, "model.dpl")


def test_a_header_of_another_kind_is_not_parsed(tmp_path: Path) -> None:
    path = tmp_path / "model.dpl"
    path.write_bytes(framed("{" + '"a":[[]],' * 3_000_000 + '"b":1}', b""))
    call("verify", "--quiet", path, memory=256 * MIB).refused(3, "without a dpl manifest")
    path.write_bytes(framed(header_of(manifest_of(tiny_model()))[:-1] + ',"a":[[]]' * 3_000_000 + "}", b""))
    call("verify", "--quiet", path, memory=256 * MIB).refused(3, "does not follow")


def test_a_sidecar_of_a_terabyte(tmp_path: Path) -> None:
    path = sparse(tmp_path / "model.dpl", struct.pack("<Q", TIB // 2) + b"{", TIB)
    call("verify", "--quiet", path, memory=256 * MIB).refused(3, "too long")


def test_a_sidecar_of_40_000_tensors_of_another_model(tmp_path: Path) -> None:
    """Selection in linear time, and not a line for each of them on the screen."""
    manifest = manifest_of(tiny_model())
    one = {**manifest["tensors"][0], "ne": [256, 0], "rows": 0, "nbytes": 0, "zero_scales": 0, "nonfinite_scales": 0}
    tensors = [{**one, "name": f"blk.{number}"} for number in range(25_000)]
    path = tmp_path / "model.dpl"
    path.write_bytes(framed(header_of({**manifest, "tensors": tensors}), b""))
    model = tiny_model().write(tmp_path / "model.gguf")
    done = call("verify", "--quiet", model, path, seconds=60)
    assert done.code == 1
    assert done.cpu_seconds < 20


def test_deep_nesting_at_every_depth_around_the_limit() -> None:
    """Where Python's recursion limit strikes depends on the way there; it must not strike outside of the reader."""
    manifest = manifest_of(tiny_model())
    for depth in (*range(10, 1100, 7), *range(900, 1010)):
        value = json.loads("[" * 5 + "]" * 5)
        text = sealed({**manifest, "x": value}).replace("[[[[[]]]]]", "[" * depth + "]" * depth)
        with pytest.raises(Damaged):
            from_json(text, "x")


def test_the_walk_ends_for_any_length_of_string() -> None:
    """Strings around the size of the window through which the header is read."""
    folder = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path("/tmp")
    path = folder / f"gguf-dpl-test-{os.getpid()}"
    try:
        for length in (0, 4095, 4096, 4097, MIB // 2 - 8, MIB // 2, MIB - 9, MIB - 8, MIB, MIB + 1, 2 * MIB):
            items = (struct.pack("<Q", length) + bytes(length)) * 3
            value = string("a") + struct.pack("<IIQ", ARRAY, STRING, 3) + items
            after = pair("after", STRING, "found")
            plain = string("b") + struct.pack("<IQ", STRING, length) + bytes(length)
            path.write_bytes(Model([q6_k_tensor("x", (256,))], (value, plain, after)).to_bytes())
            index = read_index(path)
            assert index.metadata["after"] == "found"
            assert ("b" in index.metadata) == (length <= 4096)
            assert [tensor.name for tensor in index.tensors] == ["x"]
    finally:
        path.unlink(missing_ok=True)


def test_canonical_here_is_canonical_there() -> None:
    assert canonical({"b": [1, None], "a": "ä\x00"}) == '{"a":"\\u00e4\\u0000","b":[1,null]}'


def test_more_strings_than_any_vocabulary_has(tmp_path: Path) -> None:
    value = string("a") + struct.pack("<IIQ", ARRAY, STRING, (1 << 22) + 1) + bytes(8 * ((1 << 22) + 1))
    (tmp_path / "m.gguf").write_bytes(model_with(value))
    refused_cheaply(tmp_path / "m.gguf", "more strings in arrays than supported")
