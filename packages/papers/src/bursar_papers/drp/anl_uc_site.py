"""
The ANL/UC site of DRP section 3.2: its processors, and how long everything takes.

What the paper's text and table say of latencies is met by three numbers:

- the first worker is there after about 40 s in all cases (text);
- requests are submitted one after the other, so many seconds each;
- workers come through one door, so many seconds each: GRAM and PBS prepare their processors
  and start them one by one, and they register one by one.

One-at-a-time's time is all submissions, and all-at-once's all door: one figure of the idle column
gives each of the two unknown numbers. Four others follow from these two, as they are of the same
requests (:data:`bursar_papers.drp.drp_findings.FOLLOWING`); additive's and exponential's, in which
submissions and door meet, are the four predictions.

References
----------
.. [1] Raicu, Dumitrescu, Foster (2006). Dynamic resource provisioning in grid environments.
   Section 3.2, figure 2 and table 1.
"""

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from bursar.model.slot import Slot
from bursar_papers.experiment import Row

WANTED = 48
PROCESSORS = 96
HORIZON = 180.0
"""Seconds from the first request, after which the paper adds up."""
FIRST = 40.0
"""Seconds until the first worker, in all cases."""
FIRST_SPREAD = (30.0, 100.0)
"""Seconds; what the first worker took in the paper's other experiments."""
RELEASE = 160.0
"""Seconds after which the busy site has one processor more."""

Scenario = Literal["idle", "busy"]
SCENARIOS: tuple[Scenario, ...] = ("idle", "busy")
FREE: dict[Scenario, tuple[int, int]] = {"idle": (94, 94), "busy": (47, 48)}
"""Processors free at first, and from RELEASE on."""

STATED: dict[str, tuple[float, float]] = {
    "one-at-a-time": (4220.0, 4205.0),
    "additive": (6048.0, 5773.0),
    "exponential": (5702.0, 4267.0),
    "all-at-once": (6156.0, 409.0),
    "optimal": (6059.0, 6059.0),
}
"""Table 1: accumulated CPU seconds after 180 s, idle and busy."""

