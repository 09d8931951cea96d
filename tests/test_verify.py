from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from repack import convert_file
from repack.layout import DEFAULT
from tests.conftest import mixed_model
from tests.support.judging import dpl_byte, failures, flip, judge, passed
from tests.support.models import Q6_K, STRING, Model, T, pair, q6_k, q6_k_tensor
from verify.run import Options
from verify.stages.contents import place_in_block
from verify.stages.oracle import sample_rows
from verify.verdict import STAGES, Status

Pair = tuple[Path, Path]


def test_a_good_pair_is_proven(pair: Pair) -> None:
    verdict = judge(*pair)
    assert verdict.exit_code == 0, failures(verdict)
    assert verdict.bytes_compared == sum(len(t.payload()) for t in mixed_model().tensors if t.type == 14)
    assert {outcome.stage for outcome in verdict.outcomes} == set(STAGES)


def test_alone_it_is_sound_but_not_compared(pair: Pair) -> None:
    verdict = judge(None, pair[1])
    assert verdict.exit_code == 0
    assert {o.stage for o in verdict.outcomes if o.status is Status.SKIPPED} >= {
        "selection",
        "source",
        "bytes",
        "oracle",
    }
    assert verdict.bytes_compared == 0


@pytest.mark.parametrize(
    ("name", "row", "byte", "place"),
    [
        ("two.dims", 1, 0, "row 1, block 0, ql[0]"),
        ("two.dims", 2, 256 + 64 + 3, "row 2, block 1, qh[3]"),
        ("experts", 19, 192 * 4 + 16 * 2 + 5, "expert 3, row 4, block 2, scales[5]"),
        ("four.dims", 11, 209, "outer 1, expert 1, row 2, block 0, d[1]"),
        ("one.dim", 0, 127, "row 0, block 0, ql[127]"),
    ],
)
def test_a_flipped_byte_is_named(pair: Pair, name: str, row: int, byte: int, place: str) -> None:
    flip(pair[1], dpl_byte(pair[1], name, row, byte), 0x10)
    verdict = judge(*pair)
    found = failures(verdict)
    assert verdict.exit_code == 1
    assert set(found) >= {"digests", "bytes"}
    assert f"tensor `{name}`" in found["bytes"]
    assert place in found["bytes"]
    assert re.search(r"0x[0-9a-f]{2} in the sidecar, 0x[0-9a-f]{2} in the model", found["bytes"])
    alone = judge(None, pair[1])
    assert (alone.exit_code, set(failures(alone))) == (3, {"digests"})


def test_a_flipped_byte_of_the_model_is_named(pair: Pair) -> None:
    tensor = next(t for t in mixed_model().tensors if t.name == "last")
    at = pair[0].read_bytes().rindex(tensor.payload()) + 3 * 1050 + 2 * 210 + 130
    flip(pair[0], at)
    verdict = judge(*pair)
    assert verdict.exit_code == 1
    assert "row 3, block 2, qh[2]" in failures(verdict)["bytes"]
    assert passed(verdict, "digests"), "the sidecar is what it was"


def test_padding_that_is_not_zero(pair: Pair) -> None:
    flip(pair[1], dpl_byte(pair[1], "two.dims", 2, 425))
    verdict = judge(*pair)
    assert verdict.exit_code == 1
    assert "row 2, padding byte 5" in failures(verdict)["padding"]
    assert judge(None, pair[1]).exit_code == 3


def other(tensors: list[T], folder: Path, like: Path) -> Path:
    """A model under the name of another."""
    folder.mkdir()
    return Model(tensors).write(folder / like.name)


def test_a_sidecar_of_another_model(pair: Pair, tmp_path: Path) -> None:
    same_tables = list(mixed_model().tensors)
    for tensor in same_tables:
        if tensor.type == Q6_K:
            tensor.data = q6_k(len(tensor.payload()) // 210, 99)
    verdict = judge(other(same_tables, tmp_path / "o", pair[0]), pair[1])
    assert verdict.exit_code == 1
    assert "rows differ" in failures(verdict)["bytes"]
    assert passed(verdict, "source", "digests"), "the same header and size"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda ts: ts[:-1], "tensor `last` is not in the model"),
        (lambda ts: [*ts, q6_k_tensor("more", (256, 1))], "tensor `more` is missing from the sidecar"),
        (lambda ts: [*ts[:-1], T("renamed", ts[-1].ne, 14, ts[-1].payload())], "tensor `renamed` is missing"),
        (lambda ts: [*ts[:-1], T("last", (1792, 5), 14, ts[-1].payload())], "tensor `last` has another shape"),
        (lambda ts: [ts[-1], *ts[:-1]], "stands elsewhere in the model"),
        (lambda ts: [T("first.f32", (3,), 1, b"\0" * 6), *ts[1:]], "the census of other tensors"),
    ],
    ids=["removed", "added", "renamed", "reshaped", "moved", "another type"],
)
def test_tables_that_differ(pair: Pair, tmp_path: Path, change: Callable[[list[T]], list[T]], message: str) -> None:
    verdict = judge(other(change(list(mixed_model().tensors)), tmp_path / "o", pair[0]), pair[1])
    assert verdict.exit_code == 1
    details = [outcome.detail for outcome in verdict.of("selection") if outcome.status is Status.FAILED]
    assert any(message in detail for detail in details), details


