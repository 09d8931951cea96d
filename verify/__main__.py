"""`python -m verify`."""

from gguf_dpl.verify import main

main()
