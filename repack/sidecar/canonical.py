"""JSON that is taken at its word only: one spelling, no key twice, bounded, and every value asked for by its type."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from repack.errors import Damaged, shown

BOUND = 1 << 63
"""Integers lie between -BOUND and BOUND; those that the format names are at least 0."""
MAX_DEPTH = 16
"""Most brackets open at the same time, the manifest's own included."""
MAX_VALUES = 1 << 20
"""Most commas and opening brackets outside strings; 60,000 tensors have fewer. Values cost 20 times their text."""

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)


def canonical(value: object) -> str:
    """JSON with sorted keys, without spaces, ASCII only."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def parse(text: str, where: str) -> StrictObject:
    """The manifest, an object within the limits of the format. Raises Damaged.

    Whether it is canonical is for `require_canonical`: another version may have other rules, and is to be told first.
    """
    if not text.isascii() or (_marks(text) > MAX_VALUES and _marks(_STRING.sub('""', text)) > MAX_VALUES):
        raise Damaged(f"the manifest is not ASCII or has more than {MAX_VALUES} values", where=where)
    try:
        value = _DECODER.decode(text)
        deep = _depth(value) > MAX_DEPTH
    except ValueError:
        raise Damaged("the manifest is not JSON", where=where) from None
    except RecursionError:
        deep = True
    if deep:
        raise Damaged("the manifest is nested too deeply", where=where, expected=f"<= {MAX_DEPTH} brackets")
    if not isinstance(value, dict):
        raise Damaged("the manifest is not an object", where=where)
    return StrictObject(value, where, "the manifest")


def require_canonical(root: StrictObject, text: str) -> None:
    """Raise Damaged unless `text`, from which `root` was parsed, is the one spelling of it that the format allows."""
    lone = "\\ud" in text and not _is_unicode(json.dumps(root.items, ensure_ascii=False))
    if lone or canonical(root.items) != text:
        raise Damaged("the manifest is not an object in canonical JSON", where=root.where)


def _marks(text: str) -> int:
    return text.count(",") + text.count("[") + text.count("{")


def _depth(value: Any) -> int:
    """Brackets that are open at the deepest place; looks no deeper than one beyond the limit."""
    level, depth = [value], 0
    while depth <= MAX_DEPTH and (level := [item for item in level if isinstance(item, (dict, list))]):
        depth += 1
        level = [child for item in level for child in (item.values() if isinstance(item, dict) else item)]
    return depth


def _no_fraction(text: str) -> None:
    raise ValueError(f"{text} is no integer")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    items = dict(pairs)
    if len(items) != len(pairs):
        raise ValueError("duplicate key")
    return items


def _bounded(digits: str) -> int:
    """An integer of JSON, which may have any number of digits: to read them takes quadratic time."""
    if len(digits) > 20 or not -BOUND < int(digits) < BOUND:
        raise ValueError("integer out of range")
    return int(digits)


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique_keys, parse_int=_bounded, parse_float=_no_fraction, parse_constant=_no_fraction
)


def _is_unicode(text: str) -> bool:
    """JSON can escape half of a surrogate pair; no GGUF name can hold it, and stock readers refuse it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class StrictObject:
    """A JSON object whose members are asked for by type; a wrong one is named."""

    items: dict[str, Any]
    where: str
    path: str

    def wrong(self, key: str, expected: object) -> Damaged:
        """The error that says what stands under `key` and what should."""
        found = "nothing" if key not in self.items else shown(canonical(self.items[key]))
        return Damaged(f"`{key}` of {self.path} is wrong", where=self.where, found=found, expected=expected)

    def text(self, key: str) -> str:
        """A string."""
        value = self.items.get(key)
        if not isinstance(value, str):
            raise self.wrong(key, "a string")
        return value

    def sha256(self, key: str) -> str:
        """A digest in small hexadecimal digits."""
        value = self.text(key)
        if len(value) != 64 or set(value) - set("0123456789abcdef"):
            raise self.wrong(key, "64 hexadecimal digits")
        return value

    def integer(self, key: str) -> int:
        """An integer from 0 to 2^63 - 1; neither a boolean nor a float."""
        value = self.items.get(key)
        if type(value) is not int or value < 0:
            raise self.wrong(key, "an integer of 0 or more")
        return value

    def array(self, key: str) -> list[Any]:
        """An array of anything."""
        value = self.items.get(key)
        if not isinstance(value, list):
            raise self.wrong(key, "an array")
        return value

    def integers(self, key: str) -> tuple[int, ...]:
        """An array of integers from 0 to 2^63 - 1."""
        values = self.array(key)
        if any(type(value) is not int or value < 0 for value in values):
            raise self.wrong(key, "integers of 0 or more")
        return tuple(values)

    def texts(self, key: str) -> tuple[str, ...]:
        """An array of strings."""
        values = self.array(key)
        if not all(isinstance(value, str) for value in values):
            raise self.wrong(key, "strings")
        return tuple(values)

    def obj(self, key: str) -> StrictObject:
        """An object."""
        value = self.items.get(key)
        if not isinstance(value, dict):
            raise self.wrong(key, "an object")
        return StrictObject(value, self.where, f"`{key}` in {self.path}")

    def objects(self, key: str) -> list[StrictObject]:
        """An array of objects."""
        values = self.array(key)
        if not all(isinstance(value, dict) for value in values):
            raise self.wrong(key, "objects")
        return [
            StrictObject(value, self.where, f"`{key}[{index}]` in {self.path}") for index, value in enumerate(values)
        ]
