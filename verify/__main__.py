"""`python -m verify`."""

from verify.cli import main

main()
