"""Where reports may go, and what becomes of the exit code when they cannot get there."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import subprocess
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from repack import convert_file
from repack.command.console import Console
from repack.command.report_files import prepare, write_report
from repack.errors import DplError, EnvironmentFailure, UsageError
from tests.support.calls import call as run_in_child
from tests.support.judging import flip
from tests.support.models import Model
from tests.support.reports import ENVIRONMENT, call, check_schema, tensors

Pair = tuple[Path, Path]


@pytest.fixture
def good(tmp_path: Path) -> Pair:
    model, sidecar = Model(tensors()).write(tmp_path / "m.gguf"), tmp_path / "m.dpl"
    convert_file(model, sidecar)
    return model, sidecar


def refused(reports: dict[str, str], taken: dict[str, Path], kind: type[DplError] = UsageError) -> str:
    with pytest.raises(kind) as caught:
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
        assert "must not overwrite" in refused({"json": str(path)}, taken)
    assert "not a regular file" in refused({"json": str(tmp_path / "pipe")}, {})
    assert "not a regular file" in refused({"json": "/dev/full"}, {})
    assert "not a regular file" in refused({"json": str(tmp_path)}, {})
    assert "not a regular file" in refused({"json": ""}, {})
    assert "not a report that --json made" in refused({"json": str(model)}, {})
    assert before == {path: path.read_bytes() for path in good}


def test_two_names_of_one_file(good: Pair, tmp_path: Path) -> None:
    sidecar = good[1]
    (tmp_path / "a").write_bytes(b"")
    os.link(tmp_path / "a", tmp_path / "b")
    assert "the unfinished form of the sidecar" in refused({"json": f"{sidecar}.partial"}, {"the sidecar": sidecar})
    assert "the file of --json" in refused({"json": f"{tmp_path}/r", "html": f"{tmp_path}//./r"}, {})
    assert "the file of --json" in refused({"json": f"{tmp_path}/a", "html": f"{tmp_path}/b"}, {})
    for first, second in (("r", "r.partial"), ("r.partial", "r")):
        words = refused({"json": str(tmp_path / first), "junit": str(tmp_path / second)}, {})
        assert "unfinished form of the file of --json" in words or "while it is being written" in words
    assert "cannot both go to standard output" in refused({"json": "-", "html": "-"}, {})


def test_places_where_no_file_can_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "gone").mkdir()
    assert "folder does not exist" in refused({"json": str(tmp_path / "no" / "r")}, {})
    assert "leads nowhere" in refused({"json": str(tmp_path / "dangling")}, {})
    assert "leads nowhere" in refused({"json": str(tmp_path / "loop")}, {})
    assert "name too long" in refused({"json": str(tmp_path / ("n" * 256))}, {}, EnvironmentFailure)
    prepare({"json": str(tmp_path / ("n" * 255))}, {})
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert "working directory has been deleted" in refused({"json": "r.json"}, {})


FOREIGN = {
    "settings": b'{"format": {"name": "something else"}}',
    "notes": b"Buy milk.\n",
    "zstd": b"\x28\xb5\x2f\xfd\x04\x58",
    "a legacy .pth": b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.",
    "a JUnit file of pytest": b'<?xml version="1.0"?>\n<testsuites><testsuite name="pytest"/></testsuites>',
    "a page": b"<!doctype html><title>gguf-dpl</title>",
    "one space": b" ",
}
KINDS = ("json", "junit", "markdown", "html")


@pytest.mark.parametrize("what", FOREIGN)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_report_of_ours_stays(what: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_bytes(FOREIGN[what])
    assert f"is not a report that --{kind} made" in refused({kind: str(path)}, {})
    with pytest.raises(UsageError):
        write_report(kind, str(path), "new", Console())
    assert path.read_bytes() == FOREIGN[what]


def test_a_report_replaces_an_older_one_of_its_kind_and_an_empty_file(good: Pair, tmp_path: Path) -> None:
    paths = {kind: tmp_path / f"r.{kind}" for kind in KINDS}
    options = [word for kind, path in paths.items() for word in (f"--{kind}", path)]
    paths["json"].touch()
    for _ in range(2):
        assert call("verify", *good, "--device", "cpu", *options).returncode == 0
    before = {kind: path.read_bytes() for kind, path in paths.items()}
    for kind, path in paths.items():
        for other in KINDS:
            if other != kind:
                assert f"is not a report that --{other} made" in refused({other: str(path)}, {})
    assert before == {kind: path.read_bytes() for kind, path in paths.items()}
    report = tmp_path / "conversion.json"
    for _ in range(2):
        assert call("repack", good[0], "--dry-run", "--json", report).returncode == 0


@pytest.mark.parametrize("command", ["repack", "verify"])
def test_a_run_that_is_killed_leaves_no_report_of_an_earlier_one(
    command: str, good: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = KINDS if command == "verify" else ("json",)
    options = [word for kind in kinds for word in (f"--{kind}", str(tmp_path / f"r.{kind}"))]
    words = [*map(str, good), "--device", "cpu"] if command == "verify" else [str(good[0]), "--dry-run"]
    assert run_in_child(command, *words, *options).code == 0

    def kill(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr("verify.command.verify", kill)
    monkeypatch.setattr("repack.command.main.make_plan", kill)
    assert run_in_child(command, *words, *options).code == -signal.SIGKILL
    texts = {kind: (tmp_path / f"r.{kind}").read_text("ascii") for kind in kinds}
    assert all("this run has not finished" in text for text in texts.values())
    assert json.loads(texts["json"])["exit_code"] == 4
    check_schema(json.loads(texts["json"]), {"repack": "conversion", "verify": "verdict"}[command] + ".schema.json")
    monkeypatch.undo()
    assert run_in_child(command, *words, *options).code == 0
    assert json.loads((tmp_path / "r.json").read_text("ascii"))["exit_code"] == 0


@pytest.mark.parametrize("command", ["repack", "verify"])
@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MemoryError(), "out of memory"),
        (OSError(errno.EIO, "Input/output error", "disk"), "`disk` (input/output error)"),
        (ImportError(), "a Python package cannot be imported"),
        (ModuleNotFoundError("No module named 'x'", name="x.y"), "package `x` is missing"),
        (ZeroDivisionError("oops"), "internal error: ZeroDivisionError: oops"),
        (UserWarning("w"), "internal error: UserWarning: w"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_json_is_there_whatever_goes_wrong(
    command: str, error: Exception, words: str, good: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("verify.command.verify", fail)
    monkeypatch.setattr("repack.command.main.convert", fail)
    report = tmp_path / "r.json"
    paths = [str(good[0]), str(good[1])] if command == "verify" else [str(good[0]), "-o", str(tmp_path / "new")]
    for _ in range(2):
        done = run_in_child(command, *paths, "--json", str(report))
        document = json.loads(report.read_text("ascii"))
        assert (done.code, document["exit_code"]) == (4, 4)
        assert words in report.read_text("ascii")
        assert words in done.err
        assert "Traceback" not in done.err
    check_schema(document, {"repack": "conversion", "verify": "verdict"}[command] + ".schema.json")


def test_refused_paths_leave_older_reports_alone(good: Pair, tmp_path: Path) -> None:
    old = '{"format": {"name": "gguf-dpl verdict"}}'
    (tmp_path / "r.json").write_text(old)
    done = call("verify", *good, "--json", tmp_path / "r.json", "--html", good[0])
    assert done.returncode == 2
    assert (tmp_path / "r.json").read_text() == old


@pytest.mark.parametrize("kind", KINDS)
def test_any_report_can_go_to_standard_output(kind: str, good: Pair, tmp_path: Path) -> None:
    env = ENVIRONMENT | {"PYTHONPATH": str(Path(__file__).parents[1])}
    done = call("verify", *good, "--device", "cpu", f"--{kind}", "-", cwd=tmp_path, env=env)
    assert done.returncode == 0
    start = {"json": "{", "junit": "<?xml", "markdown": "## PROVEN", "html": "<!doctype html>"}[kind]
    assert done.stdout.startswith(start)
    assert "PROVEN: 2 tensors" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.dpl", "m.gguf"]


def test_a_file_that_standard_output_or_error_goes_to_already(good: Pair, tmp_path: Path) -> None:
    model, report = good[0], tmp_path / "r.json"
    for words in (["--dry-run", "--json", str(report)], ["-o", str(report), "--force"]):
        for streams in ({"stdout": report}, {"stderr": report}):
            report.write_text("")
            with report.open("w") as file:
                options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | dict.fromkeys(streams, file)
                done = call("repack", model, *words, capture_output=False, **options)
            assert done.returncode == 2
            assert b"GGUF" not in report.read_bytes()


def test_a_job_summary_that_standard_output_goes_to_already(good: Pair, tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    env = ENVIRONMENT | {"GITHUB_STEP_SUMMARY": str(summary)}
    for mode, code in (("w", 2), ("a", 0)):
        with summary.open(mode) as file:
            options = {"capture_output": False, "stdout": file, "stderr": subprocess.PIPE}
            done = call("verify", *good, "--device", "cpu", "--markdown", "-", env=env, **options)
        assert done.returncode == code
    assert summary.read_text().count("## PROVEN") == 2, "once as the report, once added"


def test_an_option_that_is_given_twice(good: Pair, tmp_path: Path) -> None:
    for words in (["--json", tmp_path / "a", "--json", tmp_path / "b"], ["--seed", "1", "--seed=1"]):
        done = call("verify", *good, *words)
        assert (done.returncode, "is given twice" in done.stderr) == (2, True)
    assert call("verify", *good, "--include", "plain", "--include", "x", "--device", "cpu").returncode == 0


def test_an_output_that_does_not_exist_yet_is_taken_too(tmp_path: Path) -> None:
    model = Model(tensors()).write(tmp_path / "m.gguf")
    done = call("repack", model, "-o", tmp_path / "m.dpl", "--json", tmp_path / "m.dpl")
    assert (done.returncode, "is the output" in done.stderr) == (2, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.gguf"]


def limit_files() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))


@pytest.mark.parametrize("differs", [False, True])
def test_a_report_that_does_not_fit(good: Pair, tmp_path: Path, differs: bool) -> None:
    if differs:
        flip(good[1], 4096)
    options = ("--quiet", "--device", "cpu", "--junit", tmp_path / "r.xml")
    done = call("verify", *good, *options, preexec_fn=limit_files)
    assert done.returncode == (1 if differs else EnvironmentFailure.exit_code)
    assert len([line for line in done.stderr.splitlines() if "r.xml" in line]) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.dpl", "m.gguf"]


def test_the_json_says_what_the_process_returns(good: Pair, tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("# before")
    options = ("--device", "cpu", "--json", tmp_path / "r.json", "--markdown", tmp_path / "r.md")
    env = ENVIRONMENT | {"GITHUB_STEP_SUMMARY": str(summary)}

    def call_with_a_full_disk() -> subprocess.CompletedProcess[str]:
        return call("verify", *good, *options, env=env, preexec_fn=lambda: limit_to(summary.stat().st_size + 1000))

    summary.write_text("x" * 60_000)
    done = call_with_a_full_disk()
    document = json.loads((tmp_path / "r.json").read_text())
    assert (done.returncode, document["exit_code"], document["result"]) == (4, 4, "proven")
    assert "GITHUB_STEP_SUMMARY" in done.stderr
    assert summary.read_text() == "x" * 60_000
    flip(good[1], 4096)
    done = call_with_a_full_disk()
    assert (done.returncode, json.loads((tmp_path / "r.json").read_text())["exit_code"]) == (1, 1)


def limit_to(size: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def test_a_report_says_when_tables_are_lost(good: Pair, tmp_path: Path) -> None:
    report = tmp_path / "r.json"
    for differs in (False, True):
        if differs:
            flip(good[1], 4096)
        with open("/dev/full", "w") as full:  # noqa: PTH123
            options = ("--device", "cpu", "--json", report)
            done = call("verify", *good, *options, stdout=full, stderr=None, capture_output=False)
        assert done.returncode == json.loads(report.read_text())["exit_code"] == (1 if differs else 4)


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


@pytest.mark.parametrize("where", ["m.gguf", "m.dpl", "r.md", "r.json", "r.md.partial", "fifo", "link", ".", "no/s.md"])
def test_a_job_summary_that_cannot_be_meant(where: str, good: Pair, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("m.gguf")
    (tmp_path / "r.md").touch()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    env = ENVIRONMENT | {"GITHUB_STEP_SUMMARY": str(tmp_path / where)}
    reports = ("--markdown", tmp_path / "r.md", "--json", tmp_path / "r.json")
    done = call("verify", *good, "--device", "cpu", *reports, env=env)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "GITHUB_STEP_SUMMARY" in done.stderr
    assert before == {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}


def test_reports_have_the_usual_mode(good: Pair, tmp_path: Path) -> None:
    call("verify", *good, "--device", "cpu", "--junit", tmp_path / "r.xml", "--quiet", umask=0o027)
    assert (tmp_path / "r.xml").stat().st_mode & 0o777 == 0o640
    assert ET.parse(tmp_path / "r.xml").getroot().tag == "testsuites"
