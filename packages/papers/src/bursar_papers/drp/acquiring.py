"""One site, one policy and work that is waiting: what the pool acquires over time."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from bursar.model.allocation import Allocation, AllocationLoad, AllocationRequest
from bursar.model.provisioning import Acquisition, AcquisitionPolicy, ProcessorDemand
from bursar.model.slot import Slot
from bursar.provisioning.pool import PilotPool
from bursar.provisioning.pool_snapshot import (
    AllocationRelease,
    PoolSite,
    PoolSnapshot,
)
from bursar.provisioning.wait_prediction import BoundScore

SITE = "cluster"


class SimulatedQueue(Protocol):
    """A simulated queue that is moved on from event to event; jobs go by number."""

    @property
    def now(self) -> float:
        """Time on the queue's clock, seconds."""

    @property
    def free(self) -> int:
        """Processors on which a job could start now."""

    @property
    def holes(self) -> tuple[Slot, ...]:
        """Backfill windows, now and later, as far as a user without privileges can tell."""

    @property
    def waiting(self) -> int:
        """Number of waiting jobs of other users."""

    @property
    def next_event(self) -> float:
        """Time of the queue's next own event, seconds."""

    def submit(
        self, processors: int, seconds: float, *, fewest: int | None = None, with_last: bool = False
    ) -> int:
        """Submit a job, with ``with_last`` as an element of the previous submission."""

    def cancel(self, number: int) -> None:
        """Cancel a job."""

    def began(self, number: int) -> float | None:
        """Return the time at which a job started, seconds; None: not yet."""

    def ended(self, number: int) -> bool:
        """Return whether a job has ended."""

    def processors(self, number: int) -> int:
        """Return the processors that a job requests or, once started, holds."""

    def ready(self, number: int) -> int:
        """Return the number of a job's workers that have registered."""

    def advance(self, until: float) -> None:
        """Advance the clock to a time, seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskBacklog:
    """
    Tasks of one processor each, all waiting from the beginning.

    Parameters
    ----------
    wanted
        Processors that should work on the tasks at a time.
    seconds
        Run time of each task.
    """

    wanted: int
    tasks: int
    seconds: float


class Acquirer:
    """
    A pool with one site, and the known state of the allocations.

    The acquirer decides what to submit and cancel; the caller owns the scheduler and reports
    events.

    Parameters
    ----------
    site
        Constant facts of the site, as the pool sees them.
    longest
        Duration limit of one allocation, seconds.
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
        """Processor-seconds of ended allocations."""

    @property
    def looks(self) -> bool:
        """Whether the policy uses the numbers of free processors."""
        return self._site.rules.acquisition in ("adaptive", "optimal", "node-range")

    @property
    def bounds(self) -> BoundScore:
        """Score of the predicted bounds on the waits of the requests."""
        return self._pool.waits.score()

    @property
    def wake(self) -> float:
        """Time at which a decision may be due without an event, seconds."""
        return self._pool.wake

    def decide(
        self, now: float, free: int | None, holes: Sequence[Slot] = (), waiting: int = 0
    ) -> tuple[list[tuple[str, AllocationRequest]], list[str]]:
        """Return named requests to submit, and names of allocations to cancel."""
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
                duration=decision.duration,
                bundle=decision.bundle,
                race=decision.race,
            )
        return asks, back

    def on_began(self, name: str, now: float, processors: int) -> None:
        """Record that an allocation started."""
        known = self.allocations[name]
        self._change(name, granted=now, until=now + known.duration, processors=processors)
        self._pool.began(name, now)

    def on_ready(self, name: str, workers: int, now: float) -> None:
        """Record the number of registered workers; each gets a task at once."""
        load = AllocationLoad(ready=workers, busy=workers, idle_since=None if workers else now)
        self._change(name, workload=load)

    def on_ended(self, name: str, now: float) -> None:
        """Record that an allocation ended."""
        gone = self.allocations.pop(name)
        if gone.granted is not None:
            self._spent += gone.processors * min(now - gone.granted, gone.duration)
        self._pool.ended(name, now, "ended", "its time was over")

    def _change(self, name: str, **values: object) -> None:
        self.allocations[name] = replace(self.allocations[name], **values)  # type: ignore[arg-type]

    def _demand(self, now: float) -> ProcessorDemand:
        held = [a for a in self.allocations.values() if a.granted is not None and a.workload.ready]
        running = sum(a.workload.ready for a in held)
        done = self._spent + sum(
            a.workload.ready * (now - a.granted) for a in held if a.granted is not None
        )
        # Whole tasks only: processor time that the end of an allocation cut off counts for nothing.
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
    Run the acquisition until the horizon, seconds on the scheduler's clock.

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
                ask.processors, ask.duration, fewest=ask.least_processors, with_last=with_last
            )
        # By no time at all: jobs that can start at once do so before the clock moves.
        scheduler.advance(scheduler.now)
        # A start changes the demand, and so perhaps the next decision at the same moment.
        if any(_is_new(scheduler, acquirer, name, numbers) for name in numbers):
            continue
        if scheduler.now >= horizon:
            return
        # The clock moves by a millisecond at least, or a due decision that changes nothing would be
        # asked for without end.
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
    """Report a job's changes to the acquirer."""
    at = scheduler.began(number)
    known = acquirer.allocations[name]
    if at is not None and known.granted is None:
        acquirer.on_began(name, at, scheduler.processors(number))
    if scheduler.ended(number):
        acquirer.on_ended(name, scheduler.now)
    elif (ready := scheduler.ready(number)) != known.workload.ready:
        acquirer.on_ready(name, ready, scheduler.now)


def _is_new(
    scheduler: SimulatedQueue, acquirer: Acquirer, name: str, numbers: dict[str, int]
) -> bool:
    return scheduler.began(numbers[name]) is not None and acquirer.allocations[name].granted is None


def _submissions(
    asks: Sequence[tuple[str, AllocationRequest]],
) -> Iterator[tuple[str, AllocationRequest, bool]]:
    """Yield each request with whether it belongs to the same submission as the one before."""
    last = ""
    for name, ask in asks:
        yield name, ask, bool(ask.bundle) and ask.bundle == last
        last = ask.bundle
