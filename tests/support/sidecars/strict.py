"""A fifth reader, by hand and slow: the grammar of docs/format.md as regular expressions, its rules as one list.

It shares neither code nor approach with the others: no JSON library, no canonical writing. A text is taken apart into
tokens whose spelling says everything, and values are looked at by their tokens.
"""

from __future__ import annotations

import hashlib
import re
from math import prod
from pathlib import Path
from typing import Any

from tests.support.independent import TABLE, Kind, counts, unpack

CHARACTER = (
    r"(?:[ !#-\[\]-~]"  # as it is
    r'|\\["\\nrtbf]|\\u00(?:0[0-7bef]|1[0-9a-f]|7f|[89a-f][0-9a-f])'
    r"|\\u(?:0[1-9a-f]|[1-9abcef][0-9a-f]|d[0-7])[0-9a-f]{2}"
    r"|\\ud[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2})"
)
TOKEN = re.compile(rf'"(?P<string>{CHARACTER}*)"|(?P<number>0|-?[1-9][0-9]*)|null|true|false|[\[\]{{}}:,]')
ESCAPES = {"n": 10, "r": 13, "t": 9, "b": 8, "f": 12, '"': 34, "\\": 92}
LIMIT = 1 << 63


class No(Exception):
    """The file is refused."""


def want(condition: object) -> None:
    if not condition:
        raise No


def characters(literal: str) -> str:
    """What a string's text stands for, character by character."""
    if "\\" not in literal:
        return literal
    out: list[str] = []
    for unit in re.findall(r"\\u[0-9a-f]{4}|\\.|.", literal):
        code = ord(unit) if len(unit) == 1 else ESCAPES[unit[1]] if len(unit) == 2 else int(unit[2:], 16)
        if 0xDC00 <= code < 0xE000:
            code = 0x10000 + (ord(out.pop()) - 0xD800) * 0x400 + code - 0xDC00
        out.append(chr(code))
    return "".join(out)


