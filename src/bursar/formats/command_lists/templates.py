"""Command templates with replacement strings: ``{}``, ``{.}``, ``{/}``, ``{2}``, ``{#}``."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from bursar.model.errors import InputError

_PLAIN = re.compile(r"[A-Za-z0-9_.+/-]+", re.ASCII)
_SLOT = re.compile(r"\{(-?\d+|[A-Za-z_]\w*)?(\.|//|/\.|/)?\}|\{([#%])\}|\{=.*?=\}")
_ENDING = re.compile(r"\.[^/.]*\Z")


def quoted(value: str) -> str:
    """Return a value as one word of a shell, quoted only where need be, as GNU parallel does."""
    if _PLAIN.fullmatch(value):
        return value
    return "'" + value.replace("'", "'\"'\"'") + "'"


def without_ending(path: str) -> str:
    """Return a path without the ending of its name: ``a.b/c.d`` is ``a.b/c``."""
    return _ENDING.sub("", path)


def base_name(path: str) -> str:
    """Return what comes after the last slash of a path."""
    return path.rpartition("/")[2]


def folder_of(path: str) -> str:
    """Return the folder of a path: ``.`` where there is none."""
    head = path.rstrip("/").rpartition("/")
    if not head[1]:
        return "/" if path.startswith("/") else "."
    return head[0].rstrip("/") or "/"


_PARTS: dict[str, Callable[[str], str]] = {
    "": lambda value: value,
    ".": without_ending,
    "/": base_name,
    "//": folder_of,
    "/.": lambda value: without_ending(base_name(value)),
}


@dataclass(frozen=True, slots=True)
class _Slot:
    """
    A place for values.

    Parameters
    ----------
    column
        Number of the value, from 1 or negative from the end; 0: all, with spaces between them;
        None: the number of the job.
    part
        What of a value is put there, a key of the table above.
    """

    column: int | None
    part: str = ""


@dataclass(frozen=True, slots=True)
class CommandTemplate:
    """
    A command with places for values.

    Parameters
    ----------
    parts
        Texts and places, in order.
    """

    parts: tuple[str | _Slot, ...]

    @classmethod
    def of(
        cls,
        words: Sequence[str],
        *,
        names: Mapping[str, int] | None = None,
        replace: str = "{}",
        quotes: bool = False,
    ) -> Self:
        """
        Read a template; where it has no place for values, they come at its end.

        Parameters
        ----------
        words
            Words of the command, joined by spaces; none: each job's value is its command.
        names
            Numbers of columns, from 1, by their names.
        replace
            What stands for all values.
        quotes
            Whether the words are quoted, so that the shell takes them as they are.

        Raises
        ------
        InputError
            When a replacement string is none that is known before a job starts.
        """
        parts: list[str | _Slot] = []
        for number, word in enumerate(words):
            if number:
                parts.append(" ")
            found = _pieces(word, names or {}, replace)
            parts += [
                quoted(one) if quotes and isinstance(one, str) and one else one for one in found
            ]
            if quotes and not word:
                parts.append("''")
        if not any(isinstance(part, _Slot) for part in parts):
            parts += [" ", _Slot(0)] if words else [_Slot(0)]
        return cls(tuple(parts))

    def filled(self, values: Sequence[str], number: int, *, quotes: bool = True) -> str:
        """
        Return the command of a job.

        Parameters
        ----------
        number
            Number of the job, from 1.
        quotes
            Whether values become words of a shell; not where they are commands themselves.
        """
        made = quoted if quotes else str

        def shown(part: str | _Slot) -> str:
            if isinstance(part, str):
                return part
            if part.column is None:
                return str(number)
            change = _PARTS[part.part]
            if part.column == 0:
                return " ".join(made(change(value)) for value in values)
            index = part.column - 1 if part.column > 0 else len(values) + part.column
            return made(change(values[index])) if 0 <= index < len(values) else ""

        return "".join(shown(part) for part in self.parts)


def _pieces(word: str, names: Mapping[str, int], replace: str) -> list[str | _Slot]:
    """Return the texts and places of one word."""
    pieces: list[str | _Slot] = []
    begin = 0
    pattern = _SLOT if replace == "{}" else re.compile(f"{re.escape(replace)}|{_SLOT.pattern}")
    for match in pattern.finditer(word):
        slot = _slot(match, names, replace)
        if slot is None:
            continue
        pieces += [word[begin : match.start()], slot] if match.start() > begin else [slot]
        begin = match.end()
    if begin < len(word):
        pieces.append(word[begin:])
    return pieces


def _slot(match: re.Match[str], names: Mapping[str, int], replace: str) -> _Slot | None:
    """Return the place that a match stands for; None: it is a text like others."""
    text = match[0]
    if text == replace:
        return _Slot(0)
    if text.startswith("{="):
        raise InputError(
            f'"{text}" is Perl, which is not run here; there are {{}} {{.}} {{/}} {{//}} {{/.}} '
            "{#} {1} {1.} and names of columns",
            where="command",
        )
    if match[3] == "%":
        raise InputError(
            'the number of the job\'s slot, "{%}", is not known before it starts; {#} is the '
            "number of the job",
            where="command",
        )
    if match[3] == "#":
        return _Slot(None)
    column, part = match[1] or "", match[2] or ""
    if not column:
        return _Slot(0, part) if part else None  # "{}" where another string is in its place
    if column.lstrip("-").isdigit():
        return _Slot(int(column), part)
    return _Slot(names[column], part) if column in names else None
