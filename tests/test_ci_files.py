"""The workflows and the action: well-formed, least privileged, and the action's scripts run as they stand."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import yaml

from repack import convert_file
from tests.support.judging import flip
from tests.support.models import I32, Q8_0, STRING, U16, Model, T, pair, q6_k_tensor
from tests.support.recipes import PATH, ROOT, blocks, shell
from tests.support.reports import tensors

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FILES = [*WORKFLOWS, ROOT / "action.yml"]
GUIDE = ROOT / "docs" / "ci.md"


def load(path: Path) -> Any:
    return yaml.load(path.read_text("utf-8"), Loader=yaml.BaseLoader)


def steps(document: Any) -> Iterator[Any]:
    yield from document.get("runs", {}).get("steps", ())
    for job in document.get("jobs", {}).values():
        yield from job.get("steps", ())


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
    scripts += [text for page in ROOT.rglob("docs/**/*.md") for text in blocks(page, "bash")]
    scripts.append("\n".join(yaml.safe_load(blocks(GUIDE, "yaml")[2])["verify-dpl"]["script"]))
    assert len(scripts) > 8
    for number, script in enumerate([*scripts, (ROOT / ".ci" / "run").read_text()]):
        (tmp_path / f"{number}.sh").write_text(script)
    # SC2016: `bash -c` takes its "$0" unexpanded on purpose. SC2329: functions of .ci/run are called by their names
    command = [shellcheck, "--shell=bash", "--exclude=SC2016,SC2329", *map(str, sorted(tmp_path.iterdir()))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_examples_in_the_guide_name_real_inputs() -> None:
    step, job = (yaml.safe_load(text)["jobs"]["dpl"] for text in blocks(GUIDE, "yaml")[:2])
    assert set(step["steps"][-1]["with"]) <= set(load(ROOT / "action.yml")["inputs"])
    inputs = load(ROOT / ".github" / "workflows" / "verify-model.yml")["on"]["workflow_call"]["inputs"]
    assert {name for name, facts in inputs.items() if facts.get("required") == "true"} <= set(job["with"])
    assert set(job["with"]) <= set(inputs)


@pytest.fixture
def action(tmp_path: Path) -> Path:
    """A runner's folder: models, and the two commands where the action's first step would have installed them."""
    for name in ("good", "bad"):
        convert_file(Model(tensors()).write(tmp_path / f"{name}.gguf"), tmp_path / f"{name}.dpl")
    flip(tmp_path / "bad.dpl", 4096)
    Model([T("a", (256, 2), Q8_0)]).write(tmp_path / "q8.gguf")
    tool = tmp_path / "gguf-dpl" / "bin"
    tool.mkdir(parents=True)
    for command in ("repack", "verify"):
        (tool / command).write_text(f'#!/bin/sh\nexec "{sys.executable}" -m {command} "$@"\n')
        (tool / command).chmod(0o755)
    (tmp_path / "my reports").mkdir()
    return tmp_path


def step(name: str, folder: Path, model: str = "good", **inputs: str) -> subprocess.CompletedProcess[str]:
    """One step of the action in that folder."""
    scripts = {item["name"]: item["run"] for item in steps(load(ROOT / "action.yml")) if "run" in item}
    env = {
        "RUNNER_TEMP": str(folder),
        "GITHUB_OUTPUT": str(folder / "out"),
        "GITHUB_STEP_SUMMARY": str(folder / "summary"),
        "MODEL": f"{model}.gguf",
        "SIDECAR": f"{model}.dpl",
        "REPORTS": "my reports",
        "GPU": "",
        "TYPES": "",
        "EXPECT_SHA256": "",
    }
    return shell(scripts[name], folder, **env | inputs)


@pytest.mark.parametrize(("name", "code"), [("good", 0), ("bad", 1)])
def test_the_action_verifies_and_reports(action: Path, name: str, code: int) -> None:
    digest = sha256((action / f"{name}.gguf").read_bytes()).hexdigest()
    done = step("Verify", action, name, EXPECT_SHA256=digest)
    assert done.returncode == code, done.stderr
    assert (action / "out").read_text() == f"exit-code={code}\n"
    reports = action / "my reports"
    assert json.loads((reports / "verdict.json").read_text())["exit_code"] == code
    assert (action / "summary").read_text() == (reports / "verdict.md").read_text()
    assert {path.suffix for path in reports.iterdir()} == {".json", ".xml", ".md", ".html"}


def test_the_action_converts(action: Path) -> None:
    assert step("Convert", action, "bad").returncode == 0
    assert step("Verify", action, "bad").returncode == 0
    assert step("Convert", action, "q8").returncode == 5
    assert json.loads((action / "my reports" / "conversion.json").read_text())["exit_code"] == 5
    assert step("Convert", action, "q8", TYPES="Q8_0").returncode == 0
    assert step("Verify", action, "q8").returncode == 0


def test_every_line_of_the_expected_digests_counts(action: Path) -> None:
    """Of a model in two shards the second one's digest is wrong: seen however the two are divided."""
    for number in range(2):
        keys = [pair("split.no", U16, number), pair("split.count", U16, 2), pair("split.tensors.count", I32, 2)]
        architecture = [pair("general.architecture", STRING, "test")]
        path = action / f"two-{number + 1:05d}-of-00002.gguf"
        Model([q6_k_tensor(f"blk.{number}.w", (256, 2), number)], architecture + keys).write(path)
    convert_file(action / "two-00001-of-00002.gguf", action / "two-00001-of-00002.dpl")
    right = [sha256(path.read_bytes()).hexdigest() for path in sorted(action.glob("two-*.gguf"))]
    for between in (" ", "\n", "\r\n", "\t", "\n\n  "):
        expected = {between.join([*right, ""]): 0, between.join([right[0], "0" * 64]): 1, right[0]: 2}
        for text, code in expected.items():
            done = step("Verify", action, "two-00001-of-00002", EXPECT_SHA256=text)
            assert done.returncode == code, (text, done.stderr)


def test_a_blank_digest_is_no_digest_left_out(action: Path) -> None:
    assert step("Verify", action, EXPECT_SHA256=" \n").returncode == 2


@pytest.mark.parametrize("inputs", [{"EXTRA": "x; true"}, {"CONVERT": "yes"}, {"CONVERT": ""}])
def test_the_action_refuses_inputs_that_it_does_not_know(action: Path, inputs: dict[str, str]) -> None:
    done = step("Install gguf-dpl", action, **{"EXTRA": "", "CONVERT": "true"} | inputs)
    assert (done.returncode, (action / "out").exists()) == (2, False)


def test_reports_of_an_earlier_run_are_never_uploaded(action: Path) -> None:
    """The first step makes a new folder, and that one is uploaded."""
    for _ in range(2):
        step("Install gguf-dpl", action, EXTRA="", CONVERT="true", GITHUB_ACTION_PATH=str(action / "none"))
    folders = [line.removeprefix("reports=") for line in (action / "out").read_text().splitlines()]
    assert len(set(folders)) == 2
    assert all(not any(Path(folder).iterdir()) for folder in folders)
    upload = next(item for item in steps(load(ROOT / "action.yml")) if "upload-artifact" in item.get("uses", ""))
    assert upload["with"]["path"] == "${{ steps.prepare.outputs.reports }}"
