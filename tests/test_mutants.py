"""A few of the mutants with every run; `python -m tests.mutants` tries them all."""

from __future__ import annotations

import pytest

from tests.mutants import ROOT, survives
from tests.support.mutations import MUTANTS, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_every_mutant_changes_one_line(mutant: Mutant) -> None:
    before = (ROOT / mutant.file).read_text("utf-8")
    after = mutant.applied(before)
    assert len([line for line in zip(before.splitlines(), after.splitlines(), strict=True) if line[0] != line[1]]) == 1


@pytest.mark.parametrize("mutant", MUTANTS[::6], ids=str)
def test_a_mutant_is_found(mutant: Mutant) -> None:
    assert not survives(mutant)


def test_what_changes_nothing_survives() -> None:
    harmless = Mutant("repack/layout.py", "ALIGNMENT = 16", "ALIGNMENT = 8 + 8", "test_layout.py::test_align")
    assert "exit code 0" in survives(harmless)


def test_a_test_that_is_not_there_is_no_proof() -> None:
    broken = Mutant("repack/layout.py", "ALIGNMENT = 16", "ALIGNMENT = 8", "test_layout.py::test_nothing_of_the_kind")
    assert "exit code 4" in survives(broken)
