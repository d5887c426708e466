"""The sites of a resource broker: their constant attributes, and their statuses as columns."""

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bursar.broker.information_index import StatusReadings
from bursar.broker.matchmaking.ads import (
    JOB_ATTRIBUTES,
    REQUIREMENTS,
    Attributes,
    changing_attributes,
    constant_attributes,
    is_wait,
)
from bursar.classad import UNDEFINED, Ad, Expression, Table, parse, references
from bursar.classad.evaluation import EVERYTHING, followed
from bursar.classad.operators import lower
from bursar.compiling import compiled
from bursar.model.errors import InputError
from bursar.model.matching import SiteStatus, StatusReading
from bursar.model.site import SiteFacts

# Keep the sites of a broker, and the sites' constant attributes.

Mask = NDArray[np.bool_]


class SiteRegistry:
    """
    Facts of sites by number.

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


# Estimate a job's wait at each site, from the site's status and what was sent there since.

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


class UncountedJobs(NamedTuple):
    """
    Our own unfinished jobs that a site's published status may not count yet.

    Attributes
    ----------
    site
        Number of each job's site.
    runtime
        Seconds at speed 1; nan where that is not known.
    due
        Time when the job's files should be there, seconds.
    arrived, began
        Times when the job reached the site's queue and began there; infinite before.
    """

    site: IntArray
    processors: FloatArray
    runtime: FloatArray
    due: FloatArray
    arrived: FloatArray
    began: FloatArray


class PublishedStatus(NamedTuple):
    """
    Last published status of the sites, in columns.

    Attributes
    ----------
    at
        Time of the reading, seconds.
    wait
        Estimated traversal time, seconds; nan where unknown.
    free
        Number of processors that no job held.
    """

    at: FloatArray
    wait: FloatArray
    free: FloatArray
    waiting: FloatArray


@compiled
def expected_waits(
    now: float,
    own: UncountedJobs,
    statuses: PublishedStatus,
    width: FloatArray,
    speed: FloatArray,
    usual: float,
    processors: float,
    runtime: float,
    arrival: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """
    Estimate the seconds until a job would begin at each site, not counting file transfers.

    A reading knows the jobs that came before its moment. Those of ours that came since, or
    will come before this job does, are put behind what it knows.

    Where the site was busy, the published wait has grown shorter since, and what we sent
    makes it longer by its work over the processors::

        wait = max(0, published - age) + (work + (processors - 1) runtime) / n

    the last term for a job that needs several processors at once, of which the published
    wait is for the first. A site that publishes none, though no processor is free, is taken
    to have a queue of jobs of the usual length.

    Where f processors were free, our jobs have taken these first, so a job waits only for
    k = (processors of ours and its own) - f of them, of the mean length of what is ahead.
    Until the first job of ours ends, only the n - f processors of others become free, at even
    intervals; from then on all do::

        k <= 0:                      0
        k mean <= first (n - f):     k mean / (n - f)
        otherwise:                   first + (k mean - first (n - f)) / n

    Parameters
    ----------
    now
        Seconds.
    width, speed
        Number of processors of each site, and their speed.
    usual
        Seconds at speed 1 assumed for a job whose runtime is unknown.
    processors, runtime
        Processors that the job holds, and the job's seconds at speed 1.
    arrival
        Arrival of the job's files at each site, seconds.

    Returns
    -------
    waits
        Seconds.
    ours
        Processors that the counted jobs hold or wait for, by site.
    """
    sites = len(width)
    ours = np.zeros(sites)
    work = np.zeros(sites)
    first = np.full(sites, np.inf)
    for j in range(len(own.site)):
        s = own.site[j]
        # Arrival at the very moment of the reading: it may have been made before.
        if own.arrived[j] < statuses.at[s] or min(own.due[j], own.arrived[j]) > arrival[s]:
            continue
        length = (usual if np.isnan(own.runtime[j]) else own.runtime[j]) / speed[s]
        begin = own.began[j]
        if np.isinf(begin):
            # Not begun yet as far as anybody knows: all its work is still ahead.
            begin = now if own.arrived[j] <= now else max(now, own.due[j])
        left = max(0.0, length - max(0.0, now - begin))
        ours[s] += own.processors[j]
        work[s] += own.processors[j] * left
        first[s] = min(first[s], max(begin, now) + left - now)
    waits = np.empty(sites)
    for s in range(sites):
        length = runtime / speed[s]
        # `not >` also holds for nan: a site that publishes no wait but has free processors has
        # none.
        if statuses.free[s] > 0 and not statuses.wait[s] > 0:
            lacking = ours[s] + processors - statuses.free[s]
            if lacking <= 0:
                waits[s] = 0.0
                continue
            ahead = lacking * (work[s] + processors * length) / (ours[s] + processors)
            others = max(0.0, width[s] - statuses.free[s])
            if ahead <= first[s] * others:
                waits[s] = ahead / others if others > 0 else 0.0
            else:
                waits[s] = first[s] + (ahead - first[s] * others) / width[s]
        else:
            published = statuses.wait[s]
            if np.isnan(published):
                published = (statuses.waiting[s] + 1) * usual / speed[s] / width[s]
            left = max(0.0, published - max(0.0, now - statuses.at[s]))
            waits[s] = left + (work[s] + (processors - 1) * length) / width[s]
    return waits, ours


# Keep the last status of the sites in columns.

OPEN = "production"
"""State, in lower case, of a site that takes jobs."""

_ABSENT: Attributes = {}


class SiteStatusTable:
    """
    The last status of each site.

    The columns that every job needs are kept up to date. Ads, and the table that expressions
    go over, follow when an expression first asks for what changes: most jobs ask for nothing.

    Attributes
    ----------
    statuses
        Status of each site, by number; None where unknown.
    published
        The same statuses in columns.
    is_open
        Mask of the sites that are known and take jobs.
    openings
        Counter of changes of ``is_open``.
    tick
        Counter of changes of any status.
    """

    def __init__(self, registry: SiteRegistry) -> None:
        sites = len(registry)
        self._registry = registry
        self.statuses: list[SiteStatus | None] = [None] * sites
        self.published = PublishedStatus(
            np.full(sites, -math.inf), np.full(sites, math.nan), np.zeros(sites), np.zeros(sites)
        )
        self.is_open = np.zeros(sites, dtype=np.bool_)
        self.openings = 0
        self.tick = 0
        self._table: Table | None = None
        self._changing: list[Attributes] = [_ABSENT] * sites
        self._outdated: set[int] = set()
        self._shown: set[str] = set()  # what the table keeps up with
        self._changed: dict[str, int] = {}  # when an attribute changed last, in ticks

    def learn(self, readings: Mapping[str, StatusReading]) -> None:
        """Replace all statuses by the index's statuses; sites unknown to the index have none."""
        # Ages are not looked at here, and our own index reckons them only where they are.
        statuses: Mapping[str, SiteStatus] = (
            readings.statuses
            if isinstance(readings, StatusReadings)
            else {name: reading.status for name, reading in readings.items()}
        )
        for i, (name, old) in enumerate(zip(self._registry.names, self.statuses, strict=True)):
            status = statuses.get(name)
            # Identity, not equality: the index keeps the very object until a site says something
            # else.
            if status is not old:
                self.put(i, status)

    def put(self, i: int, status: SiteStatus | None) -> None:
        """Store the status of one site; None: unknown."""
        if status is self.statuses[i]:
            return
        self.statuses[i] = status
        self.tick += 1
        self._outdated.add(i)
        published = self.published
        if status is None:
            published.at[i], published.wait[i], published.free[i] = -math.inf, math.nan, 0.0
            is_open = False
        else:
            wait = status.traversal_time
            published.at[i] = status.at
            published.wait[i] = wait if wait is not None and is_wait(wait) else math.nan
            published.free[i] = status.free_processors
            published.waiting[i] = status.waiting
            is_open = status.state.lower() == OPEN
        if is_open != self.is_open[i]:
            self.is_open[i] = is_open
            self.openings += 1

    def stamp(self, names: Iterable[str]) -> int:
        """
        Return the tick at which any of some attributes last changed; 0: never.

        Parameters
        ----------
        names
            Names of attributes, in lower case.
        """
        self._catch_up()
        if EVERYTHING in names:
            return self.tick
        changed = self._changed
        return max((changed.get(name, 0) for name in names), default=0)

    def table(self, names: Set[str]) -> Table:
        """
        Return the table of all sites' ClassAds.

        Parameters
        ----------
        names
            Attributes in lower case that will be looked at; others may be out of date.
        """
        self._catch_up()
        if EVERYTHING in names or REQUIREMENTS in names:
            names = self._changed.keys()
        if self._table is None:
            self._table = Table([self.ad(i) for i in range(len(self.statuses))])
            self._shown.update(names)
        for name in self._changed.keys() & names - self._shown:
            self._shown.add(name)
            for i in range(len(self.statuses)):
                self._show(i, name)
        return self._table

    def ad(self, i: int) -> Ad:
        """Return a site's ClassAd."""
        self._catch_up()
        ad: dict[str, object] = self._registry.constant[i] | self._changing[i]
        expression: Expression | None = self._registry.requirements.get(i)
        if expression is not None:
            ad[REQUIREMENTS] = expression
        return Ad(ad)

    def _catch_up(self) -> None:
        for i in self._outdated:
            status, old = self.statuses[i], self._changing[i]
            new = self._changing[i] = _ABSENT if status is None else changing_attributes(status)
            for name in old.keys() | new.keys():
                value, before = new.get(name, UNDEFINED), old.get(name, UNDEFINED)
                # Types, too: to ClassAd expressions 1, 1.0 and true differ, though Python calls
                # them equal.
                if value == before and type(value) is type(before):
                    continue
                self._changed[name] = self.tick
                if name in self._shown:
                    self._show(i, name)
        self._outdated.clear()

    def _show(self, i: int, name: str) -> None:
        """Write an attribute of a site into the table."""
        assert self._table is not None
        value = self._changing[i].get(name, UNDEFINED)
        if value is UNDEFINED:
            value = self._registry.constant[i].get(name, UNDEFINED)
        self._table.set(name, i, value)
