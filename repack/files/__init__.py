"""Files in and out: plain reads, outputs that appear whole or not at all, chunks of rows over a few threads."""
