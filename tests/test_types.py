"""`repack --types`: what is asked for, what is told about it, and the bytes that one token reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.calls import call
from tests.support.models import F32_TENSOR, STRING, U32, Model, T, pair, q6_k, q6_k_tensor

Q4_K, Q5_0, Q8_0, MXFP4 = 12, 6, 8, 39


def tensor(name: str, kind: int, block_bytes: int, ne: tuple[int, ...], block_weights: int = 32) -> T:
    weights = 1
    for length in ne:
        weights *= length
    return T(name, ne, kind, bytes(weights // block_weights * block_bytes))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Two tensors of Q6_K, one of Q8_0, of MXFP4, of Q4_K, of F32 and of a type that nobody knows."""
    return Model(
        [
            q6_k_tensor("a", (256, 3)),
            q6_k_tensor("b", (512, 1), 2),
            tensor("c", Q8_0, 34, (64, 5)),
            tensor("d", MXFP4, 17, (32, 2)),
            tensor("e", Q4_K, 144, (256, 2), 256),
            T("f", (3,), F32_TENSOR),
            T("g", (7,), 99, bytes(7)),
        ]
    ).write(tmp_path / "m.gguf")


def plan(model: Path, *options: str) -> dict[str, Any]:
    done = call("repack", model, "--dry-run", "--json", "-", *options)
    assert done.code == 0, done.err
    found: dict[str, Any] = json.loads(done.out)["plan"]
    return found


@pytest.mark.parametrize(
    ("options", "selected"),
    [
        ([], "ab"),
        (["--types", "Q6_K"], "ab"),
        (["--types", "q8_0,MxFp4"], "cd"),
        (["--types", "mxfp4,q6_k"], "abd"),
        (["--types", "ALL"], "abcd"),
        (["--types", "all", "--exclude", "^[ac]$"], "bd"),
    ],
)
def test_what_is_asked_for_is_converted(options: list[str], selected: str, model: Path) -> None:
    assert "".join(plan(model, *options)["selected"]) == selected


@pytest.mark.parametrize("types", ["Q4_K", "Q6K", "", "Q6_K,,Q8_0", "Q6_K Q8_0", "F16", "8", "::x", "Q" * 5000])
def test_an_unknown_type_is_refused_with_the_known_ones(types: str, model: Path) -> None:
    line = call("repack", model, "--dry-run", "--types", types).refused(2)
    assert "Q4_0, Q4_1, Q5_0" in line


def test_bytes_of_every_layout_by_type(model: Path) -> None:
    found = plan(model, "--types", "all")
    by_type = {one["type"]: one for one in found["ledger"]["types"]}
    # Q6_K: 3 rows of one block of 210 bytes and a row of two; padded 224; dpl 128 + 64 + 16 + 16, and 420 rounded up
    assert by_type["Q6_K"] == {"type": "Q6_K", "tensors": 2, "native": 1050, "padded": 1120, "dpl": 3 * 224 + 432}
    # Q8_0: 5 rows of two blocks of 34 bytes; padded 48; dpl 64 + 16
    assert by_type["Q8_0"] == {"type": "Q8_0", "tensors": 1, "native": 340, "padded": 480, "dpl": 400}
    # MXFP4: 2 rows of one block of 17 bytes; padded 32; dpl 16 + 16
    assert by_type["MXFP4"] == {"type": "MXFP4", "tensors": 1, "native": 34, "padded": 64, "dpl": 64}
    assert {key: found["ledger"][key] for key in ("native", "padded", "dpl")} == {
        "native": 1424,
        "padded": 1664,
        "dpl": 1568,
    }
    lines = [line.split() for line in call("repack", model, "--dry-run", "--types", "all").out.splitlines()]
    assert ["Q8_0", "1", "340", "480", "29.17%", "400", "15.00%"] in lines  # 140 of 480, 60 of 400
    assert ["all", "4", "1,424", "1,664", "14.42%", "1,568", "9.18%"] in lines


def test_the_share_of_dead_bytes_is_of_the_layouts_own_bytes(tmp_path: Path) -> None:
    """Of Gemma's 10,321,920 padded bytes 645,120 are dead: 6.25 %, 14 of 224, and not 14 of 210."""
    model = Model([q6_k_tensor("x", (2048, 4))]).write(tmp_path / "m.gguf")
    out = call("repack", model, "--dry-run").out
    assert ["Q6_K", "1", "6,720", "7,168", "6.25%", "6,720", "0"] in [line.split() for line in out.splitlines()]


