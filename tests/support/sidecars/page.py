"""docs/format.md itself, and its formulas for weights (R5), written down again from the page."""

from __future__ import annotations

import struct
from pathlib import Path

from tests.support.independent import Kind

FORMAT = (Path(__file__).parents[3] / "docs" / "format.md").read_text()
K = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
E = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


def section(title: str) -> str:
    return FORMAT.split(f"\n## {title}", 1)[1].split("\n## ", 1)[0]


def weights(block: bytes, kind: Kind) -> list[float]:
    """The weights of one block."""
    field = {name: block[at : at + size] for name, size, at in kind.planes}
    return [weight(kind.name, field, j) for j in range(kind.weights)]


def nibble(a: bytes, j: int) -> int:
    return a[j % 16] >> 4 * (j // 16) & 15


def weight(name: str, field: dict[str, bytes], j: int) -> float:
    """Weight j of a block of a type, as the page has it."""
    d, m = 0.0, 0.0
    if "d" in field:
        (d,) = struct.unpack("<e", field["d"])
    if "dm" in field:
        d, m = struct.unpack("<ee", field["dm"])
    qs = field.get("qs", b"")
    if name == "Q4_0":
        return d * (nibble(qs, j) - 8)
    if name == "Q4_1":
        return d * nibble(qs, j) + m
    if name in {"Q5_0", "Q5_1"}:
        quant = nibble(qs, j) + 16 * (int.from_bytes(field["qh"], "little") >> j & 1)
        return d * (quant - 16) if name == "Q5_0" else d * quant + m
    if name == "Q8_0":
        return d * float(struct.unpack("<32b", qs)[j])
    if name == "IQ4_NL":
        return d * K[nibble(qs, j)]
    if name == "MXFP4":
        return float(E[nibble(qs, j)]) * float(2.0 ** (field["e"][0] - 128))
    if name == "Q6_K":
        low = field["ql"][64 * (j // 128) + j % 64] >> 4 * (j % 128 // 64) & 15
        high = field["qh"][32 * (j // 128) + j % 32] >> 2 * (j % 128 // 32) & 3
        return d * float(struct.unpack("<16b", field["scales"])[j // 16]) * (low + 16 * high - 32)
    if name == "IQ4_XS":
        i = j // 32
        high = int.from_bytes(field["scales_h"], "little")
        scale = (field["scales_l"][i // 2] >> 4 * (i % 2) & 15) + 16 * (high >> 2 * i & 3)
        return d * (scale - 32) * K[nibble(qs[16 * i :], j % 32)]
    quant = qs[32 * (j // 128) + j % 32] >> 2 * (j % 128 // 32) & 3
    scales = field["scales"]
    if name == "Q2_K":
        return d * (scales[j // 16] & 15) * quant - m * (scales[j // 16] >> 4)
    i, bit = j // 16, field["hmask"][j % 32] >> (j // 32) & 1
    scale = (scales[i % 8] >> 4 * (i // 8) & 15) + 16 * (scales[8 + i % 4] >> 2 * (i // 4) & 3)
    return d * (scale - 32) * (quant - 4 + 4 * bit)
