"""Decode times on this machine's GPU: ``python -m tests.bench.decode FILE.json [--types LIST]``; see ``--help``.

For each type and shape, with ordinary and with dependent launches: the read-only kernel over the same bytes, `row` over
dpl as verify.contract.forms chooses it, and each layout with the best configuration found for it among the candidates
below. Configurations are compiled side by side first. The JSON has every figure.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from repack.layout import QuantType
from repack.plan import types_named
from verify.contract.forms import LAYOUTS, REGISTERS, Form, row_form, units_of, whole_lanes
from verify.gpu.dependent import can_launch_dependent
from verify.gpu.device import preflight
from verify.gpu.launch import can_stage, compiled
from verify.gpu.speeds import READ, READERS, STAGED, WAITING, ShapeTimings
from verify.gpu.timing import Variant, measure

SHAPES = [
    (5120, 13824),
    (152064, 5120),
    (3584, 18944),
    (4096, 14336),
    (4096, 4096),
    (2560, 9728),
    (28672, 4096),
    (1024, 4096),
    (2048, 768),
]
EXPERTS = [(5760, 2880), (2880, 2880), (23040, 2880), (11520, 2880)]
"""gpt-oss, gate and up and down, one and four experts of a stack at once; for MXFP4."""
_QUOTED = [(5120, 13824), (152064, 5120), (4096, 14336), (4096, 4096)]
LLAMA_CPP = {
    "Q6_K": (27.5, 315.5, 23.4, 9.0),
    "Q8_0": (24.8, 282.5, 21.5, 7.6),
    "Q4_0": (16.4, 193.6, 14.2, 6.0),
    "Q5_0": (20.3, 223.3, 17.1, 6.8),
    "Q3_K": (28.6, 348.7, 24.2, 9.7),
    "MXFP4": (22.8, 234.8, 19.7, 7.3),
    "IQ4_NL": (18.0, 195.2, 15.5, 6.3),
    "Q2_K": (20.5, 233.2, 17.6, 7.2),
}
"""Its own kernels on an H200 at the shapes above, microseconds, measured once in 2026-11 in one run."""
HELD_OUT = {
    (16384, 53248): "Llama 3.1 405B ffn_down",
    (1024, 16384): "Llama 3.1 405B attn_v",
    (4096, 11008): "Llama 2 7B ffn_down",
    (32000, 4096): "Llama 2 7B output",
    (2048, 11008): "Qwen 2.5 3B ffn_down",
    (151936, 2048): "Qwen 2.5 3B output",
    (2048, 6144): "Qwen 3 1.7B ffn_down",
    (5120, 25600): "Qwen 3 32B ffn_down",
    (151936, 4096): "Qwen 3 8B output",
    (1152, 6912): "Gemma 3 1B ffn_down",
    (262144, 5376): "Gemma 3 27B output",
    (2048, 5376): "Gemma 3 27B attn_v",
    (262144, 3840): "Gemma 3 12B output",
    (131072, 5120): "Mistral Nemo output",
    (12288, 28672): "Mistral Large 2 ffn_down",
    (8192, 14336): "Mixtral 8x7B ffn_down, 2 experts",
    (129280, 7168): "DeepSeek V3 output",
    (7168, 2048): "DeepSeek V3 ffn_down, shared expert",
    (16384, 1024): "OLMoE ffn_down, 8 experts",
    (16384, 768): "Qwen 3 30B-A3B ffn_down, 8 experts",
    (32768, 1536): "Qwen 3 235B-A22B ffn_down, 8 experts",
}


def candidates(quant: QuantType, n: int) -> list[Form]:
    """Configurations worth trying for rows of `n` blocks, in any layout."""
    forms = []
    for each in (1, 2, 3, 5):
        lanes = whole_lanes(-(-units_of(quant, n) // each))
        if lanes > 1024 or (each > 1 and lanes < 16):
            continue
        for threads in _threads(lanes):
            for rows in (1, 2):
                if each * rows > 5:
                    continue
                for registers in (0, 48 if each * rows == 1 else 64):
                    blocks = _blocks(threads, registers)
                    forms.append(Form("row", lanes, each, threads, rows, blocks, "once"))
            if each == 1 and lanes <= 512:
                forms.append(Form("row", lanes, 1, threads, 1, _blocks(threads, 56), "walk"))
    return list(dict.fromkeys(forms))


def staged_candidates(quant: QuantType, n: int) -> list[Form]:
    """Lanes and threads worth trying for native rows that are copied to shared memory first."""
    units = units_of(quant, n)
    shared = {16, 32, 64, 96, 128, *(whole_lanes(-(-units // each)) for each in (1, 2, 3, 4, 5))}
    forms = [
        Form("row", lanes, 1, max(lanes, 128 // lanes * lanes)) for lanes in shared if lanes <= min(units + 31, 512)
    ]
    return [form for form in dict.fromkeys(forms) if can_stage(quant, form, n)]


def _threads(lanes: int) -> list[int]:
    if lanes < 96:
        return [threads for threads in (128, 256) if threads % lanes == 0]
    return [lanes] + ([2 * lanes] if 2 * lanes <= 256 else [])


def _blocks(threads: int, registers: int) -> int:
    return max(1, min(REGISTERS // (threads * registers), 2048 // threads, 32)) if registers else 1


def variants_of(quant: QuantType, rows: int, n: int, dependent: bool, search: bool) -> list[Variant]:
    """What is timed. What copies rows to shared memory does not wait for the kernel before: ordinary launches only."""
    rule = row_form(quant, n, rows, dependent)
    variants = [(rule, layout) for layout in LAYOUTS]
    if search:
        variants += [(form, layout) for layout in LAYOUTS for form in candidates(quant, n)]
    if not dependent and can_stage(quant, rule, n):
        variants += [(form, STAGED) for form in (staged_candidates(quant, n) if search else [rule])]
    return list(dict.fromkeys(variants))


def compile_all(jobs: list[tuple[QuantType, int, int, bool, Form]]) -> None:
    """Fill CuPy's kernel cache on all processors."""
    kernels = {(quant, form.options(rows, n, dependent)) for quant, rows, n, dependent, form in jobs}
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        list(pool.map(_compile, sorted(kernels, key=str), chunksize=4))


