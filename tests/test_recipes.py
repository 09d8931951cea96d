"""The recipes of docs/ci.md, run as they stand: each with a case that is good and with the cases that must fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from repack import convert_file
from tests.support.judging import flip
from tests.support.models import Q8_0, Model, T
from tests.support.recipes import PATH, ROOT, blocks, shell
from tests.support.reports import tensors

GUIDE = ROOT / "docs" / "ci.md"
NAMES = ("one", "a b/two", "new\nline", "7b-best-of-8", "-dash", "7b-00001-of-00001")


def recipe(title: str, language: str = "bash") -> str:
    """The block of the guide with this comment in its first two lines."""
    found = [text for text in blocks(GUIDE, language) if f"# {title}" in "\n".join(text.splitlines()[:2])]
    assert len(found) == 1, title
    return found[0]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Good pairs with names of many kinds, one of them in capitals, and a model that has nothing to convert."""
    models = tmp_path / "models"
    (models / "a b").mkdir(parents=True)
    for name in NAMES:
        convert_file(Model(tensors()).write(models / f"{name}.gguf"), models / f"{name}.dpl")
    convert_file(Model(tensors()).write(models / "SHOUT.GGUF"), models / "SHOUT.dpl")
    Model([T("a", (256, 2), Q8_0)]).write(models / "q8.gguf")
    return tmp_path


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    (tmp_path / "models").mkdir()
    return tmp_path


def put(folder: Path, name: str, script: str) -> None:
    """A program of this name, found before all others by a PATH that begins with bin."""
    path = folder / "bin" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(script)
    path.chmod(0o755)


def stubbed(folder: Path) -> str:
    return f"{folder / 'bin'}{os.pathsep}{PATH}"


def codes(folder: Path) -> list[int]:
    return sorted(json.loads(path.read_text())["exit_code"] for path in folder.rglob("*.verdict.json"))


def test_two_commands(folder: Path) -> None:
    models = folder / "models"
    (models / "one.gguf").rename(models / "model.gguf")
    assert shell(recipe("two commands"), models).returncode == 0
    assert json.loads((models / "verdict.json").read_text())["result"] == "proven"
    assert shell(recipe("two commands"), models).returncode == 2  # the sidecar is there by now


def test_a_folder_is_converted(folder: Path) -> None:
    models = folder / "models"
    good = {path: path.read_bytes() for path in models.rglob("*.dpl")}
    for path in good:
        path.unlink()
    done = shell(recipe("convert a folder"), folder)
    assert done.returncode == 0, done.stderr
    assert {path: path.read_bytes() for path in models.rglob("*.dpl")} == good
    assert json.loads((models / "q8.repack.json").read_text())["exit_code"] == 5


def test_a_folder_with_a_bad_model_is_not_converted(folder: Path) -> None:
    (folder / "models" / "bad.gguf").write_text("<html>")
    assert shell(recipe("convert a folder"), folder).returncode == 123


def test_a_later_shard_without_its_first_is_not_passed_over(folder: Path) -> None:
    Model(tensors()).write(folder / "models" / "half-00002-of-00002.gguf")
    done = shell(recipe("convert a folder"), folder)
    assert done.returncode == 123
    assert "half-00001-of-00002.gguf" in done.stderr


def test_a_folder_is_verified(folder: Path) -> None:
    done = shell(recipe("verify a folder"), folder)
    assert (done.returncode, codes(folder)) == (0, [0] * (len(NAMES) + 1)), done.stderr


@pytest.mark.parametrize("name", ["one.dpl", "a b/two.dpl", "7b-best-of-8.dpl", "SHOUT.dpl"])
def test_a_folder_with_a_bad_sidecar_is_not_proven(folder: Path, name: str) -> None:
    flip(folder / "models" / name, 4096)
    assert shell(recipe("verify a folder"), folder).returncode == 123
    assert codes(folder) == [0] * len(NAMES) + [1]


def test_a_sidecar_without_its_model_is_not_proven(folder: Path) -> None:
    (folder / "models" / "SHOUT.GGUF").unlink()
    assert shell(recipe("verify a folder"), folder).returncode == 123


@pytest.mark.parametrize("title", ["convert a folder", "verify a folder"])
def test_an_empty_folder_is_no_success(empty: Path, title: str) -> None:
    done = shell(recipe(title), empty)
    assert (done.returncode, done.stdout) == (5, "")
    assert done.stderr.startswith("there is no ")
    (empty / "models").rmdir()
    assert shell(recipe(title), empty).returncode != 0


@pytest.mark.parametrize("title", ["convert a folder", "verify a folder"])
def test_a_folder_that_cannot_be_read_whole_is_no_success(folder: Path, title: str) -> None:
    put(folder, "find", f'#!/bin/sh\nPATH="{PATH}"\nfind "$@"\necho "find: b: Permission denied" >&2\nexit 1\n')
    for command in ("repack", "verify"):
        put(folder, command, "#!/bin/sh\n")
    assert shell(recipe(title), folder, PATH=stubbed(folder)).returncode != 0


