"""Reports of verdicts made by hand: what a GPU adds, what strangers' names may not do."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from repack.command.console import Console
from repack.errors import Differs, EnvironmentFailure
from repack.layout import TYPES
from repack.sidecar.manifest import Entry, Skipped
from tests.support.reports import HOSTILE, check_schema
from tests.test_report import check_counts
from verify.gpu.timing import ShapeTimings, Timing
from verify.reports.as_json import to_json
from verify.reports.junit import to_junit
from verify.reports.markdown import to_markdown
from verify.reports.page import to_html
from verify.reports.summary import ledger_rows
from verify.reports.table import MOST_ERRORS, show
from verify.verdict import Decoded, Verdict

Q6_K, Q8_0, MXFP4 = TYPES[14], TYPES[8], TYPES[39]
NAMES = ("blk.0.ffn_down.weight", HOSTILE, "</script><script>alert(1)</script>", "]]>", "a | b `c`", "\ufffe\ud7ff")


def verdict(*, speeds: bool = False) -> Verdict:
    made = Verdict("/m/model.gguf", "/m/model.dpl")
    for stage in ("container", "manifest", "alignment", "selection", "source"):
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


def test_the_page_needs_nothing_and_runs_nothing_else() -> None:
    text = to_html(verdict(speeds=True))
    page = Page(text)
    assert text.isascii()
    assert page.tags.count("script") == page.tags.count("style") == 1
    assert {value for key, value in page.attributes if key in {"href", "src", "action"}} == {"data:,"}
    assert not [key for key, _ in page.attributes if key.startswith("on") or key == "style"]
    assert "http" not in text.replace("http-equiv", "")
    policy = next(value for key, value in page.attributes if key == "content" and "default-src" in str(value)) or ""
    for tag in ("style", "script"):
        body = re.search(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        assert body
        digest = base64.b64encode(hashlib.sha256(body[1].encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy


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
        assert row.count("|") == 7
        assert re.fullmatch(r"\| `[^`]+` \| Q6_K \| 256 x 10 \| 2,100 \| passed \| digests, bytes, padding \|", row)
    document = json.loads(to_json(verdict(), 0))
    assert [tensor["name"] for tensor in document["tensors"]] == list(NAMES)


def test_speeds_are_drawn_only_if_they_were_measured() -> None:
    assert "GB/s" not in to_html(verdict())
    text = to_html(verdict(speeds=True))
    assert "1,000 GB/s, 2.00 us, 53.0% of reading" in text
    assert "above the ceiling, not to be trusted" in text
    assert "fits the L2" in text
    widths = re.findall(r'width="([\d.]+)%" height="100%" class="(native|padded|dpl)"', text)
    drawn = {name: float(width) for width, name in widths[-2:]}
    assert drawn["dpl"] / drawn["padded"] == pytest.approx(2.1, rel=1e-3)
    assert len(re.findall('class="ceiling"', text)) == 2
    check_schema(json.loads(to_json(verdict(speeds=True), 0)), "verdict.schema.json")
    assert "105.0% (above the ceiling: not to be trusted)" in to_markdown(verdict(speeds=True))


def test_every_type_has_its_ledger_and_dead_bytes_are_shares_of_their_own_layout() -> None:
    made = Verdict(None, "m.dpl")
    made.tensors = [
        Entry("a", Q6_K, (256 * 54, 2), 0, 0, "f" * 64, 0, 0),
        Entry("b", MXFP4, (32 * 3, 5), 0, 0, "f" * 64, 0, 0),
        Entry("c", Q8_0, (32, 7), 0, 0, "f" * 64, 0, 0),
        Entry("d", Q6_K, (256 * 54, 1), 0, 0, "f" * 64, 0, 0),
    ]
    assert ledger_rows(made) == [
        ("Q8_0", "1", "238", "336", "98 (29.17%)", "336", "98 (29.17%)"),  # 34 bytes become 48; planes 32 and 16
        ("Q6_K", "2", "34,020", "36,288", "2,268 (6.25%)", "34,032", "12 (0.04%)"),  # 54 d: 108 bytes become 112
        ("MXFP4", "1", "255", "480", "225 (46.88%)", "320", "65 (20.31%)"),  # planes of 48 and 16 bytes
        ("all", "4", "34,513", "37,104", "2,591 (6.98%)", "34,688", "175 (0.50%)"),
    ]
    ledger = json.loads(to_json(made, 5))["ledger"]
    assert (ledger["native"], ledger["padded"], ledger["dpl"]) == (34513, 37104, 34688)
    assert [(one["type"], one["tensors"], one["dpl"]) for one in ledger["types"]] == [
        ("Q8_0", 1, 336),
        ("Q6_K", 2, 34032),
        ("MXFP4", 1, 320),
    ]
    for text in (Page(to_html(made)).text, to_markdown(made)):
        assert "225 (46.88%)" in text
        assert "175 (0.50%)" in text
    made.tensors = made.tensors[:1]
    assert [row[0] for row in ledger_rows(made)] == ["Q6_K"]
    made.tensors = []
    assert not ledger_rows(made)
    assert json.loads(to_json(made, 5))["ledger"] == {"native": 0, "padded": 0, "dpl": 0, "types": []}


def test_text_from_outside_is_shown_as_printable_ascii_wherever_it_stands() -> None:
    outside = "<b>\u202e\x00&'\""
    made = verdict(speeds=True)
    made.model, made.sidecar = f"/m/{outside}.gguf", f"/m/{outside}.dpl"
    made.options = {"include": [outside], "device": outside, "rows": None, "seed": 0}
    made.gpu = {"gpu name": outside}
    made.no_gpu = outside
    made.timings = {outside: 1.0}
    made.decoded = [Decoded(outside, outside, 1, "a" * 64, None)]
    made.failed("bytes", Differs(outside), NAMES[0])
    made.not_counted = [Skipped(99, outside, 1, None)]
    text = to_html(made)
    assert text.isascii()
    assert "\x00" not in text
    page = Page(text)
    assert page.text.count("<b>\\u202e\\x00&'\"") >= 10
    assert page.tags.count("b") == Page(to_html(verdict(speeds=True))).tags.count("b") + 1  # the failure's stage


def test_no_log_line_is_a_command_to_a_ci_server(capsys: pytest.CaptureFixture[str]) -> None:
    made = Verdict("/m/##vso[task.complete].gguf", "/m/::add-mask::x")
    made.tensors.append(Entry("##teamcity[x", Q6_K, (256, 1), 0, 0, "f" * 64, 0, 0))
    made.failed("bytes", Differs("###[error]"), "##teamcity[x")
    text = to_json(made, 1)
    assert "##" not in text
    assert json.loads(text)["tensors"][0]["name"] == "##teamcity[x"
    assert outcomes(text, "bytes")[0]["detail"] == "###[error]"
    show(made, Console())
    shown = capsys.readouterr()
    assert "##" not in shown.out + shown.err
    assert not [line for line in shown.out.splitlines() if line.strip().startswith("::")]


def test_why_no_gpu_was_used_is_told_in_full_below_the_stages(capsys: pytest.CaptureFixture[str]) -> None:
    made = verdict()
    made.no_gpu = "CUDA driver version is insufficient; install a newer driver"
    made.skipped("bandwidth", "no usable GPU")
    show(made, Console())
    shown = capsys.readouterr().out
    for text in (shown, to_markdown(made), Page(to_html(made)).text):
        assert text.count(made.no_gpu) == 1
        assert text.index("bandwidth") < text.index(made.no_gpu)
    made.no_gpu = ""
    show(made, Console())
    assert "No GPU" not in capsys.readouterr().out + to_markdown(made) + to_html(made)


CHILDREN = {
    "testsuites": {"testsuite"},
    "testsuite": {"properties", "testcase"},
    "testcase": {"failure", "error", "skipped", "system-out"},
    "properties": {"property"},
}
ATTRIBUTES = {
    "testsuites": {"name", "time", "tests", "failures", "errors"},
    "testsuite": {"name", "time", "tests", "failures", "errors", "skipped"},
    "testcase": {"name", "time", "classname"},
    "failure": {"type", "message"},
    "error": {"type", "message"},
    "skipped": {"message"},
    "system-out": set(),
    "properties": set(),
    "property": {"name", "value"},
}
"""What readers of JUnit know; Jenkins' xUnit plugin refuses a file that has more (its junit-10.xsd)."""


