"""Fuzzing that follows the structure, by hypothesis: the same examples in every run, some 30 s in all.

What has to hold is in tests/fuzz/targets.py; the long runs with atheris are described in docs/reliability.md.
"""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz import mutate, targets
from tests.support.models import (
    ARRAY,
    BOOL,
    F32,
    F64,
    I64,
    STRING,
    U8,
    U16,
    U32,
    U64,
    Model,
    T,
    pair,
    q6_k_tensor,
)
from tests.support.sidecars.forge import canonical
from verify.verdict import Verdict

STEADY = settings(
    derandomize=True, deadline=None, database=None, max_examples=1000, suppress_health_check=list(HealthCheck)
)
SEEDS = st.integers(0, 2**64 - 1)

RICH = Model(
    [
        q6_k_tensor("a", (256, 2), 1),
        T("f", (3,), 0),
        T("u", (5,), 42, b"12345"),
        q6_k_tensor("e", (512, 2, 2), 2),
        T("z", (256, 0), data=b""),
    ],
    (
        pair("general.architecture", STRING, "test"),
        pair("general.alignment", U32, 32),
        pair("split.count", U16, 1),
        pair("tokens", STRING, ["a", "bc", ""]),
        pair("numbers", U64, [1, 2, 3]),
        pair("flag", BOOL, True),
        pair("real", F64, 0.5),
        pair("small", U8, 7),
        pair("list", F32, []),
        pair("signed", I64, -1),
    ),
).to_bytes()


@STEADY
@given(SEEDS)
def test_numbers_in_a_model(seed: int) -> None:
    random = Random(seed)
    data = RICH
    for _ in range(random.randint(1, 3)):
        data = mutate.fields(data, random)
    targets.gguf_index(data)


@STEADY
@given(SEEDS)
def test_pieces_of_a_model(seed: int) -> None:
    targets.gguf_index(mutate.binary(RICH, Random(seed)))


NAMES = st.text(max_size=8) | st.binary(max_size=8)
DIMENSIONS = st.lists(st.sampled_from([0, 1, 2, 255, 256, 512, 2**31, 2**62, 2**63, 2**64 - 1]), max_size=6)


OFFSETS = st.integers(0, 2**64 - 1) | st.sampled_from([0, 32, 64, 224, 448])
TENSORS = st.tuples(NAMES, DIMENSIONS, st.sampled_from([0, 1, 8, 14, 42, 2**32 - 1]), OFFSETS)
PAIRS = st.tuples(NAMES, st.sampled_from([U8, U32, U64, ARRAY, STRING, 13, 99]), st.binary(max_size=24))
COUNTS = st.sampled_from([None, 0, 1, 5, 2**32, 2**62])


@settings(STEADY, max_examples=500)
@given(st.lists(TENSORS, max_size=4), st.lists(PAIRS, max_size=4), COUNTS, st.integers(0, 2000))
def test_models_made_up(tensors, pairs, count, size: int) -> None:  # type: ignore[no-untyped-def]
    table = [T(name, ne, kind, b"", offset) for name, ne, kind, offset in tensors]
    raw = [sidecars_pair(key, kind, value) for key, kind, value in pairs]
    head, _ = Model(table, raw, tensor_count=count).parts()
    targets.gguf_index(head + bytes(size))


def sidecars_pair(key: str | bytes, kind: int, value: bytes) -> bytes:
    name = key.encode() if isinstance(key, str) else key
    return len(name).to_bytes(8, "little") + name + kind.to_bytes(4, "little") + value


@pytest.mark.parametrize("target", [targets.sidecar, targets.verify_checks])
@STEADY
@given(seed=SEEDS)
def test_values_in_a_manifest(target, seed: int) -> None:  # type: ignore[no-untyped-def]
    """Each sealed with its digest and framed as a sidecar, so that it is looked at."""
    target(mutate.manifest(canonical(targets.MANIFEST).encode(), Random(seed)))


@pytest.mark.parametrize("target", [targets.sidecar, targets.verify_checks])
@STEADY
@given(seed=SEEDS)
def test_pieces_of_a_sidecar(target, seed: int) -> None:  # type: ignore[no-untyped-def]
    random = Random(seed)
    good = targets.SEEDS["sidecar"][0]
    start = len(good) - len(targets.DATA)
    if random.randrange(2):
        target(mutate.binary(good[:start], random) + good[start:])
    else:
        target(good[:start] + mutate.binary(good[start:], random))


def test_the_seeds_pass_and_what_is_checked_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seeds in targets.SEEDS.items():
        for seed in seeds:
            targets.TARGETS[name](seed)
    monkeypatch.setattr(Verdict, "failed", lambda self, stage, _, tensor=None: self.passed(stage, tensor))
    with pytest.raises(AssertionError):
        targets.verify_checks(b"=" + bytes([targets.DATA[0] ^ 1]) + targets.DATA[1:])
