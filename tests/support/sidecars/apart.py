"""A sidecar taken apart by the statements of docs/format.md, and that page itself; struct and json only."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from tests.conftest import mixed_model
from tests.support.models import Q6_K
from tests.support.readers import CONSUMERS

FORMAT = (CONSUMERS.parent / "format.md").read_text()
FIELDS = {"ql": (0, 128), "qh": (128, 64), "scales": (192, 16), "d": (208, 2)}


class File:
    """A sidecar taken apart by the statements of section 2."""

    def __init__(self, path: Path) -> None:
        self.raw = path.read_bytes()
        (self.length,) = struct.unpack_from("<Q", self.raw)
        self.start = 8 + self.length
        self.header = self.raw[8 : self.start].decode("ascii")
        self.members = json.loads(self.header)
        self.text = self.members.pop("__metadata__")["dpl"]
        self.manifest: dict[str, Any] = json.loads(self.text)
        self.tensors: list[dict[str, Any]] = self.manifest["tensors"]

    def data(self, name: str) -> bytes:
        begin, end = self.members[name]["data_offsets"]
        return self.raw[self.start + begin : self.start + end]


def natives() -> dict[str, bytes]:
    """The native bytes of the model's tensors, by name."""
    return {str(t.name): t.payload() for t in mixed_model().tensors if t.type == Q6_K}


def section(title: str) -> str:
    return FORMAT.split(f"\n## {title}", 1)[1].split("\n## ", 1)[0]
