"""Jobs wait for the processors of one site, and pilots run them."""

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bursar.broker.economy import AHEAD, MOST_AHEAD
from bursar.broker.estimates import GUESS
from bursar.cluster.element import ComputingElement
from bursar.model.allocation import Allocation
from bursar.model.site import SiteFacts
from bursar.model.task import Task

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
    new_name
        Returns the name of a new pilot.
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
