"""The console script `repack`, and `python -m repack`."""

import gguf_dpl.strangers  # noqa: F401 - before anything of theirs could run
from gguf_dpl import hand_over
from repack.command.main import main as command


def main() -> None:
    """Entry point."""
    hand_over()
    command()
