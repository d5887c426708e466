"""Write docs/reference/python.md, the reference of the package ``bursar``, from its docstrings.

    python tools/python_reference.py [--check]

Sections of a docstring become lists and headings in Markdown. With --check nothing is written, and
the exit status is 1 if the page differs from the docstrings.
"""

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bursar

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "python.md"

HEAD = """\
# The Python library

All names of the package `bursar`, from their docstrings. The [guide](../guides/python.md) shows how
they are used. Every parameter after `*` is given by name.
"""

_ENTRY_SECTIONS = {"Parameters", "Attributes", "Raises", "Returns", "Yields"}


def page() -> str:
    """Return the page."""
    parts = [HEAD.replace("shows how\nthey", "shows how they")]
    functions = [name for name in bursar.__all__ if inspect.isroutine(getattr(bursar, name))]
    classes = [name for name in bursar.__all__ if name not in functions]
    parts.append("## Functions\n")
    for name in functions:
        parts += entry(f"bursar.{name}", getattr(bursar, name), "###")
    parts.append("## Classes\n")
    for name in classes:
        parts += of_class(name, getattr(bursar, name))
    return "\n".join(parts).rstrip() + "\n"


def of_class(name: str, value: type) -> Iterator[str]:
    """Yield the parts of a class with its public members, also of bases without an entry here."""
    own = [value, *(base for base in value.__mro__[1:] if is_unlisted(base))]
    bases = tuple(b for base in own for b in base.__bases__ if not is_unlisted(b))
    yield from entry(f"bursar.{name}", value, "###", bases=bases)
    members = {word: member for base in reversed(own) for word, member in vars(base).items()}
    for word, member in sorted(members.items()):
        if word.startswith("_") and word != "__getitem__":
            continue
        if isinstance(member, classmethod | staticmethod):
            member = member.__func__
        if inspect.isfunction(member):
            yield from entry(f"{name}.{word}", member, "####")
        elif inspect.isdatadescriptor(member) or hasattr(member, "attrname"):
            text = inspect.getdoc(member)
            if text and not inspect.ismemberdescriptor(member):
                yield from entry(f"{name}.{word}", member, "####", is_value=True)


def is_unlisted(base: type) -> bool:
    """Whether a class is of this package and has no entry on the page."""
    return base.__module__.startswith("bursar.") and base.__name__ not in bursar.__all__


def entry(
    title: str,
    value: Any,
    heading: str,
    *,
    bases: tuple[type, ...] = (),
    is_value: bool = False,
) -> Iterator[str]:
    """Yield heading, signature and sections of one name."""
    yield f"{heading} `{title}`\n"
    told = [base for base in bases if base not in (object, Exception)]
    if told:
        yield "A subclass of " + ", ".join(f"`{base.__name__}`" for base in told) + ".\n"
    if not is_value:
        signature = written_signature(title, value)
        if signature:
            yield f"```python\n{signature}\n```\n"
    yield from sections(inspect.getdoc(value) or "")


def written_signature(title: str, value: Any) -> str:
    """Return the signature, one parameter a line where there are many; empty where none is."""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    shown = [
        parameter.replace(default=_Shown(parameter.default))
        if parameter.default is not parameter.empty
        else parameter
        for name, parameter in signature.parameters.items()
        if name != "self"
    ]
    signature = signature.replace(parameters=shown)
    if isinstance(value, type):
        signature = signature.replace(return_annotation=signature.empty)
    name = title.rpartition(".")[2] if title.startswith("bursar.") else title
    text = name + str(signature)
    text = re.sub(r"\b(?:bursar|collections|pathlib|typing)(?:\.[a-z_]+)*\.(?=[A-Z])", "", text)
    text = text.replace("'", "").replace("~", "")
    if len(text) <= _WIDTH or not shown:
        return text
    before, _, rest = text.partition("(")
    inner, _, after = rest.rpartition(")")
    lines = [f"    {part}," for part in _split(inner)]
    return "\n".join([f"{before}(", *lines, f"){after}"])


_WIDTH = 88


class _Shown:
    """A default as the page shows it; nothing that differs between machines."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __repr__(self) -> str:
        value = self._value
        if isinstance(value, Path):
            return f'"{value}"'
        if isinstance(value, str):
            return f'"{value}"'
        if value is None or isinstance(value, bool | int | float | tuple):
            return repr(value)
        return "..."


def _split(text: str) -> list[str]:
    """Split parameters at the commas outside of brackets."""
    parts, depth, begin = [], 0, 0
    for place, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append(text[begin:place].strip())
            begin = place + 1
    return [*parts, text[begin:].strip()]


def sections(text: str) -> Iterator[str]:
    """Yield the sections of a docstring as Markdown."""
    pieces = re.split(r"(?m)^([A-Z][A-Za-z ]+)\n-{3,}\n", text)
    if pieces[0].strip():
        yield plain(pieces[0]) + "\n"
    for title, body in zip(pieces[1::2], pieces[2::2], strict=True):
        yield f"{title}:\n" if title in _ENTRY_SECTIONS else f"**{title}**\n"
        if title not in _ENTRY_SECTIONS:
            yield plain(body) + "\n"
            continue
        lines = []
        for match in re.finditer(r"(?m)^(\S.*)\n((?:(?:[ \t]+.*)?\n?)*)", body):
            names = ", ".join(f"`{one.strip()}`" for one in match[1].split(","))
            told = plain(inspect.cleandoc(match[2]))
            lines.append(f"- {names}: {told}" if told else f"- {names}")
        yield "\n".join(lines) + "\n"


def plain(text: str) -> str:
    """Return text with the marks of docstrings as those of Markdown, one line a paragraph."""
    text = re.sub(r":[a-z]+:`~?([^`]+)`", r"`\1`", text)
    text = text.replace("``", "`")
    paragraphs = re.split(r"\n\s*\n", text.strip())
    return "\n\n".join(
        part if part.startswith((">>>", "    ")) else " ".join(part.split()) for part in paragraphs
    )


def main() -> int:
    """Write or check the page; return the exit status."""
    made = page()
    if "--check" in sys.argv[1:]:
        return int(made != PAGE.read_text())
    PAGE.write_text(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
