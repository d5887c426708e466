"""Score the sites that match a job."""

from dataclasses import dataclass, replace

import numpy as np

from bursar.broker.matchmaking.ads import OF_QUEUE, changing_attributes
from bursar.broker.matchmaking.broker_interfaces import BrokerJob
from bursar.broker.matchmaking.choice import FloatArray, file_rank, rank
from bursar.broker.matchmaking.inflight import InFlightJobs
from bursar.broker.matchmaking.matchmaker import MatchedSites, Matchmaker, Numbers
from bursar.classad import Ad, compiled
from bursar.model.matching import RankWeights

COMPLETION = "completion"
"""The rule by which expected completions are compared."""

STOCHASTIC = "stochastic"
"""Name of the rule that draws a site with a probability by rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTerms:
    """
    Terms of the rank of a site. An undefined term is None.

    Parameters
    ----------
    rank
        Rank by equation 1; greater is better.
    access, transfer
        Seconds to read and to bring the job's files at the site.
    wait
        Seconds until the job would begin if its files were there, our own jobs counted.
    ours
        Processors of our own jobs that the site does not count yet.
    execution
        Seconds that the job would run.
    completion
        Seconds until the job would end.
    toll
        Seconds that later jobs would lose by this choice.
    """

    rank: float | None
    expression: float | None
    access: float
    transfer: float
    wait: float
    ours: float
    execution: float
    completion: float
    toll: float


@dataclass(slots=True)
class RankColumns:
    """
    Rank terms of all sites that match, in columns.

    Parameters
    ----------
    ranks, expressions, access, transfer, waits, ours, executions, completions, tolls
        Terms of each site; nan where undefined.
    scores
        Scores by which the site is chosen; greater is better.
    """

    sites: Numbers
    ranks: FloatArray
    expressions: FloatArray
    access: FloatArray
    transfer: FloatArray
    waits: FloatArray
    ours: FloatArray
    executions: FloatArray
    completions: FloatArray
    tolls: FloatArray
    scores: FloatArray
    weights: RankWeights

    def terms(self, place: int) -> RankTerms:
        """Rank terms of one of the sites."""
        return RankTerms(
            rank=_known(self.ranks[place]),
            expression=_known(self.expressions[place]),
            access=float(self.access[place]),
            transfer=float(self.transfer[place]),
            wait=float(self.waits[place]),
            ours=float(self.ours[place]),
            execution=float(self.executions[place]),
            completion=float(self.completions[place]),
            toll=float(self.tolls[place]),
        )


class SiteScorer:
    """
    Computes the rank terms and scores of the sites that match a job.

    Parameters
    ----------
    as_published
        Whether :data:`STOCHASTIC` takes ranks as published, and leaves our own jobs out.
    """

    def __init__(
        self, maker: Matchmaker, in_flight: InFlightJobs, *, as_published: bool = False
    ) -> None:
        self._maker = maker
        self._in_flight = in_flight
        self._as_published = as_published

    def weigh(
        self, job: BrokerJob, matched: MatchedSites, weights: RankWeights, rule: str, now: float
    ) -> RankColumns:
        """
        Return the rank terms and scores of all sites that match.

        A job ends at a site after its files have come and been read, after its wait, and after
        it has run::

            completion = max(transfer, wait) + access + execution

        since the queue goes on while files are on their way. To this comes a toll for what is
        left of the queue when the job joins it: what jobs to come lose by it, see
        :mod:`bursar.broker.matchmaking.inflight`. The rule ``completion`` takes the least sum.
        A job that has a rank expression of its own is taken at its word: then
        that rule compares ranks, with the expression held against sites that count our own
        jobs, and these sums decide among equals.

        The rule ``stochastic`` draws by ranks that count our own jobs, too, so that a burst spreads
        before any site has published what it got. The other rules take ranks as they are published.

        Parameters
        ----------
        now
            Seconds.
        """
        sites = matched.sites
        nothing = np.zeros(len(sites))
        access = nothing if matched.access is None else matched.access
        transfer = nothing if matched.transfer is None else matched.transfer
        published = matched.statuses.published
        if matched.fresh:
            # They were asked just now: what has arrived by this moment they know.
            published = published._replace(at=np.nextafter(published.at, np.inf))
        arrival = None
        if matched.transfer is not None:
            arrival = np.full(len(self._maker.registry), now)
            arrival[sites] += transfer
        waits, ours = self._in_flight.waits(
            now, published, processors=job.processors, runtime=job.runtime, arrival=arrival
        )
        executions = self._in_flight.execution(job.runtime)[sites]
        completions = np.maximum(transfer, waits[sites]) + access + executions
        tolls = np.maximum(waits[sites] - transfer, 0.0) * self._in_flight.toll(now)
        expressions = self._maker.expressed(matched)
        by_rank = rule == COMPLETION and matched.kind.rank is not None
        if by_rank or (rule == STOCHASTIC and not self._as_published):
            alone, _ = self._in_flight.waits(
                now, published, processors=1, runtime=job.runtime, arrival=arrival
            )
            expressions = self._corrected(matched, expressions, ours, alone)
        ranks = rank(expressions, file_rank(access, transfer, weights.beta), weights.alpha)
        if rule != COMPLETION:
            scores = ranks
        elif matched.kind.rank is None:
            scores = -(completions + tolls)
        else:
            scores = _best_and_soonest(ranks, completions + tolls)
        return RankColumns(
            sites, ranks, expressions, access, transfer, waits[sites], ours[sites],
            executions, completions, tolls, scores, weights,
        )  # fmt: skip

    def _corrected(
        self, matched: MatchedSites, expressions: FloatArray, ours: FloatArray, alone: FloatArray
    ) -> FloatArray:
        """
        Return the rank expressions of the sites that match, as if these counted our own jobs.

        ``ours`` are the processors of our jobs that no site counts yet, ``alone`` the seconds that
        a job of one processor would wait behind them; both at all sites.
        """
        kind = matched.kind
        if kind.rank is not None and OF_QUEUE.isdisjoint(kind.rank_read):
            return expressions
        if kind.rank is None:
            longer = np.minimum(expressions, 0.0 - alone[matched.sites])  # nan stays undefined
            return np.where(ours[matched.sites] > 0, longer, expressions)
        found = expressions.copy()
        rank_of = compiled(kind.rank, kind.my)
        for place, i in enumerate(matched.sites.tolist()):
            status = matched.statuses.statuses[i]
            if not ours[i] or status is None:
                continue
            found[place] = _number(rank_of(self._counting(matched, i, ours[i], alone[i])))
        return found

    def _counting(self, matched: MatchedSites, site: int, ours: float, wait: float) -> Ad:
        """Return a site's ad as if the site counted our own jobs on their way there."""
        status = matched.statuses.statuses[site]
        assert status is not None
        taken = min(int(ours), status.free_processors)
        changed = replace(
            status,
            free_processors=status.free_processors - taken,
            running=status.running + taken,
            waiting=status.waiting + int(ours) - taken,
            traversal_time=max(float(wait), status.traversal_time or 0.0),
        )
        ad = matched.statuses.ad(site)
        for name, value in changing_attributes(changed).items():
            if name in OF_QUEUE:
                ad = ad.with_attribute(name, value)
        return ad


def _best_and_soonest(ranks: FloatArray, seconds: FloatArray) -> FloatArray:
    """Score only sites of the best rank, the soonest completion highest; nan elsewhere."""
    best = np.fmax.reduce(ranks) if len(ranks) else np.nan
    among = np.isnan(ranks) if np.isnan(best) else ranks == best
    return np.where(among, -seconds, np.nan)


def _number(value: object) -> float:
    return float(value) if isinstance(value, bool | int | float) else np.nan


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
