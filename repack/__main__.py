"""`python -m repack`."""

from repack.cli import main

main()
