"""A few of the mutants with every run; `python -m tests.mutants` tries them all."""

from __future__ import annotations

import pytest

from tests.mutants import ROOT, survives
from tests.support.mutations import MUTANTS, Mutant


def test_every_mutant_changes_one_line() -> None:
    for mutant in MUTANTS:
        before = (ROOT / mutant.file).read_text("utf-8")
        lines = zip(before.splitlines(), mutant.applied(before).splitlines(), strict=True)
        assert sum(old != new for old, new in lines) == 1, mutant


@pytest.mark.parametrize("mutant", MUTANTS[::9], ids=str)
def test_a_mutant_is_found(mutant: Mutant) -> None:
    assert not survives(mutant)


def test_what_changes_nothing_survives() -> None:
    harmless = Mutant("repack/layout.py", "ALIGNMENT = 16", "ALIGNMENT = 8 + 8", "test_layout.py::test_align")
    assert "exit code 0" in survives(harmless)


def test_a_test_that_is_not_there_is_no_proof() -> None:
    broken = Mutant("repack/layout.py", "ALIGNMENT = 16", "ALIGNMENT = 8", "test_layout.py::test_nothing_of_the_kind")
    assert "exit code 4" in survives(broken)
