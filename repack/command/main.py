"""The command `repack`: options in, exit code out."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence

from repack.command.arguments import Parser, file_path
from repack.command.console import Console
from repack.command.ending import attempt, run, undelivered
from repack.command.report import Report
from repack.command.report_files import (
    STDOUT,
    UNFINISHED,
    prepare,
    refuse_standard_streams,
    supersede,
    write_report,
)
from repack.command.summary import show_plan, show_restoration
from repack.convert import Conversion, convert
from repack.errors import PROVEN, UsageError, as_failure, shown
from repack.layout import DEFAULT, TYPES
from repack.plan import ALL, Plan, make_plan, types_named
from repack.restore import restore
from repack.sidecar.reader import Sidecar


def main() -> None:
    """Run the command and end the process."""
    sys.exit(run(_command))


def _parser() -> Parser:
    parser = Parser(
        prog="repack",
        description="Write a sidecar for a GGUF model: its tensors of some quantization types, their bytes rearranged "
        "into the dense split-plane layout (dpl). The model stays as it is.",
        epilog="Exit codes: 0 done, 2 usage, 3 input damaged or unsupported, 4 environment, 5 nothing to convert.",
    )
    parser.add_argument(
        "model", type=file_path, metavar="MODEL.gguf", help="the model, or the first shard of a split model"
    )
    parser.add_argument("-o", "--output", type=file_path, metavar="MODEL.dpl", help="the sidecar to write")
    parser.add_argument(
        "--types",
        metavar="LIST",
        help=f"quantization types to convert, separated by commas, or {ALL} (default: {DEFAULT.name}; "
        f"known: {', '.join(quant.name for quant in TYPES.values())})",
    )
    parser.add_patterns("include", "convert only tensors whose names match")
    parser.add_patterns("exclude", "leave out tensors whose names match")
    parser.add_argument("--force", action="store_true", help="replace an existing output file")
    parser.add_argument(
        "--restore", action="store_true", help="the way back: from a sidecar, write a GGUF of its tensors"
    )
    parser.add_argument("--dry-run", action="store_true", help="show what would be converted, write nothing")
    parser.add_common()
    return parser


def _command(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(arguments)
    if options.output is None and not options.dry_run:
        raise UsageError("no output given", hint="add -o MODEL.dpl, or --dry-run")
    if options.output is not None:
        refuse_standard_streams(options.output, f"-o {shown(options.output)}")
    console = Console(quiet=options.quiet, data_only=options.json == STDOUT)
    return _restore(options, console) if options.restore else _repack(options, console)


def _repack(options: Namespace, console: Console) -> int:
    types = types_named((DEFAULT.name if options.types is None else options.types).split(","))
    report = Report(options.model, options.output, options.dry_run, error=UNFINISHED)
    if options.json is not None:
        taken = {"the model": options.model} | ({"the output": options.output} if options.output else {})
        prepare({"json": options.json}, taken)
        supersede("json", options.json, report.to_json)
    try:
        report.plan = make_plan(options.model, options.include, options.exclude, types)
        report.conversion = None if options.dry_run else _convert(report.plan, options, console)
        report.error = None
    except Exception as error:
        report.error = as_failure(error)
        _write(report, options, console, PROVEN)
        raise
    plan, conversion = report.plan, report.conversion
    code = attempt(lambda: show_plan(plan, conversion, console)) or undelivered()
    return _write(report, options, console, code)


def _write(report: Report, options: Namespace, console: Console, code: int) -> int:
    """Write the JSON if it was asked for. Returns `code`, or what went wrong with the JSON."""
    if options.json is None:
        return code
    failed = attempt(lambda: write_report("json", options.json, report.to_json(code), console))
    return code or failed


def _convert(plan: Plan, options: Namespace, console: Console) -> Conversion:
    with console.meter("converting", plan.ledger.native) as progress:
        return convert(plan, options.output, threads=options.threads, force=options.force, progress=progress)


def _restore(options: Namespace, console: Console) -> int:
    for name in ("types", "include", "exclude", "threads", "dry_run", "json"):
        if getattr(options, name) not in (None, [], 0, False):
            raise UsageError(f"--{name.replace('_', '-')} does not go with --restore")
    with Sidecar(options.model) as sidecar:
        total = sum(entry.nbytes for entry in sidecar.manifest.tensors)
    with console.meter("restoring", total) as progress:
        done = restore(options.model, options.output, force=options.force, progress=progress)
    show_restoration(done, f"{shown(options.model.name)} -> {shown(done.path.name)}", console)
    return PROVEN
