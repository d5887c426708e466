"""One site, one policy and work that is waiting: what the pool acquires over time."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from bursar.model.demand import ProcessorDemand
from bursar.model.provisioning import Acquisition, AcquisitionPolicy
from bursar.provisioning.pool import PilotPool
from bursar.provisioning.pool_snapshot import (
    Allocation,
    AllocationRelease,
    AllocationRequest,
    BackfillWindow,
    PoolSite,
    PoolSnapshot,
)
from bursar.provisioning.wait_prediction import BoundScore

SITE = "cluster"


class SimulatedQueue(Protocol):
    """A simulated queue that is moved on from event to event; jobs go by number."""

    @property
    def now(self) -> float:
        """Seconds on its clock."""

    @property
    def free(self) -> int:
        """Processors on which a job could start now."""

    @property
    def holes(self) -> tuple[BackfillWindow, ...]:
        """What is free, now and later, as far as a plain user can tell."""

    @property
    def waiting(self) -> int:
        """Jobs of others that wait."""

    @property
    def next_event(self) -> float:
        """When something happens next by itself, seconds."""

    def submit(
        self, processors: int, seconds: float, *, fewest: int | None = None, with_last: bool = False
    ) -> int:
        """A job, and perhaps an element of the same submission as the last one."""

    def cancel(self, number: int) -> None:
        """A job is not wanted any more."""

    def began(self, number: int) -> float | None:
        """When a job got its processors, seconds; None: not yet."""

    def ended(self, number: int) -> bool:
        """Whether a job is gone."""

    def processors(self, number: int) -> int:
        """That it asks for, and has once it began."""

    def ready(self, number: int) -> int:
        """Its workers that have registered."""

    def advance(self, until: float) -> None:
        """Moves the clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskBacklog:
    """
    Tasks of one processor that all wait from the begin on.

    Parameters
    ----------
    wanted
        Processors that are to work on it at a time.
    tasks
        How many there are.
    seconds
        Of each.
    """

    wanted: int
    tasks: int
    seconds: float


