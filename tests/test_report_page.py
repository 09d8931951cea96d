"""Reports of verdicts made by hand: the page, ledgers by type, speeds, and what is said where a GPU is absent."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from xml.etree import ElementTree as ET

import pytest

from repack.command.console import Console
from repack.errors import Differs, EnvironmentFailure
from repack.sidecar.manifest import Entry
from tests.support.reports import check_schema
from tests.support.verdicts import MXFP4, NAMES, Q6_K, Q8_0, Page, outcomes, verdict
from tests.test_report import check_counts
from verify.reports.as_json import to_json
from verify.reports.junit import to_junit
from verify.reports.markdown import to_markdown
from verify.reports.page import to_html
from verify.reports.summary import ledger_rows, stages
from verify.reports.table import MOST_ERRORS, show
from verify.verdict import Verdict


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
        ("Q8_0", "1", "238", "336", "29.17%", "336", "29.17%"),  # 34 bytes become 48; planes of 32 and 16
        ("Q6_K", "2", "34,020", "36,288", "6.25%", "34,032", "0.04%"),  # 54 d of 2 bytes become 112
        ("MXFP4", "1", "255", "480", "46.88%", "320", "20.31%"),  # planes of 48 and 16 bytes
        ("all", "4", "34,513", "37,104", "6.98%", "34,688", "0.50%"),
    ]
    ledger = json.loads(to_json(made, 5))["ledger"]
    assert (ledger["native"], ledger["padded"], ledger["dpl"]) == (34513, 37104, 34688)
    assert [(one["type"], one["tensors"], one["dpl"]) for one in ledger["types"]] == [
        ("Q8_0", 1, 336),
        ("Q6_K", 2, 34032),
        ("MXFP4", 1, 320),
    ]
    for text in (Page(to_html(made)).text, to_markdown(made)):
        assert "46.88%" in text
        assert "0.50%" in text
    made.tensors = made.tensors[:1]
    assert [row[0] for row in ledger_rows(made)] == ["Q6_K"]
    made.tensors = []
    assert not ledger_rows(made)
    assert json.loads(to_json(made, 5))["ledger"] == {"native": 0, "padded": 0, "dpl": 0, "types": []}


def test_a_stage_tells_what_its_tensors_say_as_long_as_it_is_little() -> None:
    made = Verdict(None, "m.dpl")
    for number in range(9):
        made.passed("decode", f"a{number}", "16 rows, 3 forms")
    assert decode_detail(made) == "9 of 9: 16 rows, 3 forms"
    made.passed("decode", "b", "16 rows, 1 form")
    made.skipped("decode", "no kernel reads IQ4_XS", "c")
    skipped = "; 1 skipped: no kernel reads IQ4_XS"
    assert decode_detail(made) == f"10 of 11: 16 rows, 3 forms (9); 16 rows, 1 form (1){skipped}"
    for number in range(3):
        made.passed("decode", f"d{number}", f"{number} rows")
    assert decode_detail(made) == f"13 of 14{skipped}"
    made.failed("decode", Differs("of two reasons"), "e")
    assert decode_detail(made) == f"1 of 15{skipped}"


def decode_detail(made: Verdict) -> str:
    return next(stage.detail for stage in stages(made) if stage.stage == "decode")


def test_why_no_gpu_was_used_is_told_in_full_below_the_stages(capfd: pytest.CaptureFixture[str]) -> None:
    made = verdict()
    made.no_gpu = "CUDA driver version is insufficient; install a newer driver"
    made.skipped("bandwidth", "no usable GPU")
    show(made, Console())
    shown = capfd.readouterr().out
    for text in (shown, to_markdown(made), Page(to_html(made)).text):
        assert text.count(made.no_gpu) == 1
        assert text.index("bandwidth") < text.index(made.no_gpu)
    made.no_gpu = ""
    show(made, Console())
    assert "No GPU" not in capfd.readouterr().out + to_markdown(made) + to_html(made)


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


def test_tensors_that_failed_stand_first_on_the_page() -> None:
    made = verdict()
    made.failed("decode", Differs("difference"), NAMES[3])
    rows = re.findall(r'<tr class="(passed|failed|skipped)">\s*<th scope="row">([^<]*)', to_html(made))
    assert [status for status, _ in rows] == ["failed"] + ["passed"] * (len(NAMES) - 1)
    assert rows[0][1] == "]]&gt;"


def test_many_failures_are_told_in_few_lines(capfd: pytest.CaptureFixture[str]) -> None:
    made = verdict()
    for number in range(MOST_ERRORS + 5):
        made.failed("bytes", Differs(f"difference {number}"), f"t{number}")
    show(made, Console(quiet=True))
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == MOST_ERRORS + 1
    assert "5 more" in lines[-1]
    assert len(outcomes(to_json(made, 1), "bytes")) == len(NAMES) + MOST_ERRORS + 5
