"""The version of this tool: the one place that names it. (Asking the package metadata costs a start 60 ms.)"""

NAME = "gguf-dpl"
VERSION = "0.1.0"
