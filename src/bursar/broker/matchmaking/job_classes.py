"""
Group jobs with equal significant attributes, which are matched once.

HTCondor calls such groups autoclusters. Significant is what a job asks for, and of what the
job is by itself only what its expressions, or those of sites, read.
"""

from collections.abc import Mapping
from typing import Any

from bursar.broker.matchmaking.ads import JOB_ATTRIBUTES, job_ad
from bursar.broker.matchmaking.broker_interfaces import BrokerJob
from bursar.broker.matchmaking.ranking import DEFAULT_RANKS
from bursar.broker.matchmaking.site_registry import Mask, SiteRegistry
from bursar.classad import Ad, Expression, parse, references
from bursar.classad.analysis import EVERYTHING, followed
from bursar.model.matching import Matching
from bursar.model.status import Fact

MOST_KINDS = 4096
"""Most classes kept; then all are dropped, so that a long campaign does not fill the memory."""


class JobClass:
    """
    A class of jobs that every site treats alike.

    Parameters
    ----------
    my
        ClassAd of the jobs.
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
    """
    Finds the class of a job.

    Parameters
    ----------
    registry
        Registry of the sites.
    attributes
        Attributes that all jobs have.
    """

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
