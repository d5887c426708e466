"""The pilots that a run holds for its jobs: bought processors, and the queue of each site."""

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from bursar.broker.estimates import GUESS
from bursar.cluster.element import ComputingElement
from bursar.model.allocation import Allocation
from bursar.model.site import SiteFacts
from bursar.model.task import Task

AHEAD = 0.2
"""Seconds of work sent ahead to each processor, so that no processor waits for a next job."""

MOST_AHEAD = 64
"""Greatest number of jobs that a processor is given ahead."""

# Processors that a campaign has bought for its jobs, one pilot each.


@dataclass(slots=True)
class BoughtProcessor:
    """
    A pilot that runs our jobs one after the other.

    Parameters
    ----------
    name
        Name of the pilot's lease.
    price
        Currency units per processor-second.
    since
        When the job that runs now was sent, seconds since the begin of the run.
    until
        Expected end of all jobs on the processor.
    tasks
        Unfinished jobs sent to the processor, in order.
    again
        Whether the processor may get more jobs.
    agreements
        Agreements with the owner by the task that each was made for.
    begin
        When what was booked ahead begins; minus infinite when nothing was.
    """

    name: str
    site: str
    price: float
    since: float
    until: float
    tasks: list[int] = field(default_factory=list)
    again: bool = True
    agreements: dict[int, str] = field(default_factory=dict)
    begin: float = -math.inf

    def is_ahead(self, now: float) -> bool:
        """Return whether the processor was booked and has not begun."""
        return now < self.begin

    def pilot(self, site: SiteFacts, tasks: Sequence[int], now: float) -> Allocation:
        """Return the pilot that runs jobs on this processor, a new one or one to be extended."""
        return Allocation(
            name=self.name,
            site=self.site,
            processors=1,
            start=None if math.isinf(self.begin) else self.begin,
            booked=not math.isinf(self.begin),
            duration=self.until - max(now, self.begin),
            unit_price=None if site.unit_price is None else self.price,
            fixed_price=site.fixed_price,
            extensible=not site.is_shared,
            tasks=tuple(tasks),
        )


class BoughtProcessors:
    """Records our processors by site, and the processor of each job."""

    def __init__(self, sites: Sequence[str]) -> None:
        self._held: dict[str, BoughtProcessor] = {}
        self._at: dict[str, dict[str, BoughtProcessor]] = {site: {} for site in sites}
        self._where: dict[int, str] = {}
        self.leases = 0
        """Number of the last lease that was made."""

    def __iter__(self) -> Iterator[BoughtProcessor]:
        return iter(list(self._held.values()))

    def __contains__(self, name: str) -> bool:
        return name in self._held

    def __getitem__(self, name: str) -> BoughtProcessor:
        return self._held[name]

    def get(self, name: str) -> BoughtProcessor | None:
        """Return the processor of a lease; None for a lease that has been dropped."""
        return self._held.get(name)

    @property
    def are_busy(self) -> bool:
        """Whether any job is on a processor."""
        return bool(self._where)

    def has(self, task: int) -> bool:
        """Return whether a job is on a processor."""
        return task in self._where

    def new_lease(self) -> str:
        """Return the name of another lease."""
        self.leases += 1
        return f"lease-{self.leases}"

    def add(self, held: BoughtProcessor) -> None:
        """Add a processor."""
        self._held[held.name] = self._at[held.site][held.name] = held

    def forget(self, name: str) -> BoughtProcessor | None:
        """Drop the processor of a lease; return the processor, or None for an unknown lease."""
        held = self._held.pop(name, None)
        if held is not None:
            del self._at[held.site][name]
        return held

    def put(self, task: int, held: BoughtProcessor) -> None:
        """Add a job to a processor's queue."""
        held.tasks.append(task)
        self._where[task] = held.name

    def take_off(self, task: int) -> BoughtProcessor | None:
        """Take a job off its processor; return the processor, or None if the job had none."""
        return self._held.get(self._where.pop(task, ""))

    def ahead_at(self, site: str, now: float) -> list[BoughtProcessor]:
        """Return the processors of a site that were booked and have not begun."""
        return [held for held in self._at[site].values() if held.is_ahead(now)]

    def promised(self, now: float) -> float:
        """Return the cost that jobs on our processors may still reach, currency units."""
        return sum(
            held.price * max(0.0, held.until - max(now, held.begin))
            for held in self._held.values()
            if held.tasks
        )

    def has_room(self, site: SiteFacts, now: float, depth: int) -> bool:
        """
        Return whether a job can be sent to a site now.

        It can while fewer processors have jobs than the site has, or while a processor that takes
        more jobs has fewer than ``depth``. Processors booked for a later time do not count.

        Parameters
        ----------
        now
            Seconds since the begin of the run.
        depth
            Most jobs that a processor is given, the one that runs included.
        """
        there = self._begun_at(site.name, now)
        if sum(bool(held.tasks) for held in there) < site.processors:
            return True
        return any(held.again and len(held.tasks) < depth for held in there)

    def processor_at(
        self, site: SiteFacts, price: float, seconds: float, now: float, depth: int
    ) -> BoughtProcessor | None:
        """
        Return a processor that has room: idle, new, or with the fewest jobs before this one.

        Parameters
        ----------
        price
            Price at which the job was bought; a processor has one price for all its jobs.
        seconds
            Time for which the job was bought.
        depth
            Jobs that a processor is given at most, the one that runs included.

        Returns
        -------
        BoughtProcessor or None
            None when none has room.
        """
        there = self._begun_at(site.name, now)
        # A lease has one price: a job bought at another needs a processor of its own.
        # Bargaining ends at whole micro-units for each job, so that equal prices differ by those.
        usable = [
            held for held in there if held.again and abs(held.price - price) * seconds <= _ROUNDING
        ]
        best = min(usable, key=lambda held: len(held.tasks), default=None)
        if best is not None and not best.tasks:
            return best
        if sum(bool(held.tasks) for held in there) < site.processors:
            made = BoughtProcessor(self.new_lease(), site.name, price, now, now)
            # At a shared site each job queues for its own processor, which ends with the job.
            made.again = not site.is_shared
            self.add(made)
            return made
        return best if best is not None and len(best.tasks) < depth else None

    def _begun_at(self, site: str, now: float) -> list[BoughtProcessor]:
        return [held for held in self._at[site].values() if not held.is_ahead(now)]


