"""The CUDA sources, as package data; every `#include` is resolved here, so no include path is needed.

An include path would have to name the folder of the installation, which may hold any characters at all. The type is the
one thing that a source is not told by compiler options: its file takes the place of ``#include DPL_QUANT``.
"""

from __future__ import annotations

import re
from importlib.resources import files

from repack.layout import QuantType

_INCLUDE = re.compile(r'^#include (?:"([\w/]+\.cuh)"|(DPL_QUANT))$', re.MULTILINE)
_ONCE = "#pragma once\n"

OPTIONS = ("--std=c++17", "--fmad=false")


def quant_file(quant: QuantType) -> str:
    """Where what the kernels know of a type stands, below this folder."""
    return f"quants/{quant.name.lower()}.cuh"


def source(name: str, quant: QuantType) -> str:
    """Return the text of a kernel file (`loop.cu`, `row.cu`, `tools.cu`) for one type, complete in itself and ASCII."""
    done: set[str] = set()

    def resolved(match: re.Match[str]) -> str:
        included = match[1] or quant_file(quant)
        if included in done:
            return ""
        done.add(included)
        return _INCLUDE.sub(resolved, _read(included).replace(_ONCE, ""))

    return _INCLUDE.sub(resolved, _read(name))


def _read(name: str) -> str:
    return files(__name__).joinpath(name).read_text("ascii")
