"""Fixtures that several rooms share: small models, a converted pair, the real Gemma model."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from repack import convert_file
from repack.demo import fetch
from repack.layout import TYPES, QuantType
from tests.support import shared
from tests.support.models import F32_TENSOR, Model, T, q6_k_tensor
from verify.contract import quants
from verify.contract.quants import contract_of

_began = pytest.StashKey[bool]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_began] = shared.begin()
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):  # a shell's `&` and nohup ignore some of them
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def pytest_unconfigure(config: pytest.Config) -> None:
    if config.stash.get(_began, False):
        shared.end()


@pytest.fixture(scope="session")
def gemma() -> Path:
    """Gemma 3 270M Q4_K_M, joined from its packages (extra `demo`); not to be changed."""
    return shared.once("gemma", fetch)


@pytest.fixture(scope="session")
def gemma_dpl(gemma: Path) -> Path:
    """The sidecar of the Gemma model; not to be changed."""

    def make(folder: Path) -> Path:
        convert_file(gemma, folder / "gemma.dpl")
        return folder / "gemma.dpl"

    return shared.once("gemma.dpl", make)


def mixed_model() -> Model:
    """Every rank, odd row counts, other types in between, and a tensor without rows."""
    return Model(
        [
            T("first.f32", (3,), F32_TENSOR),
            q6_k_tensor("two.dims", (512, 3), 1),
            q6_k_tensor("one.dim", (768,), 2),
            T("between.type.42", (7,), 42, b"\x01" * 7),
            q6_k_tensor("experts", (1024, 5, 4), 3),
            q6_k_tensor("four.dims", (256, 3, 2, 2), 4),
            T("no.rows", (256, 0), data=b""),
            q6_k_tensor("last", (1280, 7), 5),
        ]
    )


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return mixed_model().write(tmp_path / "model.gguf")


@pytest.fixture
def pair(model: Path) -> tuple[Path, Path]:
    """A model and its sidecar."""
    sidecar = model.with_suffix(".dpl")
    convert_file(model, sidecar)
    return model, sidecar


@pytest.fixture
def without_kernel(monkeypatch: pytest.MonkeyPatch) -> QuantType:
    """A type whose kernel has been taken away: its bytes can be proven, not decoded."""
    quant = TYPES[20]
    contract = contract_of(quant)
    assert contract is not None
    bare = replace(contract, units=0, values=None, pack=None)
    monkeypatch.setitem(quants._CONTRACTS, quant.number, bare)
    return quant
