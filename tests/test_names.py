"""Names of classes, modules and rooms in the source: each says one thing."""

import ast
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = (
    ROOT / "src" / "bursar",
    ROOT / "packages" / "papers" / "src" / "bursar_papers",
    ROOT / "packages" / "devtools" / "src" / "bursar_devtools",
    ROOT / "packages" / "snakemake" / "src" / "snakemake_executor_plugin_bursar",
)
MODULES = sorted(module for package in PACKAGES for module in package.rglob("*.py"))
ROOMS = sorted(
    room.relative_to(ROOT).as_posix()
    for package in PACKAGES
    for room in (package, *package.iterdir())
    if (room / "__init__.py").is_file()
)

TWICE = 2
"""How many modules may have one name: a decision and the edge around it, say."""


def classes(source: str) -> list[str]:
    """Return the names of all classes of a module, those inside classes and functions too."""
    return [node.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)]


def shared(names: dict[str, list[str]]) -> dict[str, list[str]]:
    """Return the names that several classes have, each with the modules of these classes."""
    where: dict[str, list[str]] = defaultdict(list)
    for module, found in names.items():
        for name in found:
            where[name].append(module)
    return {name: modules for name, modules in where.items() if len(modules) > 1}


def test_no_two_classes_share_a_name() -> None:
    """A name that stands for one class needs no import line to be understood."""
    names = {str(m.relative_to(ROOT)): classes(m.read_text()) for m in MODULES}
    assert sum(map(len, names.values())) > 500
    assert shared(names) == {}


def test_a_shared_name_is_found() -> None:
    """Classes inside functions and classes count, and so do private ones."""
    one = classes("class _Job: ...\nclass Task:\n  class Row: ...")
    two = classes("def f():\n  class _Job: ...\nclass Row: ...")
    assert shared({"one": one, "two": two}) == {"_Job": ["one", "two"], "Row": ["one", "two"]}


def test_no_module_name_stands_more_than_twice() -> None:
    where: dict[str, list[str]] = defaultdict(list)
    for module in MODULES:
        if module.stem not in {"__init__", "__main__"}:
            where[module.stem].append(str(module.relative_to(ROOT)))
    assert len(where) > 400
    assert {name: files for name, files in where.items() if len(files) > TWICE} == {}


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_says_what_it_is_for(room: str) -> None:
    """The docstring of a room begins with a whole sentence."""
    text = ast.get_docstring(ast.parse((ROOT / room / "__init__.py").read_text())) or ""
    first = text.partition("\n\n")[0]
    assert first.endswith("."), f"{room}/__init__.py: {first!r}"
    assert len(first.split()) >= 6, f"{room}/__init__.py: {first!r}"
