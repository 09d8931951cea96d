"""The blocks of code in the pages of docs, run as they stand by bash, with our commands in the path."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a page with this language, or without one."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    return [text for named, text in fenced if named == language]


def shell(script: str, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a script as GitHub runs one, with nothing else in the environment."""
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
    return subprocess.run(
        command, cwd=folder, env={"PATH": PATH} | env, capture_output=True, text=True, check=False, timeout=120
    )
