"""One ad of a JDL file: its attributes as values of the kinds that are asked for."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bursar.classad import ERROR, UNDEFINED, Ad, Expression, evaluate, parse_ad
from bursar.classad.ad import AttributeReference, ExpressionList, ExpressionNode, Literal, NestedAd
from bursar.formats.toml_reading import read_text
from bursar.model.errors import InputError

LARGEST_FILE = 1024 * 1024
"""Bytes; a job is described by a person."""


@dataclass(frozen=True, slots=True)
class JdlDescription:
    """
    The ad of a job, of a DAG node, or of a whole description.

    Parameters
    ----------
    ad
        Attributes, including those inherited from the enclosing ad.
    places
        File, line and column of each attribute, by its name in lower case.
    place
        File, line and column of the ad itself.
    """

    ad: Ad
    places: Mapping[str, str]
    place: str

    def __contains__(self, name: str) -> bool:
        return name in self.ad

    def error(self, name: str, message: str, *, hint: str | None = None) -> InputError:
        """Return an error at an attribute."""
        return InputError(f"{name} {message}", where=self.where(name), hint=hint)

    def where(self, name: str) -> str:
        """Return the place of an attribute, or of the ad if unknown."""
        return self.places.get(name.lower(), self.place)

    def value(self, name: str) -> Any:
        """Return the value of an attribute within the ad; None for a missing attribute."""
        if name not in self.ad:
            return None
        found = evaluate(self.ad.expression(name), self.ad)
        if found is UNDEFINED or found is ERROR:
            raise self.error(name, f"is {found.word}, expected a value", hint=_unquoted(self, name))
        return found

    def text(self, name: str) -> str | None:
        """Return a string that is not empty."""
        found = self.value(name)
        if found is None:
            return None
        if not isinstance(found, str) or not found.strip() or "\0" in found:
            raise self.error(name, f"is {shown(found)}, expected a string")
        return found

    def texts(self, name: str) -> list[str]:
        """Return a list of strings, or a single one; empty for a missing attribute."""
        found = self.value(name)
        items = [] if found is None else found if isinstance(found, list) else [found]
        for item in items:
            if not isinstance(item, str) or not item.strip() or "\0" in item:
                raise self.error(name, f"holds {shown(item)}, expected strings")
        return items

    def count(self, name: str, least: int) -> int | None:
        """Return a whole number that is not below the least."""
        found = self.value(name)
        if found is None:
            return None
        if type(found) is not int or not least <= found < 2**31:
            expected = f"expected a whole number of at least {least}"
            raise self.error(name, f"is {shown(found)}, {expected}")
        return found

    def share(self, name: str) -> float | None:
        """Return a number from 0 to 1."""
        found = self.value(name)
        if found is None:
            return None
        number = not isinstance(found, bool) and isinstance(found, int | float)
        if not number or math.isnan(found) or not 0 <= found <= 1:
            raise self.error(name, f"is {shown(found)}, expected a number between 0 and 1")
        return float(found)

    def flag(self, name: str) -> bool:
        """Return a Boolean attribute; a missing one counts as false."""
        found = self.value(name)
        if found is not None and not isinstance(found, bool):
            raise self.error(name, f"is {shown(found)}, expected true or false")
        return bool(found)

    def parts(self, name: str) -> list[ExpressionNode]:
        """Return the items of a list as written; a single item counts as a list."""
        root = self.ad.expression(name).root
        return list(root.items) if isinstance(root, ExpressionList) else [root]

    def inner(self, name: str, node: NestedAd) -> "JdlDescription":
        """Return an ad nested in an attribute."""
        ad = Ad.of(node)
        file = self.place
        places = {key.lower(): at(file, ad, key, self.places.get(name.lower(), file)) for key in ad}
        return JdlDescription(ad, places, self.places.get(name.lower(), file))


def at(file: str, ad: Ad, name: str, otherwise: str) -> str:
    """File, line and column of an attribute."""
    place = ad.place(name)
    return otherwise if place is None else f"{_file(file)}:{place[0]}:{place[1]}"


def _file(place: str) -> str:
    return re.sub(r":\d+:\d+$", "", place)


def inheriting(
    outer: JdlDescription, inner: JdlDescription, leave: Iterable[str]
) -> JdlDescription:
    """Return an ad completed by the enclosing ad, except some attributes."""
    left = {name.lower() for name in leave}
    ad = {name: outer.ad[name] for name in outer.ad if name.lower() not in left}
    ad = {name: value for name, value in ad.items() if name not in inner.ad}
    return JdlDescription(
        Ad({**ad, **{name: inner.ad[name] for name in inner.ad}}),
        {**outer.places, **inner.places},
        inner.place,
    )


def read_description(path: Path) -> JdlDescription:
    """
    Read the ad that a file holds.

    Raises
    ------
    InputError
        When it cannot be read, or at line and column.
    """
    text = read_text(path, limit=LARGEST_FILE).replace("\r\n", "\n").replace("\r", "\n")
    # Comments of JDL that ClassAds do not have; columns and lines stay what they are.
    text = re.sub(r"^[ \t]*#[^\n]*", "", text, flags=re.MULTILINE)
    ad = parse_ad(text, where=str(path))
    places = {key.lower(): at(str(path), ad, key, str(path)) for key in ad}
    return JdlDescription(ad, places, str(path))


def name_of(node: ExpressionNode) -> str | None:
    """Return a name that is written bare or as a string; None for anything else."""
    if isinstance(node, AttributeReference) and node.of is None:
        return node.name
    if isinstance(node, Literal) and isinstance(node.value, str):
        return node.value
    return None


def shown(value: object) -> str:
    """Return a value within a message."""
    if isinstance(value, Ad | Expression):
        return "an ad"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, bool):
        return "true" if value else "false"
    text = "".join(c if c.isprintable() else "?" for c in str(value))
    text = text if len(text) <= 40 else text[:40] + "..."
    return f'"{text}"' if isinstance(value, str) else text


def _unquoted(description: JdlDescription, name: str) -> str | None:
    """Hint at quotes where a bare word names no attribute: a common slip."""
    root = description.ad.expression(name).root
    if isinstance(root, AttributeReference) and root.of is None:
        return f'write "{root.name}" for a string'
    return None
