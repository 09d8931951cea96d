"""The CUDA sources, as package data; every `#include` of a sibling is resolved here, so no include path is needed.

An include path would have to name the folder of the installation, which may hold any characters at all.
"""

from __future__ import annotations

import re
from importlib.resources import files

_INCLUDE = re.compile(r'^#include "(\w+\.cuh)"$', re.MULTILINE)

OPTIONS = ("--std=c++17", "--fmad=false")


def source(name: str) -> str:
    """Return the text of a kernel file (`loop.cu`, `row.cu`, `tools.cu`), complete in itself and ASCII."""
    return _INCLUDE.sub(lambda match: _read(match[1]), _read(name))


def _read(name: str) -> str:
    return files(__name__).joinpath(name).read_text("ascii")
