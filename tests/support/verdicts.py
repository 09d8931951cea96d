"""Verdicts made by hand, and what reads their reports back."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import Any

from repack.errors import Differs
from repack.layout import TYPES
from repack.sidecar.manifest import Entry
from tests.support.reports import HOSTILE
from verify.gpu.speeds import ShapeTimings, Timing
from verify.verdict import Decoded, Verdict

Q6_K, Q8_0, MXFP4 = TYPES[14], TYPES[8], TYPES[39]
NAMES = ("blk.0.ffn_down.weight", HOSTILE, "</script><script>alert(1)</script>", "]]>", "a | b `c`", "\ufffe\ud7ff")


def verdict(*, speeds: bool = False) -> Verdict:
    made = Verdict("/m/model.gguf", "/m/model.dpl")
    for stage in ("container", "manifest", "selection", "source"):
        made.passed(stage)
    for name in NAMES:
        made.tensors.append(Entry(name, Q6_K, (256, 10), 0, 0, "f" * 64, 0, 0))
        for stage in ("digests", "bytes", "padding"):
            made.passed(stage, name)
    made.bytes_compared, made.seconds = 2100 * len(NAMES), 1.5
    if speeds:
        timings = [
            Timing("loop", "padded", 1.9, 2.0, 2.1, 1000.0, 1066.0, 0.53),
            Timing("loop", "dpl", 0.9, 0.95, 1.1, 2100.0, 2100.0, 1.05),
            Timing("read", "native", 0.9, 1.0, 1.1, 2000.0, 2000.0, 1.0),
            Timing("read", "padded", 1.0, 1.06, 1.1, 1876.0, 2000.0, 1.0),
            Timing("read", "dpl", 0.9, 1.0, 1.1, 2000.0, 2000.0, 1.0),
        ]
        made.bandwidth.append(
            ShapeTimings(
                quant=Q6_K, rows=10, n=1, fits_l2=True, copies=4, launches=30, identical=True, timings=tuple(timings)
            )
        )
        made.decoded.append(Decoded(NAMES[0], "loop", 10, "a" * 64, None))
        made.passed("bandwidth")
    return made


def everything_from_outside(outside: str) -> Verdict:
    """A verdict in which every text that a stranger may choose is `outside`."""
    made = Verdict(f"/m/{outside}.gguf", f"/m/{outside}.dpl")
    made.tensors.append(Entry(outside, Q6_K, (256, 10), 0, 0, "f" * 64, 1, 0))
    made.options = {"include": [outside], "device": outside, "rows": None, "seed": 0}
    made.gpu = {"gpu name": outside}
    made.no_gpu = outside
    made.timings = {outside: 1.0}
    made.decoded = [Decoded(outside, outside, 1, "a" * 64, None)]
    made.failed("bytes", Differs(outside), outside)
    made.failed("source", Differs(outside))
    made.skipped("decode", outside, outside)
    return made


def outcomes(text: str, stage: str) -> list[dict[str, Any]]:
    """The outcomes of one stage in the JSON."""
    return next(one["outcomes"] for one in json.loads(text)["stages"] if one["stage"] == stage)


class Page(HTMLParser):
    """Collects tags, attributes and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data
