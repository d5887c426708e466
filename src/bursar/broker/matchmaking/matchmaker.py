"""
Find the sites that match a job, and their ranks (Cavalieri et al. 2003, section 2.1).

Matchmaking has two phases. In the first a job's requirements are held against what the
information index knows, which may be old, for they are about what changes little. In the second
each site that is left is asked itself, since what ranks are made of changes fast.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bursar.broker.information_index import validate_status
from bursar.broker.matchmaking.ads import JOB_ATTRIBUTES, job_ad
from bursar.broker.matchmaking.broker_interfaces import (
    BrokerJob,
    DirectSiteQuery,
    FileTimes,
    IndexReader,
    Seconds,
)
from bursar.broker.matchmaking.choice import DEFAULT_RANKS, FloatArray
from bursar.broker.matchmaking.status_table import Mask, SiteRegistry, SiteStatusTable
from bursar.classad import Ad, Expression, compiled, parse, references
from bursar.classad.evaluation import EVERYTHING, followed
from bursar.model.errors import SiteError
from bursar.model.matching import Fact, Matching, SiteStatus
from bursar.model.money import Refusal

# Group jobs with equal significant attributes, which are matched once.

MOST_KINDS = 4096
"""Most classes kept; then all are dropped, so that a long campaign does not fill the memory."""


class JobClass:
    """
    A class of jobs that every site treats alike.

    Parameters
    ----------
    requirements, rank
        Expressions; None where nothing is asked, and for the default rank.
    fits
        Sites that are large enough.

    Attributes
    ----------
    requirements_read, rank_read
        Attributes of sites that the expressions read, in lower case.
    kept
        Answers, with what they depend on; whoever makes them puts them there.
    """

    __slots__ = ("fits", "kept", "my", "rank", "rank_read", "requirements", "requirements_read")

    def __init__(
        self, my: Ad, requirements: Expression | None, rank: Expression | None, fits: Mask
    ) -> None:
        self.my = my
        self.requirements = requirements
        self.rank = rank
        self.fits = fits
        self.requirements_read = _reads(requirements, my)
        self.rank_read = _reads(rank, my)
        self.kept: dict[str, tuple[Any, Any]] = {}


class _SignificantAttributes:
    """Expressions of a kind of job, and the job attributes that matter to these."""

    __slots__ = ("kinds", "rank", "requirements", "significant")

    def __init__(
        self, matching: Matching, attributes: Mapping[str, Fact], registry: SiteRegistry
    ) -> None:
        # With every attribute present, so that whatever an expression may read of any such job is
        # found.
        my = job_ad(_complete(matching), attributes)
        self.requirements = _parsed(matching.requirements, "requirements")
        self.rank = _parsed(matching.rank, "rank")
        if self.rank is not None and _is_default(self.rank):
            self.rank = None
        read = set(registry.asked)
        for expression in (self.requirements, self.rank):
            if expression is not None:
                read |= followed(expression, my)
        self.significant = tuple(
            sorted(JOB_ATTRIBUTES if EVERYTHING in read else JOB_ATTRIBUTES & read)
        )
        self.kinds: dict[tuple[object, ...], JobClass] = {}


class JobClassCache:
    """Finds the class of a job."""

    def __init__(self, registry: SiteRegistry, attributes: Mapping[str, Fact]) -> None:
        self._registry = registry
        self._attributes = attributes
        self._asked: dict[tuple[object, ...], _SignificantAttributes] = {}
        self._made = 0

    def of(self, job: BrokerJob) -> JobClass:
        """
        Return the class of a job.

        Raises
        ------
        InputError
            When an expression is wrong; at its field, line and column.
        """
        matching = job.matching
        attributes = matching.attributes
        what = (
            matching.requirements,
            matching.rank,
            tuple(sorted(attributes.items())) if attributes else (),
        )
        asked = self._asked.get(what)
        if asked is None:
            asked = self._asked[what] = _SignificantAttributes(
                matching, self._attributes, self._registry
            )
        key: tuple[object, ...] = self._registry.size_class(job.processors, job.memory)
        # Only attributes that some expression reads: jobs that differ in others share all
        # evaluations.
        if asked.significant:
            key += tuple(_ITSELF[name](job) for name in asked.significant)
        kind = asked.kinds.get(key)
        if kind is None:
            kind = self._make(job, asked)
            asked.kinds[key] = kind
        return kind

    def _make(self, job: BrokerJob, asked: _SignificantAttributes) -> JobClass:
        self._made += 1
        # All at once rather than the oldest: jobs with ever new values fill the cache, and few
        # others refill it.
        if self._made > MOST_KINDS:
            self._asked.clear()
            self._made = 0
        my = job_ad(job, self._attributes)
        fits = self._registry.fits(job.processors, job.memory)
        return JobClass(my, asked.requirements, asked.rank, fits)


def _complete(matching: Matching) -> BrokerJob:
    """Return a job with a value for every attribute that a job's ad can have."""
    return BrokerJob(number=0, matching=matching, runtime=1.0, memory=1, data=("a",))


