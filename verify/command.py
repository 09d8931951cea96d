"""The command `verify`: options in, exit code out."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from repack.command.arguments import Parser, file_path
from repack.command.console import Console, run
from repack.errors import PROVEN, UsageError, shown
from repack.version import VERSION
from verify.contract.forms import FORM_NAMES


def main() -> None:
    """Entry point of the console script."""
    sys.exit(run(_command))


def _parser() -> Parser:
    parser = Parser(
        prog="verify",
        usage="verify [options] [MODEL.gguf] MODEL.dpl",
        description="Prove that a dpl sidecar holds exactly the Q6_K tensors of its GGUF model. "
        "With the sidecar alone, check its own integrity only.",
        epilog="Exit codes: 0 proven, 1 the sidecar differs from the model, 2 usage, 3 input damaged or unsupported, "
        "4 environment, 5 nothing to check.",
    )
    parser.add_argument(
        "paths", type=file_path, nargs="+", metavar="FILE", help="MODEL.gguf and MODEL.dpl, or MODEL.dpl alone"
    )
    parser.add_argument("--include", action="append", default=[], metavar="RE", help="only tensors whose name has RE")
    parser.add_argument(
        "--device",
        default="auto",
        metavar="auto|gpu|cpu|N",
        help="where to decode (default: auto, a GPU if there is one)",
    )
    parser.add_argument("--require-gpu", action="store_true", help="fail (exit 4) if no GPU can be used")
    parser.add_argument(
        "--forms", default=",".join(FORM_NAMES), metavar="LIST", help="kernel forms (default: %(default)s)"
    )
    parser.add_argument("--no-bench", action="store_true", help="do not measure bandwidth")
    parser.add_argument("--env", action="store_true", help="show versions, GPU and driver, and exit")
    parser.add_argument(
        "--expect-sha256",
        action="append",
        default=[],
        metavar="HEX",
        help="SHA-256 that the model file must have; once for each shard, in their order",
    )
    parser.add_argument("--rows", default="16", metavar="N|all", help="rows of each tensor to decode (default: 16)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of rows and activations (default: 0)")
    parser.add_argument("--junit", metavar="FILE", help="write the verdict as JUnit XML")
    parser.add_argument("--markdown", metavar="FILE", help="write it as Markdown, and append to $GITHUB_STEP_SUMMARY")
    parser.add_argument("--html", metavar="FILE", help="write it as one self-contained page")
    parser.add_common()
    return parser


def _command(arguments: Sequence[str]) -> int:
    if "--version" in arguments:
        return _version()
    if "--env" in arguments:
        return _environment()
    options = _parser().parse_args(arguments)
    if len(options.paths) > 2:
        raise UsageError(f"{len(options.paths)} files given", expected="MODEL.gguf MODEL.dpl, or MODEL.dpl alone")
    if options.seed < 0:
        raise UsageError("--seed is negative", found=options.seed)
    rows, device, forms = _rows(options.rows), _device(options.device), _forms(options.forms)
    console = Console(quiet=options.quiet, data_only=options.json == "-")

    from repack.plan import compiled  # noqa: PLC0415
    from verify.reports.delivery import deliver, prepare_reports  # noqa: PLC0415
    from verify.run import Options, verify  # noqa: PLC0415
    from verify.stages.provenance import parse_sha256  # noqa: PLC0415

    model, sidecar = (None, *options.paths) if len(options.paths) == 1 else options.paths
    if options.expect_sha256 and model is None:
        raise UsageError("--expect-sha256 is about the model, and none is given", expected="MODEL.gguf MODEL.dpl")
    chosen = Options(
        include=tuple(compiled(options.include, "include")),
        rows=rows,
        seed=options.seed,
        threads=options.threads,
        device=device,
        require_gpu=options.require_gpu,
        forms=forms,
        bench=not options.no_bench,
        expect_sha256=tuple(map(parse_sha256, options.expect_sha256)),
    )
    prepare_reports(options, model, sidecar)
    verdict = verify(model, sidecar, chosen, console.meter)
    return deliver(verdict, options, console)


def _rows(text: str) -> int | None:
    if text == "all":
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 18 or not int(text):
        raise UsageError("--rows is neither a number above 0 nor `all`", found=shown(text))
    return int(text)


def _device(text: str) -> str:
    if text not in {"auto", "gpu", "cpu"} and not (text.isascii() and text.isdigit()):
        raise UsageError("--device is none of auto, gpu, cpu and a number", found=shown(text))
    return text


def _forms(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if not set(names) <= set(FORM_NAMES):
        raise UsageError("--forms names an unknown form", found=shown(text), expected=f"some of {','.join(FORM_NAMES)}")
    return names


def _environment() -> int:
    from verify.gpu.environment import describe  # noqa: PLC0415

    Console().facts("verify (gguf-dpl)", list(describe().items()))
    return PROVEN


def _version() -> int:
    Console().data(f"verify (gguf-dpl) {VERSION}\n")
    return PROVEN
