"""Track the broker's own jobs that the sites' status cannot have counted yet, and their load."""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bursar.broker.matchmaking.status_table import (
    FloatArray,
    PublishedStatus,
    UncountedJobs,
    expected_waits,
)
from bursar.model.site import SiteFacts

# Estimates the load by the broker's own jobs, and the delay that one job causes to later jobs.

PART = 1 / 3
"""Length of a span of time, as a share of a job's mean length."""

SPANS = 30
"""Number of spans over which the share is taken."""

LEAST_SPANS = 3
"""Least divisor, in spans: jobs that come all at once are no stream, and none come after them."""

_SHORTEST = 1e-6
"""Seconds of a span."""

MOST = 0.9
"""Greatest share that is believed: a higher load cannot last."""


class ContentionModel:
    """
    Estimates the share of the sites' processors that our jobs need, by what was sent lately.

    Time is cut into spans, each a part of what a job takes on the mean. Of each as much counts
    as the sites can do in it, however many jobs came; the one under way does not count yet.

    Parameters
    ----------
    capacity
        Sum over all sites of processors times speed.
    """

    def __init__(self, capacity: float) -> None:
        self._capacity = capacity
        self._shares: deque[float] = deque(maxlen=SPANS)  # of spans that are over
        self._begin: float | None = None
        self._span = 0.0
        self._work = 0.0

    def sent(self, now: float, work: float, length: float) -> None:
        """
        Note that a job has been sent.

        Parameters
        ----------
        now
            Seconds.
        work
            Work of the jobs sent: processors times seconds at speed 1.
        length
            Mean seconds of a job; where this is next to nothing, the load counts as none.
        """
        span = PART * length
        if span < _SHORTEST:
            return
        self._end_spans(now, span)
        if self._begin is None:
            self._begin, self._span = now, span
        self._work += work

    def share(self, now: float) -> float:
        """Return the share of the capacity in use, from 0 to :data:`MOST`."""
        self._end_spans(now, self._span)
        return min(MOST, sum(self._shares) / max(len(self._shares), LEAST_SPANS))

    def toll(self, now: float) -> float:
        """Return the seconds that later jobs lose for each second that a job waits."""
        share = self.share(now)
        return share / (1 - share)

    def _end_spans(self, now: float, next_span: float) -> None:
        """Count the spans that are over; spans that follow have a new length."""
        if self._begin is None or now < self._begin + self._span:
            return
        # A burst counts as a full span at most: work beyond the capacity only waits.
        self._shares.append(min(1.0, self._work / (self._capacity * self._span)))
        self._begin, self._span, self._work = self._begin + self._span, next_span, 0.0
        idle = int((now - self._begin) / next_span)
        # After a long silence, all spans that are kept are idle ones: no loop over millions of
        # them.
        self._shares.extend([0.0] * min(idle, SPANS))
        self._begin += idle * next_span


ASSUMED_RUNTIME = 3600.0
"""Assumed seconds at speed 1 of a job without an estimate, until a first job has ended."""

_ROOM = 64
"""Initial capacity of the columns, in jobs; doubled when full."""


@dataclass(slots=True)
class _SentJob:
    """A job that was sent and has not ended."""

    site: int
    place: int | None
    """Row in the columns; None once every reading of the site counts the job."""
    began: float | None = None


