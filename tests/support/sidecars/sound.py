"""Forged sidecars at the edges of docs/format.md that every reader accepts."""

from __future__ import annotations

import struct

from tests.support.independent import KINDS, Kind, blocks, pack
from tests.support.sidecars import broken
from tests.support.sidecars.forge import T0, Forge, changed, entry, extra, holding, pattern, tiny, with_tensors

HEX = "0123456789abcdef" * 4
NAMES = (
    "\xe9\u20ac\U0001f600",
    'quo"te\\back/slash',
    "\x00\x1f\n\r\t\b\f\x7f~ ",
    "",
    "d" * 5000,
    "\U0010ffff\ue000\ud7ff",
)
DEEP = '{"a":' * 15 + "1" + "}" * 15
BELOW = (1 << 63) - 1


def unusual_d() -> Forge:
    """Super-blocks whose d is zero, subnormal, infinite or NaN, of either sign."""
    bits = (0x0000, 0x8000, 0x0001, 0x03FF, 0x7BFF, 0x7C00, 0xFC00, 0x7C01, 0x7E00, 0xFFFF)
    native = b"".join(bytes(range(208)) + struct.pack("<H", d) for d in bits)
    return holding([entry("d", [256, len(bits)], native)], pack(native, KINDS[7], 1))


def every_type(*n: int) -> Forge:
    """Tensors of three rows of `n` blocks, each of every type, whose scales are anything."""
    entries, data = [], b""
    for kind in KINDS:
        for count in n:
            native = pattern(3 * count * kind.size, kind.number) if count % 2 else blocks(kind, 3 * count)
            entries.append(entry(f"{kind.name}.{count}", [kind.weights * count, 3], native, kind))
            data += pack(native, kind, count)
    return holding(entries, data)


def later(*planes: tuple[str, int, int], number: int = 99, weights: int = 7, counted: bool = True) -> Forge:
    """A sidecar of a type that no reader knows."""
    kind = Kind(number, "\u20ac", weights, sum(size for _, size, _ in planes), planes, ())
    forged = with_tensors(("a", [weights * 3, 2]), ("b", [weights]), kind=kind)
    for facts in () if counted else forged.manifest["tensors"]:
        del facts["nonfinite_scales"], facts["zero_scales"]
    return forged


SOUND: list[Forge] = [
    unusual_d(),
    every_type(1, 2, 3, 5, 7, 33),
    with_tensors(*((f"n.{n}", [256 * n]) for n in range(1, 33))),  # SHA-256 of every length modulo 64
    tiny(),
    tiny(start=4096 * 5),
    changed("format", "minor", to=7),
    changed("format", "minor", to=BELOW),
    *(extra(text) for text in ("null", "true", "false", "-1", "0", "[]", "{}", '"\\u00e9"', DEEP, f"{BELOW}")),
    *(extra(text) for text in (f"-{BELOW}", "9" * 18, "[" * 15 + "]" * 15)),
    extra('{"\\ue000":1,"\\ud83d\\ude00":2}'),  # keys in the order of their code points, not of their UTF-16
    *(
        changed(*path, "AAA", to={"a": [1, None, {"b": ""}], "manifest_sha256": HEX, "z": 1})
        for path in ((), ("format",), ("generator",), ("selection",))
    ),
    *(
        changed(*path, "zzz", to=["\U0001f600", False])
        for path in (T0, ("source",), ("source", "shards", 0), ("skipped", 0))
    ),
    changed("zzz", to={"manifest_sha256": "x"}),
    changed("layout", to={"of": "version 1"}),
    *(changed(*T0, "native_sha256", to=value) for value in (HEX, 1)),  # a member of earlier drafts, unknown by now
    *(broken.data(at, seal=True) for at in (0, 629, 640)),  # other weights under their own digest
    changed("generator", "name", to='"manifest_sha256":"'),
    changed("source", "general", to={}),
    changed("source", "general", "other.key", to="\u20ac"),
    *(changed("source", "shards", 0, "name", to=name) for name in ("...", "..a", "a:b", "\U0001f600", " ", "-")),
    changed("skipped", to=[]),
    changed("skipped", 0, "nbytes", to=None),
    changed("skipped", 0, "type", to=1 << 31),
    tiny(lambda m: m["selection"].update(include=["("], exclude=["a", "b"], left_out=["left", "out"])),
    tiny(lambda m: m["selection"]["types"].append(40)),
    tiny(lambda m: m["selection"]["types"].insert(0, 0)),
    tiny(lambda m: m["source"]["shards"].append({"name": "b", "size": 0, "header_sha256": HEX})),
    with_tensors(*((name, [256, 1]) for name in NAMES)),
    with_tensors(("one", [768]), ("two", [512, 3]), ("three", [256, 2, 2]), ("four", [256, 2, 1, 3])),
    with_tensors(("no.rows", [256, 0])),
    with_tensors(("first", [256, 1]), ("no.rows", [512, 3, 0]), ("no.columns", [0, 7]), ("last", [2560, 1])),
    with_tensors(("huge.and.empty", [256, 0, 1 << 54]), ("a", [256, 1])),
    with_tensors(("empty.and.huge", [(1 << 63) - 256, 0]), ("a", [256, 1])),
    later(("a", 3, 0), ("d", 4, 3)),
    later(("e", 1, 0), counted=False),
    later(("\xe9", 2, 5), ("", 5, 0), weights=1, number=BELOW),
    later(("a", 65536, 0), weights=65536, number=0),
    later(*((chr(97 + at), at + 1, sum(range(at + 2, 17))) for at in range(16))),  # the last one first in the block
]
"""Files that every reader accepts."""

LARGE_ONES = [(extra("[" + "0," * (broken.ROOM + more) + "0]"), not more) for more in (0, 1)]
LARGE_ONES += [(extra('"' + ",[{" * 400_000 + '"'), True)]
"""As many commas and brackets as are allowed, one more (C4), and more of them in a string, where they do not count; and
whether a reader accepts that."""
