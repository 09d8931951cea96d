"""`python -m verify`."""

from verify.command import main

main()
