"""What is written to standard output arrives whole, or the exit code says that it did not."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from repack import convert_file
from tests.support.models import Model, q6_k_tensor
from tests.support.reports import ENVIRONMENT, call

Pair = tuple[Path, Path]
MANY = 800
"""Tensors whose JSON is longer than a pipe holds (65,536 bytes)."""


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp("many")
    model = Model([q6_k_tensor(f"blk.{number}.weight", (256, 1)) for number in range(MANY)]).write(folder / "m.gguf")
    convert_file(model, folder / "m.dpl")
    return model, folder / "m.dpl"


def command(name: str, pair: Pair) -> list[str]:
    words = {"repack": [str(pair[0]), "--dry-run"], "verify": [str(pair[1])]}[name]
    return [sys.executable, "-m", name, *words]


def shell(line: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", "-c", line], check=False, capture_output=True, text=True, env=ENVIRONMENT)


@pytest.mark.parametrize("name", ["repack", "verify"])
def test_a_slow_reader_of_a_pipe_that_does_not_block_gets_everything(name: str, many: Pair) -> None:
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETFL, fcntl.fcntl(writer, fcntl.F_GETFL) | os.O_NONBLOCK)
    child = subprocess.Popen([*command(name, many), "--json", "-", "--quiet"], stdout=writer, env=ENVIRONMENT)
    os.close(writer)
    read = bytearray()
    while piece := os.read(reader, 8192):
        read += piece
        time.sleep(0.001)
    os.close(reader)
    assert child.wait() == 0
    document = json.loads(read)
    names = document["plan"]["selected"] if name == "repack" else [tensor["name"] for tensor in document["tensors"]]
    assert len(names) == MANY
    assert len(read) > 65_536 or name == "repack"


@pytest.mark.parametrize("name", ["repack", "verify"])
@pytest.mark.parametrize("asked", ["--json -", "--version"])
def test_what_was_asked_for_needs_somebody_to_take_it(name: str, asked: str, pair: Pair) -> None:
    line = " ".join([*command(name, pair), asked])
    for to in (">&-", ">/dev/full", "| true"):
        done = shell(f"trap '' PIPE; set -o pipefail; {line} {to}")
        if to == "| true" and done.returncode == 0:
            continue  # all of it was in the pipe before the reader had gone
        assert done.returncode == 4, to
        assert "standard output did not take all" in done.stderr


def test_a_reader_that_goes_before_the_end_of_a_report(many: Pair) -> None:
    done = shell(f"set -o pipefail; {' '.join(command('verify', many))} --json - | head -c 1")
    assert (done.returncode, done.stdout) == (4, "{")
    assert "standard output did not take all that was written (broken pipe)" in done.stderr


@pytest.mark.parametrize("name", ["repack", "verify"])
def test_nobody_has_to_read_tables(name: str, many: Pair) -> None:
    line = " ".join(command(name, many))
    for to in (">&-", "| head -n 1", ">&- 2>&- <&-"):
        assert shell(f"set -o pipefail; {line} {to}").returncode == 0, to


@pytest.mark.parametrize("name", ["repack", "verify"])
def test_a_full_disk_loses_tables(name: str, pair: Pair) -> None:
    done = shell(" ".join([*command(name, pair), ">/dev/full"]))
    assert done.returncode == 4
    assert "no space left" in done.stderr


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_no_file_of_ours_becomes_a_standard_stream(closed: str, pair: Pair) -> None:
    model, sidecar = pair
    before = model.read_bytes(), sidecar.read_bytes()
    for words in (f"repack '{model}' -o '{sidecar}' --force", f"verify '{model}' '{sidecar}'"):
        assert shell(f"exec '{sys.executable}' -m {words} {closed}").returncode == 0
    assert (model.read_bytes(), sidecar.read_bytes()) == before
    code = "import os; from repack.command.streams import occupy; occupy(); os._exit(os.dup(os.open('/', os.O_RDONLY)))"
    assert shell(f'exec "{sys.executable}" -c "{code}" {closed}').returncode == 4, "0 to 2 are taken, 3 was opened"


def test_no_dev_null_is_needed(pair: Pair, tmp_path: Path) -> None:
    """As in a container without devices; a hook refuses to open it, also where a standard stream is closed."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "def hook(event, arguments):\n"
        "    if event == 'open' and arguments[0] == '/dev/null':\n"
        "        raise FileNotFoundError(2, 'No such file or directory', '/dev/null')\n"
        "sys.addaudithook(hook)\n"
    )
    for to in ("", ">&- 2>&- <&-"):
        line = f"PYTHONPATH='{tmp_path}':\"$PYTHONPATH\" '{sys.executable}' -m repack '{pair[0]}' --dry-run {to}"
        done = shell(line)
        assert (done.returncode, done.stderr) == (0, ""), to


@pytest.mark.parametrize("to", [">/dev/full", ">&-"])
def test_the_code_of_a_failure_stays(to: str, pair: Pair) -> None:
    assert shell(f"'{sys.executable}' -m verify '{pair[0]}' '{pair[0]}' --json - {to}").returncode == 3


def test_the_environment_was_asked_for() -> None:
    assert call("verify", "--env").stdout.startswith("verify (gguf-dpl)\n  gguf-dpl ")
    assert shell(f"'{sys.executable}' -m verify --env >&-").returncode == 4
