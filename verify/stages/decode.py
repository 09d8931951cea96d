"""Stages oracle and decode: what the rows of both files are worth, to float64 and to the kernels' bits.

Oracle: sampled rows of the sidecar, unpacked and dequantized by gguf, against the model's rows in float64. Decode: the
kernels' arithmetic on both layouts, bit for bit, on the GPU or emulated on the CPU.

On a GPU every row of every tensor is decoded from the native, the padded and the dpl layout, and a sample of rows is
compared with the CPU's emulation as well. On the CPU the sample alone is decoded, or all rows on request. Either way
the digests over the sampled rows are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from repack.errors import PROVEN, Differs, EnvironmentFailure, shown
from repack.files.signals import check
from repack.gguf.dequantize import dequantize
from repack.rows import Bytes
from verify.contract import oracle
from verify.contract.activations import Activations, adversarial, seeded
from verify.contract.emulation import as_bits, decode_digest, decode_forms
from verify.contract.forms import Form, forms_for
from verify.gpu.findings import TensorResult, TensorRows
from verify.pairs import Files, Pair, row_name
from verify.verdict import Decoded, Verdict

Bits = npt.NDArray[np.uint32]
_STEP_WEIGHTS = 1 << 17
"""Weights that are looked at together: some 15 MB of memory for each thread."""

CheckTensor = Callable[[TensorRows, Sequence[Activations], Sequence[Form]], TensorResult]


@dataclass(frozen=True, slots=True)
class Request:
    """What to decode with."""

    rows: int | None
    """Rows sampled from each tensor; None for all."""
    seed: int
    forms: tuple[str, ...]
    gpu: CheckTensor | None
    """`verify.gpu.tensor.check_tensor` where there is a GPU."""
    threads: int
    """Without a GPU, tensors that are decoded at once."""


@contextmanager
def decoding(pairs: Sequence[Pair], files: Files, request: Request, verdict: Verdict) -> Iterator[None]:
    """Decode every pair that has a source: on the CPU beside what the block does, on a GPU after it.

    The verdict gets the results after the block. After a failure of the GPU the rest is marked as not checked.
    """
    if request.gpu is not None:
        yield
        _in_turn(pairs, files, request, verdict)
        return
    with ThreadPoolExecutor(request.threads, "decode") as pool:
        parts = [pool.submit(_checked, pair, files, request) for pair in pairs]
        try:
            yield
            for part in parts:
                verdict.absorb(part.result())
        finally:
            pool.shutdown(cancel_futures=True)


def _in_turn(pairs: Sequence[Pair], files: Files, request: Request, verdict: Verdict) -> None:
    broken = ""
    for pair in pairs:
        if broken and _comparable(pair):
            why = f"not checked, the GPU failed at {broken}"
            _skip(pair, why, verdict, EnvironmentFailure.exit_code)
            continue
        part = _checked(pair, files, request)
        verdict.absorb(part)
        if any(outcome.exit_code == EnvironmentFailure.exit_code for outcome in part.outcomes):
            broken = shown(pair.entry.name)


def _comparable(pair: Pair) -> bool:
    return pair.source is not None and bool(pair.entry.nbytes)


def _skip(pair: Pair, why: str, verdict: Verdict, code: int = PROVEN) -> None:
    for stage in ("oracle", "decode"):
        verdict.skipped(stage, why, pair.entry.name, code)


def _checked(pair: Pair, files: Files, request: Request) -> Verdict:
    """What these stages have to say of one pair."""
    part = Verdict(None, files.sidecar_name)
    if not _comparable(pair):
        _skip(pair, "nothing to compare", part)
        return part
    try:
        _check_tensor(pair, files, request, part)
    except (Differs, EnvironmentFailure) as error:
        part.failed("decode", error, pair.entry.name)
    return part


def _check_tensor(pair: Pair, files: Files, request: Request, verdict: Verdict) -> None:
    entry = pair.entry
    vectors = (seeded(entry.n, request.seed), *adversarial(entry.n))
    forms = forms_for(entry.n, entry.rows, request.forms)
    sample = oracle.sample_rows(entry.rows, request.rows or entry.rows, request.seed)
    where = f"{files.sidecar_name}: tensor {shown(entry.name)}"
    emulated = _emulate(pair, files, sample, vectors, forms, verdict)
    decoded = None
    if request.gpu is not None:
        result = request.gpu(_rows_of(pair, files), vectors, forms)
        _count_seconds(result, verdict)
        _raise_if_different(result, pair, where)
        decoded = result.bits
        for form, bits in decoded.items():
            _compare(
                as_bits(bits[:, sample]), emulated[form], sample, pair, f"{form} on the GPU", "the contract", where
            )
    everything = len(sample) == entry.rows
    for form, bits in emulated.items():
        whole = decode_digest([decoded[form]]) if decoded else decode_digest([bits]) if everything else None
        verdict.decoded.append(Decoded(entry.name, str(form), len(sample), decode_digest([bits]), whole))
    what = f"{entry.rows} rows on the GPU" if decoded else f"{len(sample)} rows emulated"
    verdict.passed("decode", entry.name, f"{what}, {len(forms)} forms, {len(vectors)} vectors")


def _emulate(
    pair: Pair,
    files: Files,
    sample: npt.NDArray[np.int64],
    vectors: Sequence[Activations],
    forms: Sequence[Form],
    verdict: Verdict,
) -> dict[Form, Bits]:
    """Look closely at the sampled rows: stage oracle, then their outputs by the contract.

    Raises Differs, after all rows, unless the outputs of both files agree with each other and with float64.
    """
    n, where = pair.entry.n, f"{files.sidecar_name}: tensor {shown(pair.entry.name)}"
    outputs: dict[Form, list[Bits]] = {form: [] for form in forms}
    worst, worst_row, first_wrong = 0.0, 0, None
    step = max(1, _STEP_WEIGHTS // (256 * n))
    for start in range(0, len(sample), step):
        check()
        rows = sample[start : start + step]
        native, unpacked = files.native_rows(pair, rows), files.unpacked_rows(pair, rows)
        exact = oracle.dequantize(native, n)
        row, error = oracle.worst_error(dequantize(unpacked, pair.entry.quant), exact)
        if not error <= worst:
            worst, worst_row = error, int(rows[row])
        from_native = decode_forms(native, n, vectors, forms)
        from_dpl = from_native if np.array_equal(native, unpacked) else decode_forms(unpacked, n, vectors, forms)
        try:
            for form in forms:
                bits = as_bits(from_native[form])
                _compare(as_bits(from_dpl[form]), bits, rows, pair, f"{form} from the sidecar", "the model", where)
                outputs[form].append(bits)
            _compare_exact({form: from_native[form][0] for form in forms}, exact, vectors[0], rows, pair, where)
        except Differs as error_found:
            first_wrong = first_wrong or error_found
    if worst <= oracle.TOLERANCE:
        verdict.passed("oracle", pair.entry.name, f"{len(sample)} rows, error {worst:.1e} of the norm")
    else:
        what = f"{row_name(pair.entry.ne, worst_row)} dequantizes differently, error {worst:.1e} of the norm"
        differs = Differs(what, where=where, expected=f"<= {oracle.TOLERANCE:.0e}")
        verdict.failed("oracle", differs, pair.entry.name)
    if first_wrong:
        raise first_wrong
    return {form: np.concatenate(parts, axis=1) for form, parts in outputs.items()}


def _compare(
    found: Bits, expected: Bits, rows: npt.NDArray[np.int64], pair: Pair, what: str, than: str, where: str
) -> None:
    if not np.array_equal(found, expected):
        vector, at = (int(first[0]) for first in np.nonzero(found != expected))
        raise Differs(
            f"{what} gives other bits than {than}, first in {row_name(pair.entry.ne, int(rows[at]))}",
            where=where,
            found=f"{found[vector, at]:#010x}",
            expected=f"{expected[vector, at]:#010x}",
        )


def _compare_exact(
    outputs: dict[Form, npt.NDArray[np.float32]],
    weights: npt.NDArray[np.float64],
    vector: Activations,
    rows: npt.NDArray[np.int64],
    pair: Pair,
    where: str,
) -> None:
    """The float32 outputs against float64: within 1e-5 of the norms, and not finite exactly where d is not."""
    values = vector.values()
    with np.errstate(invalid="ignore"):
        exact = np.einsum("rw,w->r", weights, values)
    finite = np.isfinite(exact)
    norms = np.linalg.norm(np.where(finite[:, None], weights, 0), axis=1) * np.linalg.norm(values)
    for form, found in outputs.items():
        errors = np.abs(np.where(finite, found, 0).astype(np.float64) - np.where(finite, exact, 0))
        wrong = (errors > oracle.TOLERANCE * norms) | (np.isfinite(found) != finite)
        if wrong.any():
            at = int(wrong.argmax())
            raise Differs(
                f"{form} is not the product of weights and activations in {row_name(pair.entry.ne, int(rows[at]))}",
                where=where,
                found=float(found[at]),
                expected=float(exact[at]),
            )


def _rows_of(pair: Pair, files: Files) -> TensorRows:
    def read_native(row0: int, row1: int, out: Bytes) -> None:
        del row1
        files.read_native(pair, row0, out)

    def read_dpl(row0: int, row1: int, out: Bytes) -> None:
        del row1
        files.read_dpl(pair, row0, out)

    return TensorRows(shown(pair.entry.name), pair.entry.n, pair.entry.rows, read_native, read_dpl)


def _raise_if_different(result: TensorResult, pair: Pair, where: str) -> None:
    if result.difference is not None:
        first = result.difference
        place = f"block {first.block}, {first.field}[{first.byte}]" if first.block >= 0 else "the padding"
        raise Differs(f"differs from the model on the GPU, {row_name(pair.entry.ne, first.row)}, {place}", where=where)
    for outputs, what in ((result.unwritten, "is not written"), (result.mismatches, "has other bits than native")):
        for output in outputs:
            row = row_name(pair.entry.ne, output.row)
            raise Differs(f"{output.form} {output.layout}: {row} {what} ({output.activations})", where=where)


def _count_seconds(result: TensorResult, verdict: Verdict) -> None:
    for part in ("total", "read", "upload", "compare", "decode"):
        key = f"gpu {part}"
        verdict.timings[key] = verdict.timings.get(key, 0.0) + getattr(result.seconds, part)