_ITSELF = {
    "processors": lambda job: job.processors,
    "cpunumber": lambda job: job.processors,
    "memory": lambda job: job.memory,
    "runtime": lambda job: job.runtime,
    "inputdata": lambda job: job.data,
}


def _parsed(text: str | None, where: str) -> Expression | None:
    return None if text is None else parse(text, where=where)


def _is_default(rank: Expression) -> bool:
    return str(rank).lower().replace(" ", "") in DEFAULT_RANKS


def _reads(expression: Expression | None, my: Ad) -> frozenset[str]:
    return frozenset() if expression is None else references(expression, my)


Numbers = NDArray[np.int64]


@dataclass(slots=True)
class MatchedSites:
    """
    Sites that satisfy a job, and the data by which these sites are ranked.

    Parameters
    ----------
    sites
        Numbers of the sites that are left.
    access, transfer
        Seconds that the job's files take at each site; None: no files, or times unknown.
    statuses
        Status of these sites, from the index or from the sites themselves.
    fresh
        Whether the sites themselves were asked.
    silent
        Why sites were left out in the second phase, by their number.
    """

    kind: JobClass
    sites: Numbers
    access: FloatArray | None
    transfer: FloatArray | None
    statuses: SiteStatusTable
    fresh: bool
    silent: Mapping[int, str]