def test_junit_holds_nothing_that_a_strict_reader_refuses() -> None:
    made = verdict(speeds=True)
    made.failed("bytes", Differs("difference"), NAMES[0])
    made.failed("decode", EnvironmentFailure("no memory"), NAMES[0])
    made.skipped("oracle", "nothing to compare", NAMES[0])
    made.passed("oracle", NAMES[1], "16 rows")
    seen = set()
    for element in ET.fromstring(to_junit(made)).iter():
        seen.add(element.tag)
        assert set(element.keys()) <= ATTRIBUTES[element.tag]
        assert {child.tag for child in element} <= CHILDREN.get(element.tag, set())
        if "time" in element.keys():  # noqa: SIM118 - an XML element is no mapping
            assert re.fullmatch(r"\d+(\.\d+)?", element.get("time", ""))
    assert seen == set(ATTRIBUTES)


def test_markdown_stays_short_where_room_is_short() -> None:
    made = verdict()
    for number in range(60):
        made.failed("bytes", Differs(f"difference {number} ````"), f"t{number}")
    assert "difference 59" in to_markdown(made)
    short = to_markdown(made, with_tensors=False)
    assert "difference 49" in short
    assert "difference 50" not in short
    assert "10 more checks failed" in short
    assert not [line for line in short.splitlines() if line.startswith("`") and line not in ("````text", "````")][1:]


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
    assert len(outcomes(to_json(made, 1), "bytes")) == len(NAMES) + MOST_ERRORS + 5
