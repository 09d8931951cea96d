"""The house keeps its order: who may import whom, how full a folder may be, where facts about a type may stand."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

from repack.layout import DEFAULT, TYPES

ROOT = Path(__file__).parents[1]
FLOORS = (
    ("gguf_dpl",),
    ("gguf_dpl.strangers",),
    ("repack.errors", "repack.version"),
    ("repack.layout",),
    ("repack.rows",),
    ("repack.files",),
    ("repack.gguf",),
    ("repack.sidecar",),
    ("repack.plan",),
    ("repack.convert", "repack.restore"),
    ("repack.command",),
    ("repack", "repack.demo"),
    ("verify.contract", "verify.kernels"),
    ("verify.gpu",),
    ("verify.verdict", "verify.pairs"),
    ("verify.stages",),
    ("verify.run",),
    ("verify", "verify.reports"),
    ("verify.command",),
    ("gguf_dpl.repack", "gguf_dpl.verify"),
    ("repack.__main__", "verify.__main__"),
)
"""The rooms from the ground up. A module imports from its own room and from floors below."""

LATE = {"cupy", "cuda", "gguf"}
"""Packages imported where they are needed: two are extras, and gguf takes 0.4 s."""

FULL = 9
"""About eight modules."""


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


PATHS = {
    name_of(path): path for name in ("gguf_dpl", "repack", "verify") for path in sorted((ROOT / name).rglob("*.py"))
}
"""The modules of the product by their dotted names."""


@cache
def source(module: str) -> str:
    return PATHS[module].read_text("utf-8")


@cache
def modules() -> dict[str, ast.Module]:
    """The syntax tree of each module."""
    return {name: ast.parse(source(name)) for name in PATHS}


def imports(node: ast.AST) -> Iterator[tuple[str, ast.stmt]]:
    """What is imported anywhere below `node`: a module's dotted name, and the statement."""
    for item in ast.walk(node):
        if isinstance(item, ast.Import):
            yield from ((alias.name, item) for alias in item.names)
        elif isinstance(item, ast.ImportFrom):
            assert item.module
            assert not item.level, "a relative import"
            for alias in item.names:
                whole = f"{item.module}.{alias.name}"
                yield (whole if whole in PATHS else item.module), item


@cache
def graph() -> dict[str, set[str]]:
    """For each module of the product the modules of the product that it imports."""
    return {name: {found for found, _ in imports(tree) if found in PATHS} for name, tree in modules().items()}


def room(module: str) -> tuple[int, str]:
    """A module's floor and room. `repack` and `verify` are the rooms of their own __init__ alone."""
    rooms = {name: floor for floor, names in enumerate(FLOORS) for name in names}
    name = module
    while name not in rooms:
        name = name.rpartition(".")[0]
        assert "." in name, f"{module} stands in no room"
    return rooms[name], name


def test_the_graph_is_drawn() -> None:
    assert {"repack.layout", "repack.errors"} <= graph()["repack.plan"]
    assert graph()["repack.rows"] == {"repack.layout"}


def test_no_module_imports_itself_by_a_detour() -> None:
    TopologicalSorter(graph()).prepare()  # CycleError names the modules


def test_nothing_is_imported_from_a_floor_above() -> None:
    upwards = []
    for module, others in graph().items():
        floor, name = room(module)
        upwards += [(module, other) for other in others if room(other)[0] >= floor and room(other)[1] != name]
    assert upwards == []


def test_imports_stand_at_the_top() -> None:
    late = {
        f"{module}:{statement.lineno} imports {name}"
        for module, tree in modules().items()
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for name, statement in imports(function)
        if name.partition(".")[0] not in LATE
    }
    assert late == set()


def test_what_is_slow_to_import_is_not_imported_at_the_top() -> None:
    early = {
        (module, name)
        for module, tree in modules().items()
        for statement in tree.body
        for name, _ in imports(statement)
        if isinstance(statement, ast.Import | ast.ImportFrom) and name.partition(".")[0] in LATE
    }
    assert not early


def test_a_folder_can_be_taken_in_at_a_glance() -> None:
    counts = Counter(path.parent for path in PATHS.values() if path.name not in {"__init__.py", "__main__.py"})
    del counts[ROOT / "verify" / "contract" / "quants"]  # a file for each type
    assert {folder: count for folder, count in counts.items() if count > FULL} == {}


SIZES = {quant.block_bytes for quant in TYPES.values() if quant.block_bytes > 100} | {DEFAULT.padded_block_bytes}
NUMBERS = SIZES | {quant.block_weights for quant in TYPES.values() if quant.block_weights > 32} | {DEFAULT.number}
"""Numbers that say something about a type. Smaller ones may mean anything: 32 is also the lanes of a warp."""
FIELDS = {field.name for quant in TYPES.values() for field in quant.planes if len(field.name) > 1}
ELSEWHERE = re.compile(r"thread|lanes|Step\(|<<", re.IGNORECASE)
"""On such a line 256 counts threads or mebibytes. `Step` is how many threads a row of some length is given."""
WORDS = {"scales"}
"""Field names that are common words: as a variable they say nothing."""
TABLES = {"repack.layout", "repack.gguf.types"}
"""Our table of types, and ggml's."""


def facts(module: str) -> Iterator[str]:
    """Numbers and field names of a type in the code of a module."""
    lines = source(module).splitlines()
    for node in ast.walk(modules()[module]):
        line = lines[getattr(node, "lineno", 1) - 1]
        if isinstance(node, ast.Constant) and type(node.value) is int and node.value in NUMBERS:
            if not ELSEWHERE.search(line):
                yield f"{node.lineno}: {node.value}: {line.strip()}"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in FIELDS:
            yield f"{node.lineno}: {node.value!r}: {line.strip()}"
        elif isinstance(node, ast.Name) and node.id in FIELDS - WORDS:
            yield f"{node.lineno}: {node.id}: {line.strip()}"


def test_facts_about_a_type_stand_in_its_own_files() -> None:
    others = [module for module in PATHS if module not in TABLES and not module.startswith("verify.contract.quants.")]
    assert [f"{module}:{fact}" for module in others for fact in facts(module)] == []


def test_facts_are_found() -> None:
    assert [fact.split(": ")[1] for fact in facts("repack.layout")].count("'qh'") >= 3
    assert any(": 210: " in fact for fact in facts("repack.gguf.types"))
