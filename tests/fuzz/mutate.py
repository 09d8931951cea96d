"""Changes that keep the structure: of a manifest's JSON tree, of a GGUF's numbers. Chosen by a random.Random."""

from __future__ import annotations

import copy
import json
import struct
from random import Random
from typing import Any

VALUES: list[Any] = [
    0, 1, -1, 2, 13, 14, 42, 255, 256, 4096, 2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64, 10**30, 0.0, 1.5, True,
    None, "", "a", "b", "c", "__metadata__", "\ud800", "\x1b[31m", "dpl", "0" * 64, "f" * 64, [], {}, [0], [256], [[]],
]  # fmt: skip
NUMBERS = [0, 1, 2, 3, 4, 5, 8, 9, 13, 14, 31, 32, 33, 255, 256, 512, 4096, 2**31, 2**32 - 1, 2**62, 2**63, 2**64 - 32]


def tree(value: Any, random: Random) -> Any:
    """A copy of a JSON value with one to three places changed."""
    value = copy.deepcopy(value)
    for _ in range(random.randint(1, 3)):
        places = list(_places(value))
        if not places:
            return random.choice(VALUES)
        parent, key = random.choice(places)
        match random.randrange(6):
            case 0:
                del parent[key]
            case 1 if isinstance(parent, list):
                parent.insert(key, copy.deepcopy(parent[key]))
            case 2:
                other_parent, other_key = random.choice(places)
                parent[key] = copy.deepcopy(other_parent[other_key])
            case 3 if isinstance(parent[key], int):
                parent[key] += random.choice([-256, -16, -1, 1, 2, 16, 32, 210, 224, 256])
            case 4 if isinstance(parent, dict):
                parent[random.choice(["x", "name", "left_out", "nbytes"])] = parent[key]
            case _:
                parent[key] = copy.deepcopy(random.choice(VALUES))
    return value


def _places(value: Any) -> Any:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in items:
        yield value, key
        yield from _places(child)


def manifest(data: bytes, random: Random) -> bytes:
    """`tree` for JSON as text. What is no JSON stays as it is."""
    try:
        return json.dumps(tree(json.loads(data), random)).encode()
    except (ValueError, RecursionError):
        return data


def binary(data: bytes, random: Random) -> bytes:
    """Bytes with one to four numbers overwritten, pieces removed, doubled or swapped."""
    out = bytearray(data)
    for _ in range(random.randint(1, 4)):
        at = random.randrange(len(out) + 1)
        length = min(random.choice([1, 4, 8, 16, 32, 210]), len(out) - at)
        match random.randrange(5):
            case 0:
                del out[at : at + length]
            case 1:
                out[at:at] = out[at : at + length]
            case 2:
                other = random.randrange(len(out) + 1)
                out[at : at + length] = out[other : other + length]
            case 3:
                out[at : at + 8] = struct.pack("<Q", random.choice(NUMBERS))
            case _:
                out[at : at + 4] = struct.pack("<I", random.choice(NUMBERS) & 0xFFFFFFFF)
    return bytes(out)


def fields(data: bytes, random: Random) -> bytes:
    """A GGUF with a number in its header overwritten: a count, a length, a type, a dimension, an offset."""
    head = min(len(data), 400)
    at = random.randrange(max(head - 8, 1))
    width = random.choice([4, 8])
    number = random.choice(NUMBERS) & (1 << 8 * width) - 1
    return data[:at] + number.to_bytes(width, "little") + data[at + width :]
