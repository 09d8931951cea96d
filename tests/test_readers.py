"""Four readers, one verdict: on forged files for every check of docs/format.md, and on files damaged at random."""

from __future__ import annotations

import contextlib
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.readers import CONSUMERS, DATA_READERS, HEADER_READERS, Accepts
from tests.support.sidecars.broken import BROKEN, BROKEN_DATA
from tests.support.sidecars.forge import Forge, canonical, paths, put, sealed, tiny
from tests.support.sidecars.sound import SOUND

FORMAT = CONSUMERS.parent / "format.md"


def written(forged: list[Forge], folder: Path) -> list[Path]:
    files = [folder / f"{number}.dpl" for number in range(len(forged))]
    for file, forge in zip(files, forged, strict=True):
        file.write_bytes(forge.to_bytes())
    return files


def test_every_check_of_the_format_has_files_that_fail_it() -> None:
    checks = re.findall(r"\*\*(C\d+)\.?\*\*", FORMAT.read_text())
    assert checks == [f"C{number}" for number in range(1, 19)]
    assert [*BROKEN, *BROKEN_DATA, "C18"] == checks  # C18 needs a model: tests/test_format.py


def test_forging_nothing_gives_the_golden_file() -> None:
    assert tiny().to_bytes() == (Path(__file__).parent / "golden" / "tiny.dpl").read_bytes()


@pytest.mark.parametrize("reader", DATA_READERS.values(), ids=DATA_READERS)
def test_sound_files_are_accepted(reader: Accepts, tmp_path: Path) -> None:
    files = written(SOUND, tmp_path)
    assert [number for number, good in enumerate(reader(files)) if not good] == []


@pytest.mark.parametrize("check", BROKEN)
@pytest.mark.parametrize("reader", HEADER_READERS.values(), ids=HEADER_READERS)
def test_broken_headers_are_refused(reader: Accepts, check: str, tmp_path: Path) -> None:
    files = written(BROKEN[check], tmp_path)
    assert [number for number, good in enumerate(reader(files)) if good] == []


@pytest.mark.parametrize("check", BROKEN_DATA)
@pytest.mark.parametrize("reader", DATA_READERS.values(), ids=DATA_READERS)
def test_damaged_data_is_found(reader: Accepts, check: str, tmp_path: Path) -> None:
    files = written(BROKEN_DATA[check], tmp_path)
    assert [number for number, good in enumerate(reader(files)) if good] == []


Change = Callable[[random.Random, bytearray], object]
TOKENS = [b'"', b"{", b"}", b"[", b"]", b",", b":", b"\\", b"0", b"9" * 20, b"\\u0000", b"null", b" ", b"\xff", b"\0"]


def flip(rng: random.Random, raw: bytearray) -> None:
    raw[rng.randrange(1636)] ^= 1 << rng.randrange(8)


def splice(rng: random.Random, raw: bytearray) -> None:
    at = rng.randrange(1636)
    raw[at : at + rng.choice([0, 1, 2, 8, 40])] = rng.choice(TOKENS)


def cut(rng: random.Random, raw: bytearray) -> None:
    del raw[rng.randrange(len(raw)) :]


VALUES: list[Any] = [
    None,
    True,
    0,
    1,
    -1,
    255,
    256,
    1 << 62,
    1 << 63,
    "",
    "\u20ac",
    "\ud800",
    [],
    {},
    [1],
    {"a": 1},
    ...,
]


def rewritten(rng: random.Random) -> bytes:
    """The golden sidecar with up to three values of its manifest replaced, under a good seal."""

    def change(manifest: dict[str, Any]) -> None:
        for _ in range(rng.randint(1, 3)):
            path = rng.choice([path for path in paths(manifest) if path[0] != "manifest_sha256"])
            put(manifest, path, rng.choice(VALUES))

    for _ in range(100):
        try:
            return tiny(change).to_bytes()
        except (TypeError, KeyError, AttributeError, AssertionError):
            continue  # no header can be made of it
    raise AssertionError("nothing could be forged")


def retyped(rng: random.Random) -> bytes:
    """The golden sidecar with one spot of the manifest's text replaced, under a good seal where there still is one."""
    text = canonical(tiny().manifest)
    at = rng.randrange(len(text))
    token = rng.choice(TOKENS).decode("latin-1")
    broken = text[:at] + token + text[at + rng.choice([0, 1, 1, 3]) :]
    with contextlib.suppress(AssertionError):
        broken = sealed(broken)
    return tiny(after=lambda _: broken).to_bytes()


def damaged(rng: random.Random) -> bytes:
    raw = bytearray(tiny().to_bytes())
    rng.choice([flip, splice, cut])(rng, raw)
    return bytes(raw)


@pytest.mark.parametrize("kind", [damaged, rewritten, retyped])
def test_all_readers_agree_on_anything(kind: Callable[[random.Random], bytes], tmp_path: Path) -> None:
    """Damage at random, the same every time; no reader may crash, and all must come to the same verdict."""
    rng = random.Random(8)
    files = [tmp_path / f"{number}.dpl" for number in range(400)]
    for file in files:
        file.write_bytes(kind(rng))
    verdicts = {}
    for name, reader in DATA_READERS.items():
        try:
            verdicts[name] = reader(files)
        except pytest.skip.Exception:
            continue
    differing = [
        (file.name, {name: found[number] for name, found in verdicts.items()})
        for number, file in enumerate(files)
        if len({found[number] for found in verdicts.values()}) > 1
    ]
    assert differing == []
    assert any(verdicts["project"]) or kind is damaged
    assert not all(verdicts["project"])
