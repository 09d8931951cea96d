"""Forged sidecars at the edges of docs/format.md that every reader accepts."""

from __future__ import annotations

import struct

from tests.support.sidecars import broken
from tests.support.sidecars.forge import T0, Forge, changed, entry, extra, tiny, with_tensors

HEX = "0123456789abcdef" * 4
NAMES = (
    "\xe9\u20ac\U0001f600",
    'quo"te\\back/slash',
    "\x00\x1f\n\r\t\b\f\x7f~ ",
    "",
    "d" * 5000,
    "\U0010ffff\ue000\ud7ff",
)
DEEP = '{"a":' * 7 + "1" + "}" * 7


def unusual_d() -> Forge:
    """Super-blocks whose d is zero, subnormal, infinite or NaN, of either sign."""
    bits = (0x0000, 0x8000, 0x0001, 0x03FF, 0x7BFF, 0x7C00, 0xFC00, 0x7C01, 0x7E00, 0xFFFF)
    data = b"".join(bytes(range(208)) + struct.pack("<H", d) + bytes(14) for d in bits)
    return tiny(lambda m: m.update(tensors=[entry("d", [256, len(bits)], data)], source=LARGE), data=data)


LARGE = {"general": {}, "shards": [{"name": "large", "size": 1 << 40, "header_sha256": HEX}]}

SOUND: list[Forge] = [
    unusual_d(),
    with_tensors(*((f"n.{n}", [256 * n]) for n in range(1, 33))),  # SHA-256 of every length modulo 64
    tiny(),
    tiny(start=4096 * 5),
    changed("format", "minor", to=7),
    *(extra(text) for text in ("null", "true", "-1", "0", "[]", "{}", '"\\u00e9"', DEEP, "9" * 18, "[[[[[[[1]]]]]]]")),
    *(
        changed(*path, "AAA", to={"a": [1, None, {"b": ""}]})
        for path in ((), ("format",), ("generator",), ("selection",))
    ),
    *(
        changed(*path, "zzz", to=["\U0001f600", False])
        for path in (T0, ("source",), ("source", "shards", 0), ("skipped", 0))
    ),
    changed("zzz", to={"manifest_sha256": "x"}),
    *(changed(*T0, "native_sha256", to=value) for value in (HEX, 1)),  # a member of earlier drafts, unknown by now
    *(broken.data(at, seal=True) for at in (0, 629, 640)),  # other weights under their own digest
    changed("generator", "name", to='"manifest_sha256":"'),
    changed("source", "general", to={}),
    changed("source", "general", "other.key", to="\u20ac"),
    changed("skipped", to=[]),
    changed("skipped", 0, "nbytes", to=None),
    changed("skipped", 0, "type", to=1 << 31),
    tiny(lambda m: m["selection"].update(include=["("], exclude=["a", "b"], left_out=["left", "out"])),
    tiny(lambda m: m["source"]["shards"].append({"name": "b", "size": 0, "header_sha256": HEX})),
    with_tensors(*((name, [256, 1]) for name in NAMES)),
    with_tensors(("one", [768]), ("two", [512, 3]), ("three", [256, 2, 2]), ("four", [256, 2, 1, 3])),
    with_tensors(("no.rows", [256, 0])),
    with_tensors(("first", [256, 1]), ("no.rows", [512, 3, 0]), ("no.columns", [0, 7]), ("last", [2560, 1])),
    with_tensors(("huge.and.empty", [256, 0, 1 << 54]), ("a", [256, 1])),
]
"""Files that every reader accepts."""
