"""Decode times on this machine's GPU: ``python -m tests.bench.decode FILE.json [--held-out] [--rule-only]``.

For each shape, with ordinary and with dependent launches: the read-only kernel over the same bytes, `row` over dpl as
verify.forms chooses it, and each layout with the best configuration found for it among the candidates below. The JSON
has every figure.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import Any

from verify.contract.forms import LAYOUTS, REGISTERS, WARP, Form, row_form
from verify.gpu.dependent import can_launch_dependent
from verify.gpu.device import can_stage, preflight
from verify.gpu.speeds import READ, READERS, STAGED, WAITING, ShapeTimings
from verify.gpu.timing import measure

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
LLAMA_CPP = {(5120, 13824): 27.34, (152064, 5120): 316.5, (3584, 18944): 27.01, (4096, 14336): 23.07}
LLAMA_CPP |= {(4096, 4096): 8.94, (2560, 9728): 12.04}
"""Its own Q6_K kernel on an H200, microseconds, measured once in 2026-11."""
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


def candidates(n: int) -> list[Form]:
    """Configurations worth trying for rows of `n` super-blocks, in any layout."""
    forms = []
    for quarters, registers in ((1, (48, 56, 64)), (2, (72, 80, 96))):
        lanes = _whole(-(-4 * n // quarters))
        for threads in {lanes * groups for groups in (1, 2, 4, 8, 16) if 96 <= lanes * groups <= max(lanes, 256)}:
            for each in registers if threads <= 512 else ():
                blocks = max(1, min(REGISTERS // (threads * each), 2048 // threads, 32))
                forms.append(Form("row", lanes, quarters, threads, 1, blocks, "once"))
                if quarters == 1 and each == 56:
                    forms.append(Form("row", lanes, 1, threads, 1, blocks, "walk"))
            if quarters == 1 and threads <= 512:
                forms.append(Form("row", lanes, 1, threads, 2, max(1, REGISTERS // (threads * 72)), "once"))
    return list(dict.fromkeys(forms))


def staged_candidates(n: int) -> list[Form]:
    """Lanes and threads worth trying for native rows that are copied to shared memory first."""
    shared = {8, 16, 32, 64, 96, 128, *(_whole(-(-4 * n // quarters)) for quarters in (1, 2, 3, 4, 5))}
    forms = [
        Form("row", lanes, 1, threads)
        for lanes in sorted(shared)
        if lanes <= _whole(4 * n)
        for threads in sorted({lanes, *(lanes * groups for groups in (1, 2, 4, 8, 16) if lanes * groups <= 256)})
        if threads % WARP == 0 and threads <= 512
    ]
    return [form for form in forms if can_stage(form, n)]


def _whole(lanes: int) -> int:
    return 1 << (lanes - 1).bit_length() if lanes <= WARP else -(-lanes // WARP) * WARP


def bench(rows: int, n: int, l2_bytes: int, dependent: bool, search: bool) -> ShapeTimings:
    """Time one shape. What copies rows to shared memory does not wait for the kernel before: ordinary launches only."""
    rule = row_form(n, rows, dependent)
    variants = [(rule, layout) for layout in LAYOUTS]
    if search:
        variants += [(form, layout) for layout in LAYOUTS for form in candidates(n)]
    if not dependent:
        variants += [(form, STAGED) for form in (staged_candidates(n) if search else [rule]) if can_stage(form, n)]
    return measure(rows, n, l2_bytes, list(dict.fromkeys(variants)), dependent=dependent)


def line(found: ShapeTimings, dependent: bool) -> str:
    """One row of the Markdown table."""
    read = {timing.layout: timing for timing in found.timings if timing.form == READ}
    waiting = [timing for timing in found.timings if (timing.form, timing.layout) == (WAITING, "dpl")]
    rule = str(row_form(found.n, found.rows, dependent))
    ours = next(timing for timing in found.timings if (timing.form, timing.layout) == (rule, "dpl"))
    best = {}
    for timing in sorted(found.timings, key=lambda timing: -timing.median):
        if timing.form not in READERS:
            best[timing.layout] = timing
    native = min((best[layout] for layout in ("native", STAGED) if layout in best), key=lambda timing: timing.median)
    quoted = LLAMA_CPP.get((found.rows, 256 * found.n))
    cells = [
        f"{found.rows} x {256 * found.n}",
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
    parser.add_argument("--held-out", action="store_true", help="the shapes that nothing was tuned for")
    parser.add_argument("--rule-only", action="store_true", help="no search for each layout's best")
    options = parser.parse_args(arguments)
    info = preflight()
    shapes = [(rows, columns // 256) for rows, columns in (HELD_OUT if options.held_out else SHAPES)]
    report: dict[str, Any] = {"date": time.strftime("%Y-%m-%d"), "device": dataclasses.asdict(info), "shapes": []}
    del report["device"]["uuid"], report["device"]["pci"]
    identical = True
    for dependent in (False, True) if can_launch_dependent() else (False,):
        print(f"\n{'dependent' if dependent else 'ordinary'} launches, median microseconds\n{head(dependent)}")
        for rows, n in shapes:
            found = bench(rows, n, info.l2_bytes, dependent, not options.rule_only)
            identical &= found.identical
            print(line(found, dependent), flush=True)
            timings = [
                [timing.form, timing.layout, *(round(us, 3) for us in (timing.minimum, timing.median, timing.maximum))]
                for timing in found.timings
            ]
            entry = {"rows": rows, "n": n, "dependent": dependent, "rule": str(row_form(n, rows, dependent))}
            report["shapes"].append(entry | {"form, layout, min, median, max us": timings})
            options.json.write_text(json.dumps(report, separators=(",", ":")).replace('{"rows"', '\n{"rows"') + "\n")
    print("\nall layouts gave the same bits:", identical)
    return 0 if identical else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
