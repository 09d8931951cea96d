"""`python -m repack`."""

from gguf_dpl.repack import main

main()
