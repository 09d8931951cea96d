"""`python -m repack`."""

from repack.command.main import main

main()
