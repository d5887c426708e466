"""Keep the sites of a broker, and the sites' constant attributes."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bursar.broker.matchmaking.ads import (
    JOB_ATTRIBUTES,
    REQUIREMENTS,
    Attributes,
    constant_attributes,
)
from bursar.classad import Ad, Expression, parse, references
from bursar.classad.analysis import followed
from bursar.classad.operators import lower
from bursar.model.errors import InputError
from bursar.model.site import SiteFacts

Mask = NDArray[np.bool_]


class SiteRegistry:
    """
    Facts of sites by number.

    Parameters
    ----------
    sites
        Sites with unique names.

    Attributes
    ----------
    names
        Names of the sites, in their order; the index of a name is the site's number.
    constant
        Constant attributes of each site, by name in lower case.
    requirements
        Requirements of the sites on jobs, by site number; most sites have none.
    asked
        Attributes of jobs, in lower case, that sites ask for.
    asks_by_status
        Whether the sites' requirements on jobs may depend on the sites' present status.

    Raises
    ------
    InputError
        When two sites have one name, or what a site requires is no expression.
    """

    def __init__(self, sites: Sequence[SiteFacts]) -> None:
        self.sites = tuple(sites)
        self.names = tuple(site.name for site in sites)
        self.number = {name: i for i, name in enumerate(self.names)}
        if len(self.number) < len(self.names):
            double = next(n for i, n in enumerate(self.names) if self.number[n] != i)
            raise InputError(f'two sites are called "{double}"', where="sites")
        self.constant: list[Attributes] = [constant_attributes(site) for site in sites]
        self.requirements: dict[int, Expression] = {}
        self.asked: frozenset[str] = frozenset()
        self.asks_by_status = False
        for i, site in enumerate(sites):
            self._read_requirements(i, site)
        widths = np.array([site.processors for site in sites])
        room = np.array([math.inf if s.memory is None else s.memory for s in sites])
        self.processors, self.memory = widths, room
        self._width_steps, self._room_steps = np.unique(widths), np.unique(room)

    def __len__(self) -> int:
        return len(self.names)

    def size_class(self, processors: int, memory: int | None) -> tuple[int, int]:
        """Jobs of one class fit into the same sites."""
        return (
            int(self._width_steps.searchsorted(processors)),
            int(self._room_steps.searchsorted(memory or 0)),
        )

    def fits(self, processors: int, memory: int | None) -> Mask:
        """
        Sites that are large enough for a job.

        Of a site whose memory is not known it is taken to be enough, as in planning.
        """
        return (self.processors >= processors) & (self.memory >= (memory or 0))

    def _read_requirements(self, i: int, site: SiteFacts) -> None:
        for name, text in site.attributes.items():
            if lower(name) != REQUIREMENTS:
                continue
            where = f'site "{site.name}": {name}'
            if not isinstance(text, str):
                raise InputError("expected an expression as text", where=where)
            expression = self.requirements[i] = parse(text, where=where)
            own = Ad(self.constant[i])
            read = references(expression, own)
            self.asked |= read
            known = self.constant[i].keys() | JOB_ATTRIBUTES
            self.asks_by_status |= not read | followed(expression, own) <= known