class InFlightJobs:
    """
    Jobs that were sent to sites and have not ended.

    The columns hold only jobs that some reading may not count, so that what a question costs
    depends on how many were sent since the sites were asked last, and neither on those that
    wait or run there nor on those that have ended.

    Parameters
    ----------
    sites
        Sites, in the order of all results.
    """

    def __init__(self, sites: Sequence[SiteFacts]) -> None:
        self.width = np.array([site.processors for site in sites], dtype=np.float64)
        self.speed = np.array([site.speed for site in sites], dtype=np.float64)
        self._jobs: dict[int, _SentJob] = {}
        self._numbers: list[int] = []  # of the jobs in the columns
        self._columns = _columns(_ROOM)
        self._crowding = ContentionModel(float(self.width @ self.speed))
        self._mean_speed = float(self.width @ self.speed / self.width.sum()) if len(sites) else 1.0
        self._lengths = 0  # jobs that were sent
        self._length = 0.0  # seconds at speed 1 that they are taken to run, on the mean
        self._ended = 0
        self._ran = 0.0  # seconds at speed 1, in all

    def __len__(self) -> int:
        """Return the number of jobs that have not ended."""
        return len(self._jobs)

    @property
    def usual(self) -> float:
        """Seconds at speed 1 that jobs have taken on the mean."""
        return self._ran / self._ended if self._ended else ASSUMED_RUNTIME

    # What happens to jobs.

    def send(
        self,
        number: int,
        site: int,
        *,
        processors: int,
        runtime: float | None,
        now: float,
        due: float,
    ) -> None:
        """
        Note that a job has been sent.

        Parameters
        ----------
        number
            Number of the job; one that was sent before is taken to have gone from there.
        runtime
            Seconds at speed 1; None when unknown.
        now
            Seconds.
        due
            Time when the job's files should be at the site, seconds.
        """
        self.drop(number)
        place = len(self._numbers)
        if place == len(self._columns.site):
            self._columns = _doubled(self._columns)
        columns = self._columns
        columns.site[place] = site
        columns.processors[place] = processors
        columns.runtime[place] = math.nan if runtime is None else runtime
        columns.due[place] = due
        columns.arrived[place] = columns.began[place] = math.inf
        self._numbers.append(number)
        self._jobs[number] = _SentJob(site, place)
        seconds = self.usual if runtime is None else runtime
        self._lengths += 1
        self._length += (seconds - self._length) / self._lengths
        self._crowding.sent(now, processors * seconds, self._length / self._mean_speed)

    def arrive(self, number: int, now: float) -> None:
        """Record that a job has reached the queue of the site; ignore jobs not sent from here."""
        job = self._jobs.get(number)
        if job is not None and job.place is not None:
            arrived = self._columns.arrived
            arrived[job.place] = min(arrived[job.place], now)

    def begin(self, number: int, now: float) -> None:
        """Note that a job runs."""
        self.arrive(number, now)
        job = self._jobs.get(number)
        if job is not None:
            job.began = now
            if job.place is not None:
                self._columns.began[job.place] = now

    def end(self, number: int, now: float) -> None:
        """Record that a job has finished, and learn from the job's duration."""
        job = self._jobs.get(number)
        if job is not None and job.began is not None:
            self._ended += 1
            self._ran += max(0.0, now - job.began) * float(self.speed[job.site])
        self.drop(number)

    def drop(self, number: int) -> None:
        """Forget a job that has left the site."""
        job = self._jobs.pop(number, None)
        if job is not None and job.place is not None:
            self._leave(job.place)

    # What is asked.

    def forget_counted(self, at: FloatArray) -> None:
        """
        Drop from the columns the jobs that every later reading counts.

        Parameters
        ----------
        at
            Moment of the oldest reading of each site that may still be used, seconds.
        """
        columns = self._columns
        many = len(self._numbers)
        counted = columns.arrived[:many] < at[columns.site[:many]]
        # Backwards: each removal moves the last row into the gap, which must not be one still to
        # go.
        for place in np.flatnonzero(counted)[::-1]:
            self._jobs[self._numbers[place]].place = None
            self._leave(int(place))

    def waits(
        self,
        now: float,
        published: PublishedStatus,
        *,
        processors: int,
        runtime: float | None,
        arrival: FloatArray | None = None,
    ) -> tuple[FloatArray, FloatArray]:
        """
        Return the seconds until a job would begin at each site, and our jobs counted in these.

        Parameters
        ----------
        now
            Seconds, on the clock of the published statuses.
        processors, runtime
            Processors that the job holds; its seconds at speed 1, None when unknown: the usual
            runtime is assumed.
        arrival
            Arrival of the job's files at each site, seconds; None: now.

        Returns
        -------
        waits
            Waits as :func:`bursar.broker.matchmaking.status_table.expected_waits` returns them.
        ours
            Processors of our jobs that the reading does not count and that come first.
        """
        many = len(self._numbers)
        waits, ours = expected_waits(
            now,
            _first(self._columns, many),
            published,
            self.width,
            self.speed,
            self.usual,
            float(processors),
            self.usual if runtime is None else runtime,
            np.full(len(self.width), now) if arrival is None else arrival,
        )
        return waits, ours

    def toll(self, now: float) -> float:
        """Return the seconds that later jobs lose for each second that one job waits."""
        return self._crowding.toll(now)

    def execution(self, runtime: float | None) -> FloatArray:
        """Return the seconds that a job would run at each site."""
        return (self.usual if runtime is None else runtime) / self.speed

    def _leave(self, place: int) -> None:
        """Fill a freed row with the last one, so that the columns have no gaps."""
        last = self._numbers.pop()
        end = len(self._numbers)
        if place != end:
            for column in self._columns:
                column[place] = column[end]
            self._numbers[place] = last
            self._jobs[last].place = place


def _columns(room: int) -> UncountedJobs:
    return UncountedJobs(
        np.empty(room, dtype=np.int64), *(np.empty(room) for _ in UncountedJobs._fields[1:])
    )


def _doubled(columns: UncountedJobs) -> UncountedJobs:
    return UncountedJobs._make(
        np.concatenate((column, np.empty_like(column))) for column in columns
    )


def _first(columns: UncountedJobs, many: int) -> UncountedJobs:
    return UncountedJobs._make(column[:many] for column in columns)
