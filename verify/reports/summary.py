"""What every report says about a verdict: its result in words, its stages and tensors in brief, its ledger of bytes."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from repack.command.ledger import ledger_row
from repack.errors import PROVEN, Damaged, Differs, EnvironmentFailure, NothingToDo, UsageError, plain
from repack.layout import QuantType
from repack.plan import Ledger
from repack.sidecar.manifest import Entry
from verify.verdict import STAGES, Outcome, Status, Verdict

MOST_DETAILS = 3
"""Different things that a stage's line says of its tensors; of more it says none."""
_REASONS = {
    Differs.exit_code: "the sidecar differs from the model",
    UsageError.exit_code: "the command asks for something that cannot be done",
    Damaged.exit_code: "an input is damaged or not supported",
    EnvironmentFailure.exit_code: "this machine is in the way",
    NothingToDo.exit_code: "nothing was compared",
}


@dataclass(frozen=True, slots=True)
class StageSummary:
    """How one stage ended over the whole file and all tensors."""

    stage: str
    status: Status
    counts: dict[Status, int]
    detail: str


@dataclass(frozen=True, slots=True)
class TensorSummary:
    """One tensor with the outcome of each stage that looked at it."""

    tensor: Entry
    outcomes: dict[str, Outcome]

    @property
    def type_name(self) -> str:
        """Its type's name."""
        return type_name(self.tensor.quant.name, self.tensor.quant.number)

    @property
    def status(self) -> Status:
        """Failed if any stage failed, passed if any passed."""
        return worst([outcome.status for outcome in self.outcomes.values()])

    def stages(self, status: Status) -> list[str]:
        """Names of the stages that ended so, in their order."""
        return [stage for stage in STAGES if stage in self.outcomes and self.outcomes[stage].status is status]


def file_name(path: str) -> str:
    """The last part of a path, fit to show."""
    return plain(os.path.basename(path))  # noqa: PTH119 - a path that came as text


def worst(statuses: list[Status]) -> Status:
    """One status for many."""
    return next((status for status in (Status.FAILED, Status.PASSED) if status in statuses), Status.SKIPPED)


def result(verdict: Verdict) -> str:
    """`proven`, `sound` (a sidecar by itself) or `not proven`."""
    if verdict.exit_code:
        return "not proven"
    return "sound" if verdict.model is None else "proven"


def problems(verdict: Verdict) -> list[Outcome]:
    """Every outcome that stands in the way of success: what failed, and what was not run though it had to be."""
    return [outcome for outcome in verdict.outcomes if outcome.exit_code != PROVEN]


def closing_line(verdict: Verdict) -> str:
    """The verdict in one sentence."""
    count = len(verdict.tensors)
    tensors = f"{count} tensor{'s' * (count != 1)}"
    if verdict.exit_code:
        reason = _REASONS[verdict.exit_code]
        failed = len(problems(verdict))
        tail = f"; {failed} check{'s' * (failed != 1)} failed" if failed else ""
        return f"NOT PROVEN: {reason}{tail} (exit code {verdict.exit_code})"
    if verdict.model is None:
        return f"SOUND: {tensors} as the manifest says; equality with a GGUF is not proven without it"
    return f"PROVEN: {tensors}, {verdict.bytes_compared:,} bytes, equal to the model's ({verdict.seconds:.2f} s)"


def meaning(verdict: Verdict) -> str:
    """What the result proves, and what it does not."""
    if verdict.exit_code:
        return "Do not publish or load this sidecar until every failed check is understood."
    if verdict.model is None:
        return (
            "The sidecar is intact: its data matches its own manifest. Whether it equals a GGUF model was not looked "
            "at; verify it together with the model."
        )
    left_out = "; ".join(outcome.detail for outcome in verdict.of("selection") if outcome.detail)
    scope = f"but {left_out}" if left_out else "every one of them"
    names = ", ".join(name for name, _, _ in ledgers(verdict))
    parts = [f"The sidecar holds the bytes of this GGUF file's {names} tensors, {scope}."]
    if verdict.options.get("include"):
        parts = ["The tensors chosen by --include have the bytes of this GGUF file; others were not looked at."]
    if any(outcome.status is Status.PASSED for outcome in verdict.of("provenance")):
        parts.append("The file has the SHA-256 that was expected; whose digest that is, this tool cannot know.")
    else:
        parts.append("That the file is the one its publisher made is not proven; --expect-sha256 compares its digest.")
    return " ".join(parts)