@pytest.mark.parametrize("title", ["convert a folder", "verify a folder"])
def test_a_killed_command_is_no_success(folder: Path, title: str) -> None:
    for command in ("repack", "verify"):
        put(folder, command, "#!/bin/sh\nkill -9 $$\n")
    assert shell(recipe(title), folder, PATH=stubbed(folder)).returncode != 0


SBATCH = """#!{python}
import os, subprocess, sys
first, last = sys.argv[2].removeprefix("--array=").removesuffix("%8").split("-")
numbers = range(int(first), min(int(last), {limit}) + 1)
environments = [os.environ | {{"SLURM_ARRAY_TASK_ID": str(number)}} for number in numbers]
sys.exit(any([subprocess.run(["bash", sys.argv[3]], env=env).returncode for env in environments]))
"""


def slurm(folder: Path, limit: int = 99) -> subprocess.CompletedProcess[str]:
    """fleet.sh with a stand-in for sbatch that runs the tasks of an array up to a limit, one after the other."""
    for name, language in (("fleet.sh", "bash"), ("verify.sbatch", "bash"), ("verdicts.py", "python")):
        (folder / name).write_text(recipe(name, language))
    put(folder, "sbatch", SBATCH.format(python=sys.executable, limit=limit))
    return shell("bash fleet.sh", folder, PATH=stubbed(folder))


def test_a_fleet_is_proven(folder: Path) -> None:
    done = slurm(folder)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(NAMES) + 1
    assert all(line.startswith("proven ") for line in done.stdout.splitlines())


def test_a_fleet_with_a_bad_sidecar(folder: Path) -> None:
    flip(folder / "models" / "one.dpl", 4096)
    done = slurm(folder)
    assert done.returncode == 1
    assert next(line for line in done.stdout.splitlines() if "one.dpl" in line).startswith("not proven")
    assert done.stdout.count("\nproven") + done.stdout.startswith("proven") == len(NAMES)


def test_a_fleet_does_not_believe_yesterday(folder: Path) -> None:
    """The first run proved all; the second never starts its last tasks."""
    assert slurm(folder).returncode == 0
    done = slurm(folder, limit=2)
    assert done.returncode == 1
    assert done.stdout.count("no verdict") == len(NAMES) + 1 - 3


def test_a_fleet_whose_tasks_are_killed(folder: Path) -> None:
    put(folder, "verify", "#!/bin/sh\nkill -9 $$\n")
    done = slurm(folder)
    assert (done.returncode, done.stdout.count("no verdict")) == (1, len(NAMES) + 1)


def test_a_fleet_of_nothing(empty: Path) -> None:
    assert slurm(empty).returncode == 5


def ray(folder: Path) -> subprocess.CompletedProcess[str]:
    """fleet.py beside a stand-in for Ray that runs tasks one after the other."""
    (folder / "fleet.py").write_text(recipe("fleet.py", "python"))
    (folder / "ray.py").write_text(
        "class Task:\n    def __init__(self, call): self.remote = call\n"
        "def remote(**resources): return Task\ndef get(results): return results\n"
    )
    return shell("python fleet.py", folder, PATH=stubbed(folder))


def test_ray(folder: Path) -> None:
    (folder / "models" / "SHOUT.dpl").unlink()
    done = ray(folder)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(NAMES)
    flip(folder / "models" / "one.dpl", 4096)
    assert ray(folder).returncode == 1


def test_ray_with_a_child_that_is_killed(folder: Path) -> None:
    """Of several children one is killed and the others succeed: 137, not the 0 that is greater than -9."""
    put(folder, "verify", "#!/bin/sh\ncase $5 in *one.dpl) kill -9 $$ ;; esac\n")
    done = ray(folder)
    assert (done.returncode, done.stdout.count("\n0 ")) == (137, len(NAMES) - 1)


def test_ray_with_nothing_to_do(empty: Path) -> None:
    assert ray(empty).returncode == 5
    (empty / "models").rmdir()
    assert ray(empty).returncode != 0


def test_gitlab(folder: Path) -> None:
    job = yaml.safe_load(blocks(GUIDE, "yaml")[2])["verify-dpl"]
    put(folder, "pip", '#!/bin/sh\nprintf "%s\\n" "$@" >pip.arguments\n')
    variables = {name: str(value) for name, value in job["variables"].items()}
    script, models = "\n".join(job["script"]), folder / "models"
    (models / "one.gguf").rename(models / "model.gguf")
    assert shell(script, models, PATH=stubbed(folder), **variables).returncode == 0
    assert (models / "pip.arguments").read_text().splitlines()[-1] == variables["TOOL"]
    assert all((models / name).stat().st_size for name in job["artifacts"]["paths"])
    (models / "model.gguf").write_bytes(b"GGUF")
    assert shell(script, models, PATH=stubbed(folder), **variables).returncode == 3
