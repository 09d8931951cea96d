"""Stages oracle and decode: what the rows of both files are worth, to float64 and to the kernels' bits.

Oracle: sampled rows of the sidecar, unpacked and dequantized by gguf, against the model's rows in float64. Decode: the
kernels' arithmetic on both layouts, bit for bit, on the GPU or emulated on the CPU.

On a GPU every row of every tensor is decoded from the native, the padded and the dpl layout, and a sample of rows is
compared with the CPU's emulation as well. On the CPU the sample alone is decoded, or all rows on request. Either way
the digests over the sampled rows are the same.

Memory, for each tensor that is decoded at once: 4 bytes for each weight of a row (its vectors), 4 native rows, and what
the emulation needs for a piece (verify/contract/emulation.py). Rows of over a million weights are decoded one after the
other. With rows of ten million weights, and the buffers of stage bytes, that is less than 180 MB.
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
from repack.rows import Bytes
from verify.contract.activations import Activations, adversarial, seeded
from verify.contract.emulation import Bits, as_bits, decode_digest, decode_forms
from verify.contract.forms import Form, forms_for
from verify.contract.quants import contract_of
from verify.contract.quants.contract import Contract
from verify.gpu.findings import TensorResult, TensorRows
from verify.pairs import Files, Pair, blamed, row_name
from verify.stages.oracle import STEP_WEIGHTS, TOLERANCE, judged, sample_rows
from verify.verdict import Decoded, Verdict

LONG_ROW = 1 << 20
"""Weights of a row beyond which tensors are decoded one after the other."""

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
    with ThreadPoolExecutor(request.threads, "decode") as pool, ThreadPoolExecutor(1, "long rows") as one:
        parts = [
            (one if pair.entry.ne[0] > LONG_ROW else pool).submit(_checked, pair, files, request) for pair in pairs
        ]
        try:
            yield
            for part in parts:
                verdict.absorb(part.result())
        finally:
            for threads in (pool, one):
                threads.shutdown(wait=False, cancel_futures=True)


def _in_turn(pairs: Sequence[Pair], files: Files, request: Request, verdict: Verdict) -> None:
    broken = ""
    for pair in pairs:
        if broken and not _reason(pair, request):
            why = f"not checked, the GPU failed at {broken}"
            _skip(("oracle", "decode"), pair, why, verdict, EnvironmentFailure.exit_code)
            continue
        part = _checked(pair, files, request)
        verdict.absorb(part)
        if any(outcome.exit_code == EnvironmentFailure.exit_code for outcome in part.outcomes):
            broken = shown(pair.entry.name)


def _reason(pair: Pair, request: Request) -> str:
    """Why a tensor's rows cannot be decoded; nothing if they can."""
    entry, contract = pair.entry, contract_of(pair.entry.quant)
    if pair.source is None or not entry.nbytes:
        return "nothing to compare"
    if contract is None:
        return f"this version knows the layout of {entry.quant.name}, not what it means"
    if not contract.has_kernel:
        return f"there is no kernel for {entry.quant.name}"
    if not forms_for(entry.quant, entry.n, entry.rows, request.forms):
        return f"form {' or '.join(request.forms)} is not for {entry.quant.name} rows of {entry.ne[0]} weights"
    return ""


def _skip(stages: Sequence[str], pair: Pair, why: str, verdict: Verdict, code: int = PROVEN) -> None:
    for stage in stages:
        verdict.skipped(stage, why, pair.entry.name, code)


def _checked(pair: Pair, files: Files, request: Request) -> Verdict:
    """What these stages have to say of one pair."""
    part = Verdict(None, files.sidecar_name)
    contract, why = contract_of(pair.entry.quant), _reason(pair, request)
    if contract is None or pair.source is None or not pair.entry.nbytes:
        _skip(("oracle", "decode"), pair, why, part)
        return part
    if why:
        _skip(("decode",), pair, why, part)
    with blamed("decode"):
        try:
            _check_tensor(pair, contract, files, request, part)
        except (Differs, EnvironmentFailure) as error:
            part.failed("decode", error, pair.entry.name)
    return part