class Matchmaker:
    """
    Matches jobs to sites.

    Parameters
    ----------
    files
        Estimates the times of the jobs' files; None: files take no time.
    direct
        Asks sites in the second phase; None: the index serves for that, too.
    clock
        The present time, seconds.

    Attributes
    ----------
    evaluations
        Number of evaluations of an expression over all sites so far.
    """

    def __init__(
        self,
        registry: SiteRegistry,
        index: IndexReader,
        *,
        files: FileTimes | None,
        direct: DirectSiteQuery | None,
        attributes: Mapping[str, Fact],
        clock: Callable[[], float],
    ) -> None:
        self.registry = registry
        self.kinds = JobClassCache(registry, attributes)
        self.statuses = SiteStatusTable(registry)
        self.evaluations = 0
        self._asked = SiteStatusTable(registry)
        self._index = index
        self._files = files
        self._direct = direct
        self._clock = clock
        self._version: int | None = None

    def poll(self) -> None:
        """Read the index if the index has changed."""
        version = self._index.version
        if version != self._version:
            self.statuses.learn(self._index.read())
            self._version = version

    def match(self, job: BrokerJob) -> MatchedSites:
        """
        Return the sites that satisfy a job, after both phases.

        Raises
        ------
        InputError
            When an expression is wrong.
        """
        self.poll()
        kind = self.kinds.of(job)
        sites, names = self._satisfying(kind)
        access = transfer = None
        if job.data and self._files is not None and len(sites):
            transfer = _seconds(self._files.transfer_times(job.data, names))
            # A site to which a file cannot be brought is none that satisfies the job.
            reached = np.isfinite(transfer)
            if not reached.all():
                sites, transfer = sites[reached], transfer[reached]
                names = tuple(self.registry.names[i] for i in sites)
            if len(sites):
                access = _seconds(self._files.access_times(job.data, names))
        matched = MatchedSites(kind, sites, access, transfer, self.statuses, False, {})
        if self._direct is not None and len(sites):
            self._ask(self._direct, matched)
        return matched

    def expressed(self, matched: MatchedSites) -> FloatArray:
        """Return the rank expression's value at each matching site; nan where undefined."""
        kind, board = matched.kind, matched.statuses
        if kind.rank is None:
            return 0.0 - board.published.wait[matched.sites]  # no -0
        values = self._kept(
            kind,
            "values asked" if matched.fresh else "values",
            board.stamp(kind.rank_read),
            lambda: self._values(kind, board),
        )
        ranks: FloatArray = values[matched.sites]
        return ranks

    def holding(self, kind: JobClass) -> Mask:
        """Return the sites that satisfy a job class and whose own requirements the class meets."""
        requirements, registry, statuses = kind.requirements, self.registry, self.statuses
        holds = np.ones(len(registry), dtype=np.bool_)
        if requirements is not None:
            stamp = statuses.stamp(kind.requirements_read)
            holds = self._kept(kind, "holds", stamp, lambda: self._holds(kind))
        return holds & self.taken(kind) if registry.requirements else holds

    def taken(self, kind: JobClass) -> Mask:
        """Find the sites whose own requirements accept a kind of job."""
        stamp = self.statuses.tick if self.registry.asks_by_status else 0
        taken: Mask = self._kept(kind, "taken", stamp, lambda: self._taken(kind))
        return taken

    def unreached(self, job: BrokerJob, sites: Sequence[int]) -> str | None:
        """Return a job's first file that none of the given sites can get; None: each can be had."""
        if self._files is None:
            return None
        names = tuple(self.registry.names[i] for i in sites)
        for name in job.data:
            if not np.isfinite(_seconds(self._files.transfer_times((name,), names))).any():
                return name
        return None

    # The first phase.

    def _satisfying(self, kind: JobClass) -> tuple[Numbers, tuple[str, ...]]:
        """Return the sites, with names, that satisfy a job class by the index."""
        statuses = self.statuses
        # A tuple of versions, not of values: jobs alike then cost a comparison of three numbers.
        depends = (
            statuses.openings,
            statuses.stamp(kind.requirements_read) if kind.requirements is not None else 0,
            statuses.tick if self.registry.asks_by_status else 0,
        )
        found: tuple[Numbers, tuple[str, ...]] = self._kept(
            kind, "satisfying", depends, lambda: self._satisfying_now(kind)
        )
        return found

    def _satisfying_now(self, kind: JobClass) -> tuple[Numbers, tuple[str, ...]]:
        sites = np.flatnonzero(self.statuses.is_open & kind.fits & self.holding(kind))
        return sites, tuple(self.registry.names[i] for i in sites)

    def _holds(self, kind: JobClass) -> Mask:
        assert kind.requirements is not None
        self.evaluations += 1
        table = self.statuses.table(kind.requirements_read)
        holds: Mask = table.holds(kind.requirements, kind.my)
        return holds

    def _taken(self, kind: JobClass) -> Mask:
        taken = np.ones(len(self.registry), dtype=np.bool_)
        for i, expression in self.registry.requirements.items():
            taken[i] = compiled(expression, self.statuses.ad(i))(kind.my) is True
        return taken

    # The second phase.

    def _ask(self, direct: DirectSiteQuery, matched: MatchedSites) -> None:
        """Ask each remaining site; use the index if no site answers sensibly."""
        silent: dict[int, str] = {}
        answered = False
        for i in matched.sites.tolist():
            status = self._answer(direct, i)
            if isinstance(status, str):
                silent[i] = status
                continue
            answered = True
            self._asked.put(i, status)
            if not self._asked.is_open[i]:
                silent[i] = f"says that it is in state {status.state}"
        matched.silent = silent
        # All silent at once is a fault of ours or of the network: jobs go on by what the index
        # knows.
        if not answered:
            return
        matched.statuses, matched.fresh = self._asked, True
        left = np.array([i not in silent for i in matched.sites.tolist()], dtype=np.bool_)
        matched.sites = matched.sites[left]
        if matched.transfer is not None and matched.access is not None:
            matched.transfer, matched.access = matched.transfer[left], matched.access[left]

    def _answer(self, direct: DirectSiteQuery, site: int) -> SiteStatus | str:
        """Return the present status of a site, or the reason that the answer is unusable."""
        name = self.registry.names[site]
        try:
            answer = direct.status(name)
        except SiteError as error:
            return str(error)
        if answer is None:
            return "does not answer"
        processors = int(self.registry.processors[site])
        status = validate_status(answer, site=name, now=self._clock(), processors=processors)
        return f"answers garbage: {status.reason}" if isinstance(status, Refusal) else status

    def _values(self, kind: JobClass, board: SiteStatusTable) -> FloatArray:
        assert kind.rank is not None
        self.evaluations += 1
        values: FloatArray = board.table(kind.rank_read).values(kind.rank, kind.my)
        return values

    def _kept(self, kind: JobClass, what: str, depends: object, make: Callable[[], Any]) -> Any:
        """Return a cached result, computed anew when the inputs have changed."""
        kept = kind.kept.get(what)
        if kept is None or kept[0] != depends:
            kept = kind.kept[what] = (depends, make())
        return kept[1]


def _seconds(times: Seconds) -> FloatArray:
    """Convert times to an array in which nan becomes infinite."""
    seconds = np.asarray(times, dtype=np.float64)
    return np.where(np.isnan(seconds), math.inf, seconds)
