"""Contracts know the command and the public names only, so that everything else may move."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import bursar

FOLDER = Path(__file__).parent
TESTS = FOLDER.parent
PRODUCT = Path(bursar.__file__).parent
PUBLIC = {*bursar.__all__, "__all__", "__version__", "__file__"}


def reached(path: Path) -> set[Path]:
    """Return a file of tests and all that it imports of them, directly or not."""
    found: set[Path] = set()
    waiting = {path}
    while waiting:
        file = waiting.pop()
        found.add(file)
        waiting |= set(imported_tests(ast.parse(file.read_text()))) - found
    return found


def imported_tests(tree: ast.AST) -> Iterator[Path]:
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(f"{node.module}.{name.name}" for name in node.names)]
        elif isinstance(node, ast.Import):
            names = [name.name for name in node.names]
        for name in names:
            file = TESTS.parent / Path(*name.split(".")).with_suffix(".py")
            if name.startswith("tests.") and file.exists():
                yield file


def faults(tree: ast.AST) -> Iterator[str]:
    """Yield what reaches behind the public surface, with its line."""
    for node in ast.walk(tree):
        for fault in _faults_of(node):
            yield f"line {getattr(node, 'lineno', 0)}: {fault}"


def _faults_of(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Import(names=names):
            yield from (f"imports {n.name}" for n in names if n.name.startswith("bursar."))
        case ast.ImportFrom(module=str(module), names=names, level=0):
            if module.startswith("bursar."):
                yield f"imports from {module}"
            if module == "bursar":
                yield from (f"imports {n.name}" for n in names if n.name not in PUBLIC)
        case ast.ImportFrom(level=level) if level:
            yield "imports by a relative name, which nobody can follow here"
        case ast.Attribute(value=ast.Name(id="bursar"), attr=name) if name not in PUBLIC:
            yield f"uses bursar.{name}"
        case ast.Attribute(value=ast.Name(id=owner), attr=name) if is_private(name):
            if owner not in ("self", "cls"):
                yield f"uses the private {owner}.{name}"
        case ast.Attribute(attr=name) if is_private(name):
            yield f"uses the private {name}"
        case ast.Call(func=ast.Name(id="__import__" | "import_module" as name)):
            yield f"calls {name}"
        case ast.Call(func=ast.Attribute(attr="import_module" as name)):
            yield f"calls {name}"
        case ast.Constant(value=str(text)):
            yield from (f"names the module {word}" for word in text.split() if is_module(word))


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def is_module(word: str) -> bool:
    """Return whether a word of a text names a module or package within the product."""
    first, *parts = word.strip("`'\":,;()").split(".")
    if first != "bursar" or not parts or not all(part.isidentifier() for part in parts):
        return False
    path = PRODUCT.joinpath(*parts)
    return path.with_suffix(".py").exists() or path.is_dir()


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.py")), ids=lambda file: file.stem)
def test_a_contract_reaches_no_further_than_a_user(file: Path) -> None:
    """A module that only a contract names could not be moved or renamed."""
    found = {
        str(part.relative_to(TESTS)): list(faults(ast.parse(part.read_text())))
        for part in reached(file)
        if part != Path(__file__)
    }

    assert {part: said for part, said in found.items() if said} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import bursar.model.task",
        "import bursar.model.task as task",
        "from bursar.market import ledger",
        "from bursar import model",
        "import bursar\nbursar.model",
        "from .command import CommandFolder",
        "import importlib\nimportlib.import_module('bursar' + '.model')",
        "from importlib import import_module\nimport_module(NAME)",
        "__import__(NAME)",
        "WORDS = ['-m', 'bursar.worker.worker']",
        "PROGRAM = 'import sys, bursar.sites.batch as batch'",
        "def f(executor):\n    executor._desk",
        "def f(executor):\n    executor.one()._desk",
    ],
)
def test_what_reaches_further_is_seen(source: str) -> None:
    """Each way that a test could take."""
    assert list(faults(ast.parse(source)))


@pytest.mark.parametrize(
    "source",
    [
        "import bursar\nbursar.run('c.toml')",
        "from bursar import Campaign, Executor",
        "WORDS = ['-m', 'bursar']",
        "FILE = 'bursar.book'",
        "class A:\n    def f(self):\n        return self._path",
    ],
)
def test_what_a_user_may_do_is_left_alone(source: str) -> None:
    """The public names, the command, and a test's own private attributes."""
    assert not list(faults(ast.parse(source)))


def test_every_golden_file_belongs_to_a_test() -> None:
    """A file that nothing is compared with says nothing."""
    sources = "".join(file.read_text() for file in FOLDER.glob("*.py"))
    golden = [path for path in (FOLDER / "golden").rglob("*") if path.is_file()]

    assert golden
    assert [path.name for path in golden if not is_named(path, sources)] == []


def is_named(path: Path, sources: str) -> bool:
    """Return whether a test names a golden file, whole or as ``PREFIX-{parameter}``."""
    if f'"{path.stem}"' in sources or f'"{path.name}"' in sources:
        return True
    cuts = [at for at, letter in enumerate(path.stem, 1) if letter == "-"]
    return any(
        f'"{path.stem[:at]}{{' in sources and f'"{path.stem[at:]}"' in sources for at in cuts
    )
