"""Find docstring entries that say no more than the signature does.

    python tools/check_docstrings.py [--remove] [PATH ...]

An entry of a Parameters, Attributes or Returns section is empty if each of its words stands in the
entry's name, in the annotation, or in the name of the function or class: "Number of processors."
for `processors: int`, "The site." for `site`. A unit, a range, a default's meaning, an error or a
source is a word more, and such an entry stays. With --remove, empty entries are deleted. Without,
they are printed, and the exit status is 1 if there are any.
"""

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PUBLISHED = (
    "src/bursar/market/agreement.py",
    "src/bursar/market/trade_messages.py",
    "src/bursar/remote/admin_messages.py",
    "src/bursar/remote/messages.py",
)
"""Modules whose docstrings are printed in the OpenAPI document, far from any signature."""

SECTIONS = ("Parameters", "Attributes", "Returns", "Yields")


def words_of(text: str) -> set[str]:
    """Return the words of a name or text in lower case, without the plural's s."""
    parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_A-Za-z]", text)
    return {stem(part.lower()) for part in parts}


def stem(word: str) -> str:
    """Return a word without the ending of a plural."""
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    return word[:-1] if word.endswith("s") and len(word) > 3 and not word.endswith("ss") else word


# Words that carry no meaning beside a name.
_FILLERS = words_of(
    "a an the this that these those of for in on to from by with as at is are be it its itself "
    "one each all any own and or which given concerned question"
)
# Words that always say more than a name and a type.
_UNITS = words_of(
    "second minute hour day byte bit megabyte gigabyte micro unit currency percent share ratio "
    "epoch utc"
)
# Words that an annotation says already.
_OF_TYPES = {
    "int": "number count how many integer",
    "float": "number value",
    "str": "name text string",
    "bool": "whether if true false",
    "Path": "path file folder",
    "Sequence": "list sequence",
    "Iterable": "several",
    "list": "list",
    "Mapping": "mapping",
    "dict": "mapping dict dictionary",
    "Callable": "function called call",
}
_ENTRY = re.compile(r"(?P<indent> *)(?P<names>[*\w][\w*, .`\[\]|]*)( : .*)?$")

Documented = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class DocstringEntry:
    """
    Lines of a module that hold one entry of a docstring's section.

    Parameters
    ----------
    first, last
        Line numbers in the module, from 1 on, both included.
    alone
        Whether the section holds nothing else.
    """

    section: str
    names: tuple[str, ...]
    text: str
    first: int
    last: int
    alone: bool


def says_nothing(text: str, names: tuple[str, ...], annotation: str, owner: str) -> bool:
    """Whether each word of an entry's text stands in its name, its type or its owner's name."""
    known = words_of(" ".join(names)) | words_of(annotation) | words_of(owner)
    for kind, also in _OF_TYPES.items():
        if re.search(rf"\b{kind}\b", annotation):
            known |= {stem(word) for word in also.split()}
    said = words_of(text)
    return not said & _UNITS and said <= known | {stem(word) for word in _FILLERS}


def annotations(node: Documented) -> dict[str, str]:
    """Return the types of a function's parameters, or of a class's fields and constructor."""
    found: dict[str, str] = {}
    body = [node] if not isinstance(node, ast.ClassDef) else list(node.body)
    for part in body:
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
            found[part.target.id] = ast.unparse(part.annotation)
        elif isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef) and (
            part is node or part.name == "__init__"
        ):
            taken = part.args
            for one in [*taken.posonlyargs, *taken.args, *taken.kwonlyargs]:
                found[one.arg] = ast.unparse(one.annotation) if one.annotation else ""
    return found


def entries(node: Documented, lines: list[str]) -> Iterator[DocstringEntry]:
    """Yield the entries of the sections of a docstring, in order."""
    text = node.body[0] if node.body else None
    if not (isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)):
        return
    last_line = text.end_lineno or text.lineno
    indent = " " * text.col_offset
    number = text.lineno
    while number <= last_line:
        title = lines[number - 1].strip()
        ruled = number < last_line and set(lines[number].strip()) == {"-"}
        if not (ruled and title in SECTIONS):
            number += 1
            continue
        found, number = _section(title, lines, number + 2, last_line, indent)
        for names, words, first, last in found:
            yield DocstringEntry(title, names, words, first, last, len(found) == 1)


def _section(
    title: str, lines: list[str], number: int, last_line: int, indent: str
) -> tuple[list[tuple[tuple[str, ...], str, int, int]], int]:
    """Return a section's entries (names, text, first and last line), and the line after it."""
    found = []
    while number <= last_line:
        line = lines[number - 1]
        match = _ENTRY.fullmatch(line.rstrip("\n"))
        if match is None or match["indent"] != indent:
            break
        first = number
        number += 1
        while number <= last_line and lines[number - 1].startswith(indent + "    "):
            number += 1
        words = " ".join(one.strip() for one in lines[first : number - 1])
        names = tuple(name.strip("* ") for name in match["names"].split(","))
        found.append((names, words, first, number - 1))
    return found, number


def empty_entries(source: str) -> list[DocstringEntry]:
    """Return the entries of a module's docstrings that say nothing."""
    lines = source.splitlines(keepends=True)
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, Documented):
            continue
        types = annotations(node)
        returned = getattr(node, "returns", None)
        for entry in entries(node, lines):
            if entry.section in ("Returns", "Yields"):
                annotation = ast.unparse(returned) if returned else ""
            else:
                annotation = " ".join(types.get(name, "") for name in entry.names)
            if entry.text and says_nothing(entry.text, entry.names, annotation, node.name):
                found.append(entry)
    return found


def without(source: str, found: list[DocstringEntry]) -> str:
    """Return a module's text without some entries, and without sections that become empty."""
    lines = source.splitlines(keepends=True)
    for entry in sorted(found, key=lambda one: -one.first):
        del lines[entry.first - 1 : entry.last]
        title = entry.first - 3
        heading = title >= 0 and lines[title].strip() in SECTIONS
        ends = entry.first > len(lines) or not lines[entry.first - 1].strip(' "\n')
        if heading and ends and set(lines[title + 1].strip()) == {"-"}:
            # The blank line before the heading goes too.
            del lines[title - 1 : title + 2]
    return "".join(lines)


def main(arguments: list[str]) -> int:
    """Print or remove the empty entries below some folders; return the exit status."""
    paths = [one for one in arguments if not one.startswith("-")] or ["src"]
    total = 0
    for root in map(Path, paths):
        for path in sorted(root.rglob("*.py")) if root.is_dir() else [root]:
            if path.as_posix().endswith(PUBLISHED):
                continue
            source = path.read_text(encoding="utf-8")
            found = empty_entries(source)
            total += len(found)
            if "--remove" in arguments and found:
                path.write_text(without(source, found), encoding="utf-8")
            for entry in found:
                print(f"{path}:{entry.first}: {', '.join(entry.names)}: {entry.text}")
    print(f"{total} entries say no more than the signature", file=sys.stderr)
    return int(total > 0 and "--remove" not in arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