_ROUNDING = 3e-6
"""Currency units for one job, three micro-units, by which prices of equal bargains may differ."""


# Jobs that wait for the processors of one site, and the pilots that run them.

MOST_FAILURES = 3
"""Failures of pilots in a row after which a site gets no more jobs."""

_SHORTEST = 1e-3
"""Seconds that a job asks for at the least."""


@dataclass(slots=True)
class QueuePilot:
    """
    A pilot that runs jobs of one width, one after the other.

    Parameters
    ----------
    name
        Name of the pilot's lease.
    width
        Number of the pilot's processors.
    until
        Expected end of the pilot's jobs, seconds since the run's begin.
    tasks
        Expected seconds of the running job and of jobs given in advance; infinite without an
        estimate.
    again
        Whether the pilot gets more jobs.
    """

    name: str
    width: int
    until: float
    tasks: dict[int, float] = field(default_factory=dict)
    again: bool = True

    @property
    def work(self) -> float:
        """Expected seconds of all jobs on the pilot."""
        return sum(self.tasks.values())


class SiteQueue:
    """
    A first-come-first-served queue on as many pilots as a site has room for.

    At a shared site, whose scheduler has a queue of its own, each job gets a pilot at once.
    Elsewhere a pilot goes on from job to job; where jobs are short, it has some ahead, so that
    it never waits for the next one.

    Parameters
    ----------
    clock
        The present time on the element's clock, seconds.
    """

    def __init__(
        self,
        facts: SiteFacts,
        element: ComputingElement,
        *,
        clock: Callable[[], float],
        new_name: Callable[[], str],
    ) -> None:
        self.facts = facts
        self.element = element
        self.busy = 0
        self.failures = 0
        self._clock = clock
        self._new_name = new_name
        self._waiting: OrderedDict[int, tuple[Task, float]] = OrderedDict()
        self._held: dict[str, QueuePilot] = {}
        self._idle: dict[str, QueuePilot] = {}  # held pilots without a job
        self._on: dict[int, QueuePilot] = {}

    @property
    def is_broken(self) -> bool:
        """Whether the site is left out for having failed too often."""
        return self.failures >= MOST_FAILURES

    @property
    def running(self) -> int:
        """Number of jobs on pilots."""
        return len(self._on)

    @property
    def waiting(self) -> list[int]:
        """Jobs without a pilot, in queue order."""
        return list(self._waiting)

    def holds(self, name: str) -> bool:
        """Whether a pilot of that name is held."""
        return name in self._held

    def join(self, number: int, task: Task, stretch: float = 1.0) -> None:
        """
        Add a job to the end of the queue; it starts in a later step.

        Parameters
        ----------
        stretch
            Factor on the job's estimated seconds in the request for its pilot, used at a shared
            site only, where a pilot cannot be extended later. It grows after each attempt that
            was cut off by the end of its pilot.
        """
        seconds = self.element.seconds_of(task.runtime)
        self.element.submit(number, task.processors, seconds, self._clock())
        self._waiting[number] = (task, stretch)

    def leave(self, number: int) -> None:
        """Remove a waiting or running job; do nothing for a job that is not here."""
        self.element.ended(number, self._clock())
        self._waiting.pop(number, None)
        held = self._on.pop(number, None)
        if held is None:
            return
        del held.tasks[number]
        if not held.tasks:
            self.busy -= held.width
            self._idle[held.name] = held

    def retire(self, number: int) -> None:
        """Give no more jobs to the pilot on which a job has failed."""
        if number in self._on:
            self._on[number].again = False

    def forget(self, name: str) -> list[int]:
        """Drop a pilot; return the jobs of that pilot."""
        held = self._held.pop(name, None)
        if held is None:
            return []
        tasks = list(held.tasks)
        for number in tasks:
            self.leave(number)
        self._idle.pop(name, None)
        return tasks

    def take_back(self, name: str, tasks: Sequence[int]) -> list[int]:
        """
        Take jobs back from a pilot; drop a pilot that has not begun.

        A pilot that has not begun loses the jobs added since, too.
        """
        held = self._held.get(name)
        if held is None:
            return []
        # The first job is among them: the pilot was never opened.
        if next(iter(held.tasks), None) in tasks:
            return self.forget(name)
        mine = [number for number in tasks if number in held.tasks]
        for number in mine:
            self.leave(number)
        return mine

    def forget_all(self) -> list[int]:
        """Remove and return all waiting jobs."""
        left = self.waiting
        for number in left:
            self.element.ended(number, self._clock())
        self._waiting.clear()
        return left

    def start(self, now: float) -> list[Allocation]:
        """
        Give pilots to waiting jobs; drop pilots without a job.

        Parameters
        ----------
        now
            Seconds since the run's begin.

        Returns
        -------
        list of Allocation
            New pilots, and existing ones with the jobs added to them.
        """
        given: dict[str, list[int]] = {}
        while self._waiting:
            number, (task, stretch) = next(iter(self._waiting.items()))
            held = self._processors_for(task.processors, now)
            if held is None:
                break
            del self._waiting[number]
            self._put(number, task, held, now, stretch)
            given.setdefault(held.name, []).append(number)
        for name in self._idle:
            del self._held[name]
        self._idle.clear()
        return [self._pilot(self._held[name], tasks, now) for name, tasks in given.items()]

    def _processors_for(self, width: int, now: float) -> QueuePilot | None:
        """Return an idle pilot, a new one if there is room, or one that is free at once."""
        if self.facts.is_shared or self.busy + width <= self.facts.processors:
            for held in self._idle.values():
                if held.again and held.width == width:
                    return held
            made = QueuePilot(self._new_name(), width, now, again=not self.facts.is_shared)
            self._held[made.name] = self._idle[made.name] = made
            return made
        equal_jobs = [h for h in self._held.values() if h.tasks and h.again and h.width == width]
        # No processor is free: only a pilot whose jobs are shorter than AHEAD may take one in
        # advance.
        best = min(equal_jobs, key=lambda held: held.work, default=None)
        if best is not None and best.work < AHEAD and len(best.tasks) < MOST_AHEAD:
            return best
        return None

    def _put(self, number: int, task: Task, held: QueuePilot, now: float, stretch: float) -> None:
        if not held.tasks:
            del self._idle[held.name]
            self.busy += held.width
            held.until = now
        seconds = self.element.seconds_of(task.runtime)
        held.tasks[number] = math.inf if seconds is None else seconds
        held.until = max(held.until, now) + self._seconds_for(task, stretch)
        self._on[number] = held
        self.element.began(number, self._clock())

    def _seconds_for(self, task: Task, stretch: float) -> float:
        """Seconds to request for a job; where the site is not shared, more can be had later."""
        if self.facts.is_shared and task.wall_limit is not None:
            return task.wall_limit
        seconds = self.element.seconds_of(task.runtime)
        seconds = GUESS if seconds is None else seconds
        if self.facts.is_shared:
            seconds *= stretch
        if task.wall_limit is not None:
            seconds = min(seconds, task.wall_limit)
        return max(seconds, _SHORTEST)

    def _pilot(self, held: QueuePilot, tasks: list[int], now: float) -> Allocation:
        return Allocation(
            name=held.name,
            site=self.facts.name,
            processors=held.width,
            start=None,
            duration=held.until - now,
            unit_price=self.facts.unit_price,
            fixed_price=self.facts.fixed_price,
            extensible=not self.facts.is_shared,
            tasks=tuple(tasks),
        )
