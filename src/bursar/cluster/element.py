"""Keeps the queue of a computing element, and forecasts how long a new job would wait."""

import heapq
import math
from collections import OrderedDict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from bursar.model.errors import InputError
from bursar.model.matching import SiteStatus

ROUNDING = 1e-6
"""Seconds by which an event may miss the forecast and still count as forecast."""


@dataclass(slots=True, eq=False)
class _ElementJob:
    """
    A job in the queue of a computing element.

    Parameters
    ----------
    processors
        Processors that the job holds.
    seconds
        Estimate; None when there is none.
    start
        When it began, or is expected to.
    end
        When it is expected to end.
    is_over
        Whether it has.
    """

    processors: int
    seconds: float | None
    start: float = math.nan
    end: float = math.nan
    is_over: bool = False


class ComputingElement:
    """
    Holds the jobs of a site with equal processors, begun in order of submission.

    It is told what happens, and knows no clock: a broker tells of real jobs, a simulator of
    its own. Its *estimated traversal time* (Cavalieri et al. 2003, section 2.1) is how long a
    job that is submitted now would wait before it begins, if every job took as long as
    estimated and the first that waits began as soon as there is room for it; where this comes
    true, so does the forecast.

    A job without an estimate counts as the mean of those that have ended here, and before any
    has, as the mean of the estimates given so far. A job that outlives its estimate counts as
    one of twice that, doubled as often as it takes (as ``overrun="extend"`` of
    :class:`bursar.cluster.machine.Machine`): one that hangs is thus not taken to be about to
    end for ever.

    The forecast is kept: as long as all goes by it, an event costs the logarithm of what the
    element holds, whatever has ended before. Otherwise the next question makes it anew.

    Parameters
    ----------
    processors
        How many. Positive.
    speed
        Work per second, relative to the machine that runtimes are stated for. Positive.

    Raises
    ------
    InputError
        When a value is out of range.
    """

    def __init__(self, processors: int, speed: float = 1.0) -> None:
        if processors < 1:
            raise InputError(f"processors must be at least 1, got {processors}")
        if not 0 < speed < math.inf:
            raise InputError(f"speed must be positive, got {speed:g}")
        self.processors = processors
        self.speed = speed
        self._waiting: OrderedDict[Hashable, _ElementJob] = OrderedDict()
        self._running: dict[Hashable, _ElementJob] = {}
        self._busy = 0
        self._unknown = 0  # jobs that are here and have no estimate
        self._ended = _RunningMean()
        self._stated = _RunningMean()
        # The forecast: when how many processors come free for a job behind all that wait,
        # the last begin of those, and ends of running jobs, some of them out of date.
        self._holds = False
        self._free: list[tuple[float, int]] = []
        self._latest = -math.inf
        self._ends: list[tuple[float, int, _ElementJob]] = []
        self._pushed = 0

    # What happens.

    def submit(self, key: Hashable, processors: int, seconds: float | None, now: float) -> None:
        """
        A job joins the queue.

        Parameters
        ----------
        key
            Unique among the jobs that are here.
        processors
            Processors that the job holds.
        seconds
            Estimate of how long it runs here (see :meth:`seconds_of`); None: unknown.

        Raises
        ------
        InputError
            When it can never run, or its key is taken.
        """
        if not 1 <= processors <= self.processors:
            raise InputError(
                f"a job needs between 1 and {self.processors} processors, got {processors}"
            )
        if seconds is not None and not 0 <= seconds < math.inf:
            raise InputError(f"an estimate is finite and not negative, got {seconds:g}")
        if key in self._waiting or key in self._running:
            raise InputError(f"job {key} is here already")
        job = _ElementJob(processors, seconds)
        if seconds is None:
            self._unknown += 1
        else:
            self._stated.add(seconds)
        # Until one has ended, the mean that stands for what is unknown moves with each estimate.
        moves = self._unknown > 0 and not self._ended.count
        self._holds = self._is_current(now) and not moves
        if self._holds:
            self._latest = max(self._latest, now)
            self._place(job)
        self._waiting[key] = job

    def began(self, key: Hashable, now: float) -> None:
        """
        Record that a waiting job runs; any job may, whether or not processors are free.

        Raises
        ------
        InputError
            When no such job waits.
        """
        if key not in self._waiting:
            raise InputError(f"job {key} does not wait here")
        # The forecast places jobs in order of submission; one out of turn makes it wrong for all
        # that wait.
        is_first = next(iter(self._waiting)) == key
        job = self._waiting.pop(key)
        self._running[key] = job
        self._busy += job.processors
        # A job that began as forecast leaves the forecast of all others as it is.
        self._holds = self._holds and is_first and abs(job.start - now) <= ROUNDING
        job.start = now
        if self._holds:
            self._push_end(job)

    def ended(self, key: Hashable, now: float) -> None:
        """Record that a running or waiting job is gone; unknown jobs are ignored."""
        job = self._running.pop(key, None)
        if job is None:
            job = self._waiting.pop(key, None)
            self._holds = self._holds and job is None
        else:
            self._busy -= job.processors
            self._ended.add(now - job.start)
            # With unknown estimates about, each end moves the mean that stands for them.
            self._holds = self._holds and abs(job.end - now) <= ROUNDING and not self._unknown
        if job is not None:
            job.is_over = True
            self._unknown -= job.seconds is None

    # Looking.

    def seconds_of(self, runtime: float | None) -> float | None:
        """How long a job runs here, of a runtime at speed 1; None when that is unknown."""
        return None if runtime is None else runtime / self.speed

    @property
    def running(self) -> int:
        """Jobs that run."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Jobs that wait."""
        return len(self._waiting)

    @property
    def free_processors(self) -> int:
        """Processors that no running job holds."""
        return max(0, self.processors - self._busy)

    @property
    def mean_seconds(self) -> float | None:
        """Runtime assumed for a job without an estimate, seconds; None while unknown."""
        return self._ended.value if self._ended.count else self._stated.value

    def startable(self) -> list[Hashable]:
        """
        Return the keys of the waiting jobs to start now, first come, first served.

        These are the first in the queue, up to one that is wider than what is left. Nothing
        starts here: the caller reports each start by :meth:`began`.
        """
        free, found = self.free_processors, []
        for key, job in self._waiting.items():
            free -= job.processors
            if free < 0:
                break
            found.append(key)
        return found

    def traversal_time(self, now: float, processors: int = 1) -> float | None:
        """
        Return the seconds that a job of so many processors, submitted now, would wait.

        Returns
        -------
        float or None
            None when that depends on a job of which nothing is known; infinite when it has
            not that many processors.
        """
        if processors > self.processors:
            return math.inf
        # Nothing is known of how long jobs take, but a job for which there is room now waits for
        # nobody.
        if self._unknown and self.mean_seconds is None:
            idle = not self._waiting and processors <= self.free_processors
            return 0.0 if idle else None
        if not self._is_current(now):
            self._project_waits(now)
        # Where the first release is wide enough, the heap need not be sorted.
        begin, count = self._free[0]
        if count < processors:
            begin = _time_available(sorted(self._free), processors)
        return max(0.0, max(begin, self._latest) - now)

    def status(self, now: float, site: str) -> SiteStatus:
        """Return the status that the element publishes under the name of its site."""
        return SiteStatus(
            site=site,
            at=now,
            free_processors=self.free_processors,
            running=self.running,
            waiting=self.waiting,
            traversal_time=self.traversal_time(now),
        )

    # The forecast.

    def _is_current(self, now: float) -> bool:
        """Whether the forecast still holds: no start or end that it expected before now is late."""
        if not self._holds:
            return False
        # Ends that are out of date are dropped when they come to the top, instead of being
        # searched for.
        while self._ends and (self._ends[0][2].is_over or self._ends[0][0] != self._ends[0][2].end):
            heapq.heappop(self._ends)
        due = self._ends[0][0] if self._ends else math.inf
        if self._waiting:
            due = min(due, next(iter(self._waiting.values())).start)
        return now <= due + ROUNDING

    def _project_waits(self, now: float) -> None:
        """Make the forecast anew: list scheduling of the waiting jobs behind the running ones."""
        self._ends.clear()
        for job in self._running.values():
            job.end = self._end_of(job, now)
            self._push_end(job)
        self._free = _release_times(
            [(max(now, job.end), job.processors) for job in self._running.values()],
            self.processors,
            now,
        )
        self._latest = now
        for job in self._waiting.values():
            self._place(job)
        self._holds = True

    def _place(self, job: _ElementJob) -> None:
        """Add a job behind all that wait to the forecast."""
        begin, missing = self._latest, job.processors
        # A job of several processors begins when the last of them comes free; what a release has
        # beyond that stays in the heap.
        while missing:
            moment, count = heapq.heappop(self._free)
            begin = max(begin, moment)
            taken = min(missing, count)
            missing -= taken
            if count > taken:
                heapq.heappush(self._free, (moment, count - taken))
        job.start = self._latest = begin
        job.end = begin + self._seconds(job)
        heapq.heappush(self._free, (job.end, job.processors))

    def _end_of(self, job: _ElementJob, now: float) -> float:
        """When a running job is expected to end."""
        seconds, ran = self._seconds(job), now - job.start
        if ran <= seconds + ROUNDING:
            return job.start + seconds
        if seconds <= ROUNDING:
            return now
        return job.start + seconds * 2.0 ** math.ceil(math.log2(ran / seconds))

    def _seconds(self, job: _ElementJob) -> float:
        seconds = self.mean_seconds if job.seconds is None else job.seconds
        return seconds or 0.0

    def _push_end(self, job: _ElementJob) -> None:
        self._pushed += 1
        heapq.heappush(self._ends, (job.end, self._pushed, job))


@dataclass(slots=True)
class _RunningMean:
    """Mean of values that come one by one."""

    total: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        self.total += value
        self.count += 1

    @property
    def value(self) -> float | None:
        return self.total / self.count if self.count else None


def _release_times(
    held: Iterable[tuple[float, int]], processors: int, now: float
) -> list[tuple[float, int]]:
    """
    Return when processors come free, earliest first.

    Where more are held than there are, the first that come free are free to nobody.
    """
    ends = sorted(held)
    # More than all may be held: `began` takes the word of whoever tells, room or not.
    over = sum(count for _, count in ends) - processors
    if over < 0:
        return [(now, -over), *ends]
    free = []
    for moment, count in ends:
        left = max(0, count - over)
        over -= count - left
        if left:
            free.append((moment, left))
    return free


def _time_available(free: Iterable[tuple[float, int]], processors: int) -> float:
    """When so many are free, by when which come free, earliest first; infinite if never."""
    for moment, count in free:
        processors -= count
        if processors <= 0:
            return moment
    return math.inf
