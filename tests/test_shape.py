"""The code stays readable in the large: limits of classes, constructors and files.

A class that does everything, a constructor with a page of arguments and a file without an end
are where a reader gives up. Each exception below is named with the reason why it stays.
"""

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
METHODS = 20
PARAMETERS = 12
LINES = 600

ONE_ENGINE = (
    "the run's and the service's machinery for handing out tasks are to become one engine: the "
    "reaction to a message (pure, over queue and journal) and the connections are its two halves"
)

CLASSES = {
    "_Builder": "Lark calls one method for each of the 21 rules of the grammar, by the rule's name",
    "ServiceEngine": ONE_ENGINE,
    "SlurmCluster": "starts, stops and breaks the daemons of one throwaway cluster: 16 methods, "
    "and 5 properties that say where and what the cluster is",
}
"""Classes with more public methods, and why."""

CONSTRUCTORS: dict[str, str] = {}
"""Classes whose constructor takes more parameters, and why."""

FILES = {
    "worker/worker.py": "is one loop of a process over one selector: what arrives, what ends, what "
    "is due; connection, attempts and spawning are files of their own already",
}
"""Files with more lines, by their path inside the import package, and why."""


def sources() -> dict[str, str]:
    """Return the text of every source file of all distributions, by path in its package."""
    packages = [ROOT / "src/bursar", *ROOT.glob("packages/*/src/*")]
    return {
        str(path.relative_to(package)): path.read_text(encoding="utf-8")
        for package in packages
        for path in sorted(package.rglob("*.py"))
    }


@cache
def class_sizes() -> tuple[dict[str, int], dict[str, int]]:
    """Return public methods and parameters of the constructor of each class, by its name."""
    methods, parameters = {}, {}
    for text in sources().values():
        # No tree is kept: millions of nodes would be looked through for garbage again and again.
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                methods[node.name] = public_methods(node)
                parameters[node.name] = constructor_parameters(node)
    return methods, parameters


def functions(node: ast.ClassDef) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [part for part in node.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)]


def public_methods(node: ast.ClassDef) -> int:
    """Return how many public methods and properties a class defines.

    A property with a setter, or a method with overloads, counts once. Lines of a table, such as
    ``site = waiting(AsyncServiceClient.site)``, hold no code of their own and do not count.
    """
    return len({part.name for part in functions(node) if not part.name.startswith("_")})


def constructor_parameters(node: ast.ClassDef) -> int:
    """Return how many parameters a constructor written by hand takes, `self` not counted.

    Dataclasses and msgspec structs are records: their fields are read by name, and their
    constructors are generated, so that they do not count.
    """
    for part in functions(node):
        if part.name == "__init__":
            taken = part.args
            return len([*taken.posonlyargs, *taken.args, *taken.kwonlyargs]) - 1
    return 0


def above(limit: int, sizes: dict[str, int]) -> set[str]:
    return {name for name, size in sizes.items() if size > limit}


def test_no_class_has_more_than_20_public_methods() -> None:
    sizes, _ = class_sizes()

    assert above(METHODS, sizes) == set(CLASSES)


def test_no_constructor_takes_more_than_12_parameters() -> None:
    _, sizes = class_sizes()

    assert above(PARAMETERS, sizes) == set(CONSTRUCTORS)


def test_no_file_has_more_than_600_lines() -> None:
    sizes = {path: text.count("\n") for path, text in sources().items()}

    assert above(LINES, sizes) == set(FILES)


def test_exceptions_give_reasons() -> None:
    reasons = {**CLASSES, **CONSTRUCTORS, **FILES}

    assert all(len(reason.split()) > 5 for reason in reasons.values())


def test_measures_see_what_they_count() -> None:
    node = ast.parse(
        """
class Example:
    def __init__(self, one, /, two, *, three=None): ...
    def method(self): ...
    async def other(self): ...
    @property
    def value(self): ...
    @value.setter
    def value(self, new): ...
    def _private(self): ...
"""
    ).body[0]

    assert isinstance(node, ast.ClassDef)
    assert public_methods(node) == 3
    assert constructor_parameters(node) == 3
