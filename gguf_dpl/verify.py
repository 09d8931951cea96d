"""The console script `verify`, and `python -m verify`."""

import gguf_dpl.strangers  # noqa: F401 - before anything of theirs could run
from gguf_dpl import hand_over
from verify.command import main as command


def main() -> None:
    """Entry point."""
    hand_over()
    command()
