"""A bag of tasks brought to its sites job by job, by deadline and budget (Nimrod/G)."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from bursar.broker.pilots import Pilot
from bursar.broker.strategies import Resource, Strategy, jobs_for
from bursar.model.goal import Goal
from bursar.model.outcome import Outcome, Status
from bursar.model.site import SiteFacts
from bursar.model.task import Task


@dataclass(slots=True)
class _Measured:
    """What has been seen of a site, and what it has been given."""

    site: SiteFacts
    ended: int = 0
    seconds: float = 0.0
    began: dict[int, float] = field(default_factory=dict)  # tasks it has, and since when
    probed: bool = False

    @property
    def mean(self) -> float | None:
        """Seconds of a job; None before one has ended."""
        return self.seconds / self.ended if self.ended else None

    def cost(self, seconds: float) -> float:
        """Of a job that takes so long."""
        return seconds * (self.site.unit_price or 0.0) + (self.site.fixed_price or 0.0)


class Economy:
    """
    Sends jobs to sites as a strategy says, as fast as their processors come free.

    Nothing is known of how long jobs take: one is sent to each site first (the paper's
    initial spike). Each end of a job is an event at which what is left is given out anew,
    and as many are sent as processors are free, so that all others may still go elsewhere.

    Parameters
    ----------
    tasks
        Independent, of one processor each.
    sites
        That can be used.
    goal
        Its deadline and budget.
    strategy
        See :mod:`bursar.broker.strategies`.
    clock
        Seconds since the begin.
    seconds_for
        What to ask of a site for a task.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        sites: Sequence[SiteFacts],
        goal: Goal,
        strategy: Strategy,
        clock: Callable[[], float],
        seconds_for: Callable[[int, SiteFacts], float],
    ) -> None:
        self._tasks = tasks
        self._goal = goal
        self._strategy: Strategy = strategy
        self._clock = clock
        self._seconds_for = seconds_for
        self._measured = {site.name: _Measured(site) for site in sites}
        self._waiting: list[int] = []
        self._spent = 0.0
        self._sent = 0

    def begin(self, ended: Iterable[int], before: int = 0) -> list[Pilot]:
        """Pilots for the first jobs; see :class:`bursar.broker.justintime.Supply`."""
        self._sent = before
        gone = set(ended)
        self._waiting = [i for i in range(len(self._tasks)) if i not in gone][::-1]
        return self._decide()

    def ended(self, outcome: Outcome, final: bool) -> list[Pilot]:
        """Pilots for what is sent after an attempt."""
        where = next(m for m in self._measured.values() if outcome.task in m.began)
        del where.began[outcome.task]
        seconds = outcome.end - outcome.start
        self._spent += where.cost(seconds)
        if outcome.status is Status.SUCCEEDED:
            where.ended += 1
            where.seconds += seconds
        elif not final:
            self._waiting.append(outcome.task)
        return self._decide()

    def routed(self, pilot: Pilot) -> Pilot:
        """It has its site already."""
        return pilot

    @property
    def verdict(self) -> str:
        """Says so where jobs are left and none is with a site: none fits any more."""
        if not self._waiting or any(where.began for where in self._measured.values()):
            return ""
        return (
            f"{len(self._waiting)} of {len(self._tasks)} jobs do not fit into what is left of the "
            "deadline and the budget"
        )

    def _decide(self) -> list[Pilot]:
        """What is sent now."""
        now = self._clock()
        sent = []
        for where in self._measured.values():
            if not where.probed and self._waiting and self._affords(where, now):
                where.probed = True
                sent.append(self._send(where, now))
        known = [where for where in self._measured.values() if where.mean is not None]
        if not known:
            return sent
        given = jobs_for(
            self._strategy,
            [self._resource(where, now) for where in known],
            len(self._waiting),
            self._time_left(now),
            self._money_left(),
        )
        for where, jobs in zip(known, given, strict=True):
            room = where.site.processors - len(where.began)
            sent.extend(self._send(where, now) for _ in range(min(room, jobs)))
        return sent

    def _resource(self, where: _Measured, now: float) -> Resource:
        mean = where.mean
        assert mean is not None
        busy = sorted(max(0.0, began + mean - now) for began in where.began.values())
        idle = where.site.processors - len(busy)
        return Resource(
            seconds=max(mean, 1e-9), cost=where.cost(mean), free_at=(*[0.0] * idle, *busy)
        )

    def _affords(self, where: _Measured, now: float) -> bool:
        """Whether a first job may go there, by what it would ask for."""
        seconds = self._seconds_for(self._waiting[-1], where.site)
        return where.cost(seconds) <= self._money_left() and seconds <= self._time_left(now)

    def _time_left(self, now: float) -> float:
        return math.inf if self._goal.deadline is None else self._goal.deadline - now

    def _money_left(self) -> float:
        if self._goal.budget is None:
            return math.inf
        given = sum(
            where.cost(self._seconds_for(task, where.site))
            for where in self._measured.values()
            for task in where.began
        )
        return self._goal.budget - self._spent - given

    def _send(self, where: _Measured, now: float) -> Pilot:
        task = self._waiting.pop()
        where.began[task] = now
        self._sent += 1
        return Pilot(
            name=f"lease-{self._sent}",
            site=where.site.name,
            processors=1,
            own=1,
            start=None,
            duration=self._seconds_for(task, where.site),
            unit_price=where.site.unit_price,
            fixed_price=where.site.fixed_price,
            tasks=(task,),
        )