class Acquirer:
    """
    A pool with one site, and what is known of its allocations.

    It says what to submit and to cancel; whoever holds the scheduler tells what became of it.

    Parameters
    ----------
    acquisition
        The policy.
    work
        That waits.
    site
        What the pool is told of the site, but for what changes.
    longest
        Seconds of one allocation at most.
    """

    def __init__(
        self, acquisition: Acquisition, work: TaskBacklog, site: PoolSite, longest: float
    ) -> None:
        self.work = work
        self.allocations: dict[str, Allocation] = {}
        usual = AcquisitionPolicy().max_pending
        rules = AcquisitionPolicy(
            acquisition=acquisition,
            most=work.wanted,
            shortest=min(work.seconds, longest),
            longest=longest,
            # The blind ones are as the paper has them: they know no courtesy.
            max_pending=usual if acquisition == "adaptive" else max(usual, work.wanted),
            idle=math.inf,
        )
        self._site = replace(site, name=SITE, rules=rules)
        self._pool = PilotPool()
        self._asked = 0
        self._spent = 0.0
        """Processor-seconds of allocations that are gone."""

    @property
    def looks(self) -> bool:
        """Whether its policy goes by what is free."""
        return self._site.rules.acquisition in ("adaptive", "optimal", "node-range")

    @property
    def bounds(self) -> BoundScore:
        """What became of the bounds on its requests' waits."""
        return self._pool.waits.score()

    @property
    def wake(self) -> float:
        """When it may decide something by time alone, seconds."""
        return self._pool.wake

    def decide(
        self, now: float, free: int | None, holes: Sequence[BackfillWindow] = (), waiting: int = 0
    ) -> tuple[list[tuple[str, AllocationRequest]], list[str]]:
        """Requests to submit, by a name for each, and allocations to cancel."""
        site = replace(self._site, free=free, backfill_windows=tuple(holes), waiting=waiting)
        view = PoolSnapshot(
            now=now,
            demand=self._demand(now),
            allocations=tuple(self.allocations.values()),
            sites={SITE: site},
        )
        asks: list[tuple[str, AllocationRequest]] = []
        back: list[str] = []
        for decision in self._pool.decide(view):
            if isinstance(decision, AllocationRelease):
                back.append(decision.name)
                self._change(decision.name, leaving=True)
                continue
            name = f"a{self._asked}"
            self._asked += 1
            asks.append((name, decision))
            self._pool.asked(name, decision, now)
            self.allocations[name] = Allocation(
                name=name,
                site=SITE,
                processors=decision.processors,
                asked=now,
                seconds=decision.seconds,
                bundle=decision.bundle,
                race=decision.race,
            )
        return asks, back

    def on_began(self, name: str, now: float, processors: int) -> None:
        """An allocation has its processors."""
        known = self.allocations[name]
        self._change(name, began=now, until=now + known.seconds, processors=processors)
        self._pool.began(name, now)

    def on_ready(self, name: str, workers: int, now: float) -> None:
        """So many of its workers have registered; each has a task at once."""
        self._change(name, ready=workers, busy=workers, idle_since=None if workers else now)

    def on_ended(self, name: str, now: float) -> None:
        """An allocation is gone."""
        gone = self.allocations.pop(name)
        if gone.began is not None:
            self._spent += gone.processors * min(now - gone.began, gone.seconds)
        self._pool.ended(name, now, "ended", "its time was over")

    def _change(self, name: str, **values: object) -> None:
        self.allocations[name] = replace(self.allocations[name], **values)  # type: ignore[arg-type]

    def _demand(self, now: float) -> ProcessorDemand:
        held = [a for a in self.allocations.values() if a.began is not None and a.ready]
        running = sum(a.ready for a in held)
        done = self._spent + sum(a.ready * (now - a.began) for a in held if a.began is not None)
        left = max(0, self.work.tasks - int(done // self.work.seconds) - running)
        return ProcessorDemand(
            tasks=left,
            processors=left,
            widest=1 if left else 0,
            work=left * self.work.seconds,
            longest=self.work.seconds if left else 0.0,
            running=running,
        )


def run_acquisition(
    scheduler: SimulatedQueue, acquirer: Acquirer, *, horizon: float, every: float
) -> None:
    """
    Acquires until the horizon, seconds on the scheduler's clock.

    Parameters
    ----------
    every
        Seconds between two looks at the queue.
    """
    numbers: dict[str, int] = {}
    while True:
        for name, number in list(numbers.items()):
            _look(scheduler, acquirer, name, number)
            if scheduler.ended(number):
                del numbers[name]
        free = scheduler.free if acquirer.looks else None
        holes = scheduler.holes if acquirer.looks else ()
        asks, back = acquirer.decide(scheduler.now, free, holes, scheduler.waiting)
        for name in back:
            scheduler.cancel(numbers.pop(name))
            acquirer.on_ended(name, scheduler.now)
        for name, ask, with_last in _submissions(asks):
            numbers[name] = scheduler.submit(
                ask.processors, ask.seconds, fewest=ask.least_processors, with_last=with_last
            )
        scheduler.advance(scheduler.now)
        if any(_is_new(scheduler, acquirer, name, numbers) for name in numbers):
            continue
        if scheduler.now >= horizon:
            return
        ahead = min(scheduler.now + every, max(acquirer.wake, scheduler.now + 1e-3), horizon)
        _advance(scheduler, ahead, list(numbers.values()))


def _advance(scheduler: SimulatedQueue, until: float, numbers: Sequence[int]) -> None:
    """
    Move the clock to a moment, or to when one of our own jobs begins or ends, if that is sooner.

    A pilot that starts or leaves says so by itself; nobody waits for the next look at the queue.
    """
    before = [(scheduler.began(number), scheduler.ended(number)) for number in numbers]
    while scheduler.now < until:
        scheduler.advance(min(until, max(scheduler.next_event, scheduler.now + 1e-3)))
        if [(scheduler.began(number), scheduler.ended(number)) for number in numbers] != before:
            return


def _look(scheduler: SimulatedQueue, acquirer: Acquirer, name: str, number: int) -> None:
    """What is new of a job."""
    at = scheduler.began(number)
    known = acquirer.allocations[name]
    if at is not None and known.began is None:
        acquirer.on_began(name, at, scheduler.processors(number))
    if scheduler.ended(number):
        acquirer.on_ended(name, scheduler.now)
    elif (ready := scheduler.ready(number)) != known.ready:
        acquirer.on_ready(name, ready, scheduler.now)


def _is_new(
    scheduler: SimulatedQueue, acquirer: Acquirer, name: str, numbers: dict[str, int]
) -> bool:
    return scheduler.began(numbers[name]) is not None and acquirer.allocations[name].began is None


def _submissions(
    asks: Sequence[tuple[str, AllocationRequest]],
) -> Iterator[tuple[str, AllocationRequest, bool]]:
    """With each request whether it belongs to the submission of the one before."""
    last = ""
    for name, ask in asks:
        yield name, ask, bool(ask.bundle) and ask.bundle == last
        last = ask.bundle
