"""Every report of every kind of end: parsed by independent parsers, valid, and of one mind with the exit code."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import jsonschema
import pytest

from repack import convert_file
from tests.support.judging import flip
from tests.support.models import Q8_0, Model, T, q6_k_tensor
from tests.support.reports import ENVIRONMENT, HOSTILE, call, check_schema, tensors


def good(model: Path, sidecar: Path) -> None:
    convert_file(model, sidecar)


def flipped(model: Path, sidecar: Path) -> None:
    good(model, sidecar)
    flip(sidecar, 4096 + 3)


def missing_tensor(model: Path, sidecar: Path) -> None:
    good(model, sidecar)
    Model([*tensors()[:1], q6_k_tensor("other", (512, 3), 2)]).write(model)


def stale(model: Path, sidecar: Path) -> None:
    good(model, sidecar)
    Model(tensors(seed=9)).write(model)


def damaged_gguf(model: Path, sidecar: Path) -> None:
    good(model, sidecar)
    model.write_bytes(model.read_bytes()[:-900])


def no_q6_k(model: Path, sidecar: Path) -> None:
    good(model, sidecar)
    Model([T("a", (256, 2), Q8_0)]).write(model)


def no_file(model: Path, sidecar: Path) -> None:
    good(model, sidecar)
    model.unlink()


def not_a_sidecar(model: Path, sidecar: Path) -> None:
    Model(tensors()).write(model)
    sidecar.write_text("<html>")


CASES: list[tuple[Callable[[Path, Path], None], int]] = [
    (good, 0),
    (flipped, 1),
    (missing_tensor, 1),
    (stale, 1),
    (damaged_gguf, 3),
    (no_q6_k, 1),
    (no_file, 2),
    (not_a_sidecar, 3),
]


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    return Model(tensors()).write(tmp_path / "m.gguf"), tmp_path / "m.dpl"


@pytest.mark.parametrize(("prepare", "code"), CASES, ids=lambda value: getattr(value, "__name__", str(value)))
def test_all_reports_agree(
    files: tuple[Path, Path], prepare: Callable[[Path, Path], None], code: int, tmp_path: Path
) -> None:
    prepare(*files)
    paths = {kind: tmp_path / f"r.{kind}" for kind in ("json", "junit", "markdown", "html")}
    options = [word for kind, path in paths.items() for word in (f"--{kind}", path)]
    done = call("verify", *files, "--device", "cpu", *options)
    assert done.returncode == code, done.stderr
    document = json.loads(paths["json"].read_text("ascii"))
    check_schema(document, "verdict.schema.json")
    assert (document["exit_code"], document["result"]) == (code, "not proven" if code else "proven")
    junit = ET.parse(paths["junit"]).getroot()
    check_counts(junit)
    assert (int(junit.get("failures", "")) + int(junit.get("errors", "")) > 0) == (code != 0)
    properties = {item.get("name"): item.get("value") for item in junit.iter("property")}
    assert properties["exit_code"] == str(code)
    word = "NOT PROVEN" if code else "PROVEN"
    assert paths["markdown"].read_text("ascii").startswith(f"## {word}: ")
    assert f'<p class="badge">{word}</p>' in paths["html"].read_text("ascii")
    assert done.stdout.splitlines()[-1].startswith(f"{word}: ")
    assert done.stdout.isascii() or "\u2500" in done.stdout


def check_counts(junit: ET.Element) -> None:
    """The totals that JUnit readers show are those of the cases."""
    for tag, key in (("testcase", "tests"), ("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
        whole = () if key == "skipped" else (junit,)  # readers know no such total over all suites
        for element in (*whole, *junit.findall("testsuite")):
            assert int(element.get(key, "-1")) == len(list(element.iter(tag))), key
    for case in junit.iter("testcase"):
        assert len(case.findall("failure") + case.findall("error") + case.findall("skipped")) <= 1


def test_what_a_flipped_byte_looks_like(files: tuple[Path, Path], tmp_path: Path) -> None:
    flipped(*files)
    done = call("verify", *files, "--device", "cpu", "--json", "-", "--junit", tmp_path / "r.xml")
    document = json.loads(done.stdout)
    assert document["exit_code"] == done.returncode == 1
    by_name = {tensor["name"]: tensor for tensor in document["tensors"]}
    assert set(by_name) == {"plain.weight", HOSTILE}
    bad = by_name["plain.weight"]
    assert (bad["status"], by_name[HOSTILE]["status"]) == ("failed", "passed")
    assert "row 0, block 0, ql[3]" in bad["stages"]["bytes"]["detail"]
    assert (bad["nbytes"], bad["padded_nbytes"], bad["dpl_nbytes"]) == (840, 896, 896)
    sizes = {"native": 2100, "padded": 2240, "dpl": 896 + 3 * 432}
    assert document["ledger"] == {**sizes, "types": [{"type": "Q6_K", "tensors": 2, **sizes}]}
    cases = {
        (case.get("classname"), case.get("name")): [child.tag for child in case]
        for case in ET.parse(tmp_path / "r.xml").getroot().iter("testcase")
    }
    assert cases["gguf-dpl.bytes", "plain.weight"] == ["failure"]
    assert cases["gguf-dpl.container", "file"] == []
    assert "FAILED" in done.stderr  # the tables make room for the data
    assert "error: bytes: " in done.stderr


def test_tables_are_whole_wherever_they_go(files: tuple[Path, Path]) -> None:
    long = "blk.17." + "a_very_long_name." * 12 + "weight"
    Model([q6_k_tensor(long, (256, 4)), *tensors()]).write(files[0])
    convert_file(*files)
    ways: list[dict[str, str]] = [
        {},
        {"NO_COLOR": "1"},
        {"TERM": "dumb"},
        {"COLUMNS": "60"},
        {"PYTHONIOENCODING": "cp1252"},
        {"LC_ALL": "C", "PYTHONUTF8": "0"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    ]
    for way in ways:
        done = call("verify", *files, "--device", "cpu", env=ENVIRONMENT | way, encoding="cp1252")
        assert (done.returncode, done.stderr) == (0, ""), way
        row = next(line for line in done.stdout.splitlines() if line.startswith("blk.17"))
        assert row.split()[0] == long
        assert "x<script>&" in done.stdout
        assert "\\x1b[31m|`\\xfc\\u202e" in done.stdout
        assert "\x1b" not in done.stdout


def test_a_narrow_terminal_folds_and_cuts_nothing(files: tuple[Path, Path]) -> None:
    long = "blk.17." + "a_very_long_name." * 12 + "weight"
    Model([q6_k_tensor(long, (256, 4)), *tensors()]).write(files[0])
    convert_file(*files)
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 60)) if sys.version_info >= (3, 11) else None
    env = ENVIRONMENT | {"TERM": "xterm", "COLUMNS": "60"}
    done = call("verify", *files, "--device", "cpu", env=env, capture_output=False, stdout=theirs, stderr=theirs)
    os.close(theirs)
    assert done.returncode == 0
    text = b""
    while piece := _read(ours):
        text += piece
    os.close(ours)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", text.decode()).replace("\r", "").splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("tensor"))
    assert all(len(line) <= 60 for line in lines if "\u2500" in line)
    assert long in "".join(line.partition(" ")[0] for line in lines[start + 2 :])


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, 65536)
    except OSError:  # the other end is closed
        return b""


def test_provenance(files: tuple[Path, Path]) -> None:
    convert_file(*files)
    digest = subprocess.run(["sha256sum", files[0]], capture_output=True, text=True, check=True).stdout.split()[0]
    for expected, code in ((digest, 0), (digest.upper(), 0), ("0" * 64, 1)):
        done = call("verify", *files, "--device", "cpu", "--expect-sha256", expected, "--json", "-")
        document = json.loads(done.stdout)
        stage = next(stage for stage in document["stages"] if stage["stage"] == "provenance")
        assert (done.returncode, stage["status"]) == (code, "failed" if code else "passed")
    assert digest in done.stderr
    assert "publisher" in call("verify", *files, "--device", "cpu").stdout
    for words in ([*files, "--expect-sha256", digest[:-1]], [files[1], "--expect-sha256", digest]):
        assert call("verify", *words).returncode == 2
    assert call("verify", *files, "--expect-sha256", digest, "--expect-sha256", digest).returncode == 2


def test_a_sidecar_alone_is_never_called_proven(files: tuple[Path, Path]) -> None:
    convert_file(*files)
    done = call("verify", files[1], "--json", "-")
    document = json.loads(done.stdout)
    check_schema(document, "verdict.schema.json")
    assert (done.returncode, document["result"], document["model"]) == (0, "sound", None)
    assert "PROVEN" not in document["summary"]


@pytest.mark.parametrize("way", ["converted", "planned", "exists", "no_q6_k", "no_file"])
def test_repack_json(files: tuple[Path, Path], way: str, tmp_path: Path) -> None:
    model, sidecar = files
    report = tmp_path / "r.json"
    report.write_text('{"format": {"name": "gguf-dpl conversion"}, "exit_code": 0}')
    extra = ["--dry-run"] if way == "planned" else []
    if way == "exists":
        sidecar.write_bytes(b"old")
    elif way == "no_q6_k":
        Model([T("a", (256, 2), Q8_0)]).write(model)
    elif way == "no_file":
        model.unlink()
    done = call("repack", model, "-o", sidecar, "--json", report, *extra)
    document = json.loads(report.read_text("ascii"))
    check_schema(document, "conversion.schema.json")
    expected = {"converted": 0, "planned": 0, "exists": 2, "no_q6_k": 5, "no_file": 2}[way]
    assert document["exit_code"] == done.returncode == expected
    assert document["result"] == (way if expected == 0 else "failed")
    assert (document["conversion"] is not None) == (way == "converted")
    if way == "converted":
        assert document["conversion"]["sidecar_bytes"] == sidecar.stat().st_size
        assert [tensor["nbytes"] for tensor in document["conversion"]["tensors"]] == [840, 1260]
    if expected:
        assert done.stderr == f"error: {document['error']}\n"


def test_the_schema_finds_what_is_wrong(files: tuple[Path, Path]) -> None:
    convert_file(*files)
    document = json.loads(call("verify", *files, "--device", "cpu", "--json", "-").stdout)
    for key in list(document):
        with pytest.raises(jsonschema.ValidationError):
            check_schema({other: value for other, value in document.items() if other != key}, "verdict.schema.json")
    check_schema(document | {"newer": 1}, "verdict.schema.json", close=False)
    with pytest.raises(jsonschema.ValidationError):
        check_schema(document | {"exit_code": 7}, "verdict.schema.json")
