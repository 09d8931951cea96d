"""The version of this tool, named here and nowhere else; asking the package metadata would cost a start 60 ms."""

NAME = "gguf-dpl"
VERSION = "0.2.0"
