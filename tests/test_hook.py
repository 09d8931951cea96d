"""The hook of docs/ci.md, by git itself: what is staged is proven, whatever the working tree holds."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from repack import convert_file
from tests.support.judging import flip
from tests.support.models import Model
from tests.support.recipes import PATH, ROOT, blocks
from tests.support.reports import tensors

IDENTITY = {f"GIT_{who}_{what}": "x@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


def git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": PATH, "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1"} | IDENTITY
    command = ["git", *arguments]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=120)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """One pair is committed, and the hook is in place; `a b/SHOUT.GGUF` and its sidecar are not added yet."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    git(tmp_path, "init", "-q")
    (tmp_path / "a b").mkdir()
    for model in ("one.gguf", "a b/SHOUT.GGUF"):
        path = Model(tensors()).write(tmp_path / model)
        convert_file(path, path.with_suffix(".dpl"))
    hook = tmp_path / ".git" / "hooks" / "pre-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(next(text for text in blocks(ROOT / "docs" / "ci.md", "bash") if "# pre-commit:" in text))
    hook.chmod(0o755)
    git(tmp_path, "add", "one.gguf", "one.dpl")
    assert commit(tmp_path)
    return tmp_path


def commit(folder: Path) -> bool:
    return git(folder, "commit", "-q", "-m", "x").returncode == 0


def test_a_good_pair_is_committed(repository: Path) -> None:
    git(repository, "add", "a b")
    assert commit(repository)
    assert sorted(path.name for path in (repository / ".git").glob("staged*")) == []


def test_a_staged_fault_is_found_although_the_working_tree_is_good(repository: Path) -> None:
    good = (repository / "one.dpl").read_bytes()
    flip(repository / "one.dpl", 4096)
    git(repository, "add", "one.dpl")
    (repository / "one.dpl").write_bytes(good)
    assert not commit(repository)


def test_a_fault_of_the_working_tree_alone_is_not_committed_and_not_blamed(repository: Path) -> None:
    flip(repository / "one.dpl", 4096)
    git(repository, "add", "a b")
    assert commit(repository)


def test_a_changed_model_makes_its_unchanged_sidecar_stale(repository: Path) -> None:
    Model(tensors(seed=7)).write(repository / "one.gguf")
    git(repository, "add", "one.gguf")
    assert not commit(repository)


def test_a_sidecar_in_a_folder_without_its_model(repository: Path) -> None:
    git(repository, "add", "a b/SHOUT.dpl")
    assert not commit(repository)


def test_by_hand_from_any_folder(repository: Path) -> None:
    flip(repository / "a b" / "SHOUT.dpl", 4096)
    git(repository, "add", "a b")
    (repository / "c").mkdir()
    for folder in (repository, repository / "a b", repository / "c"):
        hook = [str(repository / ".git" / "hooks" / "pre-commit")]
        done = subprocess.run(hook, cwd=folder, env={"PATH": PATH}, capture_output=True, check=False, timeout=120)
        assert done.returncode == 123


def test_a_commit_of_other_files_costs_nothing(repository: Path) -> None:
    (repository / "README").write_text("x")
    git(repository, "add", "README")
    env = {"PATH": f"{repository / 'none'}{os.pathsep}/usr/bin{os.pathsep}/bin"}  # verify is not even there
    hook = [str(repository / ".git" / "hooks" / "pre-commit")]
    assert subprocess.run(hook, cwd=repository, env=env, check=False, timeout=120).returncode == 0