def stages(verdict: Verdict) -> list[StageSummary]:
    """All stages in their order."""
    return [_stage(stage, list(verdict.of(stage))) for stage in STAGES]


def _stage(stage: str, outcomes: Sequence[Outcome]) -> StageSummary:
    counts = {status: sum(outcome.status is status for outcome in outcomes) for status in Status}
    status = worst([outcome.status for outcome in outcomes])
    details = _details(outcomes, status)
    if all(outcome.tensor is None for outcome in outcomes):
        return StageSummary(stage, status, counts, details)
    detail = f"{counts[status]} of {len(outcomes)}"
    if details and status is not Status.FAILED:  # failures are told one by one
        detail += f": {details}"
    if counts[Status.SKIPPED] and status is not Status.SKIPPED:
        why = _details(outcomes, Status.SKIPPED)
        detail += f"; {counts[Status.SKIPPED]} skipped" + (f": {why}" if why else "")
    return StageSummary(stage, status, counts, detail)


def _details(outcomes: Sequence[Outcome], status: Status) -> str:
    """What the outcomes of this status say, each with how many say it; nothing where too many say different things."""
    said = Counter(outcome.detail for outcome in outcomes if outcome.status is status and outcome.detail)
    if len(said) > MOST_DETAILS:
        return ""
    return plain(*said) if len(said) == 1 else "; ".join(f"{plain(one)} ({count})" for one, count in said.items())


def tensors(verdict: Verdict) -> list[TensorSummary]:
    """All checked tensors in their order."""
    by_name: dict[str | None, dict[str, Outcome]] = {}
    for outcome in verdict.outcomes:
        by_name.setdefault(outcome.tensor, {})[outcome.stage] = outcome
    return [TensorSummary(tensor, by_name.get(tensor.name, {})) for tensor in verdict.tensors]


def type_name(name: str, number: int) -> str:
    """A type's name, or its number where a sidecar gives it a name that could be anything but one."""
    return name if re.fullmatch("[A-Za-z0-9_ ]{1,24}", name) else f"type {number}"


def types(verdict: Verdict) -> list[QuantType]:
    """The types of the checked tensors, by their number."""
    return sorted({tensor.quant for tensor in verdict.tensors}, key=lambda quant: quant.number)


def ledgers(verdict: Verdict) -> list[tuple[str, int, Ledger]]:
    """Name, tensors and bytes of each type among the checked tensors."""
    found = []
    for quant in types(verdict):
        entries = [tensor for tensor in verdict.tensors if tensor.quant == quant]
        each = (Ledger(entry.nbytes, entry.padded_nbytes, entry.dpl_nbytes) for entry in entries)
        found.append((type_name(quant.name, quant.number), len(entries), sum(each, Ledger())))
    return found


def total(verdict: Verdict) -> Ledger:
    """The bytes of all checked tensors."""
    return sum((ledger for _, _, ledger in ledgers(verdict)), Ledger())


def ledger_rows(verdict: Verdict) -> list[tuple[str, ...]]:
    """A row for each type under `repack.command.ledger.LEDGER_HEADER`, and one for all types if there are several."""
    rows = [ledger_row(*one) for one in ledgers(verdict)]
    return [*rows, ledger_row("all", len(verdict.tensors), total(verdict))] if len(rows) > 1 else rows


def dimensions(ne: tuple[int, ...]) -> str:
    """A shape as it is written in GGUF listings, row length first."""
    return " x ".join(map(str, ne))


def others(verdict: Verdict) -> str:
    """The model's tensors that are not in the sidecar, by type; nothing if there are none."""
    return ", ".join(f"{kind.tensors:,} {type_name(kind.name, kind.type)}" for kind in verdict.not_counted)