StartOrder = Literal["shared", "own"]
"""Whether workers of all requests come one after the other, or only those of one submission."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """
    Latencies of acquiring processors.

    Parameters
    ----------
    first
        Seconds from the first submission until its job may start, and so its first worker.
    submission
        Seconds from one submission to the next.
    worker
        Seconds from one worker to the next.
    door
        Whether the workers of all submissions register in one sequence (``"shared"``), or those of
        each submission in a sequence of their own.
    """

    first: float = FIRST
    submission: float = 0.0
    worker: float = 0.0
    door: StartOrder = "shared"


@cache
def calibrated(door: StartOrder = "shared") -> Latencies:
    """
    Derive the latencies from one-at-a-time and all-at-once on the idle site.

    ``WANTED`` workers that register at even intervals are there for ``WANTED * (HORIZON - FIRST)``
    seconds less ``distance * WANTED * (WANTED - 1) / 2``.
    """
    pairs = WANTED * (WANTED - 1) / 2
    full = WANTED * (HORIZON - FIRST)
    return Latencies(
        submission=(full - STATED["one-at-a-time"][0]) / pairs,
        worker=(full - STATED["all-at-once"][0]) / pairs,
        door=door,
    )


@dataclass(slots=True)
class _PaperJob:
    number: int
    processors: int
    fewest: int
    """Processors with which it starts as well."""
    may_start: float
    submission: int
    """Jobs of one submission share it."""
    began: float | None = None
    cancelled: bool = False


class PaperSite:
    """
    A queue with a number of free processors that grows once.

    Jobs start in the order of submission; those behind one that waits go ahead where they fit
    ("evidence of the back-filling strategies of the local resource manager"). None ends by itself
    within the time looked at.

    Parameters
    ----------
    free
        Processors at first, and from ``release`` on.
    release
        Seconds.
    latencies
        How long everything takes.
    firsts
        Overheads of the requests in their order, seconds; those without one take ``first``.
    """

    def __init__(
        self,
        free: tuple[int, int],
        release: float,
        latencies: Latencies,
        firsts: Sequence[float] = (),
    ) -> None:
        self.now = 0.0
        self.workers: dict[int, list[float]] = {}
        """When each job's workers have registered, seconds."""
        self._free, self._more = free[0], free[1] - free[0]
        self._release = release
        self._latencies = latencies
        self._firsts = list(firsts)
        self._jobs: list[_PaperJob] = []
        self._submitted = -math.inf
        self._overhead = latencies.first
        self._submissions = 0
        self._doors: dict[int, float] = {}

    @property
    def submissions(self) -> int:
        """Number of submissions so far."""
        return self._submissions

    @property
    def free(self) -> int:
        """Processors that no job holds."""
        return self._free

    @property
    def holes(self) -> tuple[Slot, ...]:
        """
        Backfill windows: processors free now, and those that the other user's job will release.

        The user's own waiting requests are already deducted, as in any projection of a queue.
        """
        coming = max(0.0, self._release - self.now)
        lasting, until_then, later = self._free, 0, self._more
        for job in self._waiting():
            if job.fewest <= lasting:
                lasting -= min(job.processors, lasting)
            elif job.processors <= lasting + later:
                taken = max(0, job.processors - later)
                later -= job.processors - taken
                lasting -= taken
                until_then += taken
        found = (
            (0.0, math.inf, lasting),
            (0.0, coming, until_then),
            (coming, math.inf, later),
        )
        return tuple(
            Slot(start=start, duration=duration, processors=processors)
            for start, duration, processors in found
            if processors and duration > 0
        )

    @property
    def waiting(self) -> int:
        """Number of waiting jobs of other users: none."""
        return 0

    def submit(
        self, processors: int, seconds: float, *, fewest: int | None = None, with_last: bool = False
    ) -> int:
        """
        Submit a job.

        Parameters
        ----------
        processors, fewest
            Number requested, and the least number with which the job starts; None: no fewer.
        seconds
            Ignored: no job ends within the time simulated here.
        with_last
            Whether the job is an element of the previous submission.
        """
        if not with_last:
            # Submissions follow one another at the pace at which the paper's client could make
            # them.
            self._submitted = max(self.now, self._submitted + self._latencies.submission)
            self._overhead = self._firsts.pop(0) if self._firsts else self._latencies.first
            self._submissions += 1
        job = _PaperJob(
            number=len(self._jobs),
            processors=processors,
            fewest=processors if fewest is None else fewest,
            may_start=self._submitted + self._overhead,
            submission=self._submissions,
        )
        self._jobs.append(job)
        return job.number

    def cancel(self, number: int) -> None:
        """Cancel a job."""
        job = self._jobs[number]
        if not job.cancelled and job.began is not None:
            self._free += job.processors
        job.cancelled = True

    def began(self, number: int) -> float | None:
        """Return the time at which a job started, seconds; None: not yet."""
        return self._jobs[number].began

    def ended(self, number: int) -> bool:
        """Return whether a job was cancelled."""
        return self._jobs[number].cancelled

    def processors(self, number: int) -> int:
        """Return the processors that a job requests or, once started, holds."""
        return self._jobs[number].processors

    def ready(self, number: int) -> int:
        """Workers of a job that have registered."""
        return sum(at <= self.now for at in self.workers.get(number, ()))

    @property
    def next_event(self) -> float:
        """Time of the next event, seconds."""
        return min(self._moments(), default=math.inf)

    def advance(self, until: float) -> None:
        """Advance the clock; jobs that can start by then start."""
        while (at := self.next_event) <= until:
            self._step(at)
        self._step(until)

    def _moments(self) -> Iterator[float]:
        if self._more:
            yield self._release
        yield from (job.may_start for job in self._waiting() if job.may_start > self.now)
        yield from (at for times in self.workers.values() for at in times if at > self.now)

    def _waiting(self) -> list[_PaperJob]:
        return [job for job in self._jobs if job.began is None and not job.cancelled]

    def _step(self, at: float) -> None:
        self.now = at
        if self._more and self._release <= at:
            self._free, self._more = self._free + self._more, 0
        for job in self._waiting():
            # In the order of submission, but past those that do not fit: the paper saw evidence of
            # backfilling.
            if job.may_start <= at and self._free >= job.fewest:
                job.processors = min(job.processors, self._free)
                self._free -= job.processors
                job.began = at
                self._let_in(job)

    def _let_in(self, job: _PaperJob) -> None:
        """
        Set when each worker of a job that starts now will have registered.

        Workers register one by one, ``latencies.worker`` seconds apart, behind those already in the
        same sequence: all workers of the site, or those of the same submission.
        """
        door = 0 if self._latencies.door == "shared" else job.submission
        at = max(self.now, self._doors.get(door, 0.0))
        times = [at + self._latencies.worker * i for i in range(job.processors)]
        self._doors[door] = times[-1] + self._latencies.worker
        self.workers[job.number] = times


def moments(site: PaperSite) -> list[float]:
    """When each worker of a site has registered, seconds, ascending."""
    return list(heapq.merge(*(sorted(times) for times in site.workers.values())))


def accumulated(times: Sequence[float], horizon: float = HORIZON) -> float:
    """CPU seconds of workers that registered at these moments, until the horizon."""
    return sum(max(0.0, horizon - at) for at in times)


def measures(times: Sequence[float], requests: int) -> Row:
    """Return the measures of one run, from the times at which workers registered, seconds."""
    return {
        "cpu": accumulated(times),
        "workers": sum(at <= HORIZON for at in times),
        "first": times[0] if times else None,
        "all": times[WANTED - 1] if len(times) >= WANTED else None,
        "requests": requests,
    }
