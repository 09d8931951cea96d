"""`verify` as a function, and damage for it to find."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from tests.support import independent
from verify.run import Options, verify
from verify.verdict import Status, Verdict


def meter(label: str, total: int) -> contextlib.AbstractContextManager[Callable[[int], None]]:
    del label, total
    return contextlib.nullcontext(lambda _: None)


def judge(model: Path | None, sidecar: Path, options: Options | None = None) -> Verdict:
    return verify(model, sidecar, options or Options(), meter)


def failures(verdict: Verdict) -> dict[str, str]:
    return {outcome.stage: outcome.detail for outcome in verdict.outcomes if outcome.status is Status.FAILED}


def passed(verdict: Verdict, *stages: str) -> bool:
    """Whether the stages have outcomes, and all of them are good."""
    return all({outcome.status for outcome in verdict.of(stage)} == {Status.PASSED} for stage in stages)


def flip(path: Path, at: int, bit: int = 1) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= bit
    path.write_bytes(raw)


def dpl_byte(sidecar: Path, name: str, row: int, byte: int) -> int:
    """Absolute place of a byte of a row in the sidecar."""
    found = independent.read(sidecar)
    return int(found.data_start + found.header[name]["data_offsets"][0] + row * found.header[name]["shape"][-1] + byte)
