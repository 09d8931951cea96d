"""What a verification found: one outcome a stage and tensor, and the exit code that follows from all of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from repack.errors import PROVEN, Damaged, Differs, DplError, EnvironmentFailure, NothingToDo, UsageError
from repack.sidecar.manifest import Entry, Skipped
from verify.gpu.device import versions
from verify.gpu.speeds import ShapeTimings, Use

STAGES = (
    "container",
    "manifest",
    "selection",
    "source",
    "provenance",
    "digests",
    "bytes",
    "padding",
    "decode",
    "oracle",
    "bandwidth",
)
"""All stages, in the order in which they are run and shown."""


class Status(str, Enum):
    """How a stage ended."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of one stage, for one tensor or (tensor None) for the whole file."""

    stage: str
    status: Status
    detail: str = ""
    """One line: what was found where, or why the stage was skipped."""
    tensor: str | None = None
    exit_code: int = PROVEN
    """What this outcome alone would make the process return."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """The outputs of one kernel form for one tensor, as digests: equal on every device for the same rows and seed."""

    tensor: str
    form: str
    """`loop`, `pf` or `row`, with its configuration."""
    rows: int
    """How many sampled rows `digest` covers."""
    digest: str
    """SHA-256 over the outputs of the sampled rows, see docs/decode.md."""
    all_rows_digest: str | None
    """The same over all rows; None if only the sample was decoded."""


@dataclass(slots=True)
class Verdict:
    """Everything a verification has to say. Renderers read it, nothing else."""

    model: str | None
    """None in the form that checks a sidecar alone."""
    sidecar: str
    outcomes: list[Outcome] = field(default_factory=list)
    tensors: list[Entry] = field(default_factory=list)
    """The tensors that were to be checked, as the manifest has them."""
    seconds: float = 0.0
    bytes_compared: int = 0
    """Native bytes that were compared with the model's."""
    options: dict[str, str | int | list[str] | None] = field(default_factory=dict)
    """What was asked for: device, rows, seed, include."""
    gpu: dict[str, str] = field(default_factory=dict)
    """Where a GPU was used its name, driver and libraries, see `DeviceInfo.facts`."""
    no_gpu: str = ""
    """Why no GPU was used, in full; empty if one was, or if none was looked for."""
    not_counted: list[Skipped] = field(default_factory=list)
    """The model's tensors that are not in the sidecar, by type: no part of what the layouts gain."""
    decoded: list[Decoded] = field(default_factory=list)
    bandwidth: list[ShapeTimings] = field(default_factory=list)
    """Timings of every distinct shape, if they were measured."""
    uses: list[Use] = field(default_factory=list)
    """How often one token uses each measured shape."""
    timings: dict[str, float] = field(default_factory=dict)
    """Seconds that parts of the run took, by name."""

    def add(self, stage: str, status: Status, detail: str = "", tensor: str | None = None, code: int = PROVEN) -> None:
        """Record an outcome."""
        self.outcomes.append(Outcome(stage, status, detail, tensor, code))

    def passed(self, stage: str, tensor: str | None = None, detail: str = "") -> None:
        """Record a stage that found nothing wrong."""
        self.add(stage, Status.PASSED, detail, tensor)

    def failed(self, stage: str, error: DplError, tensor: str | None = None) -> None:
        """Record a stage that found something wrong."""
        self.add(stage, Status.FAILED, str(error), tensor, error.exit_code)

    def skipped(self, stage: str, why: str, tensor: str | None = None, code: int = PROVEN) -> None:
        """Record a stage that was not run. `code` is not 0 where skipping it must not pass for success."""
        self.add(stage, Status.SKIPPED, why, tensor, code)

    def absorb(self, part: Verdict) -> None:
        """Take over what was found out about one tensor apart."""
        self.outcomes += part.outcomes
        self.decoded += part.decoded
        for name, seconds in part.timings.items():
            self.timings[name] = self.timings.get(name, 0.0) + seconds

    def of(self, stage: str) -> Iterable[Outcome]:
        """All outcomes of a stage."""
        return (outcome for outcome in self.outcomes if outcome.stage == stage)

    @property
    def environment(self) -> dict[str, str]:
        """What this process runs on: versions of this tool, Python and its packages; the GPU, or why none was used."""
        return versions() | self.gpu | ({"gpu": f"none: {self.no_gpu}"} if self.no_gpu else {})

    @property
    def exit_code(self) -> int:
        """The most telling of all outcomes; 0 only if there was something to compare and all of it was compared."""
        codes = {outcome.exit_code for outcome in self.outcomes}
        for error in (UsageError, Damaged, Differs, EnvironmentFailure, NothingToDo):
            if error.exit_code in codes:
                return error.exit_code
        return PROVEN if self._proven() else NothingToDo.exit_code

    def _proven(self) -> bool:
        proof = "digests" if self.model is None else "bytes"
        solid = {tensor.name for tensor in self.tensors if tensor.nbytes}
        proven = {outcome.tensor for outcome in self.of(proof) if outcome.status is Status.PASSED}
        return bool(solid) and solid <= proven