def test_a_stale_sidecar_says_so(pair: Pair, tmp_path: Path) -> None:
    model = mixed_model()
    model.pairs = (pair_of("general.architecture", "tset"),)
    (tmp_path / "o").mkdir()
    verdict = judge(model.write(tmp_path / "o" / "model.gguf"), pair[1])
    assert verdict.exit_code == 1
    assert "is stale: the model's header has changed" in failures(verdict)["source"]


def pair_of(key: str, value: str) -> bytes:
    return pair(key, STRING, value)


def test_nothing_to_compare_is_not_a_success(tmp_path: Path) -> None:
    path = Model([T("no.rows", (256, 0), data=b"")]).write(tmp_path / "m.gguf")
    convert_file(path, tmp_path / "m.dpl")
    assert judge(path, tmp_path / "m.dpl").exit_code == 5
    assert judge(None, tmp_path / "m.dpl").exit_code == 5


def test_an_include_that_matches_nothing(pair: Pair) -> None:
    verdict = judge(*pair, Options(include=(re.compile("nothing"),)))
    assert verdict.exit_code == 5
    assert "--include leaves no tensor to check" in failures(verdict)["selection"]


def test_an_include_checks_only_those(pair: Pair) -> None:
    flip(pair[1], dpl_byte(pair[1], "last", 0, 0))
    assert judge(*pair, Options(include=(re.compile("experts"),))).exit_code == 0
    assert judge(*pair, Options(include=(re.compile("last"),))).exit_code == 1


@pytest.mark.parametrize("cut", [1, 500, 5000])
def test_a_short_or_long_sidecar_is_damaged(pair: Pair, cut: int) -> None:
    raw = pair[1].read_bytes()
    pair[1].write_bytes(raw[:-cut])
    assert judge(*pair).exit_code == 3
    pair[1].write_bytes(raw + b"\0" * cut)
    assert judge(*pair).exit_code == 3


def test_swapped_arguments_are_recognised(pair: Pair) -> None:
    verdict = judge(pair[1], pair[0])
    assert verdict.exit_code == 3
    assert "swapped" in " ".join(failures(verdict).values())
    assert "swapped" in " ".join(failures(judge(None, pair[0])).values())


def test_a_damaged_model_is_a_verdict_too(pair: Pair) -> None:
    pair[0].write_bytes(pair[0].read_bytes()[:200])
    verdict = judge(*pair)
    assert verdict.exit_code == 3
    assert set(failures(verdict)) == {"source"}


def test_gemma_is_proven_row_by_row(gemma: Path, tmp_path: Path) -> None:
    convert_file(gemma, tmp_path / "g.dpl")
    verdict = judge(gemma, tmp_path / "g.dpl", Options(rows=None))
    assert verdict.exit_code == 0, failures(verdict)
    assert verdict.bytes_compared == 9 * 1_075_200


def test_sampled_rows_hold_the_first_and_the_last() -> None:
    rows = sample_rows(1_000_000, 64, 3)
    assert (rows[0], rows[-1]) == (0, 999_999)
    assert len(rows) <= 64
    assert np.array_equal(rows, sample_rows(1_000_000, 64, 3))
    assert sample_rows(5, 64, 0).tolist() == [0, 1, 2, 3, 4]
    assert sample_rows(9, 1, 0).tolist() == [0]


def test_places_in_a_block() -> None:
    assert [place_in_block(DEFAULT, at) for at in (0, 127, 128, 192, 208, 209, 210)] == [
        "block 0, ql[0]",
        "block 0, ql[127]",
        "block 0, qh[0]",
        "block 0, scales[0]",
        "block 0, d[0]",
        "block 0, d[1]",
        "block 1, ql[0]",
    ]
