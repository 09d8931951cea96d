"""Where reports may go, and what becomes of the exit code when they cannot get there."""

from __future__ import annotations

import json
import os
import resource
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from repack import convert_file
from repack.command.report_files import prepare
from repack.errors import EnvironmentFailure, UsageError
from tests.support.models import Model
from tests.support.reports import ENVIRONMENT, call, damage, tensors

Pair = tuple[Path, Path]


@pytest.fixture
def good(tmp_path: Path) -> Pair:
    model, sidecar = Model(tensors()).write(tmp_path / "m.gguf"), tmp_path / "m.dpl"
    convert_file(model, sidecar)
    return model, sidecar


def refused(reports: dict[str, str], taken: dict[str, Path]) -> str:
    with pytest.raises(UsageError) as caught:
        prepare(reports, taken)
    return str(caught.value)


def test_a_report_never_goes_where_something_else_is(good: Pair, tmp_path: Path) -> None:
    model, sidecar = good
    taken = {"the model": model, "the sidecar": sidecar}
    before = {path: path.read_bytes() for path in good}
    (tmp_path / "link").symlink_to(model)
    (tmp_path / "hard").hardlink_to(sidecar)
    (tmp_path / "pipe.fifo").write_bytes(b"")
    os.mkfifo(tmp_path / "pipe")
    os.link(tmp_path / "pipe.fifo", tmp_path / "twin")
    for path in (model, sidecar, f"{tmp_path}/./m.gguf", tmp_path / "link", tmp_path / "hard"):
        assert "must not overwrite" in refused({"--json": str(path)}, taken) or "not text" in refused(
            {"--json": str(path)}, taken
        )
    assert "unfinished" in refused({"--json": f"{sidecar}.partial"}, taken)
    assert "the file of --json" in refused({"--json": f"{tmp_path}/r", "--html": f"{tmp_path}//./r"}, {})
    assert "the file of --json" in refused({"--json": f"{tmp_path}/twin", "--html": f"{tmp_path}/pipe.fifo"}, {})
    assert "not a regular file" in refused({"--json": str(tmp_path / "pipe")}, {})
    assert "not a regular file" in refused({"--json": "/dev/full"}, {})
    assert "not a regular file" in refused({"--json": str(tmp_path)}, {})
    assert "not a regular file" in refused({"--json": ""}, {})
    assert "folder does not exist" in refused({"--json": str(tmp_path / "no" / "r")}, {})
    other = model.rename(tmp_path / "shard-2.gguf")
    assert "not text" in refused({"--json": str(other)}, {})
    assert {other: before[model], sidecar: before[sidecar]} == {path: path.read_bytes() for path in (other, sidecar)}


def test_an_output_that_does_not_exist_yet_is_taken_too(tmp_path: Path) -> None:
    model = Model(tensors()).write(tmp_path / "m.gguf")
    done = call("repack", model, "-o", tmp_path / "m.dpl", "--json", tmp_path / "m.dpl")
    assert (done.returncode, "is the output" in done.stderr) == (2, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.gguf"]


def test_an_older_report_goes_before_the_work_starts(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text("{}")
    prepare({"--json": str(tmp_path / "r.json")}, {})
    assert not (tmp_path / "r.json").exists()


def test_refused_paths_leave_older_reports_alone(good: Pair, tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text("{}")
    done = call("verify", *good, "--json", tmp_path / "r.json", "--html", good[0])
    assert done.returncode == 2
    assert (tmp_path / "r.json").read_text() == "{}"


def limit_files() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))


@pytest.mark.parametrize("differs", [False, True])
def test_a_report_that_does_not_fit(good: Pair, tmp_path: Path, differs: bool) -> None:
    if differs:
        damage(good[1], 4096)
    options = ("--quiet", "--device", "cpu", "--junit", tmp_path / "r.xml")
    done = call("verify", *good, *options, preexec_fn=limit_files)
    assert done.returncode == (1 if differs else EnvironmentFailure.exit_code)
    assert len([line for line in done.stderr.splitlines() if "r.xml" in line]) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.dpl", "m.gguf"]


def test_the_json_says_what_the_process_returns(good: Pair, tmp_path: Path) -> None:
    summary = {"GITHUB_STEP_SUMMARY": "/dev/full"}
    options = ("--device", "cpu", "--json", tmp_path / "r.json", "--markdown", tmp_path / "r.md")
    done = call("verify", *good, *options, env=ENVIRONMENT | summary)
    document = json.loads((tmp_path / "r.json").read_text())
    assert (done.returncode, document["exit_code"], document["result"]) == (4, 4, "proven")
    assert "GITHUB_STEP_SUMMARY" in done.stderr
    damage(good[1], 4096)
    done = call("verify", *good, *options, env=ENVIRONMENT | summary)
    assert (done.returncode, json.loads((tmp_path / "r.json").read_text())["exit_code"]) == (1, 1)


@pytest.mark.parametrize("differs", [False, True])
def test_a_full_or_closed_standard_output(good: Pair, differs: bool, tmp_path: Path) -> None:
    if differs:
        damage(good[1], 4096)
    report = tmp_path / "r.json"
    for extra in ((), ("--json", "-"), ("--json", report)):
        with open("/dev/full", "w") as full:  # noqa: PTH123
            done = call("verify", *good, "--device", "cpu", *extra, stdout=full, stderr=None, capture_output=False)
        assert done.returncode == (1 if differs else 4)
        if report in extra:
            assert json.loads(report.read_text())["exit_code"] == done.returncode
        reader, writer = os.pipe()
        os.close(reader)
        done = call("verify", *good, "--device", "cpu", *extra, stdout=writer, stderr=None, capture_output=False)
        os.close(writer)
        assert done.returncode == (1 if differs else 0)


def test_the_job_summary_is_added_to(good: Pair, tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("# before\n\n")
    env = ENVIRONMENT | {"GITHUB_STEP_SUMMARY": str(summary)}
    assert call("verify", *good, "--device", "cpu", env=env).returncode == 0
    assert summary.read_text() == "# before\n\n"
    assert call("verify", *good, "--device", "cpu", "--markdown", tmp_path / "r.md", env=env).returncode == 0
    assert summary.read_text() == "# before\n\n" + (tmp_path / "r.md").read_text()
    with summary.open("w") as file:
        file.write("x" * ((1 << 20) - 500))
    assert call("verify", *good, "--device", "cpu", "--markdown", tmp_path / "r.md", env=env).returncode == 0
    assert "plain.weight" in (tmp_path / "r.md").read_text()
    assert "plain.weight" not in summary.read_text()


def test_reports_have_the_usual_mode(good: Pair, tmp_path: Path) -> None:
    call("verify", *good, "--device", "cpu", "--junit", tmp_path / "r.xml", "--quiet", umask=0o027)
    assert (tmp_path / "r.xml").stat().st_mode & 0o777 == 0o640
    assert ET.parse(tmp_path / "r.xml").getroot().tag == "testsuites"