def test_why_the_others_are_left(model: Path) -> None:
    skipped = {kind["name"]: kind for kind in plan(model, "--exclude", "^a$")["skipped"]}
    assert {name: (kind["tensors"], kind["convertible"]) for name, kind in skipped.items()} == {
        "F32": (1, False),
        "Q8_0": (1, True),
        "Q4_K": (1, False),
        "Q6_K": (1, False),
        "MXFP4": (1, True),
        "type 99": (1, False),
    }
    assert skipped["Q8_0"]["why"] == "not asked for; --types Q8_0 would convert them"
    assert skipped["Q4_K"]["why"] == "aligned already: blocks of 144 bytes, a multiple of 16"
    assert skipped["Q6_K"]["why"] == "left out by --include or --exclude"
    out = call("repack", model, "--dry-run").out
    assert "--types Q8_0,Q6_K,MXFP4 would convert 2 more" in out
    assert all(kind["why"] in out for name, kind in skipped.items() if name != "Q6_K")


def test_a_model_with_other_types_only_names_the_option(tmp_path: Path) -> None:
    model = Model([tensor("c", Q8_0, 34, (64, 5)), tensor("d", Q5_0, 22, (32, 2))]).write(tmp_path / "m.gguf")
    call("repack", model, "-o", tmp_path / "out").refused(5, "--types Q5_0,Q8_0")
    assert call("repack", model, "-o", tmp_path / "out", "--types", "Q5_0,Q8_0").code == 0


def token(tensors: list[T], tmp_path: Path, used: int | None = None) -> dict[str, int]:
    pairs = [pair("general.architecture", STRING, "x")]
    pairs += [pair("x.expert_used_count", U32, used)] if used is not None else []
    found: dict[str, int] = plan(Model(tensors, tuple(pairs)).write(tmp_path / "m.gguf"))["token"]
    return found


def test_what_one_token_reads(tmp_path: Path) -> None:
    matrix, experts = q6_k_tensor("w", (256, 7)), q6_k_tensor("e", (256, 3, 8), 2)
    assert token([matrix], tmp_path) == {"native": 7 * 210, "padded": 7 * 224, "dpl": 7 * 224}
    assert token([matrix, experts], tmp_path)["native"] == (7 + 24) * 210
    assert token([matrix, experts], tmp_path, used=2)["native"] == (7 + 6) * 210
    assert token([experts], tmp_path, used=0)["native"] == 24 * 210


def test_an_embedding_is_read_whole_only_if_it_is_the_output_matrix_too(tmp_path: Path) -> None:
    embedding, output = q6_k_tensor("token_embd.weight", (256, 9)), T("output.weight", (3,), F32_TENSOR)
    assert token([embedding], tmp_path)["native"] == 9 * 210
    assert token([embedding, output], tmp_path)["native"] == 210, "the output matrix may be of any type"
    out = call("repack", tmp_path / "m.gguf", "--dry-run").out
    assert [line for line in out.splitlines() if line.startswith("read for one token")]


def test_types_do_not_go_with_restore(tmp_path: Path) -> None:
    model = Model([q6_k_tensor("x", (256, 1))]).write(tmp_path / "m.gguf")
    assert call("repack", model, "-o", tmp_path / "m.dpl").code == 0
    call("repack", tmp_path / "m.dpl", "-o", tmp_path / "r.gguf", "--restore", "--types", "all").refused(2, "--types")
    done = call("repack", tmp_path / "m.dpl", "-o", tmp_path / "r.gguf", "--restore")
    assert (done.code, "1 Q6_K, 210 bytes" in done.out) == (0, True)


def test_unusual_scales_are_told(tmp_path: Path) -> None:
    block = bytearray(q6_k(1))
    block[208:210] = b"\x00\x7c"
    zero = bytearray(q6_k(1))
    zero[208:210] = b"\x00\x80"
    model = Model([T("x", (256, 2), data=bytes(block + zero))]).write(tmp_path / "m.gguf")
    done = call("repack", model, "-o", tmp_path / "m.dpl", "--json", tmp_path / "r.json")
    assert "1 scales of blocks are NaN or infinite, 1 are zero; kept bit for bit" in done.out
    entry = json.loads((tmp_path / "r.json").read_text())["conversion"]["tensors"][0]
    assert (entry["type"], entry["nonfinite_scales"], entry["zero_scales"]) == ("Q6_K", 1, 1)