def _check_tensor(pair: Pair, contract: Contract, files: Files, request: Request, verdict: Verdict) -> None:
    entry = pair.entry
    vectors = (seeded(entry.ne[0], request.seed), *adversarial(entry.ne[0]))
    forms = forms_for(entry.quant, entry.n, entry.rows, request.forms)
    sample = sample_rows(entry.rows, request.rows or entry.rows, request.seed)
    where = f"{files.sidecar_name}: tensor {shown(entry.name)}"
    emulated = _emulate(pair, contract, files, sample, vectors, forms, verdict)
    if not forms:
        return
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
    verdict.passed("decode", entry.name, f"{what}, {len(forms)} form{'s' * (len(forms) > 1)}, {len(vectors)} vectors")


def _emulate(
    pair: Pair,
    contract: Contract,
    files: Files,
    sample: npt.NDArray[np.int64],
    vectors: Sequence[Activations],
    forms: Sequence[Form],
    verdict: Verdict,
) -> dict[Form, Bits]:
    """Stage oracle, and the outputs of all forms for the sampled rows, from both files. Raises Differs for decode."""
    entry = pair.entry
    where = f"{files.sidecar_name}: tensor {shown(entry.name)}"
    outputs: dict[Form, list[Bits]] = {form: [] for form in forms}
    worst, worst_row, first_wrong = 0.0, 0, None
    step = max(1, STEP_WEIGHTS // entry.ne[0])
    for start in range(0, len(sample), step):
        check()
        rows = sample[start : start + step]
        native, unpacked = files.native_rows(pair, rows), files.unpacked_rows(pair, rows)
        oracle = judged(contract, native, unpacked, entry.n, vectors[0])
        row, error = oracle.worst()
        if error > worst:
            worst, worst_row = error, int(rows[row])
        from_native = _emulated(pair, native, vectors, forms)
        from_dpl = from_native if np.array_equal(native, unpacked) else _emulated(pair, unpacked, vectors, forms)
        try:
            for form in forms:
                bits = as_bits(from_native[form])
                _compare(as_bits(from_dpl[form]), bits, rows, pair, f"{form} from the sidecar", "the model", where)
                outputs[form].append(bits)
            wrong = oracle.wrong_product({form: from_native[form][0] for form in forms})
            if wrong is not None:
                form, at, output, product = wrong
                name = row_name(entry.ne, int(rows[at]))
                what = f"{form} is not the product of weights and activations in {name}"
                raise Differs(what, where=where, found=output, expected=product)
        except Differs as found:
            first_wrong = first_wrong or found
    if worst <= TOLERANCE:
        verdict.passed("oracle", entry.name, f"{len(sample)} rows, error {worst:.1e} of the norm")
    else:
        what = f"{row_name(entry.ne, worst_row)} dequantizes differently, error {worst:.1e} of the norm"
        verdict.failed("oracle", Differs(what, where=where, expected=f"<= {TOLERANCE:.0e}"), entry.name)
    if first_wrong:
        raise first_wrong
    return {form: np.concatenate(parts, axis=1) for form, parts in outputs.items()}


def _emulated(
    pair: Pair, native: Bytes, vectors: Sequence[Activations], forms: Sequence[Form]
) -> dict[Form, npt.NDArray[np.float32]]:
    return decode_forms(pair.entry.quant, native, pair.entry.n, vectors, forms) if forms else {}


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


def _rows_of(pair: Pair, files: Files) -> TensorRows:
    def read_native(row0: int, row1: int, out: Bytes) -> None:
        del row1
        files.read_native(pair, row0, out)

    def read_dpl(row0: int, row1: int, out: Bytes) -> None:
        del row1
        files.read_dpl(pair, row0, out)

    entry = pair.entry
    return TensorRows(shown(entry.name), entry.quant, entry.n, entry.rows, read_native, read_dpl)


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