def _compile(kernel: tuple[QuantType, tuple[str, ...]]) -> None:
    compiled("row.cu", kernel[0], *kernel[1]).compile()


def line(found: ShapeTimings, dependent: bool) -> str:
    """One row of the Markdown table."""
    read = {timing.layout: timing for timing in found.timings if timing.form == READ}
    waiting = [timing for timing in found.timings if (timing.form, timing.layout) == (WAITING, "dpl")]
    rule = str(row_form(found.quant, found.n, found.rows, dependent))
    ours = next(timing for timing in found.timings if (timing.form, timing.layout) == (rule, "dpl"))
    best = {}
    for timing in sorted(found.timings, key=lambda timing: -timing.median):
        if timing.form not in READERS:
            best[timing.layout] = timing
    native = min((best[layout] for layout in ("native", STAGED) if layout in best), key=lambda timing: timing.median)
    columns = found.quant.block_weights * found.n
    quoted = dict(zip(_QUOTED, LLAMA_CPP.get(found.quant.name, ()), strict=False)).get((found.rows, columns))
    cells = [
        f"{found.quant.name} {found.rows} x {columns}",
        f"{read['dpl'].median:.2f}",
        f"{ours.median:.2f}",
        f"{ours.share:.3f}",
        *(f"{timing.median:.2f} {timing.median / ours.median:.3f}" for timing in waiting),
        rule[3:],
        f"{best['dpl'].median:.2f} {best['dpl'].form[3:]}",
        f"{best['padded'].median:.2f} ({best['padded'].share:.2f}) {best['padded'].form[3:]}",
        f"{native.median:.2f} {native.layout} {native.form[3:]}",
        f"{best['padded'].median / ours.median:.3f}",
        f"{quoted / ours.median:.2f}" if quoted else "",
    ]
    return "| " + " | ".join(cells) + " |"


def head(dependent: bool) -> str:
    """The table's first two lines."""
    cells = ["shape", "read", "dpl", "of read", *(["waiting read, of it"] if dependent else []), "by the rule"]
    cells += ["dpl, best", "padded, best", "native, best", "padded/dpl", "llama.cpp/dpl"]
    return f"| {' | '.join(cells)} |\n{'|---' * len(cells)}|"


def main(arguments: list[str]) -> int:
    """Print the tables and write the JSON; 1 if any bits differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("json", type=Path)
    parser.add_argument("--types", default="Q6_K", help="names, or all")
    parser.add_argument("--held-out", action="store_true", help="the shapes that nothing was tuned for")
    parser.add_argument("--rule-only", action="store_true", help="no search for each layout's best")
    options = parser.parse_args(arguments)
    info = preflight()
    quants = [quant for quant in types_named(options.types.split(",")) if units_of(quant, 1)]
    report: dict[str, Any] = {"date": time.strftime("%Y-%m-%d"), "device": dataclasses.asdict(info), "shapes": []}
    del report["device"]["uuid"], report["device"]["pci"]
    identical = True
    launches = (False, True) if can_launch_dependent() else (False,)
    todo = [
        (quant, rows, columns // quant.block_weights, dependent)
        for dependent in launches
        for quant in quants
        for rows, columns in [
            *(HELD_OUT if options.held_out else SHAPES),
            *(EXPERTS if quant.name == "MXFP4" and not options.held_out else []),
        ]
    ]
    variants = {shape: variants_of(*shape, search=not options.rule_only) for shape in todo}
    compile_all([(*shape, form) for shape in todo for form, _ in variants[shape]])
    before = None
    for quant, rows, n, dependent in todo:
        if dependent is not before:
            print(f"\n{'dependent' if dependent else 'ordinary'} launches, median microseconds\n{head(dependent)}")
            before = dependent
        found = measure(quant, rows, n, info.l2_bytes, variants[quant, rows, n, dependent], dependent=dependent)
        identical &= found.identical
        report["shapes"].append({**dataclasses.asdict(found), "quant": quant.name})
        print(line(found, dependent) + ("" if found.identical else " DIFFERENT BITS"), flush=True)
        options.json.write_text(json.dumps(report) + "\n")
    return 0 if identical else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
