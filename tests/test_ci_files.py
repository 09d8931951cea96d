"""The workflows, the action and the commands in docs/ci.md: well-formed, least privileged, and run as written."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from repack import convert_file
from tests.support.models import Q8_0, Model, T
from tests.support.reports import damage, tensors

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FILES = [*WORKFLOWS, ROOT / "action.yml"]
GUIDE = (ROOT / "docs" / "ci.md").read_text("utf-8")
PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


def load(path: Path) -> Any:
    return yaml.load(path.read_text("utf-8"), Loader=yaml.BaseLoader)


def steps(document: Any) -> Iterator[Any]:
    yield from document.get("runs", {}).get("steps", ())
    for job in document.get("jobs", {}).values():
        yield from job.get("steps", ())


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", GUIDE, re.DOTALL | re.MULTILINE)


def block(title: str) -> str:
    """The shell block of the guide that begins with this comment."""
    return next(text for text in blocks("bash") if text.startswith(f"# {title}\n"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_actions_are_pinned_and_say_their_version(path: Path) -> None:
    lines = [line.strip() for line in path.read_text().splitlines() if re.match(r"\s*(- )?uses:", line)]
    for line in lines:
        if not re.search(r"uses: \./", line):
            assert re.search(r"uses: actions/[a-z-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$", line), line


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_have_least_privileges(path: Path) -> None:
    document = load(path)
    assert document["permissions"] == {}
    for job in document["jobs"].values():
        assert job["permissions"] == {"contents": "read"}
        assert "timeout-minutes" in job
        for step in job["steps"]:
            if "checkout" in step.get("uses", ""):
                assert step["with"]["persist-credentials"] == "false"
    assert "secrets" not in path.read_text()
    assert "pull_request_target" not in path.read_text()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_no_expression_stands_in_a_script(path: Path) -> None:
    for step in steps(load(path)):
        assert "${{" not in step.get("run", ""), step
        assert ("run" in step) != ("uses" in step)


def test_inputs_that_are_used_exist_and_the_other_way_round() -> None:
    for path in (ROOT / "action.yml", ROOT / ".github" / "workflows" / "verify-model.yml"):
        document = load(path)
        inputs = document.get("inputs") or document["on"]["workflow_call"]["inputs"]
        assert set(re.findall(r"inputs\.([a-z0-9-]+)", path.read_text())) == set(inputs)
    action = load(ROOT / "action.yml")
    for path in WORKFLOWS:
        for step in steps(load(path)):
            if step.get("uses", "").startswith("./"):
                assert set(step["with"]) <= set(action["inputs"])
                assert {"model", "sidecar"} <= set(step["with"])


def test_ci_runs_the_one_entry_point() -> None:
    assert ".ci/run" in [step.get("run") for step in steps(load(ROOT / ".github" / "workflows" / "ci.yml"))]
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o100


def test_shell_scripts_pass_shellcheck(tmp_path: Path) -> None:
    shellcheck = shutil.which("shellcheck", path=PATH)
    if shellcheck is None:
        pytest.skip("shellcheck is not installed")
    scripts = [step["run"] for path in FILES for step in steps(load(path)) if "run" in step]
    scripts += blocks("bash")
    scripts.append("\n".join(yaml.safe_load(blocks("yaml")[2])["verify-dpl"]["script"]))
    assert len(scripts) > 8
    for number, script in enumerate([*scripts, (ROOT / ".ci" / "run").read_text()]):
        (tmp_path / f"{number}.sh").write_text(script)
    # SC2016: `sh -c` takes its "$0" unexpanded on purpose
    command = [shellcheck, "--shell=bash", "--exclude=SC2016", *map(str, sorted(tmp_path.iterdir()))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_examples_in_the_guide_name_real_inputs() -> None:
    step, job = (yaml.safe_load(text)["jobs"]["dpl"] for text in blocks("yaml")[:2])
    assert set(step["steps"][-1]["with"]) <= set(load(ROOT / "action.yml")["inputs"])
    inputs = load(ROOT / ".github" / "workflows" / "verify-model.yml")["on"]["workflow_call"]["inputs"]
    assert {name for name, facts in inputs.items() if facts.get("required") == "true"} <= set(job["with"])
    assert set(job["with"]) <= set(inputs)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two good pairs (one with a blank in its name), one that differs, one model that has nothing to convert."""
    models = tmp_path / "models"
    (models / "a b").mkdir(parents=True)
    for name in ("one", "a b/two", "bad"):
        convert_file(Model(tensors()).write(models / f"{name}.gguf"), models / f"{name}.dpl")
    Model([T("a", (256, 2), Q8_0)]).write(models / "q8.gguf")
    damage(models / "bad.dpl", 4096)
    return tmp_path


