"""The pages: whom they are for, links that lead somewhere, commands that run as they stand, facts that the code has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from repack.layout import TYPES
from tests.support.models import Q8_0, Model, T, q6_k_tensor
from tests.support.recipes import ROOT, blocks, shell

DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
README, QUICKSTART, ENGINE = ROOT / "README.md", DOCS / "quickstart.md", DOCS / "engine.md"


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def prose(page: Path) -> list[str]:
    """The lines of a page outside code and tables."""
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    return [line for line in text.splitlines() if not line.startswith(("    ", "|"))]


def anchors(page: Path) -> set[str]:
    """The names that a page's headings have on GitHub."""
    headings = re.findall(r"^#+ (.*)$", "\n".join(prose(page)), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=name)
def test_a_page_says_first_for_whom_it_is(page: Path) -> None:
    text = page.read_text("utf-8").partition("\n\n")[2]
    first = " ".join(text.partition("\n\n")[0].split())
    assert re.match(r"(\*\*)?(For|If you) ", first), first


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_lines_are_not_too_long(page: Path) -> None:
    assert [line for line in prose(page) if len(line) > 120] == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8"))
    for link in [link for link in links if "://" not in link]:
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_the_index_names_every_page() -> None:
    for folder in (DOCS, DOCS / "lab"):
        index = (folder / "README.md").read_text()
        for page in folder.glob("*.md"):
            assert page.name == "README.md" or f"({page.name})" in index, page
    assert "docs/README.md" in README.read_text()


def test_nothing_is_told_to_come_from_a_registry_that_does_not_have_it() -> None:
    for page in PAGES:
        assert not re.search(r"install (-\S+ )*['\"]?gguf-dpl", page.read_text("utf-8")), page


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A folder with a model that has what the pages speak of."""
    Model([q6_k_tensor("blk.0.ffn_down.weight", (512, 20)), T("a", (256, 2), Q8_0)]).write(tmp_path / "model.gguf")
    return tmp_path


def commands(page: Path) -> str:
    """Every block of a page that only runs the two commands, one after the other."""
    found = [text for text in blocks(page, "bash") if re.match(r"(repack|verify) ", text)]
    assert found, page
    return "".join(found)


@pytest.mark.parametrize("page", [README, QUICKSTART], ids=name)
def test_the_commands_run_as_they_stand(page: Path, models: Path) -> None:
    done = shell(commands(page), models)
    assert done.returncode == 0, done.stderr
    assert "PROVEN" in done.stdout


@pytest.mark.parametrize("page", [README, QUICKSTART], ids=name)
def test_the_commands_fail_where_the_sidecar_is_another_models(page: Path, models: Path) -> None:
    """The model changes between the two commands."""
    script = re.sub(r"^verify model.gguf", "printf x >>model.gguf\n\\g<0>", commands(page), flags=re.MULTILINE)
    assert shell(script, models).returncode == 1


def test_the_example_in_python_runs_as_it_stands(models: Path) -> None:
    (models / "example.py").write_text(blocks(README, "python")[0])
    done = shell("python example.py", models)
    assert done.returncode == 0, done.stderr


def test_all_types_are_named() -> None:
    names = [quant.name for quant in TYPES.values()]
    listed = re.search(r"All types that it knows are ([^.]*)\.", " ".join(QUICKSTART.read_text().split()))
    assert listed is not None
    assert re.split(r", | and ", listed[1]) == names


def test_the_table_of_types_is_the_codes() -> None:
    rows = re.findall(
        r"^\| (\w+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \| ([\d.]+) % \|$", ENGINE.read_text(), re.MULTILINE
    )
    assert [row[0] for row in rows] == [quant.name for quant in TYPES.values()]
    for quant, (_, weights, size, alignment, padded, dead) in zip(TYPES.values(), rows, strict=True):
        assert (int(weights), int(size)) == (quant.block_weights, quant.block_bytes)
        assert int(alignment) == quant.block_bytes & -quant.block_bytes  # the largest power of two in it
        assert int(padded) == quant.padded_block_bytes
        assert dead == f"{1 - quant.block_bytes / quant.padded_block_bytes:.2%}"[:-1]


def test_the_example_of_a_dry_run_is_what_is_printed(gemma: Path) -> None:
    done = shell(f"repack {gemma.name} --dry-run", gemma.parent)
    assert done.stdout.strip() == blocks(QUICKSTART, "")[0].strip()
