"""Records the outcome of a simulation, a digest of its events, and confidence intervals."""

import hashlib
import math
import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from bursar.broker.estimates import student_quantile

# Digests the events of a simulation: equal simulations have equal digests.


class GridJobEvent(IntEnum):
    """Event in the life of a job."""

    SUBMITTED = 0
    SENT = 1
    ARRIVED = 2
    BEGAN = 3
    ENDED = 4
    SET_BACK = 5
    FAILED = 6


class EventDigest:
    """Counts and digests events without keeping any."""

    def __init__(self) -> None:
        self.count = 0
        self._digest = hashlib.blake2b(digest_size=16)
        self._pack = struct.Struct("<dBqi").pack

    def add(self, time: float, event: GridJobEvent, job: int, site: int) -> None:
        """Add an event of a job."""
        self.count += 1
        self._digest.update(self._pack(time, event, job, site))

    @property
    def digest(self) -> str:
        """Digest of all events so far."""
        return self._digest.hexdigest()


# Computes confidence intervals of simulated means.

LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class ConfidenceInterval:
    """
    Holds a mean and half the width of the confidence interval.

    Parameters
    ----------
    half
        Half the interval; infinite for a single value.
    """

    mean: float
    half: float

    @property
    def low(self) -> float:
        """Lower end."""
        return self.mean - self.half

    @property
    def high(self) -> float:
        """Upper end."""
        return self.mean + self.half

    def holds(self, value: float) -> bool:
        """Whether a value lies in the interval."""
        return self.low <= value <= self.high


def interval(
    values: Sequence[float] | NDArray[np.float64], level: float = LEVEL
) -> ConfidenceInterval:
    """Return the interval for the mean of independent values, by Student's distribution."""
    count = len(values)
    if count < 2:
        return ConfidenceInterval(float(np.mean(values)) if count else math.nan, math.inf)
    error = float(np.std(values, ddof=1)) / math.sqrt(count)
    return ConfidenceInterval(float(np.mean(values)), half_interval(error, count, level))


def half_interval(error: float, count: int, level: float = LEVEL) -> float:
    """
    Half the confidence interval of a mean, by Student's distribution.

    Parameters
    ----------
    error
        Standard error of the mean.
    count
        Number of values; with fewer than two the interval is infinite.
    """
    if count < 2:
        return math.inf
    return student_quantile(count - 1, (1 + level) / 2) * error


def batch_means(
    values: NDArray[np.float64], batches: int, level: float = LEVEL
) -> ConfidenceInterval:
    """
    Return the interval for the mean of correlated values, by batch means.

    Batches must be long against the time over which values hang together.

    References
    ----------
    .. [1] Law, Kelton (2000). Simulation modeling and analysis, 3rd edition, section 9.5.3.
    """
    size = len(values) // batches
    return interval(values[: size * batches].reshape(batches, size).mean(axis=1), level)


# Records the outcome of a simulation.

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GridOutcome:
    """
    Times of every job, seconds; NaN of what did not come.

    Parameters
    ----------
    submitted
        Time of submission to the broker.
    arrived
        Time of arrival at the computing element where the job ran, or was sent last.
    began, ended
        Times of begin and end at that computing element.
    site
        Number of the site; -1 for a job that was never sent to one.
    attempts
        Number of times that the broker sent the job to a site.
    reasons
        Why jobs failed, and how many each time; retries that went well are not here.
    digest
        Digest of all events in order; equal seeds give equal digests.
    """

    sites: tuple[str, ...]
    submitted: FloatArray
    arrived: FloatArray
    began: FloatArray
    ended: FloatArray
    site: IntArray
    attempts: IntArray
    reasons: Counter[str]
    events: int
    digest: str

    @property
    def finished(self) -> int:
        """Number of jobs that finished."""
        return int(np.isfinite(self.ended).sum())

    @property
    def failed(self) -> int:
        """Number of jobs that did not finish."""
        return len(self.ended) - self.finished

    @property
    def lifetimes(self) -> FloatArray:
        """Seconds from submission to completion of the jobs that finished (section 2.2)."""
        return self.of_finished(self.ended - self.submitted)

    @property
    def waits(self) -> FloatArray:
        """Seconds in the queues of computing elements, of the jobs that finished."""
        return self.of_finished(self.began - self.arrived)

    def of_finished(self, values: FloatArray) -> FloatArray:
        """Return the values of jobs that finished."""
        return values[np.isfinite(self.ended)]

    def mean_lifetime(self, warm_up: float = 0.0) -> float:
        """
        Mean lifetime; NaN when no job finished.

        Parameters
        ----------
        warm_up
            Share of the jobs, the first ones, that is left out.
        """
        later = (self.ended - self.submitted)[math.floor(warm_up * len(self.ended)) :]
        later = later[np.isfinite(later)]
        return float(later.mean()) if len(later) else math.nan

    @property
    def jobs_at(self) -> dict[str, int]:
        """Jobs that finished at each site."""
        counts = np.bincount(self.site[np.isfinite(self.ended)], minlength=len(self.sites))
        return dict(zip(self.sites, counts.tolist(), strict=True))


class GridRecorder:
    """
    Writes down what happens to the jobs of a simulation.

    Parameters
    ----------
    submitted
        Submission time of each job, seconds.
    """

    def __init__(self, sites: tuple[str, ...], submitted: FloatArray) -> None:
        self._sites = sites
        self.number = {name: i for i, name in enumerate(sites)}
        """Number of each site, by name."""
        self._submitted = submitted
        self._times = {
            event: np.full(len(submitted), math.nan)
            for event in (GridJobEvent.ARRIVED, GridJobEvent.BEGAN, GridJobEvent.ENDED)
        }
        self._site = np.full(len(submitted), -1, dtype=np.int64)
        self._attempts = np.zeros(len(submitted), dtype=np.int64)
        self._log = EventDigest()
        self.reasons: Counter[str] = Counter()
        self.finished = 0
        self.failed = 0

    def add(self, time: float, event: GridJobEvent, job: int, site: int) -> None:
        """Record an event of a job at a site, or on the way there."""
        self._log.add(time, event, job, site)
        times = self._times.get(event)
        if times is not None:
            times[job] = time
        if event is GridJobEvent.SENT:
            self._site[job] = site
            self._attempts[job] += 1
        elif event is GridJobEvent.ENDED:
            self.finished += 1
        elif event is GridJobEvent.FAILED:
            self.failed += 1

    def outcome(self) -> GridOutcome:
        """Return all that was recorded."""
        return GridOutcome(
            sites=self._sites,
            submitted=self._submitted,
            arrived=self._times[GridJobEvent.ARRIVED],
            began=self._times[GridJobEvent.BEGAN],
            ended=self._times[GridJobEvent.ENDED],
            site=self._site,
            attempts=self._attempts,
            reasons=self.reasons,
            events=self._log.count,
            digest=self._log.digest,
        )
