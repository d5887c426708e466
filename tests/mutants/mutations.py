"""
Mutants are made by mutmut's operators, and drawn at random by area of the code.

Operators that end almost every run in a ``TypeError`` (an argument left out, a value replaced by
None) would flatter the figure, and those on strings mostly change words of messages; neither are
used. An exchange of ``min`` and ``max`` is added. Only functions are mutated, as by mutmut itself:
constants of a module are settings, and one more or less of them is seldom an error.
"""

import ast
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation import mutators

Operators = list[tuple[type[cst.CSTNode], mutators.Callable[..., Iterable[cst.CSTNode]]]]

_EXTREMES = {"min": "max", "max": "min"}


def _other_extreme(node: cst.Call) -> Iterator[cst.Call]:
    """Replace ``min`` by ``max`` and the other way round."""
    if isinstance(node.func, cst.Name) and node.func.value in _EXTREMES:
        yield node.with_changes(func=cst.Name(_EXTREMES[node.func.value]))


OPERATORS: Operators = [
    (cst.BaseNumber, mutators.operator_number),
    (cst.Name, mutators.operator_name),
    (cst.AugAssign, mutators.operator_augmented_assignment),
    (cst.UnaryOperation, mutators.operator_remove_unary_ops),
    (cst.CSTNode, mutators.operator_keywords),
    (cst.CSTNode, mutators.operator_swap_op),
    (cst.IfExp, mutators.operator_if_exp),
    (cst.Call, _other_extreme),
]
"""Kinds of nodes and what each may become."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """
    One change of one file.

    Attributes
    ----------
    area
        Name of the part of the code that the file belongs to.
    path
        File, below the repository's folder.
    line
        Where the changed expression begins, from 1.
    number
        Position among all mutants of the file, from 0.
    before, after
        Text of the changed expression.
    key
        What tells the mutant from all others, without numbers of lines.
    """

    area: str
    path: str
    line: int
    number: int
    before: str
    after: str
    key: str

    @property
    def name(self) -> str:
        """Name for people and for the file of results."""
        return f"{self.path}:{self.line} #{self.number}: {self.before} -> {self.after}"


class _Finder(cst.CSTVisitor):
    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[int, cst.CSTNode, cst.CSTNode]] = []
        self._functions = 0

    def on_leave(self, original_node: cst.CSTNode) -> None:
        if isinstance(original_node, cst.FunctionDef):
            self._functions -= 1

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.Annotation):
            return False
        if isinstance(node, cst.FunctionDef):
            self._functions += 1
        for kind, operator in OPERATORS:
            if self._functions and isinstance(node, kind):
                line = self.get_metadata(PositionProvider, node).start.line
                self.found += [(line, node, changed) for changed in operator(node)]
        return True


def _possible(source: str) -> tuple[cst.Module, list[tuple[int, cst.CSTNode, cst.CSTNode]]]:
    wrapper = MetadataWrapper(cst.parse_module(source))
    finder = _Finder()
    wrapper.visit(finder)
    return wrapper.module, finder.found


def mutants(area: str, root: Path, path: str) -> list[Mutant]:
    """
    List all mutants of a file, in the file's order.

    Parameters
    ----------
    area
        What the mutants are counted under.
    root
        Folder of the repository.
    path
        File below that folder.
    """
    source = (root / path).read_text()
    lines = source.splitlines()
    module, found = _possible(source)
    alike: Counter[str] = Counter()
    listed = []
    for number, (line, before, after) in enumerate(found):
        old, new = (" ".join(module.code_for_node(node).split()) for node in (before, after))
        text = "\n".join((path, lines[line - 1].strip(), old, new))
        alike[text] += 1
        key = f"{text}\n{alike[text]}"
        listed.append(Mutant(area, path, line, number, old[:90], new[:90], key))
    return listed


def mutated(source: str, number: int) -> str:
    """
    Return a file's text with one of its mutations carried out.

    Raises
    ------
    IndexError
        The file has fewer mutants.
    SyntaxError
        The mutant is no valid Python, so that it does not count.
    """
    module, found = _possible(source)
    _, before, after = found[number]
    code = module.deep_replace(before, after).code
    ast.parse(code)
    return code


def sample(
    root: Path, areas: Mapping[str, Iterable[str]], share: Mapping[str, int], seed: int
) -> list[Mutant]:
    """
    Draw mutants of each area, every one with the same chance and none twice.

    Each mutant has a random rank of its own, made of the seed and the text of its line; those
    of the lowest ranks are drawn. So a change elsewhere in the code leaves the sample as it is.

    Parameters
    ----------
    root
        Folder of the repository.
    areas
        Files, or patterns of files, below that folder, by area.
    share
        How many mutants are drawn of each area; all where there are fewer.
    seed
        The same number draws the same mutants of the same lines.
    """
    drawn: list[Mutant] = []
    for area, patterns in areas.items():
        files = sorted({file for pattern in patterns for file in root.glob(pattern)})
        known = [m for file in files for m in mutants(area, root, str(file.relative_to(root)))]
        known.sort(key=lambda mutant: sha256(f"{seed}\n{mutant.key}".encode()).digest())
        drawn += known[: share[area]]
    return drawn
