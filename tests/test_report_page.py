"""Reports of verdicts made by hand: what a GPU adds, what strangers' names may not do."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pytest

from repack.command.console import Console
from repack.errors import Differs, EnvironmentFailure
from repack.layout import DEFAULT
from repack.sidecar.manifest import Entry
from tests.support.reports import HOSTILE, check_schema
from tests.test_report import check_counts
from verify.gpu.timing import ShapeTimings, Timing
from verify.reports.as_json import to_json
from verify.reports.junit import to_junit
from verify.reports.markdown import to_markdown
from verify.reports.page import to_html
from verify.reports.table import MOST_ERRORS, show
from verify.verdict import Decoded, Verdict

NAMES = ("blk.0.ffn_down.weight", HOSTILE, "</script><script>alert(1)</script>", "]]>", "a | b `c`", "\ufffe\ud7ff")


def verdict(*, speeds: bool = False) -> Verdict:
    made = Verdict("/m/model.gguf", "/m/model.dpl")
    for stage in ("container", "manifest", "alignment", "selection", "source"):
        made.passed(stage)
    for name in NAMES:
        made.tensors.append(Entry(name, DEFAULT, (256, 10), 0, 0, "f" * 64, 0, 0))
        for stage in ("digests", "bytes", "padding"):
            made.passed(stage, name)
    made.bytes_compared, made.seconds = 2100 * len(NAMES), 1.5
    if speeds:
        timings = [
            Timing("loop", "native", 1.9, 2.0, 2.1, 1000.0, 1000.0, 0.5),
            Timing("loop", "padded", 1.9, 2.0, 2.1, 1000.0, 1066.0, 0.53),
            Timing("loop", "dpl", 0.9, 0.95, 1.1, 2100.0, 2100.0, 1.05),
            Timing("read", "native", 0.9, 1.0, 1.1, 2000.0, 2000.0, 1.0),
            Timing("read", "padded", 1.0, 1.06, 1.1, 1876.0, 2000.0, 1.0),
            Timing("read", "dpl", 0.9, 1.0, 1.1, 2000.0, 2000.0, 1.0),
        ]
        made.bandwidth.append(ShapeTimings(10, 1, True, 4, 30, True, tuple(timings)))
        made.decoded.append(Decoded(NAMES[0], "loop", 10, "a" * 64, None))
        made.passed("bandwidth")
    return made


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


def test_the_page_needs_nothing_and_runs_nothing_else() -> None:
    text = to_html(verdict(speeds=True))
    page = Page(text)
    assert text.isascii()
    assert page.tags.count("script") == page.tags.count("style") == 1
    assert {value for key, value in page.attributes if key in {"href", "src", "action"}} == {"data:,"}
    assert not [key for key, _ in page.attributes if key.startswith("on") or key == "style"]
    assert "http" not in text.replace("http-equiv", "")
    policy = re.search(r'Policy" content="([^"]*)"', text)
    assert policy
    for tag in ("style", "script"):
        body = re.search(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        assert body
        digest = base64.b64encode(hashlib.sha256(body[1].encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy[1]
    assert "default-src 'none'" in policy[1]


def test_names_stay_text_in_every_report() -> None:
    page = Page(to_html(verdict()))
    assert "</script><script>alert(1)</script>" in page.text
    assert "\\x1b[31m" in page.text
    junit = ET.fromstring(to_junit(verdict()))
    check_counts(junit)
    names = {case.get("name") for case in junit.iter("testcase") if case.get("classname") == "gguf-dpl.bytes"}
    assert len(names) == len(NAMES)
    assert {NAMES[0], NAMES[2], "]]>", "\\ufffe\\ud7ff"} <= names
    markdown = to_markdown(verdict())
    rows = [line for line in markdown.splitlines() if "256 x 10" in line]
    assert len(rows) == len(NAMES)
    for row in rows:
        assert row.count("|") == 6
        assert re.fullmatch(r"\| `[^`]+` \| 256 x 10 \| 2,100 \| passed \| digests, bytes, padding \|", row)
    document = json.loads(to_json(verdict(), 0))
    assert [tensor["name"] for tensor in document["tensors"]] == list(NAMES)


def test_speeds_are_drawn_only_if_they_were_measured() -> None:
    assert "GB/s" not in to_html(verdict())
    text = to_html(verdict(speeds=True))
    assert "1,000 GB/s, 2.00 us, 50.0% of the ceiling" in text
    assert "above it, not to be trusted" in text
    assert "fits the L2" in text
    widths = re.findall(r'width="([\d.]+)%" height="100%" class="(native|padded|dpl)"', text)
    drawn = {name: float(width) for width, name in widths[-3:]}
    assert drawn["dpl"] / drawn["native"] == pytest.approx(2.1, rel=1e-3)
    assert len(re.findall('class="ceiling"', text)) == 3
    check_schema(json.loads(to_json(verdict(speeds=True), 0)), "verdict.schema.json")
    assert "105.0% (above the ceiling: not to be trusted)" in to_markdown(verdict(speeds=True))


@pytest.mark.parametrize("skipped", [False, True])
def test_a_gpu_that_was_required_and_is_absent(skipped: bool) -> None:
    made = verdict()
    if skipped:
        made.skipped("decode", "no GPU found", code=EnvironmentFailure.exit_code)
    else:
        made.failed("decode", EnvironmentFailure("no GPU found"))
    assert made.exit_code == 4
    document = json.loads(to_json(made, made.exit_code))
    check_schema(document, "verdict.schema.json")
    assert (document["exit_code"], document["result"]) == (4, "not proven")
    junit = ET.fromstring(to_junit(made))
    check_counts(junit)
    assert (junit.get("failures"), junit.get("errors")) == ("0", "2")
    for text in (to_html(made), to_markdown(made)):
        assert "NOT PROVEN" in text
        assert "no GPU found" in text


def test_many_failures_are_told_in_few_lines(capsys: pytest.CaptureFixture[str]) -> None:
    made = verdict()
    for number in range(MOST_ERRORS + 5):
        made.failed("bytes", Differs(f"difference {number}"), f"t{number}")
    show(made, Console(quiet=True))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == MOST_ERRORS + 1
    assert "5 more" in lines[-1]
    assert len(json.loads(to_json(made, 1))["stages"][7]["outcomes"]) == len(NAMES) + MOST_ERRORS + 5
