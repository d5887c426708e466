"""The keys of a campaign file by which tasks choose sites."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bursar.classad.ad import Ad
from bursar.formats.tables import TaskTable
from bursar.formats.template import Template, rendered_at, template_at
from bursar.formats.toml_reading import joined
from bursar.model.errors import InputError, spelling_hint
from bursar.model.matching import CHOICES, Matching
from bursar.model.status import Fact
from bursar.model.task import Value


@dataclass(frozen=True, slots=True)
class MatchingKeys:
    """
    The checked keys of a task set from which the :class:`Matching` is made.

    Parameters
    ----------
    table
        The set's settings; its expressions have been parsed.
    site
        Name of a site; may hold parameters.
    attributes
        Of the job's ad; text may hold parameters.
    site_place, place
        Paths of ``site`` and of ``attributes``.
    """

    table: TaskTable
    site: Template | None
    attributes: tuple[tuple[str, Fact | Template], ...]
    site_place: str
    place: str
    _constant: list[Matching] = field(default_factory=list)

    def templates(self) -> list[tuple[str, Template]]:
        """Return the texts with places for values, each with the path of its key."""
        found = [] if self.site is None else [(self.site_place, self.site)]
        texts = [(k, v) for k, v in self.attributes if isinstance(v, Template)]
        return found + [(joined(self.place, key), template) for key, template in texts]

    def at(self, values: Mapping[str, Value | tuple[str, ...]]) -> Matching:
        """Return what is asked at a point of the sweep; one object where nothing varies."""
        if self._constant:
            return self._constant[0]
        site = None
        if self.site is not None:
            site = rendered_at(self.site, values, self.site_place)
            if not site:
                raise InputError("expected the name of a site", where=self.site_place)
        ad = Ad({name: self._value(name, value, values) for name, value in self.attributes})
        matching = Matching(
            requirements=self.table.requirements,
            rank=self.table.rank,
            site=site,
            alpha=self.table.alpha,
            beta=self.table.beta,
            choice=self.table.choice,
            attributes={name: str(ad.expression(name)) for name in ad},
        )
        if not any(template.names for _, template in self.templates()):
            self._constant.append(matching)
        return matching

    def _value(
        self, name: str, value: Fact | Template, values: Mapping[str, Value | tuple[str, ...]]
    ) -> object:
        if not isinstance(value, Template):
            return value
        alone = value.only_name
        if alone is not None and value.text == f"{{{alone}}}":
            return values[alone]  # a parameter by itself keeps its kind
        return rendered_at(value, values, joined(self.place, name))


def matching_keys(table: TaskTable, at: Any) -> MatchingKeys:
    """
    Return the keys of a set, checked.

    Parameters
    ----------
    table
        The set's settings.
    at
        Gives the path of a setting.

    Raises
    ------
    InputError
        At the key that is wrong; within an expression, at its column.
    """
    for key in ("requirements", "rank"):
        text = getattr(table, key)
        if text is not None:
            check_expression(text, at(key))
    for key in ("alpha", "beta"):
        weight = getattr(table, key)
        if weight is not None and math.isnan(weight):
            raise InputError("expected a number between 0 and 1", where=at(key))
    if table.choice is not None and table.choice not in CHOICES:
        raise InputError(
            f'expected one of {", ".join(CHOICES)}, got "{table.choice[:40]}"',
            where=at("choice"),
            hint=spelling_hint(table.choice, CHOICES),
        )
    return MatchingKeys(
        table,
        None if table.site is None else template_at(table.site, at("site")),
        tuple(_attribute(k, v, at("attributes")) for k, v in (table.attributes or {}).items()),
        at("site"),
        at("attributes"),
    )


def check_expression(text: str, place: str) -> None:
    """
    Check that a text is an expression.

    Raises
    ------
    InputError
        At the place, with the column, when the text is no expression.
    """
    from bursar.classad.parsing import parse

    try:
        parse(text)
    except InputError as error:
        line, _, column = error.where.partition(":")
        within = f"column {column}" if "\n" not in text else f"line {line}, column {column}"
        raise InputError(f"{within}: {error.message}", where=place, hint=error.hint) from None


def _attribute(name: str, value: Fact, place: str) -> tuple[str, Fact | Template]:
    if not name or "\0" in name:
        raise InputError("expected a name", where=joined(place, name))
    return name, template_at(value, joined(place, name)) if isinstance(value, str) else value
