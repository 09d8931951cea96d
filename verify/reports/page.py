"""A verdict to look at: one HTML page that needs nothing but itself. Style and script are fixed by their digests."""

from __future__ import annotations

import base64
import hashlib
import os
from importlib.resources import files
from string import Template

from repack.version import VERSION
from verify.reports.bars import ledger_section, speed_section
from verify.reports.markup import Markup, element, joined
from verify.reports.summary import (
    TensorSummary,
    closing_line,
    dimensions,
    file_name,
    meaning,
    problems,
    result,
    stages,
    tensors,
)
from verify.verdict import STAGES, Status, Verdict

_BETWEEN = {False: "=", True: "&middot;"}
_MARKS = {Status.PASSED: "&#10003;", Status.FAILED: "&#10007;", Status.SKIPPED: "&#8211;"}


def to_html(verdict: Verdict) -> str:
    """The page, ASCII only."""
    style, script = _resource("page.css"), _resource("page.js")
    names = [file_name(path) for path in (verdict.model, verdict.sidecar) if path is not None]
    body = joined(
        _header(verdict, names),
        _failures(verdict),
        _stages(verdict),
        ledger_section(verdict),
        speed_section(verdict),
        _tensors(verdict),
        _decoded(verdict),
        _circumstances(verdict),
        element("footer", f"verify, gguf-dpl {VERSION}"),
    )
    return Template(_resource("page.html")).substitute(
        policy=f"default-src 'none'; img-src data:; style-src '{_digest(style)}'; script-src '{_digest(script)}'",
        title=joined(f"{result(verdict)}: {names[-1]}"),
        style=style,
        body=body,
        script=script,
    )


def _resource(name: str) -> str:
    return files("verify.reports").joinpath(name).read_text("ascii")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("ascii")).digest()).decode("ascii")


def _header(verdict: Verdict, names: list[str]) -> Markup:
    word, _, sentence = closing_line(verdict).partition(": ")
    between = element("span", Markup(_BETWEEN[bool(verdict.exit_code)]), class_="equals")
    title = Markup(between.join(element("span", name) for name in names))
    facts = [
        ("tensors", f"{len(verdict.tensors):,}"),
        ("bytes compared", f"{verdict.bytes_compared:,}"),
        ("seconds", f"{verdict.seconds:.2f}"),
        ("exit code", str(verdict.exit_code)),
    ]
    return element(
        "header",
        element("p", word, class_="badge"),
        element("h1", title),
        element("p", sentence, class_="sentence"),
        element("p", meaning(verdict), class_="meaning"),
        element("dl", *(element("div", element("dt", key), element("dd", value)) for key, value in facts)),
        class_="bad" if verdict.exit_code else "good",
    )


def _failures(verdict: Verdict) -> Markup:
    failed = problems(verdict)
    items = [element("li", element("b", one.stage), " ", element("span", one.detail)) for one in failed]
    heading = element("h2", "What failed ", element("small", str(len(items))))
    return element("section", heading, element("ul", *items, class_="failures")) if items else Markup()


def _stages(verdict: Verdict) -> Markup:
    items = [
        element(
            "li",
            _mark(stage.status, stage.detail),
            element("b", stage.stage),
            element("span", stage.detail or stage.status.value),
            class_=stage.status.value,
        )
        for stage in stages(verdict)
    ]
    return element("section", element("h2", "Stages"), element("ol", *items, class_="stages"))


def _mark(status: Status, detail: str) -> Markup:
    return element(
        "span",
        element("span", Markup(_MARKS[status]), aria_hidden="true"),
        element("span", status.value, class_="unseen"),
        class_=f"mark {status.value}",
        title=f"{status.value}: {detail}" if detail else status.value,
    )


def _tensors(verdict: Verdict) -> Markup:
    summaries = sorted(tensors(verdict), key=lambda summary: summary.status is not Status.FAILED)
    if not summaries:
        return Markup()
    shown_stages = [stage for stage in STAGES if any(stage in summary.outcomes for summary in summaries)]
    header = element(
        "tr",
        *(element("th", name, scope="col") for name in ("tensor", "ne")),
        *(element("th", name, scope="col", class_="number") for name in ("bytes", "dpl bytes")),
        *(element("th", stage, scope="col", class_="check") for stage in shown_stages),
    )
    rows = [_tensor(summary, shown_stages) for summary in summaries]
    return element(
        "section",
        element("h2", "Tensors ", element("small", str(len(rows)), id="count")),
        Markup('<p id="filter" hidden><label>Filter <input type="search" placeholder="name or result"></label></p>'),
        element("table", element("thead", header), element("tbody", *rows), id="tensors"),
    )


def _tensor(summary: TensorSummary, shown_stages: list[str]) -> Markup:
    tensor = summary.tensor
    unusual = f"{tensor.nonfinite_d:,} super-blocks with a d that is not finite" if tensor.nonfinite_d else ""
    checks = [
        element("td", _mark(outcome.status, outcome.detail), class_="check", data_label=stage)
        if (outcome := summary.outcomes.get(stage))
        else element("td", class_="check none")
        for stage in shown_stages
    ]
    return element(
        "tr",
        element("th", tensor.name, *([element("small", unusual)] if unusual else []), scope="row"),
        element("td", dimensions(tensor.ne), class_="shape"),
        element("td", f"{tensor.nbytes:,}", class_="number", data_label="native"),
        element("td", f"{tensor.dpl_nbytes:,}", class_="number", data_label="dpl"),
        *checks,
        class_=summary.status.value,
    )


def _decoded(verdict: Verdict) -> Markup:
    rows = [
        element("li", element("b", f"{output.tensor} {output.form}"), element("code", output.digest))
        for output in verdict.decoded
    ]
    summary = element("summary", f"Digests of {len(rows)} decoded outputs")
    return element("details", summary, element("ul", *rows, class_="digests")) if rows else Markup()


def _circumstances(verdict: Verdict) -> Markup:
    facts: dict[str, str] = {"sidecar": os.fspath(verdict.sidecar)}
    if verdict.model is not None:
        facts["model"] = os.fspath(verdict.model)
    facts |= {f"--{key}": _option(value) for key, value in verdict.options.items()} | verdict.environment
    facts |= {f"{name}, seconds": f"{seconds:.3f}" for name, seconds in verdict.timings.items()}
    items = [element("div", element("dt", key), element("dd", value)) for key, value in facts.items()]
    return element("details", element("summary", "Files, options and versions"), element("dl", *items, class_="list"))


def _option(value: str | int | list[str] | None) -> str:
    if isinstance(value, list):
        return ", ".join(value) or "none"
    return "all" if value is None else str(value)
