"""Walls between and inside the three distributions: no dead modules, no circles, small rooms."""

import ast
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = (
    ROOT / "src",
    ROOT / "packages" / "papers" / "src",
    ROOT / "packages" / "devtools" / "src",
    ROOT / "packages" / "snakemake" / "src",
)
MOST_FILES = 30
"""Modules in one folder, the package's own ``__init__`` included."""

ENTRY_POINTS = (
    "bursar",  # what `import bursar` offers
    "bursar.__main__",  # the command
    "bursar.slurm_shim.__main__",  # stand-ins of Slurm's commands
    "bursar.api.datagrid",  # the simulator of data grids, for Python
    "bursar.remote.client",  # the client of a service, for Python
    "bursar.worker.worker",  # programs that are started as processes of their own
    "bursar.provisioning.pilot",
)
Graph = Mapping[str, frozenset[str]]


@cache
def modules() -> Mapping[str, Path]:
    """Return the file of each module of the three distributions."""
    return {
        name_of(path.relative_to(source)): path
        for source in SOURCES
        for path in sorted(source.rglob("*.py"))
    }


def name_of(path: Path) -> str:
    """Return a module's dotted name by its path below a source folder."""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def imports() -> Graph:
    """Return what each module imports, at its top, in functions, and for types only."""
    return {
        name: frozenset(imported(path.read_text(), modules())) - {name}
        for name, path in modules().items()
    }


def imported(source: str, known: Iterable[str]) -> Iterator[str]:
    """Yield the known modules that a module imports; a package only if it is named itself."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                if whole in known:
                    yield whole
                elif node.module in known:
                    yield str(node.module)


def named(source: str, package: str, known: Iterable[str]) -> Iterator[str]:
    """Yield the modules that text constants name, in full or below their own package."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            for name in (node.value, f"{package}.{node.value}"):
                if "." in node.value and name in known:
                    yield name


def reachable(starts: Iterable[str], graph: Graph) -> set[str]:
    """Return the modules that are loaded by way of some, with the packages around them."""
    found: set[str] = set()
    left = list(starts)
    while left:
        name = left.pop()
        if name and name not in found:
            found.add(name)
            left += [*graph[name], name.rpartition(".")[0]]
    return found


def circles(graph: Graph) -> list[list[str]]:
    """Return the groups of modules that reach each other (Tarjan 1972), each sorted."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(name: str) -> None:
        order[name] = lowest[name] = len(order)
        stack.append(name)
        for other in graph[name]:
            if other not in order:
                visit(other)
            if other in stack:
                lowest[name] = min(lowest[name], lowest[other])
        if lowest[name] == order[name]:
            place = stack.index(name)
            group = sorted(stack[place:])
            del stack[place:]
            if len(group) > 1:
                found.append(group)

    for name in graph:
        if name not in order:
            visit(name)
    return sorted(found)


def test_no_circle_of_modules() -> None:
    """Each module can be understood after those that it imports, also where it imports late."""
    graph = dict(imports())
    assert len(graph) > 400
    # The front page only names, for type checkers, what it imports when that is first used.
    graph["bursar"] = frozenset({"bursar.version"})

    assert circles(graph) == []


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        ({"a": "b", "b": "c", "c": ""}, []),
        ({"a": "b", "b": "a", "c": "a"}, [["a", "b"]]),
        ({"a": "b", "b": "cd", "c": "a", "d": "e", "e": "d"}, [["a", "b", "c"], ["d", "e"]]),
    ],
)
def test_a_circle_is_found(graph: dict[str, str], expected: list[list[str]]) -> None:
    assert circles({name: frozenset(others) for name, others in graph.items()}) == expected


def test_an_import_is_found_wherever_it_stands() -> None:
    known = ("p", "p.a", "p.b", "p.c")
    source = (
        "import p.a\n"
        "if TYPE_CHECKING:\n  from p.b import Name\n"
        "def f():\n  from p import c, Other\n"
    )

    assert sorted(imported(source, known)) == ["p", "p.a", "p.b", "p.c"]
    assert sorted(named("x = {'Name': 'b.inner', 'a': 'a'}", "p", ["p.b.inner", "p.a"])) == [
        "p.b.inner"
    ]


def test_every_module_of_the_product_is_used_by_the_product() -> None:
    """What only tests, studies or tools for developers use lies in their distributions."""
    known = modules()
    graph = {
        name: imports()[name] | set(named(path.read_text(), name, known))
        for name, path in known.items()
        if name.partition(".")[0] == "bursar"
    }
    # The command names modules of other distributions, which may be absent.
    graph = {name: frozenset(o for o in others if o in graph) for name, others in graph.items()}

    unused = set(graph) - reachable(ENTRY_POINTS, graph)

    assert unused == set()


def test_no_folder_has_too_many_modules() -> None:
    """A room that one looks through; beyond that it is two rooms."""
    counts = Counter(path.parent.relative_to(ROOT).as_posix() for path in modules().values())
    assert counts["src/bursar/model"] > 10

    assert {folder: n for folder, n in counts.items() if n > MOST_FILES} == {}
