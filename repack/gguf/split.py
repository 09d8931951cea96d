"""The files of a split model: how many there are, what they are called, and whether each belongs to it.

File names count from 1 (``NAME-00001-of-00003.gguf``), the metadata (split.no) from 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from repack.errors import Damaged, UsageError, shown
from repack.gguf.header import Scalar

_NAME = re.compile(r"(?P<prefix>.*)-(?P<no>\d{5})-of-(?P<count>\d{5})(?P<suffix>\.gguf)", re.DOTALL | re.IGNORECASE)


def shard_count(path: Path, metadata: Mapping[str, Scalar]) -> int:
    """How many files the model has; 1 if it is whole. Raises Damaged if the name and the metadata disagree."""
    count = metadata.get("split.count", 0)
    if not isinstance(count, int):
        raise Damaged("split.count is no integer", where=shown(path), found=shown(count))
    name = _NAME.fullmatch(path.name)
    if count > 1 or name is None or int(name["count"]) <= 1:
        return max(count, 1)
    what = f"is named as one of {int(name['count'])} shards, but its metadata do not say so (split.count)"
    hint = "split the model again with llama-gguf-split, or rename this file if it is a whole model"
    raise Damaged(what, where=shown(path), hint=hint)


def siblings_of(path: Path, count: int, metadata: Mapping[str, Scalar]) -> list[Path]:
    """The files of the other shards of the model whose first shard is `path`; none if it is the only one."""
    name, number = _NAME.fullmatch(path.name), metadata.get("split.no", 0)
    if not isinstance(number, int) or not 0 <= number < count:
        raise Damaged(
            "its place in a split model makes no sense",
            where=shown(path),
            found=f"split.no {shown(number)}, split.count {shown(count)}",
            expected="split.no below split.count",
        )
    if number != 0:
        first = f"{name['prefix']}-00001-of-{count:05d}{name['suffix']}" if name else "the first shard"
        raise UsageError(
            f"is shard {number + 1} of {count} of a split model", where=shown(path), hint=f"give {shown(first)}"
        )
    if count == 1:
        return []
    if not name or int(name["no"]) != 1 or int(name["count"]) != count:
        raise Damaged(
            f"is the first of {count} shards but is not named so, the others cannot be found",
            where=shown(path),
            expected=shown(f"NAME-00001-of-{count:05d}.gguf"),
        )
    names = [f"{name['prefix']}-{number:05d}-of-{count:05d}{name['suffix']}" for number in range(2, count + 1)]
    siblings = [path.with_name(name) for name in names]
    missing = [sibling.name for sibling in siblings if not sibling.exists()]
    if missing:
        listed = ", ".join(shown(name) for name in missing[:8]) + (", ..." if len(missing) > 8 else "")
        raise Damaged(f"{len(missing)} of {count} shards are missing: {listed}", where=shown(path))
    return siblings


def refuse_stranger(
    path: Path, first: Path, mine: Mapping[str, Scalar], firsts: Mapping[str, Scalar], number: int, count: int
) -> None:
    """Raise Damaged if a shard says that it belongs elsewhere. Only the first has to name the architecture."""
    facts: list[tuple[str, Scalar | None]] = [("split.count", count), ("split.no", number)]
    if "general.architecture" in mine:
        facts.append(("general.architecture", firsts.get("general.architecture")))
    for key, expected in facts:
        if mine.get(key) != expected:
            raise Damaged(
                f"does not belong to the model of {shown(first.name)}",
                where=shown(path),
                found=f"{key} {shown(mine.get(key))}",
                expected=shown(expected),
            )
