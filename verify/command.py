"""The command `verify`: options in, exit code out."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from repack.command.arguments import Parser, file_path, number
from repack.command.console import Console
from repack.command.ending import run, show_traceback
from repack.command.report_files import STDOUT
from repack.command.streams import OUT
from repack.errors import PROVEN, UsageError, as_failure, shown
from repack.plan import compiled
from verify.contract.forms import FORM_NAMES
from verify.gpu.device import describe
from verify.reports.delivery import deliver, prepare_reports, without_proof
from verify.run import Options, verify
from verify.stages.model import parse_sha256
from verify.verdict import Verdict

_SEED = number("a seed", 0, 2**63 - 1)
_ROWS = number("`all` or a number of rows", 1, 10**12)
_DEVICE = number("auto, gpu, cpu or the number of a GPU", 0, 999)


def main() -> None:
    """Run the command and end the process."""
    sys.exit(run(_command))


def _parser() -> Parser:
    parser = Parser(
        prog="verify",
        usage="verify [options] [MODEL.gguf] MODEL.dpl",
        description="Prove that a sidecar holds exactly the bytes of its GGUF model's tensors, and that decode "
        "gives the same bits from them. With the sidecar alone, check its own integrity only.",
        epilog="Exit codes: 0 proven, 1 the sidecar differs from the model, 2 usage, 3 input damaged or unsupported, "
        "4 environment, 5 nothing to check.",
    )
    parser.add_argument(
        "paths", type=file_path, nargs="+", metavar="FILE", help="MODEL.gguf and MODEL.dpl, or MODEL.dpl alone"
    )
    parser.add_patterns("include", "check only tensors whose names match")
    parser.add_argument(
        "--device",
        type=_device,
        default="auto",
        metavar="auto|gpu|cpu|N",
        help="auto (default): on a GPU if there is one; gpu: on the first GPU; N: on GPU number N; cpu: on the CPU",
    )
    parser.add_argument(
        "--require-gpu",
        action="store_true",
        help="fail if no GPU can be used (exit code 4), or if nothing could be decoded on it (5)",
    )
    parser.add_argument(
        "--forms",
        type=_forms,
        default=FORM_NAMES,
        metavar="LIST",
        help=f"kernel forms to decode with, separated by commas (default: {','.join(FORM_NAMES)})",
    )
    parser.add_argument("--no-bench", action="store_true", help="do not measure speeds")
    parser.add_argument("--env", action=_Environment, nargs=0, help="show versions, GPU and driver, and exit")
    parser.add_argument(
        "--expect-sha256",
        action="append",
        default=[],
        metavar="HEX",
        help="SHA-256 that the model file must have; for a split model once for each shard, in order",
    )
    parser.add_argument(
        "--rows", type=_rows, default=16, metavar="N|all", help="rows of each tensor to decode on the CPU (default: 16)"
    )
    parser.add_argument(
        "--seed", type=_SEED, default=0, metavar="N", help="seed of the chosen rows and the activations (default: 0)"
    )
    parser.add_argument("--junit", metavar="FILE", help="write the verdict as JUnit XML")
    parser.add_argument(
        "--markdown", metavar="FILE", help="write the verdict as Markdown, and add it to $GITHUB_STEP_SUMMARY"
    )
    parser.add_argument("--html", metavar="FILE", help="write the verdict as one HTML page that loads nothing else")
    parser.add_common()
    return parser


def _command(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(arguments)
    if len(options.paths) > 2:
        raise UsageError(f"{len(options.paths)} files given", expected="MODEL.gguf MODEL.dpl, or MODEL.dpl alone")
    model, sidecar = (None, *options.paths) if len(options.paths) == 1 else options.paths
    if options.expect_sha256 and model is None:
        raise UsageError("--expect-sha256 is about the model, and none is given", expected="MODEL.gguf MODEL.dpl")
    chosen = Options(
        include=tuple(compiled(options.include, "include")),
        rows=options.rows,
        seed=options.seed,
        threads=options.threads,
        device=options.device,
        require_gpu=options.require_gpu,
        forms=options.forms,
        bench=not options.no_bench,
        expect_sha256=tuple(map(parse_sha256, options.expect_sha256)),
    )
    to_stdout = STDOUT in {options.json, options.junit, options.markdown, options.html}
    console = Console(quiet=options.quiet, data_only=to_stdout)
    prepare_reports(options, model, sidecar)
    return deliver(_verdict(model, sidecar, chosen, console), options, console)


def _verdict(model: Path | None, sidecar: Path, options: Options, console: Console) -> Verdict:
    """The verdict, whatever happens: reports are wanted most of all when something goes wrong."""
    try:
        return verify(model, sidecar, options, console.meter)
    except Exception as error:
        show_traceback(error)
        return without_proof(model, sidecar, as_failure(error))


def _rows(text: str) -> int | None:
    return None if text == "all" else _ROWS(text)


def _device(text: str) -> str:
    return text if text in {"auto", "gpu", "cpu"} else str(_DEVICE(text))


def _forms(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if not set(names) <= set(FORM_NAMES):
        raise argparse.ArgumentTypeError(f"{shown(text)} names an unknown form, known are {','.join(FORM_NAMES)}")
    return names


class _Environment(argparse.Action):
    """`--env`: like `--version`, whatever else is given."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        OUT.asked = True
        Console().facts("verify (gguf-dpl)", list(describe().items()))
        parser.exit(PROVEN)
