"""Forged sidecars by the number of the rule in docs/format.md that they break."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import prod
from typing import Any

from tests.support.independent import TABLE, Kind
from tests.support.sidecars.forge import T0, Forge, canonical, changed, extra, marks, paths, put, tiny, with_tensors

WRONG_TYPES: tuple[Any, ...] = (None, True, -1, 1 << 63, "1", "\ud800", [], {}, [None], ...)
STILL_WRONG: tuple[Any, ...] = (-1, 1 << 63, "\ud800", [None])
"""Wrong although of the right type."""
HEX = "0123456789abcdef" * 4
ROOM = (1 << 20) - marks(canonical(tiny().manifest)) - 2
"""Commas that still fit into a member `zzz` that is an array."""


def swapped(old: str, new: str) -> Callable[[str], str]:
    """Replace the first `old`; it must be there."""

    def change(text: str) -> str:
        assert old in text, f"nothing to forge: {old}"
        return text.replace(old, new, 1)

    return change


def ne(*sizes: int, index: int = 0) -> Forge:
    """Other dimensions for a tensor, and all that follows from them."""
    kind = TABLE[tiny().manifest["tensors"][index]["type"]]
    n, rows = (sizes[0] if sizes else 0) // kind.weights, prod(sizes[1:])
    values = {"ne": list(sizes), "n": n, "rows": rows, "row_stride": kind.stride(n), "nbytes": rows * n * kind.size}

    def change(manifest: dict[str, Any]) -> None:
        manifest["tensors"][index].update(values)
        manifest["source"]["shards"][0]["size"] = (1 << 63) - 1

    return tiny(change)


def members_of_wrong_type() -> Iterator[Forge]:
    """Every member of the manifest missing, and with values of all other types."""
    for path in paths(tiny().manifest):
        if path[0] == "tensors" and path[1:2] not in {(), (0,), (10,)}:
            continue  # two of them will do
        if path[0] in {"layouts", "manifest_sha256"} or isinstance(path[-1], int) or path[:2] == ("source", "general"):
            continue
        value: Any = tiny().manifest
        for key in path:
            value = value[key]
        for wrong in WRONG_TYPES:
            if type(wrong) is type(value) and wrong not in STILL_WRONG:
                continue
            if wrong is None and path[:1] == ("skipped",) and path[-1] == "nbytes":
                continue
            forged = changed(*path, to=wrong)
            try:
                forged.to_bytes()
            except (TypeError, KeyError, AttributeError):
                continue  # the header cannot be made of it: C13 has those
            yield forged


def layouts() -> Iterator[Forge]:
    """Every member of a known layout missing or another, more members, more layouts, fewer, another order."""
    sound = canonical(tiny().manifest)
    for path in paths(tiny().manifest["layouts"]):
        values: list[Any] = [..., 1, False, True, "d", []] if path[0] in {0, 10} or len(path) == 1 else []
        for value in [*values, *([False] if path[-1] == "offset" else [])]:
            forged = changed("layouts", *path, to=value)
            if canonical(forged.manifest) != sound:
                yield forged
    yield changed("layouts", 0, "more", to=1)
    yield changed("layouts", 3, "planes", 0, "more", to=1)
    yield changed("layouts", to=...)
    yield changed("layouts", to={})
    yield tiny(lambda m: m["layouts"].reverse())
    yield tiny(lambda m: m["layouts"].insert(0, m["layouts"][0]))
    yield tiny(lambda m: m["layouts"].append({**m["layouts"][0], "type": 40}))
    yield tiny(lambda m: m["layouts"][0]["planes"].reverse())


UNKNOWN = Kind(99, "later", 64, 8, (("a", 5, 0), ("b", 3, 5)), ())
"""A type that no reader knows."""


def unknown(size: int, *planes: tuple[str, int, int], weights: int = 64) -> Forge:
    """A sidecar of one row of one block of a type that no reader knows, with these planes."""
    kind = Kind(99, "later", weights, size, planes, ())
    forged, data = with_tensors(("a", [64]), kind=UNKNOWN), bytes(min(kind.stride(1), 1 << 20))
    forged.manifest["layouts"] = [json.loads(kind.layout())]
    facts = {"ne": [weights], "row_stride": kind.stride(1), "nbytes": size, "sha256": hashlib.sha256(data).hexdigest()}
    forged.manifest["tensors"][0].update(facts)
    return replace(forged, data=data)


def unknown_layouts() -> Iterator[Forge]:
    """Planes that do not make up their block, or sizes beyond the limits."""
    yield unknown(8, ("a", 5, 0), ("b", 3, 4))
    yield unknown(9, ("a", 5, 0), ("b", 3, 6))
    yield unknown(9, ("a", 5, 0), ("b", 3, 5))
    yield unknown(8, ("a", 5, 1), ("b", 3, 6))
    yield unknown(8, ("a", 5, 0), ("a", 3, 5))
    yield unknown(8, ("a", 8, 0), ("b", 0, 8))
    yield unknown(8, ("a", 8, 0), ("b", 0, 0))
    yield unknown(8, ("a", 8, 0), ("b", 8, 0))
    yield unknown(0)
    yield unknown(8)
    yield unknown(65537, ("a", 65537, 0))
    yield unknown(17, *((chr(97 + at), 1, at) for at in range(17)))
    yield unknown(8, ("a", 8, 0), weights=0)
    yield unknown(8, ("a", 8, 0), weights=65537)
    yield unknown(8, ("a", (1 << 63) - 1, 0), ("b", 9, (1 << 63) - 1))


def twice() -> Forge:
    return tiny(lambda m: m["tensors"].insert(1, m["tensors"][0]), data=tiny().data[:1280] + tiny().data)


def count(kind: Kind, key: str) -> Forge:
    """A tensor of a type that no reader knows, with one of the two counts only."""
    forged = with_tensors(("a", [64, 3]), kind=kind)
    del forged.manifest["tensors"][0][key]
    return forged


def cut(size: int) -> Forge:
    return tiny(file=lambda raw: raw[:size])


BROKEN: dict[str, list[Forge]] = {
    "C1": [
        *(cut(size) for size in (0, 1, 7, 8, 9, 100, 4095)),
        *(tiny(length=length) for length in (0, 1, 1 << 25, (1 << 64) - 1, (1 << 63) + 8184, 4088, 12280)),
        tiny(start=(1 << 25) + 4096),
    ],
    "C2": [tiny(start=start) for start in (7168, 8192 + 16, 8192 + 8, 12287)],
    "C3": [
        tiny(header=lambda text: f" {text}"),
        tiny(header=swapped('{"__metadata__":{', '{"__metadata__": {')),
        tiny(header=swapped('{"dpl":', '{"a":"b","dpl":')),
        tiny(header=swapped('{"dpl":', '{"DPL":')),
        tiny(literal=lambda _: "{}"),
        tiny(literal=swapped("dpl", "\\u0064pl")),
        tiny(literal=swapped("dpl", "d\\/pl")),
        tiny(literal=swapped("dpl", "d\tpl")),
        tiny(literal=lambda text: text[:-1]),
    ],
    "C4": [
        tiny(text=swapped(",", ", ")),
        tiny(text=lambda text: f"{text} "),
        tiny(text=lambda text: f"{text}{text}"),
        tiny(after=lambda text: f"[{text}]"),
        tiny(after=lambda text: text[:-1]),
        tiny(after=lambda _: ""),
        tiny(after=lambda _: '"dpl"'),
        tiny(text=swapped('"major":2,"minor":0', '"minor":0,"major":2')),
        tiny(text=swapped('"minor":0', '"minor":0,"minor":0')),
        *(tiny(text=swapped('"minor":0', f'"minor":{number}')) for number in ("00", "-0", "0.0", "0e0", "+0", " 0")),
        *(
            tiny(text=swapped('"golden"', f'"{text}"'))
            for text in ("\\u0067olden", "g\\/", "\\u00E9", "\\u000a", "\\x")
        ),
        *(
            tiny(text=swapped('"golden"', f'"{text}"'))
            for text in ("\\ud800", "\\udc00\\ud800", "g\x7f", "g\xe9", "g\n")
        ),
        *(
            tiny(text=swapped('"golden"', f'"{text}"'))
            for text in ("\\u00e", "\\", "\\u0022", "\\u005c", "\\u0", "\\u007e", "\\u0020")
        ),
        *(
            extra(text)
            for text in (
                "01",
                "-01",
                "-",
                "-0",
                "--1",
                "+1",
                "9223372036854775808",
                "-9223372036854775808",
                "9" * 19,
                "1" * 400,
                '"\\ud800"',
                '{"\\udfff":1}',
                '["\\ud83d\\u0041"]',
                "True",
                "nul",
                "1.5",
                "1e2",
                "tru",
                "[1,]",
                "[,1]",
                '{"b":1,"a":1}',
                '{"a":1,"a":1}',
                "{1:1}",
                "'a'",
            )
        ),
        *(extra(text) for text in ("[" * 16 + "]" * 16, '{"a":' * 16 + "1" + "}" * 16)),
        *(extra(text) for text in ("[" * 100_000, "[" * 100_000 + "]" * 100_000, "NaN", "Infinity", "", "[1 ]")),
    ],
    "C5": [
        changed("format", "name", to="dpm"),
        *(changed("format", "major", to=major) for major in (0, 1, 3, 10**10)),
    ],
    "C6": [
        tiny(after=swapped("golden", "silver")),
        tiny(after=swapped('"zero_scales":0', '"zero_scales":1')),
        tiny(after=swapped('"manifest_sha256":"', '"manifest_sha256":"0')),
        tiny(after=lambda text: text.replace('"manifest_sha256":"', '"manifest_sha256":"A', 1)),
        tiny(after=swapped("}]}", '}],"zzz":1}')),
    ],
    "C7": [*layouts(), *unknown_layouts()],
    "C8": [
        *members_of_wrong_type(),
        changed("source", "general", "general.name", to=1),
        changed("source", "shards", 0, to=1),
        changed("skipped", 0, to=[]),
        *(changed("selection", key, to=[1]) for key in ("include", "exclude", "left_out")),
        *(changed("selection", "types", to=[value]) for value in ("2", True, None, -2, [2])),
        *(count(UNKNOWN, key) for key in ("nonfinite_scales", "zero_scales")),
        *(changed(*T0, "sha256", to=text) for text in (HEX.upper(), HEX[1:], HEX + "0")),
        changed("source", "shards", 0, "header_sha256", to="g" * 64),
        tiny(lambda manifest: put(manifest, ("tensors",), []), data=b""),
        tiny(after=swapped('"manifest_sha256":', '"manifest_sha257":')),
    ],
    "C9": [
        *(
            ne(*sizes)
            for sizes in ((), (255, 2), (128, 2), (256, 1, 1, 1, 1), (768, 1 << 54), (1 << 62, 2), (0, 1 << 62, 2))
        ),
        *(ne(*sizes) for sizes in ((256, 0, 1 << 62), (1 << 32, 1 << 32), (256, 1 << 62, 1 << 62, 1 << 62))),
        *(ne(*sizes, index=5) for sizes in ((33, 2), (256, 1 << 55), ((1 << 63) - 32, 1), ((1 << 63) - 32, 0))),
    ],
    "C10": [
        changed(*T0, key, to=tiny().manifest["tensors"][0][key] + more)
        for key in ("type", "rows", "n", "row_stride", "nbytes")
        for more in (1, -1, 16, 1 << 62)
        if tiny().manifest["tensors"][0][key] + more >= 0
    ],
    "C11": [
        *(changed(*T0, "shard", to=shard) for shard in (1, 1 << 32, (1 << 63) - 1)),
        *(changed(*T0, "offset", to=offset) for offset in (4896 - 1259, 4896, (1 << 63) - 1)),
        changed("source", "shards", 0, "size", to=2047),
        changed("source", "shards", to=[]),
        *(changed("source", "shards", 0, "name", to=name) for name in ("", ".", "..", "../x", "a/b", "/", "\\", "a\0")),
    ],
    "C12": [
        twice(),
        with_tensors(("__metadata__", [256, 1])),
        with_tensors(("a", [256, 1]), ("b", [256, 1]), ("a", [256, 2])),
        changed("selection", "left_out", to=["left.out"]),
        changed("selection", "types", to=[14]),
        changed("selection", "types", to=[]),
        tiny(lambda m: m["selection"]["types"].reverse()),
        tiny(lambda m: m["selection"]["types"].append(39)),
        tiny(lambda m: m["selection"]["types"].insert(0, 2)),
        tiny(lambda m: m["selection"].update(include=["blk"], left_out=["blk.0.ffn_down.weight"])),
    ],
    "C13": [
        *(
            tiny(header=swapped(old, new))
            for old, new in (
                ('"U8"', '"I8"'),
                ("[2,640]", "[640,2]"),
                ("[2,640]", "[1280]"),
                ("[2,2,64]", "[4,64]"),
                ("[1,2,1,64]", "[1,1,2,64]"),
                ("[1,432]", "[432]"),
                ("[0,1280]", "[0,1264]"),
                ("[0,1280]", "[0,1296]"),
                ("[1280,1408]", "[1296,1424]"),
                ('"dtype":"U8","shape":[2,640]', '"shape":[2,640],"dtype":"U8"'),
                ('},"blk.0.ffn_down.weight"', '}, "blk.0.ffn_down.weight"'),
                ('},"blk.0.ffn_down.weight"', '},"Blk.0.ffn_down.weight"'),
                ('},"blk.0.ffn_down.weight"', '},"\\u0062lk.0.ffn_down.weight"'),
                ("4112]}}", "4112]}}}"),
                ("4112]}}", "2176]}"),
                ("4112]}}", "4112]}}\t"),
                ("4112]}}", "4112]}}\0"),
                ("4112]}}", '2176]},"more":{"dtype":"U8","shape":[0],"data_offsets":[2176,4112]}}'),
                ('"},"blk', '","more":"x"},"blk'),
            )
        ),
        tiny(header=lambda text: text[: text.index(',"blk.0.ffn_up_exps')] + "}"),
    ],
    "C14": [
        *(tiny(file=lambda raw, size=size: raw[:-size]) for size in (1, 16, 64, 4112)),
        *(tiny(file=lambda raw, size=size: raw + b"\0" * size) for size in (1, 16, 4096)),
        ne(256, 1 << 50),
    ],
}
"""Files that a reader refuses before it looks at the data."""


def data(at: int, *, seal: bool) -> Forge:
    """The golden sidecar with one bit of its data flipped; seal: `sha256` follows."""
    raw = bytearray(tiny().data)
    raw[at] ^= 1

    def change(manifest: dict[str, Any]) -> None:
        begin = 0
        for entry in manifest["tensors"] if seal else ():
            end = begin + entry["rows"] * entry["row_stride"]
            entry["sha256"] = hashlib.sha256(raw[begin:end]).hexdigest()
            begin = end

    return tiny(change, data=bytes(raw))


def paddings() -> Iterator[int]:
    """The first and the last byte of the padding behind each plane of each tensor's last row."""
    end = 0
    for entry in tiny().manifest["tensors"]:
        end += entry["rows"] * entry["row_stride"]
        kind, row = TABLE[entry["type"]], end - entry["row_stride"]
        for (_, size, _), start in zip(kind.planes, kind.starts(entry["n"]), strict=True):
            used, following = start + size * entry["n"], start + (size * entry["n"] + 15) // 16 * 16
            yield from {row + used, row + following - 1} if used < following else ()


BROKEN_DATA: dict[str, list[Forge]] = {
    "C15": [data(at, seal=False) for at in (0, 640, 1279, 1280, 4111, *range(7, 4112, 64))],
    "C16": [data(at, seal=True) for at in (630, 639, 1279, *paddings())],
    "C17": [
        *(changed("tensors", at, key, to=2) for key in ("nonfinite_scales", "zero_scales") for at in range(11)),
        *(data(at, seal=True) for at in (1526, 4033)),  # the zero and the NaN among the scales
    ],
}
"""Files that only a reader of the data refuses."""
