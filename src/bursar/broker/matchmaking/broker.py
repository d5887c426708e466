"""The resource broker chooses the site of each job."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from bursar.broker.matchmaking.broker_interfaces import (
    BrokerJob,
    DirectSiteQuery,
    FileTimes,
    IndexReader,
)
from bursar.broker.matchmaking.choice import pick, rule_of
from bursar.broker.matchmaking.explaining import MatchExplanation, explain_match, refusal
from bursar.broker.matchmaking.inflight import InFlightJobs
from bursar.broker.matchmaking.matchmaker import MatchedSites, Matchmaker
from bursar.broker.matchmaking.scoring import COMPLETION, RankColumns, RankTerms, SiteScorer
from bursar.broker.matchmaking.status_table import SiteRegistry
from bursar.model.errors import spelling_hint
from bursar.model.matching import CHOICES, Fact, RankWeights
from bursar.model.money import Refusal
from bursar.model.site import SiteFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteMatch:
    """
    Site that was chosen for a job, and why.

    Parameters
    ----------
    rank
        Rank by equation 1; None where it is undefined, and for a job that named its site.
    terms
        Terms of the rank; None for a job that names a site.
    matched
        Sites that were to be chosen from.
    notes
        Oddities: sites that did not answer, a rank that is undefined.
    """

    site: str
    rank: float | None
    terms: RankTerms | None
    matched: int
    notes: tuple[str, ...] = ()
    _weighed: "_MatchRecord | None" = field(default=None, repr=False, compare=False)

    def reason_of(self, site: str) -> str:
        """Return in one line how a site was weighed."""
        if self._weighed is None:
            return "the job names it" if site == self.site else "the job names another"
        return self._weighed.reason_of(site)

    def best(self, many: int) -> list[str]:
        """Return the best sites in order of score; the named site where the job named one."""
        return [self.site] if self._weighed is None else self._weighed.best(many)


class ResourceBroker:
    """
    Matches jobs to sites (Cavalieri et al. 2003), and tracks the jobs sent to each.

    Nothing here waits or reads a clock: jobs are asked about one by one, and whoever runs them
    tells what becomes of them.

    Parameters
    ----------
    index
        Information index, whose facts may be old.
    files
        Estimates the times of the jobs' files; None: files take no time.
    direct
        Asks the matching sites for their present state; None: the index serves for that, too.
    weights
        Weights of the rank for jobs that state none.
    choice
        Name of the rule by which a site is chosen, for jobs that name none.
    clock
        The present time, seconds; the index and the sites count by it.
    attributes
        Attributes that all jobs have, for expressions of jobs and sites: their owner, for example.
    as_published
        Whether the rule ``stochastic`` takes ranks as sites publish them, as the broker of
        Cavalieri et al. (2003) does; otherwise its ranks count our own jobs on their way.

    Raises
    ------
    InputError
        When there is no such choice; when two sites have one name, or one's requirements are
        no expression.
    """

    def __init__(
        self,
        sites: Sequence[SiteFacts],
        *,
        index: IndexReader,
        files: FileTimes | None = None,
        direct: DirectSiteQuery | None = None,
        weights: RankWeights | None = None,
        choice: str = CHOICES[0],
        rng: np.random.Generator,
        clock: Callable[[], float],
        attributes: Mapping[str, Fact] | None = None,
        as_published: bool = False,
    ) -> None:
        rule_of(choice)  # says what is wrong
        self._registry = SiteRegistry(sites)
        self._maker = Matchmaker(
            self._registry,
            index,
            files=files,
            direct=direct,
            attributes=attributes or {},
            clock=clock,
        )
        self._in_flight = InFlightJobs(sites)
        self._scales = SiteScorer(self._maker, self._in_flight, as_published=as_published)
        self._files = files
        self._weights = weights or RankWeights()
        self._choice = choice
        self._rng = rng
        self._clock = clock
        self._seen = -1  # tick of the index at which jobs that it counts were forgotten

    @property
    def in_flight(self) -> int:
        """Jobs that were sent and have not ended."""
        return len(self._in_flight)

    @property
    def evaluations(self) -> int:
        """Number of evaluations of expressions over all sites; one for all jobs of a class."""
        return self._maker.evaluations

    def choose(self, job: BrokerJob) -> SiteMatch | Refusal:
        """
        Choose the site for a job.

        The job does not count as sent until :meth:`sent` is called.

        Returns
        -------
        SiteMatch or Refusal
            A refusal says in one line why no site matches. It is final where no site will,
            as long as the sites are what they are.

        Raises
        ------
        InputError
            When an expression of the job is wrong.
        """
        if job.matching.site is not None:
            return self._named(job, job.matching.site)
        rule = self._rule(job)
        matched = self._match(job)
        if not len(matched.sites):
            return refusal(self._maker, job, matched)
        weighing = self._weigh(job, matched, rule)
        place = pick(rule, weighing.scores, self._rng)
        terms = weighing.terms(place)
        return SiteMatch(
            site=self._registry.names[weighing.sites[place]],
            rank=terms.rank,
            terms=terms,
            matched=len(matched.sites),
            notes=self._notes(matched, terms),
            _weighed=_MatchRecord(self._registry, rule, matched, weighing),
        )

    def explain(self, job: BrokerJob) -> MatchExplanation:
        """
        Explain how every site fares with a job, and the chance of each.

        Raises
        ------
        InputError
            When an expression of the job is wrong.
        """
        rule, matched = self._rule(job), self._match(job)
        weighing = self._weigh(job, matched, rule)
        usual, now = self._in_flight.usual, self._clock()
        found = explain_match(self._maker, job, matched, weighing, rule, usual, now)
        if job.matching.site is None:
            return found
        named = self._named(job, job.matching.site)
        return found.of_named(named if isinstance(named, Refusal) else None)

    # What becomes of jobs.

    def sent(self, job: BrokerJob, site: str) -> None:
        """
        Record that a job was sent to a site and has not reached the queue yet.

        Raises
        ------
        KeyError
            When there is no such site.
        """
        now = self._clock()
        due = now
        if job.data and self._files is not None:
            seconds = float(self._files.transfer_times(job.data, (site,))[0])
            due = now + seconds if seconds > 0 else now
        self._in_flight.send(
            job.number,
            self._registry.number[site],
            processors=job.processors,
            runtime=job.runtime,
            now=now,
            due=due,
        )

    def arrived(self, number: int) -> None:
        """Record that a sent job has reached the queue of the site."""
        self._in_flight.arrive(number, self._clock())

    def began(self, number: int) -> None:
        """Note that a job runs."""
        self._in_flight.begin(number, self._clock())

    def ended(self, number: int, *, well: bool = True) -> None:
        """
        Record that a job has left the site.

        Parameters
        ----------
        number
            Number of the job; one that was not sent, or has ended, changes nothing.
        well
            Whether it has done its work, so that it shows how long jobs take. One that never
            began does not, in any case.
        """
        if well:
            self._in_flight.end(number, self._clock())
        else:
            self._in_flight.drop(number)

    def _rule(self, job: BrokerJob) -> str:
        return job.matching.choice or self._choice

    def _match(self, job: BrokerJob) -> MatchedSites:
        matched = self._maker.match(job)
        known = self._maker.statuses
        # Only when the index has changed: a pass over all jobs in flight for every job would be
        # quadratic.
        if known.tick != self._seen:
            self._seen = known.tick
            self._in_flight.forget_counted(known.published.at)
        return matched

    def _weigh(self, job: BrokerJob, matched: MatchedSites, rule: str) -> RankColumns:
        asked, weights = job.matching, self._weights
        if asked.alpha is not None or asked.beta is not None:
            weights = RankWeights(
                alpha=weights.alpha if asked.alpha is None else asked.alpha,
                beta=weights.beta if asked.beta is None else asked.beta,
            )
        return self._scales.weigh(job, matched, weights, rule, self._clock())

    def _named(self, job: BrokerJob, name: str) -> SiteMatch | Refusal:
        """Check the site that a job names: it must exist and have enough processors."""
        i = self._registry.number.get(name)
        if i is None:
            hint = spelling_hint(name, self._registry.names)
            return Refusal(f'there is no site "{name}"' + (f"; {hint}" if hint else ""), final=True)
        has = int(self._registry.processors[i])
        if has < job.processors:
            what = f'the site "{name}" has {has} processors, the job holds {job.processors}'
            return Refusal(what, final=True)
        return SiteMatch(site=name, rank=None, terms=None, matched=1)

    def _notes(self, matched: MatchedSites, terms: RankTerms) -> tuple[str, ...]:
        if not matched.silent and terms.rank is not None:
            return ()
        notes = [f"{self._registry.names[i]} {why}" for i, why in matched.silent.items()]
        if matched.silent and not matched.fresh:
            notes.append("no site answers: the index has to do")
        if terms.rank is None:
            notes.append("its rank is undefined")
        return tuple(notes)


@dataclass(frozen=True, slots=True)
class _MatchRecord:
    """Data of a past choice, from which an explanation is made on demand."""

    registry: SiteRegistry
    rule: str
    matched: MatchedSites
    weighing: RankColumns

    def best(self, many: int) -> list[str]:
        weighing = self.weighing
        order = np.argsort(-weighing.scores, kind="stable")[:many]  # nan comes last
        return [self.registry.names[i] for i in weighing.sites[order]]

    def reason_of(self, site: str) -> str:
        i = self.registry.number.get(site)
        if i is None:
            return "is no site of this broker"
        places = np.flatnonzero(self.weighing.sites == i)
        if not len(places):
            return self.matched.silent.get(i, "does not match")
        terms = self.weighing.terms(int(places[0]))
        if self.rule == COMPLETION and self.matched.kind.rank is None:
            return (
                f"done in {terms.completion:.4g} s: files {terms.transfer + terms.access:.4g}, "
                f"wait {terms.wait:.4g}, run {terms.execution:.4g}"
                + (f"; costs jobs to come {terms.toll:.4g} s" if terms.toll else "")
            )
        return "rank undefined" if terms.rank is None else f"rank {terms.rank:.4g}"
