"""Forged sidecars by the number of the rule in docs/format.md that they break."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

from tests.support.sidecars.forge import T0, Forge, changed, extra, paths, put, tiny, with_tensors

WRONG_TYPES: tuple[Any, ...] = (None, True, -1, 1 << 63, "1", "\ud800", [], {}, [None], ...)
STILL_WRONG: tuple[Any, ...] = (-1, 1 << 63, "\ud800", [None])
"""Wrong although of the right type."""
HEX = "0123456789abcdef" * 4


def swapped(old: str, new: str) -> Callable[[str], str]:
    """Replace the first `old`; it must be there."""

    def change(text: str) -> str:
        assert old in text, f"nothing to forge: {old}"
        return text.replace(old, new, 1)

    return change


def ne(*sizes: int) -> Forge:
    """Other dimensions for the first tensor, and all that follows from them."""
    n, rows = (sizes[0] if sizes else 0) // 256, 1
    for size in sizes[1:]:
        rows *= size
    values = {"ne": list(sizes), "n": n, "rows": rows, "row_stride": -(-210 * n // 16) * 16, "nbytes": rows * n * 210}

    def change(manifest: dict[str, Any]) -> None:
        manifest["tensors"][0].update(values)
        manifest["source"]["shards"][0]["size"] = (1 << 63) - 1

    return tiny(change)


def members_of_wrong_type() -> Iterator[Forge]:
    """Every member of the manifest missing, and with values of all other types."""
    for path in paths(tiny().manifest):
        if path[0] in {"layout", "manifest_sha256"} or isinstance(path[-1], int) or path[:2] == ("source", "general"):
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
    for path in paths(tiny().manifest["layout"]):
        yield changed("layout", *path, to=...)
        yield changed("layout", *path, to=1)
    yield changed("layout", "more", to=1)
    yield changed("layout", "fields", 0, "more", to=1)
    yield changed("layout", to=...)


def twice() -> Forge:
    first = tiny().data[:1280]
    return tiny(lambda m: m["tensors"].insert(1, m["tensors"][0]), data=first + tiny().data)


def cut(size: int) -> Forge:
    return tiny(file=lambda raw: raw[:size])


BROKEN: dict[str, list[Forge]] = {
    "C1": [
        *(cut(size) for size in (0, 1, 7, 8, 9, 100, 4095)),
        *(tiny(length=length) for length in (0, 1, 1 << 25, (1 << 64) - 1, (1 << 63) + 4088, 8184)),
        tiny(start=(1 << 25) + 4096),
    ],
    "C2": [tiny(start=start) for start in (2048, 4096 + 16, 4096 + 8, 8191)],
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
        tiny(text=swapped('"major":1,"minor":0', '"minor":0,"major":1')),
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
                "-",
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
        *(extra(text) for text in ("[" * 100_000, "[" * 100_000 + "]" * 100_000, "NaN", "Infinity", "", "[1 ]")),
    ],
    "C5": [
        changed("format", "name", to="dpm"),
        *(changed("format", "major", to=major) for major in (0, 2, 10**10)),
    ],
    "C6": [
        tiny(after=swapped("golden", "silver")),
        tiny(after=swapped('"zero_d":0', '"zero_d":1')),
        tiny(after=swapped('"manifest_sha256":"', '"manifest_sha256":"0')),
        tiny(after=lambda text: text.replace('"manifest_sha256":"', '"manifest_sha256":"A', 1)),
        tiny(after=swapped("}]}", '}],"zzz":1}')),
    ],
    "C7": list(layouts()),
    "C8": [
        *members_of_wrong_type(),
        changed("source", "general", "general.name", to=1),
        changed("source", "shards", 0, to=1),
        changed("skipped", 0, to=[]),
        *(changed("selection", key, to=[1]) for key in ("include", "exclude", "left_out")),
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
    ],
    "C10": [
        changed(*T0, key, to=tiny().manifest["tensors"][0][key] + more)
        for key in ("type", "rows", "n", "row_stride", "nbytes")
        for more in (1, -1, 16, 1 << 62)
        if tiny().manifest["tensors"][0][key] + more >= 0
    ],
    "C11": [
        *(changed(*T0, "shard", to=shard) for shard in (1, 1 << 32, (1 << 63) - 1)),
        *(changed(*T0, "offset", to=offset) for offset in (2496 - 1259, 2496, (1 << 63) - 1)),
        changed("source", "shards", 0, "size", to=1632 + 839),
        changed("source", "shards", to=[]),
    ],
    "C12": [
        twice(),
        with_tensors(("__metadata__", [256, 1])),
        with_tensors(("a", [256, 1]), ("b", [256, 1]), ("a", [256, 2])),
        changed("selection", "left_out", to=["left.out"]),
        tiny(lambda m: m["selection"].update(include=["blk"], left_out=["blk.0.ffn_down.weight"])),
    ],
    "C13": [
        *(
            tiny(header=swapped(old, new))
            for old, new in (
                ('"U8"', '"I8"'),
                ("[2,640]", "[640,2]"),
                ("[2,640]", "[1280]"),
                ("[2,2,224]", "[4,224]"),
                ("[0,1280]", "[0,1264]"),
                ("[0,1280]", "[0,1296]"),
                ("[1280,2176]", "[1296,2192]"),
                ('"dtype":"U8","shape":[2,640]', '"shape":[2,640],"dtype":"U8"'),
                ('},"blk.0.ffn_down.weight"', '}, "blk.0.ffn_down.weight"'),
                ('},"blk.0.ffn_down.weight"', '},"Blk.0.ffn_down.weight"'),
                ('},"blk.0.ffn_down.weight"', '},"\\u0062lk.0.ffn_down.weight"'),
                ("2176]}}", "2176]}}}"),
                ("2176]}}", "2176]}"),
                ("2176]}}", "2176]}}\t"),
                ("2176]}}", "2176]}}\0"),
                ("2176]}}", '2176]},"more":{"dtype":"U8","shape":[0],"data_offsets":[2176,2176]}}'),
                ('"},"blk', '","more":"x"},"blk'),
            )
        ),
        tiny(header=lambda text: text[: text.index(',"blk.0.ffn_down_exps')] + "}"),
    ],
    "C14": [
        *(tiny(file=lambda raw, size=size: raw[:-size]) for size in (1, 16, 224, 2176)),
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
        if seal:
            manifest["tensors"][0]["sha256"] = hashlib.sha256(raw[:1280]).hexdigest()

    return tiny(change, data=bytes(raw))


BROKEN_DATA: dict[str, list[Forge]] = {
    "C15": [data(at, seal=False) for at in (0, 640, 1279, 1280, 2175)],
    "C16": [data(at, seal=True) for at in (630, 639, 1279)],
    "C17": [changed(*T0, key, to=1) for key in ("nonfinite_d", "zero_d")],
}
"""Files that only a reader of the data refuses."""
