"""Stage provenance: whether the model's files are those whose SHA-256 somebody wrote down.

All other stages prove that the sidecar equals this GGUF, not that this GGUF is its publisher's. A digest from the
publisher closes that gap as far as the digest itself can be trusted. Every byte of each file is read once more.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from repack.errors import Differs, DplError, UsageError
from repack.files.reading import read_into
from verify.pairs import Files
from verify.verdict import Verdict

_PIECE = 4 << 20
_HEX = frozenset("0123456789abcdef")


def parse_sha256(text: str) -> str:
    """Give a SHA-256 as 64 lower-case digits. Raises UsageError if it is none."""
    digits = text.lower()
    if len(digits) != 64 or not set(digits) <= _HEX:
        raise UsageError("--expect-sha256 is no SHA-256", found=f"{len(text)} characters", expected="64 hex digits")
    return digits


def check_provenance(
    expected: Sequence[str],
    files: Files,
    meter: Callable[[str, int], AbstractContextManager[Callable[[int], None]]],
    verdict: Verdict,
) -> None:
    """Compare the digest of every shard, in their order, with the expected one."""
    try:
        if len(expected) != len(files.shards):
            hint = "give --expect-sha256 once for each file, in the order of the shards"
            raise UsageError(
                "files and digests do not match", found=len(expected), expected=len(files.shards), hint=hint
            )
        sizes = [os.fstat(fd).st_size for fd in files.shards]
        with meter("hashing", sum(sizes)) as progress:
            before = 0
            for fd, name, size, wanted in zip(files.shards, files.shard_names, sizes, expected, strict=True):
                found = _sha256(fd, size, name, before, progress)
                before += size
                if found != wanted:
                    hint = "this is another file than the one the digest was taken from"
                    raise Differs("has another SHA-256", where=name, found=found, expected=wanted, hint=hint)
    except DplError as error:
        verdict.failed("provenance", error)
        return
    verdict.passed("provenance", detail="the SHA-256 is the expected one" + (" for every shard" * (len(expected) > 1)))


def _sha256(fd: int, size: int, where: str, before: int, progress: Callable[[int], None]) -> str:
    digest, piece = hashlib.sha256(), bytearray(_PIECE)
    for offset in range(0, size, _PIECE):
        view = memoryview(piece)[: min(_PIECE, size - offset)]
        read_into(fd, view, offset, where)
        digest.update(view)
        progress(before + offset + len(view))
    return digest.hexdigest()
