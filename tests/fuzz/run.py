"""Coverage-guided fuzzing with atheris: python -m tests.fuzz.run TARGET CORPUS [options of libFuzzer].

Needs the package atheris, which is not among the project's test tools. TARGET: gguf_index, sidecar or verify_checks.
CORPUS: a folder, made and seeded if it is not there. docs/reliability.md has the limits and the results.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from time import process_time

import atheris

with atheris.instrument_imports(include=["repack", "verify"], enable_loader_override=False):
    from tests.fuzz.targets import SEEDS, TARGETS

from tests.fuzz import mutate


def main() -> None:
    """Fuzz until libFuzzer's limits end it."""
    name, corpus, *options = sys.argv[1:]
    folder = Path(corpus)
    folder.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(SEEDS[name]):
        (folder / f"seed-{number}").write_bytes(seed)
    atheris.Setup([sys.argv[0], str(folder), *options], _timed(TARGETS[name]), custom_mutator=_mutated)
    atheris.Fuzz()


def _timed(target: Callable[[bytes], None]) -> Callable[[bytes], None]:
    """2 s of processor time an input. libFuzzer's own limit is on the clock, which goes on while others compute."""

    def one(data: bytes) -> None:
        started = process_time()
        target(data)
        assert process_time() - started < 2

    return one


def _mutated(data: bytes, most: int, seed: int) -> bytes:
    """Half of the time libFuzzer's own changes, else one that keeps the structure."""
    random = Random(seed)
    if random.randrange(2):
        return bytes(atheris.Mutate(data, most))
    if data[:1] == b"{":
        return mutate.manifest(data, random)[:most]
    return random.choice([mutate.fields, mutate.binary])(data, random)[:most]


if __name__ == "__main__":
    main()
