"""The command `repack`: options in, exit code out."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from repack.command.arguments import Parser, file_path
from repack.command.console import Console, attempt, run
from repack.command.report_files import prepare
from repack.errors import PROVEN, DplError, UsageError, shown
from repack.version import VERSION

if TYPE_CHECKING:
    from argparse import Namespace

    from repack.command.report import Report
    from repack.convert import Conversion
    from repack.plan import Ledger, Plan


def main() -> None:
    """Entry point of the console script."""
    sys.exit(run(_command))


def _parser() -> Parser:
    parser = Parser(
        prog="repack",
        description="Rearrange the Q6_K tensors of a GGUF model into the dense split-plane layout (dpl), in a sidecar.",
        epilog="Exit codes: 0 done, 2 usage, 3 input damaged or unsupported, 4 environment, 5 nothing to convert.",
    )
    parser.add_argument(
        "model", type=file_path, metavar="MODEL.gguf", help="the model, or the first shard of a split one"
    )
    parser.add_argument("-o", "--output", type=file_path, metavar="MODEL.dpl", help="the sidecar to write")
    parser.add_argument("--include", action="append", default=[], metavar="RE", help="only tensors whose name has RE")
    parser.add_argument("--exclude", action="append", default=[], metavar="RE", help="no tensor whose name has RE")
    parser.add_argument("--force", action="store_true", help="replace an existing file")
    parser.add_argument("--restore", action="store_true", help="MODEL.dpl to a GGUF of its tensors: the way back")
    parser.add_argument("--dry-run", action="store_true", help="show what would be done, write nothing")
    parser.add_common()
    return parser


def _command(arguments: Sequence[str]) -> int:
    if "--version" in arguments:
        return _version()
    options = _parser().parse_args(arguments)
    if options.output is None and not options.dry_run:
        raise UsageError("no output given", hint="add -o MODEL.dpl, or --dry-run")
    console = Console(quiet=options.quiet, data_only=options.json == "-")
    if options.restore:
        return _restore(options, console)

    from repack.command.report import Report  # noqa: PLC0415
    from repack.plan import make_plan  # noqa: PLC0415 - NumPy and gguf, 0.25 s that --help need not pay

    report = Report(os.fspath(options.model), options.output and os.fspath(options.output), options.dry_run)
    if options.json is not None:
        taken = {"the model": options.model} | ({"the output": options.output} if options.output else {})
        prepare({"--json": options.json}, taken)
    try:
        report.plan = make_plan(options.model, options.include, options.exclude)
        report.conversion = None if options.dry_run else _convert(report.plan, options, console)
    except DplError as error:
        report.error = error
        _write(report, options, console)
        raise
    _summary(report.plan, report.conversion, console)
    return _write(report, options, console)


def _write(report: Report, options: Namespace, console: Console) -> int:
    return attempt(lambda: report.write(options.json, console)) if options.json is not None else PROVEN


def _convert(plan: Plan, options: Namespace, console: Console) -> Conversion:
    from repack.convert import convert  # noqa: PLC0415

    with console.meter("converting", plan.ledger.native) as progress:
        return convert(plan, options.output, threads=options.threads, force=options.force, progress=progress)


def _restore(options: Namespace, console: Console) -> int:
    for name in ("include", "exclude", "threads", "dry_run", "json"):
        if getattr(options, name):
            raise UsageError(f"--{name.replace('_', '-')} does not go with --restore")
    from repack.restore import restore  # noqa: PLC0415
    from repack.sidecar.reader import Sidecar  # noqa: PLC0415

    with Sidecar(options.model) as sidecar:
        total = sum(entry.nbytes for entry in sidecar.manifest.tensors)
    with console.meter("restoring", total) as progress:
        done = restore(options.model, options.output, force=options.force, progress=progress)
    facts = [
        ("tensors", f"{len(done.manifest.tensors)} Q6_K, {total:,} bytes, digests as in the manifest"),
        ("GGUF", f"{done.gguf_bytes:,} bytes in {done.seconds:.2f} s, {total / done.seconds / 1e9:.2f} GB/s"),
    ]
    console.facts(f"{shown(options.model.name)} -> {shown(done.path.name)}", facts)
    return PROVEN


def _summary(plan: Plan, conversion: Conversion | None, console: Console) -> None:
    ledger, shards = plan.ledger, plan.index.shards
    title = shown(os.path.basename(shards[0].path))  # noqa: PTH119
    if conversion:
        title += f" -> {shown(conversion.path.name)}"
    others = ", ".join(f"{kind.tensors} {kind.name}" for kind in plan.skipped)
    facts = [
        (
            "tensors",
            f"{len(plan.selected)} Q6_K of {len(plan.index.tensors)}"
            + (f"; not converted: {others}" if others else ""),
        ),
        ("native", f"{ledger.native:,} bytes"),
        ("padded", f"{ledger.padded:,} bytes, {_dead(ledger.padded, ledger)}"),
        ("dpl", f"{ledger.dpl:,} bytes, {_dead(ledger.dpl, ledger)}; {ledger.saved:,} fewer than padded"),
    ]
    if len(shards) > 1:
        facts.insert(0, ("shards", str(len(shards))))
    if plan.left_out:
        facts.insert(1, ("left out", f"{len(plan.left_out)} Q6_K by --include and --exclude"))
    if conversion:
        unusual = [
            (sum(getattr(entry, key) for entry in conversion.manifest.tensors), what)
            for key, what in (("nonfinite_scales", "not finite"), ("zero_scales", "zero"))
        ]
        warning = ", ".join(f"{count:,} super-blocks whose d is {what}" for count, what in unusual if count)
        facts += [("warning", f"{warning}; kept bit for bit")] if unusual[0][0] else []
        rate = ledger.native / conversion.seconds / 1e9
        facts.append(("sidecar", f"{conversion.sidecar_bytes:,} bytes in {conversion.seconds:.2f} s, {rate:.2f} GB/s"))
    else:
        facts.append(("dry run", "nothing was written"))
    console.facts(title, facts)


def _dead(nbytes: int, ledger: Ledger) -> str:
    dead = nbytes - ledger.native
    return f"{dead:,} of them dead ({dead / ledger.native:.2%})" if ledger.native else "none of them dead"


def _version() -> int:
    Console().data(f"repack (gguf-dpl) {VERSION}\n")
    return PROVEN
