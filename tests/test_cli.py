"""Both commands as processes: exit codes, streams, encodings, terminals."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.reports import ENVIRONMENT, call

Pair = tuple[Path, Path]


def one_line_error(done: subprocess.CompletedProcess[str], code: int) -> str:
    assert done.returncode == code, done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("error: ")
    return lines[0]


def test_the_main_job(model: Path) -> None:
    out = model.with_suffix(".dpl")
    done = call("repack", model, "-o", out)
    assert (done.returncode, done.stderr) == (0, "")
    assert "6 of 8 are converted" in done.stdout
    assert [line.split(None, 3) for line in done.stdout.splitlines() if line.startswith(("F32", "type 42"))] == [
        ["F32", "1", "12", "no blocks to rearrange"],
        ["type", "42", "1", "?  unknown type"],
    ]
    assert done.stdout.isascii()
    done = call("verify", model, out)
    assert done.returncode == 0
    assert "PROVEN: 6 tensors" in done.stdout


def test_a_dry_run_writes_nothing(model: Path) -> None:
    done = call("repack", model, "--dry-run")
    assert done.returncode == 0
    assert "nothing was written" in done.stdout
    assert [path.name for path in model.parent.iterdir()] == ["model.gguf"]


def test_exit_codes(pair: Pair, tmp_path: Path) -> None:
    model, sidecar = pair
    assert "exists already" in one_line_error(call("repack", model, "-o", sidecar), 2)
    assert "no such file" in one_line_error(call("repack", tmp_path / "no.gguf", "-o", tmp_path / "x"), 2)
    assert "no output given" in one_line_error(call("repack", model), 2)
    assert "--help" in one_line_error(call("repack", "--bogus", model), 2)
    assert "3 files given" in one_line_error(call("verify", model, sidecar, sidecar), 2)
    assert "--rows" in one_line_error(call("verify", model, sidecar, "--rows", "0"), 2)
    assert "swapped" in one_line_error(call("repack", sidecar, "-o", tmp_path / "x"), 3)
    (tmp_path / "page.gguf").write_text("<!DOCTYPE html><title>404</title>")
    assert "HTML" in one_line_error(call("repack", tmp_path / "page.gguf", "-o", tmp_path / "x"), 3)
    assert not (tmp_path / "x").exists()


def test_a_failed_proof_says_so_on_both_streams(pair: Pair) -> None:
    raw = bytearray(pair[1].read_bytes())
    raw[-100] ^= 1
    pair[1].write_bytes(raw)
    done = call("verify", *pair)
    assert done.returncode == 1
    assert "NOT PROVEN" in done.stdout
    assert "error: bytes: " in done.stderr


def test_quiet_leaves_only_errors(pair: Pair) -> None:
    done = call("verify", *pair, "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("module", ["repack", "verify"])
def test_version_and_help(module: str) -> None:
    assert call(module, "--version").stdout.startswith(f"{module} (gguf-dpl) 0.")
    done = call(module, "--help")
    assert done.returncode == 0
    assert "Exit codes" in done.stdout


@pytest.mark.parametrize(
    "env",
    [
        {"LC_ALL": "C", "PYTHONUTF8": "0"},
        {"PYTHONIOENCODING": "cp1252"},
        {"TERM": "dumb"},
        {"NO_COLOR": "1"},
        {"COLUMNS": "40"},
    ],
    ids=",".join,
)
def test_output_is_complete_in_every_environment(pair: Pair, env: dict[str, str]) -> None:
    done = call("verify", *pair, env={**ENVIRONMENT, **env})
    assert done.returncode == 0
    for name in ("two.dims", "one.dim", "experts", "four.dims", "no.rows", "last"):
        assert f"{name} " in done.stdout
    assert "\x1b" not in done.stdout
    assert "PROVEN" in done.stdout


def test_a_terminal_gets_colour_and_everything(pair: Pair) -> None:
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "verify", *map(str, pair)]
    env = {**ENVIRONMENT, "TERM": "xterm-256color", "COLUMNS": "60"}
    child = subprocess.Popen(command, stdout=follower, stderr=follower, stdin=follower, env=env)
    os.close(follower)
    seen = bytearray()
    while True:
        try:
            piece = os.read(leader, 65536)
        except OSError:  # the child has closed its side
            break
        if not piece:
            break
        seen += piece
    os.close(leader)
    assert child.wait(60) == 0
    assert b"\x1b[" in seen
    assert b"PROVEN" in seen


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    done = call("repack", tmp_path / "no.gguf", "-o", tmp_path / "x", env={**ENVIRONMENT, "DPL_DEBUG": "1"})
    assert done.returncode == 2
    assert "Traceback" in done.stderr


def test_names_from_outside_are_shown_escaped(tmp_path: Path) -> None:
    from tests.support.models import Model, q6_k_tensor

    name = "[bold red]x[/] \x1b[31m\n\u202egnirts " + "y" * 300
    model = Model([q6_k_tensor(name, (256, 2))]).write(tmp_path / "m.gguf")
    assert call("repack", model, "-o", tmp_path / "m.dpl").returncode == 0
    done = call("verify", model, tmp_path / "m.dpl")
    assert done.returncode == 0
    assert "[bold red]x[/] \\x1b[31m\\n\\u202egnirts" in done.stdout
    assert "\x1b" not in done.stdout


def test_paths_of_every_kind(model: Path, tmp_path: Path) -> None:
    for name in ("with space", "umlaut-\u00e4", os.fsdecode(b"bad-\xff-utf8"), "new\nline"):
        folder = tmp_path / name
        folder.mkdir()
        copy = folder / "m.gguf"
        copy.write_bytes(model.read_bytes())
        assert call("repack", copy, "-o", folder / "m.dpl").returncode == 0
        assert call("verify", copy, folder / "m.dpl").returncode == 0


def test_a_leading_dash(model: Path) -> None:
    (model.parent / "-m.gguf").write_bytes(model.read_bytes())
    command = [sys.executable, "-m", "repack", "-o=-m.dpl", "--", "-m.gguf"]
    assert subprocess.run(command, cwd=model.parent, check=False, capture_output=True, env=ENVIRONMENT).returncode == 0
    assert (model.parent / "-m.dpl").exists()


@pytest.mark.parametrize("path", ["", "folder/"])
def test_paths_that_name_no_file(model: Path, path: str) -> None:
    assert "does not name a file" in one_line_error(call("repack", model, "-o", path), 2)
    assert "does not name a file" in one_line_error(call("verify", model, path), 2)
    assert not (model.parent / "folder").exists()
