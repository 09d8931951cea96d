"""Whether the tests can fail: `python -m tests.mutants [WORD ...]` breaks the product, one line at a time.

Each mutant of tests/support/mutations.py is applied to a copy of the tree, and the test named beside it must turn red
there. WORD: only mutants that have it in their file, change or test. `tests/test_mutants.py` tries a few of them with
every run of the tests.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.support.mutations import MUTANTS, Mutant

ROOT = Path(__file__).parents[1]
LEFT_BEHIND = shutil.ignore_patterns(".*_cache", ".git", ".hypothesis", ".site", ".venv", "build", "dist", "*.partial")


def copy(folder: Path) -> Path:
    """The tree as it stands, compiled Python included: what does not change need not be compiled again."""
    return Path(shutil.copytree(ROOT, folder / "tree", ignore=LEFT_BEHIND))


def run(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run tests in a copy of the tree, with its own product and apart from the tests that run here."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *arguments]
    apart = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "GGUF_DPL_"))}
    apart |= {"PYTHONPATH": os.fspath(tree)}
    return subprocess.run(command, cwd=tree, env=apart, capture_output=True, text=True, check=False)


def survives(mutant: Mutant) -> str:
    """What the mutant's test says if it does not turn red; nothing if it does."""
    try:
        broken = mutant.applied((ROOT / mutant.file).read_text("utf-8"))
    except AssertionError as error:
        return str(error)
    with tempfile.TemporaryDirectory() as folder:
        tree = copy(Path(folder))
        (tree / mutant.file).write_text(broken, "utf-8")
        done = run(tree, f"tests/{mutant.test}")
    if done.returncode == 1 and " failed" in done.stdout and " error" not in done.stdout.splitlines()[-1]:
        return ""
    return f"exit code {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"


def main(words: list[str]) -> int:
    """Try the mutants; returns 1 if one survives."""
    chosen = [mutant for mutant in MUTANTS if all(word in str(mutant) for word in words)]
    with tempfile.TemporaryDirectory() as folder:
        unharmed = run(copy(Path(folder)), "-n", "auto", *sorted({f"tests/{mutant.test}" for mutant in chosen}))
    if unharmed.returncode:
        print("red without any mutant:", unharmed.stdout[-3000:])
        return 1
    survivors = 0
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for mutant, said in zip(chosen, pool.map(survives, chosen), strict=True):
            print("SURVIVES" if said else "found   ", mutant, said, flush=True)
            survivors += bool(said)
    print(f"{len(chosen) - survivors} of {len(chosen)} found")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
