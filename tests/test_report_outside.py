"""What reports must not become, whatever strangers name their files: markup, commands, files that a reader refuses."""

from __future__ import annotations

import json
import re
from xml.etree import ElementTree as ET

import pytest
from markdown_it import MarkdownIt

from repack.command.console import Console
from repack.errors import Differs, EnvironmentFailure
from repack.layout import Field, QuantType
from repack.sidecar.manifest import Entry, Skipped
from tests.support.verdicts import NAMES, Q6_K, Page, everything_from_outside, outcomes, verdict
from tests.test_report import check_counts
from verify.reports.as_json import to_json
from verify.reports.junit import to_junit
from verify.reports.markdown import to_markdown
from verify.reports.page import to_html
from verify.reports.summary import others
from verify.reports.table import show
from verify.verdict import Verdict


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


def test_text_from_outside_is_printable_ascii_everywhere_on_the_page() -> None:
    text = to_html(everything_from_outside("<i>\u202e\x00&'\""))
    page = Page(text)
    assert text.isascii()
    assert "i" not in page.tags
    assert "\x00" not in text
    assert page.text.count("<i>\\u202e\\x00&'\"") >= 15


@pytest.mark.parametrize(
    "outside", ["<i>|`", "````", "a|b|c", "](x)", "**x**", "`", "\\", "\\|", "@user #1 :x:", "- [ ] |"]
)
def test_text_from_outside_stays_in_code_on_github(outside: str) -> None:
    """Read by an independent parser of CommonMark and tables."""
    marked = f"outside{outside}outside"
    made = everything_from_outside(marked)
    for text in (to_markdown(made), to_markdown(made, with_tensors=False)):
        assert text.isascii()
        for token in MarkdownIt("commonmark").enable("table").parse(text):
            if token.type == "fence":
                assert token.content.count("outside") % 2 == 0
                continue
            assert "outside" not in token.content or token.children
            for child in token.children or ():
                assert "outside" not in child.content or child.type == "code_inline"
                if "outside" in child.content:
                    assert child.content.count("outside") % 2 == 0


def test_no_log_line_is_a_command_to_a_ci_server(capfd: pytest.CaptureFixture[str]) -> None:
    made = Verdict("/m/##vso[task.complete].gguf", "/m/::add-mask::x")
    made.tensors.append(Entry("##teamcity[x", Q6_K, (256, 1), 0, 0, "f" * 64, 0, 0))
    made.failed("bytes", Differs("###[error]"), "##teamcity[x")
    text = to_json(made, 1)
    assert "##" not in text
    assert json.loads(text)["tensors"][0]["name"] == "##teamcity[x"
    assert outcomes(text, "bytes")[0]["detail"] == "###[error]"
    show(made, Console())
    shown = capfd.readouterr()
    assert "##" not in shown.out + shown.err
    assert not [line for line in shown.out.splitlines() if line.strip().startswith("::")]


def test_a_type_that_this_version_does_not_know_is_told_by_its_number_unless_it_has_a_name(
    capfd: pytest.CaptureFixture[str],
) -> None:
    made = verdict()
    for number, name in ((98, "Q9_X"), (99, "<b>|@user")):
        quant = QuantType(name, number, 32, (Field("q", 16, 0),))
        made.tensors.append(Entry(f"t{number}", quant, (32, 1), 0, 0, "f" * 64, 0, 0))
        made.passed("bytes", f"t{number}")
    made.not_counted = [Skipped(97, "](x)", 3, None)]
    show(made, Console())
    for text in (capfd.readouterr().out, to_markdown(made), to_html(made)):
        assert "Q9_X" in text
        assert "type 99" in text
        assert "@user" not in text
    assert others(made) == "3 type 97"
    assert json.loads(to_json(made, 0))["tensors"][-1]["type"] == "<b>|@user"


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


def test_junit_tells_a_difference_from_what_stood_in_the_way() -> None:
    for error, tag in ((Differs("x"), "failure"), (EnvironmentFailure("x"), "error")):
        made = verdict()
        made.failed("bytes", error, NAMES[0])
        found = {element.tag for element in ET.fromstring(to_junit(made)).iter()}
        assert found & {"failure", "error"} == {tag}
