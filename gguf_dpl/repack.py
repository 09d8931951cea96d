"""The console script `repack`, and `python -m repack`."""

from gguf_dpl import hand_over
from repack.command.main import main as command


def main() -> None:
    """Entry point."""
    hand_over()
    command()
