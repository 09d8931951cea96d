"""`python -m repack.demo`: the main job on a real model, in any folder, by our own two commands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from repack.demo import NAME
from tests.support.reports import ENVIRONMENT

ROOT = Path(__file__).parents[1]


def demo(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = ENVIRONMENT | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "repack.demo", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=env, check=False)


def test_it_converts_and_proves_a_real_model_beside_a_file_named_verify(tmp_path: Path, gemma: Path) -> None:
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / NAME).symlink_to(gemma)
    (tmp_path / "verify.py").write_text("print('PROVEN by nobody')\n")
    done = demo(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "100 of 236 are converted" in done.stdout
    assert "PROVEN: 100 tensors" in done.stdout
    assert "nobody" not in done.stdout
    assert [path.suffix for path in sorted((tmp_path / "demo").iterdir())] == [".dpl", ".gguf"]


def test_help_makes_no_folder(tmp_path: Path) -> None:
    done = demo(tmp_path, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "FOLDER" in done.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("words", [["--", "--help"], ["-x"], [""], ["file"], ["a", "b"], ["dangling"]])
def test_odd_folders_are_refused(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to("nowhere")
    done = demo(tmp_path, *words)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dangling", "file"]


def test_a_file_of_that_name_that_is_not_the_demos_stays(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(b"mine")
    done = demo(tmp_path, ".")
    assert (done.returncode, "another file" in done.stderr) == (2, True)
    assert (tmp_path / NAME).read_bytes() == b"mine"


def test_an_unknown_type_ends_with_the_code_of_repack(tmp_path: Path, gemma: Path) -> None:
    (tmp_path / NAME).symlink_to(gemma)
    assert demo(tmp_path, ".", "--types", "Q9_K").returncode == 2
