"""docs/manifest.schema.json against manifests: real ones, and those that the forger breaks for docs/format.md."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from repack import Damaged, convert_file
from repack.sidecar.checks import from_json
from tests.support import independent
from tests.support.independent import TABLE
from tests.support.readers import CONSUMERS
from tests.support.sidecars.broken import BROKEN
from tests.support.sidecars.forge import GOLDEN, Forge, canonical, paths, put, sealed, tiny
from tests.support.sidecars.sound import SOUND

SCHEMA = json.loads((CONSUMERS.parent / "manifest.schema.json").read_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
VALUES: list[Any] = [
    None,
    True,
    False,
    0,
    1,
    -1,
    256,
    0.5,
    1 << 63,
    "",
    "..",
    "a/b",
    "x" * 64,
    "\u20ac",
    [],
    {},
    [1],
    [""],
    {"a": 1},
    ...,
]


def accepts(manifest: dict[str, Any]) -> bool:
    return bool(VALIDATOR.is_valid(manifest))


def is_read(manifest: dict[str, Any]) -> bool:
    """Whether the project's reader takes the manifest, under a good seal."""
    try:
        from_json(sealed(canonical({"manifest_sha256": "", **manifest})), "here")
    except Damaged:
        return False
    return True


def test_it_is_a_schema_itself() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_the_golden_manifest() -> None:
    VALIDATOR.validate(independent.read(GOLDEN / "tiny.dpl").manifest)


def test_manifests_of_real_conversions(pair: tuple[Path, Path], gemma: Path, tmp_path: Path) -> None:
    convert_file(gemma, tmp_path / "gemma.dpl", exclude=[r"blk\.1\."])
    for sidecar in (pair[1], tmp_path / "gemma.dpl"):
        VALIDATOR.validate(independent.read(sidecar).manifest)


def test_sound_manifests() -> None:
    assert [number for number, forge in enumerate(SOUND) if not accepts(forge.manifest)] == []


def test_broken_members() -> None:
    """What is missing, of another type or out of range is for the schema to see; half a surrogate pair is not."""
    beyond = [
        forge for forge in BROKEN["C8"] if forge.manifest == tiny().manifest or "\\ud800" in canonical(forge.manifest)
    ]
    broken = [forge for forge in BROKEN["C8"] if forge not in beyond]
    assert len(broken) > len(beyond)
    assert [canonical(forge.manifest) for forge in broken if accepts(forge.manifest)] == []


def test_broken_layouts() -> None:
    """Each layout by itself. Their order, whether they are used, and whether planes make up a block, it cannot say."""
    texts = {kind.layout() for kind in TABLE.values()}
    accepted = [forge.manifest["layouts"] for forge in BROKEN["C7"] if accepts(forge.manifest)]
    assert all(canonical(item) in texts or item["type"] not in TABLE for layouts in accepted for item in layouts)
    assert len(accepted) < len(BROKEN["C7"]) / 4


@pytest.mark.parametrize("ne", [[], [256, 1, 1, 1, 1], [256, -1], [256, 1 << 63], [256.5], ["256"]])
def test_broken_dimensions(ne: list[Any]) -> None:
    assert not accepts(forged(("tensors", 0, "ne"), ne).manifest)


@pytest.mark.parametrize(
    "path",
    [path for path in paths(tiny().manifest) if not isinstance(path[-1], int) and path[:2] != ("source", "general")],
)
def test_every_member_is_required(path: tuple[Any, ...]) -> None:
    assert not accepts(forged(path, ...).manifest)


def forged(path: tuple[Any, ...], value: Any) -> Forge:
    return tiny(lambda manifest: put(manifest, path, value))


def test_what_the_schema_refuses_the_reader_refuses() -> None:
    """The schema asks for nothing that the format does not ask for."""
    rng = random.Random(8)
    refused = 0
    for _ in range(600):
        path = rng.choice(paths(tiny().manifest))
        manifest = forged(path, rng.choice(VALUES)).manifest
        if path[0] != "manifest_sha256" and not accepts(manifest):
            refused += 1
            assert not is_read(manifest), path
    assert 200 < refused < 600
