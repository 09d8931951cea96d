"""gguf's constants without gguf's package: the same ones, and nothing else loaded."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
from enum import EnumMeta
from pathlib import Path
from typing import Any

import gguf.constants
import pytest

from repack.gguf import types as ggml


def numbers(kinds: Any) -> dict[str, int]:
    return {kind.name: kind.value for kind in kinds}


@pytest.mark.parametrize("name", [name for name in ggml.__all__ if name[0] == "G"])
def test_they_are_those_of_gguf(name: str) -> None:
    ours: Any = getattr(ggml, name)
    theirs: Any = getattr(gguf.constants, name)
    if isinstance(theirs, EnumMeta):
        assert numbers(ours) == numbers(theirs)
    else:
        assert ours == theirs


def test_the_package_is_loaded_where_the_file_alone_will_not_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gguf whose constants stand elsewhere, or import a neighbour: found by its name then."""
    for text in (None, "from .more import GGUF_DEFAULT_ALIGNMENT\n"):
        package = tmp_path / str(text is None) / "gguf"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
        if text is not None:
            (package / "constants.py").write_text(text)
        spec = importlib.util.spec_from_file_location("gguf", package / "__init__.py")
        with monkeypatch.context() as patched:
            patched.setattr(ggml, "find_spec", lambda _, spec=spec: spec)
            assert ggml._constants() is gguf.constants


@pytest.mark.parametrize(
    ("command", "absent"),
    [
        (["repack", "--help"], {"gguf", "cupy"}),
        (["repack", "MODEL", "--dry-run"], {"gguf", "cupy"}),
        (["verify", "--help"], {"gguf", "cupy"}),
        (["verify", "SIDECAR"], {"gguf", "cupy"}),
    ],
)
def test_a_command_loads_no_more_than_it_needs(pair: tuple[Path, Path], command: list[str], absent: set[str]) -> None:
    paths = {"MODEL": str(pair[0]), "SIDECAR": str(pair[1])}
    name, *arguments = (paths.get(word, word) for word in command)
    module = {"repack": "repack.command.main", "verify": "verify.command"}[name]
    code = f"import sys, {module}, repack.command.console as c; sys.argv[1:] = {arguments!r}\n"
    code += f"code = c.run({module}._command); print('LOADED', *sys.modules); sys.exit(code)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.rpartition("LOADED")[2].split())
    assert "repack.command.console" in loaded
    assert not absent & loaded
