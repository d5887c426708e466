"""Print the size and shape of the code, as docs/architecture.md states them.

    python tools/measure_code.py [REVISION]

Counts packages of this working tree, or of another revision of the repository: files, lines, lines
of code, classes, class names that stand for several classes, docstrings whose first sentence leans
on a pronoun or opens with a preposition, comments for each 100 lines of code, and what exceeds the
limits that tests/test_shape.py holds.
"""

import ast
import io
import re
import subprocess
import sys
import tarfile
import tempfile
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOTS = (
    "src/bursar",
    "packages/papers/src",
    "packages/devtools/src",
    "packages/snakemake/src",
)
PRONOUN = re.compile(r"\b(it|its|itself|they|those|such|them|themselves)\b", re.IGNORECASE)
OPENING = re.compile(r"(Of|By|As|It|Its|Such|To|From|Whose|What|Who|That|Those|They)\b")
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def first_sentences(tree: ast.AST) -> Iterator[str]:
    """Yield the first sentence of each docstring in a module."""
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and (text := ast.get_docstring(node)):
            yield re.split(r"(?<=[.:])\s|\n\n", text.strip())[0]


def comments(source: str) -> int:
    """Return how many comments a module has, on lines of their own or after code."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return sum(token.type == tokenize.COMMENT for token in tokens)


def code_lines(source: str, tree: ast.AST) -> int:
    """Return how many lines hold code: neither blank, nor comment, nor docstring."""
    held = {
        line
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type not in _NO_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            held -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(held)


_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def measure(folder: Path) -> dict[str, str]:
    """Return the figures of one package, by name."""
    files = sorted(folder.rglob("*.py"))
    lines = code = remarks = long_files = 0
    names: Counter[str] = Counter()
    sentences: list[str] = []
    for file in files:
        source = file.read_text(encoding="utf-8")
        tree = ast.parse(source)
        lines += (length := source.count("\n"))
        long_files += length > 600
        code += code_lines(source, tree)
        remarks += comments(source)
        names.update(node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
        sentences += first_sentences(tree)
    shared = {name: count for name, count in names.items() if count > 1}
    pronouns = sum(bool(PRONOUN.search(sentence)) for sentence in sentences)
    openings = sum(bool(OPENING.match(sentence)) for sentence in sentences)
    return {
        "files": f"{len(files):,}",
        "lines": f"{lines:,}",
        "lines of code": f"{code:,}",
        "files over 600 lines": f"{long_files}",
        "classes": f"{sum(names.values()):,}",
        "classes that share their name": f"{sum(shared.values())} ({len(shared)} names)",
        "first sentences that lean on a pronoun": f"{pronouns / len(sentences):.1%}",
        "first sentences that open with Of, By, As, It, ...": f"{openings / len(sentences):.1%}",
        "comments per 100 lines of code": f"{100 * remarks / code:.1f}",
    }


def main(arguments: list[str]) -> None:
    """Print a table for each package of the working tree, or of a revision."""
    with tempfile.TemporaryDirectory() as folder:
        base = Path.cwd()
        if arguments:
            archive = subprocess.run(
                ["git", "archive", arguments[0]], check=True, capture_output=True
            ).stdout
            base = Path(folder)
            with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
                tar.extractall(base, filter="data")
        for root in ROOTS:
            if (base / root).is_dir():
                print(root)
                for name, figure in measure(base / root).items():
                    print(f"  {figure:>16}  {name}")


if __name__ == "__main__":
    main(sys.argv[1:])