def shell(script: str, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
    return subprocess.run(
        command, cwd=folder, env={"PATH": PATH, **env}, capture_output=True, text=True, check=False, timeout=120
    )


def codes(folder: Path) -> dict[str, int]:
    return {
        path.name.removesuffix(".verdict.json"): json.loads(path.read_text())["exit_code"]
        for path in folder.rglob("*.verdict.json")
    }


def test_a_folder_is_verified_and_then_converted(folder: Path) -> None:
    done = shell(block("verify a folder"), folder)
    assert (done.returncode, codes(folder)) == (123, {"one": 0, "two": 0, "bad": 1}), done.stderr
    done = shell(block("convert a folder"), folder)
    assert done.returncode == 0, done.stderr
    assert not (folder / "models" / "q8.dpl").exists()
    assert json.loads((folder / "models" / "q8.repack.json").read_text())["exit_code"] == 5
    done = shell(block("verify a folder"), folder)
    assert (done.returncode, codes(folder)) == (0, {"one": 0, "two": 0, "bad": 0})


def test_gnu_parallel(folder: Path) -> None:
    if shutil.which("parallel") is None:
        pytest.skip("GNU parallel is not installed")
    done = shell(block("verify a folder with parallel"), folder, HOME=str(folder))
    assert (done.returncode, codes(folder)) == (1, {"one": 0, "bad": 1}), done.stderr


def test_a_fleet_of_two_workers(folder: Path) -> None:
    title = "a Slurm array: sbatch --array=0-99%8 verify.sbatch   (100 models, 8 at a time)"
    (folder / "verify.sbatch").write_text(block(title))
    workers = "printf '%s\\n' 0 1 2 | xargs -P 2 -I{} env SLURM_ARRAY_TASK_ID={} bash verify.sbatch"
    assert shell(workers, folder).returncode == 123
    assert codes(folder) == {"one": 0, "two": 0, "bad": 1}
    done = shell(block("the fleet's verdict"), folder)
    assert done.returncode != 0
    assert sorted(line[:12].strip() for line in done.stdout.splitlines()) == ["not proven", "proven", "proven"]
    (folder / "models" / "bad.dpl").unlink()
    assert shell(block("the fleet's verdict"), folder).returncode == 0
    (folder / "models" / "one.verdict.json").unlink()
    assert "no verdict   models/one.dpl" in shell(block("the fleet's verdict"), folder).stdout


def test_before_a_commit(folder: Path) -> None:
    for command in ("init -q", "add models/one.dpl"):
        subprocess.run(["git", *command.split()], cwd=folder, check=True)
    assert shell(block("before a commit"), folder).returncode == 0
    subprocess.run(["git", "add", "models/bad.dpl"], cwd=folder, check=True)
    assert shell(block("before a commit"), folder).returncode == 123


@pytest.mark.parametrize("name", ["one", "bad", "q8"])
def test_the_scripts_of_the_action(folder: Path, name: str) -> None:
    tool = folder / "gguf-dpl" / "bin"
    tool.mkdir(parents=True)
    for command in ("repack", "verify"):
        (tool / command).write_text(f'#!/bin/sh\nexec "{sys.executable}" -m {command} "$@"\n')
        (tool / command).chmod(0o755)
    scripts = {step["name"]: step["run"] for step in steps(load(ROOT / "action.yml")) if "run" in step}
    digest = subprocess.run(
        ["sha256sum", f"models/{name}.gguf"], cwd=folder, capture_output=True, text=True, check=True
    )
    env = {
        "RUNNER_TEMP": str(folder),
        "GITHUB_OUTPUT": str(folder / "out"),
        "GITHUB_STEP_SUMMARY": str(folder / "summary"),
        "MODEL": f"models/{name}.gguf",
        "SIDECAR": f"models/{name}.dpl",
        "REPORTS": "my reports",
        "GPU": "",
        "EXPECT_SHA256": digest.stdout.split()[0],
    }
    if name == "q8":
        assert shell(scripts["Convert"], folder, **env).returncode == 5
        assert json.loads((folder / "my reports" / "conversion.json").read_text())["exit_code"] == 5
        return
    done = shell(scripts["Verify"], folder, **env)
    assert done.returncode == (1 if name == "bad" else 0), done.stderr
    assert (folder / "out").read_text() == f"exit-code={done.returncode}\n"
    assert json.loads((folder / "my reports" / "verdict.json").read_text())["exit_code"] == done.returncode
    assert (folder / "summary").read_text() == (folder / "my reports" / "verdict.md").read_text()
    assert {path.suffix for path in (folder / "my reports").iterdir()} == {".json", ".xml", ".md", ".html"}
    assert shell(scripts["Convert"], folder, **env).returncode == 0
    assert shell(scripts["Verify"], folder, **env | {"EXPECT_SHA256": ""}).returncode == 0
    assert shell(scripts["Install gguf-dpl"], folder, EXTRA="x; true").returncode == 2
