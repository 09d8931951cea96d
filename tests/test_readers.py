"""Five readers, one verdict: on forged files for every check of docs/format.md, and on files damaged at random."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import random
import re
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest

from repack import Damaged, open_sidecar
from tests.support.readers import CONSUMERS, DATA_READERS, HEADER_READERS, PYTHON, SANITIZED, Accepts, compiled, printed
from tests.support.sidecars.broken import BROKEN, BROKEN_DATA
from tests.support.sidecars.forge import Forge, canonical, paths, put, sealed, tiny
from tests.support.sidecars.sound import LARGE_ONES, SOUND

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


@pytest.mark.parametrize("name", ["project", "python", "cpp", "rust"])
def test_the_most_values_are_accepted(name: str, tmp_path: Path) -> None:
    """The reader by hand would take ten seconds for a million of them."""
    accepted = HEADER_READERS[name](written([forge for forge, _ in LARGE_ONES], tmp_path))
    assert accepted == [sound for _, sound in LARGE_ONES]


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


TEXT = 6785
"""Where the header's text ends in the golden file, and spaces begin."""
TOKENS = [b'"', b"{", b"}", b"[", b"]", b",", b":", b"\\", b"0", b"-", b"9" * 20, b"\\u0000", b"null", b"true"]
TOKENS += [b" ", b"\xff", b"\0", b"\\ud800", b"/", b"-0"]


def flip(rng: random.Random, raw: bytearray) -> None:
    raw[rng.choice([rng.randrange(TEXT), rng.randrange(len(raw))])] ^= 1 << rng.randrange(8)


def splice(rng: random.Random, raw: bytearray) -> None:
    at = rng.randrange(TEXT)
    raw[at : at + rng.choice([0, 1, 2, 8, 40])] = rng.choice(TOKENS)


def cut(rng: random.Random, raw: bytearray) -> None:
    del raw[rng.randrange(len(raw)) :]


def damaged(rng: random.Random) -> bytes:
    """The golden file with bits flipped, tokens put in, or its end cut off."""
    raw = bytearray(GOOD)
    rng.choice([flip, flip, splice, cut])(rng, raw)
    return bytes(raw)


VALUES: list[Any] = [
    None,
    True,
    False,
    0,
    1,
    -1,
    2,
    14,
    32,
    255,
    256,
    1 << 62,
    (1 << 63) - 1,
    1 << 63,
    "",
    "..",
    "a/b",
    "\u20ac",
    "\ud800",
    "f" * 64,
    [],
    {},
    [1],
    [[[[[[[[[[[[[[]]]]]]]]]]]]]],
    {"a": 1},
    {"manifest_sha256": "x"},
    ...,
]
PLACES = [path for path in paths(tiny().manifest) if path[0] != "manifest_sha256"]
GROUPS = {
    group: [path for path in PLACES if path[0] == group] for group in tiny().manifest if group != "manifest_sha256"
}


def rewritten(rng: random.Random) -> bytes:
    """The golden sidecar with up to three values of its manifest replaced, doubled, moved or changed, and sealed."""

    def change(manifest: dict[str, Any]) -> None:
        for _ in range(rng.randint(1, 3)):
            path = rng.choice(GROUPS[rng.choice(sorted(GROUPS))])
            owner: Any = manifest
            for key in path[:-1]:
                owner = owner[key]
            value, action = owner[path[-1]], rng.randrange(6)
            if action == 0 and type(value) is int:
                owner[path[-1]] += rng.choice([-256, -32, -16, -1, 1, 16, 32, 256])
            elif action == 1 and isinstance(owner, list):
                owner.insert(path[-1], copy.deepcopy(value))
            elif action == 2 and isinstance(owner, dict):
                owner[rng.choice(["zzz", "AAA", "name", "type", "nbytes"])] = copy.deepcopy(value)
            elif action == 3 and isinstance(value, list):
                rng.shuffle(value)
            else:
                put(manifest, path, rng.choice(VALUES))

    while True:
        with contextlib.suppress(TypeError, KeyError, AttributeError, AssertionError, IndexError):
            return tiny(change).to_bytes()  # or no header can be made of it


def retyped(rng: random.Random) -> bytes:
    """The golden sidecar with one spot of the manifest's text replaced, under a good seal where there still is one."""
    at = rng.randrange(len(MANIFEST))
    token = rng.choice(TOKENS).decode("latin-1")
    changed = MANIFEST[:at] + token + MANIFEST[at + rng.choice([0, 1, 1, 3]) :]
    with contextlib.suppress(AssertionError):
        changed = sealed(changed)
    return tiny(after=lambda _: changed).to_bytes()


