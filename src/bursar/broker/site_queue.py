"""Jobs wait for the processors of one site, and pilots run them."""

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bursar.broker.economy import AHEAD, MOST_AHEAD
from bursar.broker.estimates import GUESS
from bursar.broker.pilot_plan import Pilot
from bursar.cluster.element import ComputingElement
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
        Number of its processors.
    until
        When its jobs should have ended, seconds since the run's begin.
    tasks
        Its jobs, the one that runs and such as are there ahead of time: seconds that each
        should take, infinite without an estimate.
    again
        Whether it gets more of them.
    """

    name: str
    width: int
    until: float
    tasks: dict[int, float] = field(default_factory=dict)
    again: bool = True

    @property
    def work(self) -> float:
        """Seconds that its jobs should take in all."""
        return sum(self.tasks.values())


class SiteQueue:
    """
    A first-come-first-served queue on as many pilots as a site has room for.

    At a shared site, whose scheduler has a queue of its own, each job gets a pilot at once.
    Elsewhere a pilot goes on from job to job; where jobs are short, it has some ahead, so that
    it never waits for the next one.

    Parameters
    ----------
    facts
        Facts of the site.
    element
        Computing element that reports the state of this queue.
    clock
        Seconds, of the element.
    new_name
        Names a new pilot.
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
        self._idle: dict[str, QueuePilot] = {}  # of these, such as have no job
        self._on: dict[int, QueuePilot] = {}

    @property
    def is_broken(self) -> bool:
        """Whether it failed so often that it gets no more jobs."""
        return self.failures >= MOST_FAILURES

    @property
    def running(self) -> int:
        """Number of jobs on pilots."""
        return len(self._on)

    @property
    def waiting(self) -> list[int]:
        """Jobs without one, in their order."""
        return list(self._waiting)

    def holds(self, name: str) -> bool:
        """Whether there is such a pilot."""
        return name in self._held

    def join(self, number: int, task: Task, stretch: float = 1.0) -> None:
        """
        A job waits for processors.

        Parameters
        ----------
        stretch
            How many times its estimate to ask for where no more can be had later.
        """
        seconds = self.element.seconds_of(task.runtime)
        self.element.submit(number, task.processors, seconds, self._clock())
        self._waiting[number] = (task, stretch)

    def leave(self, number: int) -> None:
        """A job neither waits nor runs here any more; of one that is not here nothing changes."""
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
        """The pilot of a job, which has failed it, gets no more."""
        if number in self._on:
            self._on[number].again = False

    def forget(self, name: str) -> list[int]:
        """A pilot is ours no more; the jobs that were on it, which leave."""
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
        A pilot does not get these jobs, which leave; if it has no other it is ours no more.

        Of one that has not begun, and has got more jobs since, those leave as well.
        """
        held = self._held.get(name)
        if held is None:
            return []
        if next(iter(held.tasks), None) in tasks:
            return self.forget(name)
        mine = [number for number in tasks if number in held.tasks]
        for number in mine:
            self.leave(number)
        return mine

    def forget_all(self) -> list[int]:
        """Jobs that waited, which leave."""
        left = self.waiting
        for number in left:
            self.element.ended(number, self._clock())
        self._waiting.clear()
        return left

    def start(self, now: float) -> list[Pilot]:
        """
        Jobs get pilots; pilots without a job are forgotten.

        Parameters
        ----------
        now
            Seconds since the run's begin.

        Returns
        -------
        list of Pilot
            New ones, and such as are there with the jobs that they get besides.
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
        """Idle ones, or new ones where there are any, or such as will be free in no time."""
        if self.facts.is_shared or self.busy + width <= self.facts.processors:
            for held in self._idle.values():
                if held.again and held.width == width:
                    return held
            made = QueuePilot(self._new_name(), width, now, again=not self.facts.is_shared)
            self._held[made.name] = self._idle[made.name] = made
            return made
        equal_jobs = [h for h in self._held.values() if h.tasks and h.again and h.width == width]
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

    def _pilot(self, held: QueuePilot, tasks: list[int], now: float) -> Pilot:
        return Pilot(
            name=held.name,
            site=self.facts.name,
            processors=held.width,
            own=held.width,
            start=None,
            duration=held.until - now,
            unit_price=self.facts.unit_price,
            fixed_price=self.facts.fixed_price,
            extensible=not self.facts.is_shared,
            tasks=tuple(tasks),
        )
