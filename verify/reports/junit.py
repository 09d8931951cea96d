"""A verdict for CI servers: JUnit XML, one suite a stage, one case a tensor, and a last suite for the verdict itself.

A check that failed because the sidecar differs is a <failure>; any other reason is an <error>. There is a failure or
an error exactly when the verdict's exit code is not 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree as ET

from repack.errors import PROVEN, Differs, plain
from verify.reports.summary import closing_line, meaning, result
from verify.verdict import STAGES, Outcome, Status, Verdict

_SUITE = "gguf-dpl"


def to_junit(verdict: Verdict) -> str:
    """The XML text, ASCII only."""
    root = ET.Element("testsuites", name=_SUITE)
    for stage in STAGES:
        outcomes = list(verdict.of(stage))
        if outcomes:
            _suite(root, stage, outcomes)
    _verdict_suite(root, verdict)
    for key in ("tests", "failures", "errors"):  # no `skipped` here: Jenkins' xUnit plugin refuses the file
        root.set(key, str(sum(int(suite.get(key, "0")) for suite in root)))
    root.set("time", f"{verdict.seconds:.3f}")
    ET.indent(root)
    xml: bytes = ET.tostring(root, encoding="us-ascii", xml_declaration=True)
    return xml.decode("ascii") + "\n"


def _suite(root: ET.Element, stage: str, outcomes: Sequence[Outcome]) -> ET.Element:
    suite = ET.SubElement(root, "testsuite", name=stage, time="0")
    for outcome in outcomes:
        name = "file" if outcome.tensor is None else plain(outcome.tensor)
        case = ET.SubElement(suite, "testcase", classname=f"{_SUITE}.{stage}", name=name, time="0")
        detail = plain(outcome.detail)
        if outcome.exit_code != PROVEN:
            differs = outcome.exit_code == Differs.exit_code
            problem = ET.SubElement(case, "failure" if differs else "error", message=detail)
            problem.set("type", f"exit code {outcome.exit_code}")
            problem.text = detail
        elif outcome.status is Status.SKIPPED:
            ET.SubElement(case, "skipped", message=detail)
        elif detail:
            ET.SubElement(case, "system-out").text = detail
    _count(suite)
    return suite


def _verdict_suite(root: ET.Element, verdict: Verdict) -> None:
    """One case for the whole, so that even an empty run has one and every exit code but 0 is seen."""
    line = closing_line(verdict)
    outcome = Outcome("verdict", Status.PASSED, line, None, verdict.exit_code)
    suite = _suite(root, "verdict", [outcome])
    facts = {"result": result(verdict), "exit_code": str(verdict.exit_code), "meaning": meaning(verdict)}
    facts |= {"sidecar": verdict.sidecar, **({"model": verdict.model} if verdict.model is not None else {})}
    facts |= verdict.environment
    properties = ET.Element("properties")
    for key, value in facts.items():
        ET.SubElement(properties, "property", name=plain(key), value=plain(value))
    suite.insert(0, properties)


def _count(suite: ET.Element) -> None:
    suite.set("tests", str(len(suite.findall("testcase"))))
    for key, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(key, str(len(suite.findall(f"testcase/{tag}"))))