def varied(rng: random.Random) -> bytes:
    """A sound file of the forger's with one thing changed in the manifest, sealed, and its header made of the rest."""
    forge = copy.deepcopy(rng.choice(VARIANTS))
    path = rng.choice([path for path in paths(forge.manifest) if path[0] != "manifest_sha256"])
    with contextlib.suppress(TypeError, KeyError, AttributeError, AssertionError, IndexError):
        put(forge.manifest, path, rng.choice(VALUES))
        return forge.to_bytes()
    return varied(rng)


GOOD, MANIFEST = tiny().to_bytes(), canonical(tiny().manifest)
VARIANTS = [forge for forge in SOUND if len(forge.data) < 4096 and len(canonical(forge.manifest)) < 8192]
MUTATIONS = {"damaged": damaged, "rewritten": rewritten, "retyped": retyped, "varied": varied}
FILES = int(os.environ.get("DPL_MUTATIONS", "600"))
"""Of each kind. The readers were run over 10,000 of each when format version 2 was made."""


@pytest.mark.parametrize("kind", MUTATIONS)
def test_all_readers_agree_on_anything(kind: str, tmp_path: Path) -> None:
    """Damage at random, the same every time; no reader may crash, and all must come to the same verdict."""
    rng = random.Random(f"{kind} 8")
    files = [tmp_path / f"{number}.dpl" for number in range(FILES)]
    for file in files:
        file.write_bytes(MUTATIONS[kind](rng))
    found = {}
    for name, reader in DATA_READERS.items():
        with contextlib.suppress(pytest.skip.Exception):
            found[name] = reader(files)
    differing = [
        (file.name, {name: verdicts[number] for name, verdicts in found.items()})
        for number, file in enumerate(files)
        if len({verdicts[number] for verdicts in found.values()}) > 1
    ]
    assert differing == []
    accepted = sum(found["project"])
    assert accepted < len(files)
    assert kind == "damaged" or accepted > len(files) // 50, "hardly a file gets past the first check"


@pytest.mark.parametrize("forged", [SOUND, *BROKEN_DATA.values()], ids=["sound", *BROKEN_DATA])
def test_three_programs_print_the_same(forged: list[Forge], tmp_path: Path) -> None:
    """Names outside ASCII, control characters and quotes in names, and tensors before a damaged one included."""
    files = written(forged, tmp_path)
    expected = printed(PYTHON, files)
    assert expected.count(b"\n") >= len(files)
    for program in (compiled("cpp", *SANITIZED), compiled("rust", "-O")):
        assert printed([program], files) == expected


def test_a_path_is_printed_as_it_is(tmp_path: Path) -> None:
    path = Path(os.fsdecode(bytes(tmp_path) + b"/\xff \xc3\xa4.dpl"))
    path.write_bytes(GOOD)
    for program in (PYTHON, [compiled("cpp", *SANITIZED)], [compiled("rust", "-O")]):
        for file in (path, tmp_path, tmp_path / "not there"):
            out = subprocess.run([*program, file], capture_output=True, check=False)
            assert out.stdout.splitlines()[-1] == bytes(file) + (b": ok, 11 tensors" if file is path else b": refused")
            assert out.returncode == (0 if file is path else 3)


OTHER_VERSIONS = {1: b"C5: format 1, convert again", 3: b"C5: format 3, a newer version"}


@pytest.mark.parametrize("major", OTHER_VERSIONS)
@pytest.mark.parametrize("seal", [True, False])
def test_another_version_is_told_first(major: int, seal: bool, tmp_path: Path) -> None:
    """By that word, whatever else is not as in version 2: members, seal, alignment, layout."""

    def change(manifest: dict[str, Any]) -> None:
        manifest["format"]["major"] = major
        manifest["layout"] = manifest.pop("layouts")
        manifest["tensors"] = [1]

    text = sealed(canonical(tiny(change).manifest))
    text = text if seal else text.replace("golden", "silver")
    header = f'{{"__metadata__":{{"dpl":{json.dumps(text)}}}}}'.encode()
    (tmp_path / "a.dpl").write_bytes(struct.pack("<Q", len(header)) + header + b"data")
    with pytest.raises(Damaged, match="format 1, convert again" if major == 1 else "format 3, update"):
        open_sidecar(tmp_path / "a.dpl")
    for program in (PYTHON, [compiled("cpp", *SANITIZED)], [compiled("rust", "-O")]):
        out = subprocess.run([*program, tmp_path / "a.dpl"], capture_output=True, check=False)
        assert OTHER_VERSIONS[major] in out.stderr