class Text:
    """A manifest as tokens; `value` reads one value. Objects become lists of key, value and extent in the text."""

    def __init__(self, text: str) -> None:
        self.text, self.at, self.marks, self.depth = text, 0, 0, 0

    def token(self) -> re.Match[str]:
        found = TOKEN.match(self.text, self.at)
        if found is None:
            raise No
        self.at = found.end()
        self.marks += found[0] in ",[{"
        want(self.marks <= 1 << 20)
        return found

    def value(self) -> Any:
        token = self.token()
        if token["string"] is not None:
            return characters(token["string"])
        if token["number"] is not None:
            want(len(token[0]) <= 20 and abs(int(token[0])) < LIMIT)
            return int(token[0])
        if token[0] in {"null", "true", "false"}:
            return {"null": None, "true": True, "false": False}[token[0]]
        want(token[0] in "[{" and self.depth < 16)
        self.depth += 1
        items = self.members() if token[0] == "{" else self.items()
        self.depth -= 1
        return items

    def items(self) -> list[Any]:
        found: list[Any] = []
        if self.text[self.at : self.at + 1] == "]":
            self.token()
            return found
        while True:
            found.append(self.value())
            if self.comma("]"):
                return found

    def members(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if self.text[self.at : self.at + 1] == "}":
            self.token()
            return found
        while True:
            start = self.at
            key = self.token()["string"]
            want(key is not None and self.token()[0] == ":")
            name = characters(key)
            want(not found or list(map(ord, name)) > list(map(ord, [*found][-1])))
            found[name] = self.value()
            if self.depth == 1 and name == "manifest_sha256":
                self.seal = start, self.at + 1
            if self.comma("}"):
                return found

    def comma(self, end: str) -> bool:
        token = self.token()[0]
        want(token in {",", end})
        return token == end


def has(owner: dict[str, Any], **types: Any) -> None:
    """Members by type: a type, or a function that says whether the value will do."""
    for key, kind in types.items():
        want(key in owner and (type(owner[key]) is kind if isinstance(kind, type) else kind(owner[key])))


def whole(value: object) -> bool:
    return type(value) is int and value >= 0


def digest(value: object) -> bool:
    return type(value) is str and bool(re.fullmatch(r"[0-9a-f]{64}", value))


def every(kind: Any) -> Any:
    """A check that a value is an array of such values."""
    return lambda value: (
        type(value) is list and all(type(item) is kind if isinstance(kind, type) else kind(item) for item in value)
    )


def kinds_of(layouts: list[dict[str, Any]], text: str) -> dict[int, Kind]:
    """C7."""
    found: dict[int, Kind] = {}
    for item in layouts:
        want(list(item) == ["block_bytes", "block_weights", "name", "planes", "type"])
        has(item, block_bytes=whole, block_weights=whole, name=str, planes=every(dict), type=whole)
        for plane in item["planes"]:
            want(list(plane) == ["bytes", "name", "offset"])
            has(plane, bytes=whole, name=str, offset=whole)
        planes = tuple((plane["name"], plane["bytes"], plane["offset"]) for plane in item["planes"])
        known = TABLE.get(item["type"])
        want(known is None or known.layout() in text)
        want(1 <= item["block_weights"] <= 65536 and 1 <= item["block_bytes"] <= 65536 and len(planes) <= 16)
        kind = Kind(item["type"], item["name"], item["block_weights"], item["block_bytes"], planes, ())
        want(
            known is None
            or (known.name, known.weights, known.size, known.planes) == (kind.name, kind.weights, kind.size, planes)
        )
        want(all(size <= 65536 and offset <= 65536 for _, size, offset in planes))
        covered = [byte for _, size, offset in planes for byte in range(offset, offset + size)]
        want(sorted(covered) == list(range(item["block_bytes"])) and all(size for _, size, _ in planes))
        want(len({name for name, _, _ in planes}) == len(planes))
        want(all(number < kind.number for number in found))
        found[kind.number] = kind
    return found


def check_manifest(text: str) -> list[tuple[dict[str, Any], Kind]]:
    """C4 to C12."""
    tokens = Text(text)
    m = tokens.value()
    want(tokens.at == len(text) and type(m) is dict)
    has(m, format=dict, generator=dict, layouts=every(dict), manifest_sha256=digest, selection=dict)
    has(m, skipped=every(dict), source=dict, tensors=every(dict))
    has(
        m["format"],
        major=lambda value: type(value) is int and value == 2,
        minor=whole,
        name=lambda value: value == "dpl",
    )
    begin, end = tokens.seal
    want(hashlib.sha256((text[:begin] + text[end:]).encode()).hexdigest() == m["manifest_sha256"])
    kinds = kinds_of(m["layouts"], text)
    has(m["generator"], name=str, version=str)
    has(m["selection"], types=every(whole), include=every(str), exclude=every(str), left_out=every(str))
    for item in m["skipped"]:
        has(item, type=whole, name=str, tensors=whole, nbytes=lambda value: value is None or whole(value))
    has(m["source"], shards=every(dict), general=dict)
    want(every(str)(list(m["source"]["general"].values())))
    for shard in m["source"]["shards"]:
        has(shard, name=str, size=whole, header_sha256=digest)
        want(shard["name"] not in {"", ".", ".."} and not set(shard["name"]) & {"/", "\\", "\0"})
    found = [(facts, check_tensor(facts, kinds, m["source"]["shards"])) for facts in m["tensors"]]
    names, asked, left_out = [facts["name"] for facts, _ in found], m["selection"]["types"], m["selection"]["left_out"]
    want(found and len({*names, "__metadata__"}) == len(names) + 1)
    want({kind.number for _, kind in found} == set(kinds))
    want(asked == sorted(set(asked)) and set(kinds) <= set(asked))
    want(not set(names) & set(left_out) and (not left_out or m["selection"]["include"] + m["selection"]["exclude"]))
    return found


def check_tensor(facts: dict[str, Any], kinds: dict[int, Kind], shards: list[dict[str, Any]]) -> Kind:
    """C8 to C11."""
    has(facts, name=str, type=whole, ne=every(whole), rows=whole, n=whole, row_stride=whole, shard=whole)
    has(facts, offset=whole, nbytes=whole, sha256=digest)
    want(facts["type"] in kinds)
    kind, ne = kinds[facts["type"]], facts["ne"]
    if facts["type"] in TABLE or "nonfinite_scales" in facts or "zero_scales" in facts:
        has(facts, nonfinite_scales=whole, zero_scales=whole)
    want(1 <= len(ne) <= 4 and ne[0] % kind.weights == 0 and prod(size or 1 for size in ne) < LIMIT)
    n, rows = ne[0] // kind.weights, prod(ne[1:])
    want(kind.stride(n) < LIMIT and rows * kind.stride(n) < LIMIT)
    want((facts["n"], facts["rows"], facts["row_stride"]) == (n, rows, kind.stride(n)))
    want(facts["nbytes"] == n * rows * kind.size and facts["shard"] < len(shards))
    want(not facts["nbytes"] or facts["offset"] + facts["nbytes"] <= shards[facts["shard"]]["size"])
    return kind


def check_file(path: Path) -> None:
    """All of it, data included. Raises No."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    want(len(raw) >= 9 and 0 < length <= 33_554_432 and 8 + length <= len(raw) and (8 + length) % 4096 == 0)
    want(raw[8 : 8 + length].isascii())
    header = raw[8 : 8 + length].decode("ascii")
    found = re.compile(rf'{{"__metadata__":{{"dpl":"((?:{CHARACTER})*)"}}').match(header)
    if found is None:
        raise No
    tensors = check_manifest(characters(found[1]))
    at, begin = found.end(), 0
    for facts, kind in tensors:
        outer = facts["ne"][1:] or [1]
        end = begin + prod(outer) * facts["row_stride"]
        member = re.compile(rf',"({CHARACTER}*)":\{{"dtype":"U8","shape":\[([0-9,]+)\],"data_offsets":\[([0-9,]+)\]\}}')
        found = member.match(header, at)
        if found is None:
            raise No
        want(characters(found[1]) == facts["name"] and found[3] == f"{begin},{end}")
        want(found[2] == ",".join(str(size) for size in [*outer[::-1], facts["row_stride"]]))
        at = found.end()
        data = raw[8 + length + begin : 8 + length + end]
        want(len(data) == end - begin)
        begin = end
        check_data(data, facts, kind)
    want(header[at] == "}" and not header[at + 1 :].strip(" ") and len(raw) == 8 + length + begin)


def check_data(data: bytes, facts: dict[str, Any], kind: Kind) -> None:
    """C15 to C17."""
    want(hashlib.sha256(data).hexdigest() == facts["sha256"])
    try:
        native = unpack(data, kind, facts["n"])
    except AssertionError:
        raise No from None
    if kind.number in TABLE:
        want(counts(native, TABLE[kind.number]) == (facts["nonfinite_scales"], facts["zero_scales"]))


def accepts(path: Path) -> bool:
    try:
        check_file(path)
    except No:
        return False
    return True
