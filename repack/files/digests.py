"""SHA-256 of tensors that come in chunks: one after the other over a tensor, side by side over several."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

from repack.files.chunks import Chunk
from repack.rows import Bytes
from repack.sidecar.manifest import Entry


class Digests:
    """The digests of `entries`, fed by `streams` threads; to be used in a ``with`` block, whose end waits for them."""

    def __init__(self, entries: Sequence[Entry], streams: int) -> None:
        self._digests = [hashlib.sha256() for _ in entries]
        self._threads = [ThreadPoolExecutor(1, "sha") for _ in range(streams)]

    def feed(self, chunk: Chunk, data: Bytes) -> Future[None]:
        """Add `data`, which must stay as it is until the result is there, to the digest of the chunk's tensor."""
        return self._threads[chunk.stream].submit(self._digests[chunk.tensor].update, data.data)

    def in_hex(self) -> list[str]:
        """All digests in hexadecimal, after the block."""
        return [digest.hexdigest() for digest in self._digests]

    def __enter__(self) -> Digests:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for thread in self._threads:
            thread.shutdown(cancel_futures=kind is not None)
