"""How a run stands at one moment, as far as a forecast of its end and cost needs to know."""

import math
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from bursar.broker.estimates import worker_starts
from bursar.dispatch.journal_records import AttemptRecord
from bursar.model.allocation import Allocation
from bursar.model.campaign import Goal
from bursar.model.plan import Plan, Purchase
from bursar.model.provisioning import AT_ONCE, WorkerStarts
from bursar.model.slot import Slot
from bursar.model.task import Status
from bursar.runs.execution import RunExecution
from bursar.runs.supply import PlannedSupply, Supply
from bursar.sites.protocol import QueuedSite, Site

if TYPE_CHECKING:  # arrays, which only the thread that forecasts needs
    from bursar.engine.run_tasks import RunTasks
    from bursar.engine.worker_slots import WorkerClaim
    from bursar.provisioning.wait_forecast import WaitForecast

NEWEST_ENDS = 5000
"""Ended attempts of the run that a forecast learns from, the newest."""


class EndedAttempt(NamedTuple):
    """
    An attempt of the run that has ended.

    Parameters
    ----------
    seconds
        Run time at the site.
    busy
        Share of processor time in that; NaN where unknown.
    """

    task: int
    site: str
    seconds: float
    status: Status
    busy: float


class RunningAttempt(NamedTuple):
    """
    An attempt that runs, and is no copy.

    Parameters
    ----------
    seconds
        Run time at the site so far.
    """

    task: int
    site: str
    lease: str
    seconds: float


class QueuedRequest(NamedTuple):
    """
    A request for processors that waits in a queue.

    Parameters
    ----------
    asked
        When it was made, seconds since the run's begin.
    expected_wait
        Returns how long such a request waits from then on; None: nothing is known. May take
        seconds, in any thread.
    """

    asked: float
    expected_wait: "Callable[[], WaitForecast | None]"


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingCopy:
    """
    A copy of a task that runs, or that processors are bought for.

    Parameters
    ----------
    seconds
        Run time at the site so far; 0: it has not begun.
    comes
        When its processors are held, seconds since the run's begin; counted from there if queued.
    opening
        How long it takes to begin from then on.
    bought
        What is bought for it alone; None: nothing is.
    queued
        The request, where it waits in a queue that tells how long requests wait.
    """

    task: int
    site: str
    seconds: float = 0.0
    comes: float = 0.0
    opening: WorkerStarts = AT_ONCE
    bought: Slot | None = None
    queued: QueuedRequest | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStanding:
    """
    State of a run at one moment.

    Parameters
    ----------
    now
        Seconds since the run's begin.
    moment
        The same in seconds since the epoch.
    ended
        Tasks that will not run again.
    running, attempts
        What runs, and the newest that has ended.
    spent
        Currency units, what open leases have accrued included.
    leases
        Processors that are held or promised, by the names of their leases; starts are seconds from
        the run's begin.
    queued
        Purchases of ``leases`` that have no agreed start and have not come, by name: when they were
        asked for, and how to learn how long such a request waits.
    opening
        How long the workers of a lease take to start once it is held; none where they are there.
    held
        Processors of all leases at each site, also those that other runs use now.
    spare
        Processors of each site for which a pool or a strategy may still ask, as tasks can use them;
        empty: all that the run gets is known.
    lease_of
        Lease to which each task is bound, by the task's number; another name, or none: the task
        runs on whatever there is.
    plan
        Plan by whose order the tasks start; None: by their numbers.
    copies
        Copies that run, or that processors are bought for.
    stragglers
        Tasks that run, and for whose copies processors may be bought.
    fresh
        Probability that a copy is not as slow as the first attempt of its task.
    """

    now: float
    moment: float
    ended: frozenset[int]
    running: Sequence[RunningAttempt]
    attempts: Sequence[EndedAttempt]
    spent: float
    leases: Mapping[str, Purchase]
    queued: Mapping[str, QueuedRequest]
    opening: Mapping[str, WorkerStarts]
    held: Mapping[str, int]
    lease_of: Mapping[int, str]
    plan: Plan | None
    goal: Goal
    spare: Mapping[str, int] = field(default_factory=dict)
    copies: Sequence[StandingCopy] = ()
    stragglers: frozenset[int] = frozenset()
    fresh: float = 0.5


class StandingReader:
    """
    Gathers what ends in a run, and reads how the run stands.

    Parameters
    ----------
    processors
        Processors that each task holds.
    sites
        Sites by name; those with a queue tell how long requests wait there.
    """

    def __init__(self, processors: Sequence[int], sites: Mapping[str, Site]) -> None:
        self._processors = processors
        self._sites = sites
        self._starts = {name: worker_starts(site.facts) for name, site in sites.items()}
        self._attempts: deque[EndedAttempt] = deque(maxlen=NEWEST_ENDS)
        self.ended = 0
        """Number of tasks that have ended by an attempt of their own."""
        self.stragglers: frozenset[int] = frozenset()
        """Tasks that run, and for whose copies processors may be bought."""
        self.fresh = 0.5
        """Probability that a copy is not as slow as the first attempt of its task."""

    def take_in(self, record: AttemptRecord) -> None:
        """Note an attempt that has ended."""
        self.ended += record.final
        outcome = record.outcome
        seconds = outcome.end - outcome.start
        if record.is_reused or not seconds > 0:
            return
        used = outcome.user_seconds + outcome.system_seconds
        held = seconds * self._processors[outcome.task]
        busy = used / held if used or outcome.max_rss else math.nan
        self._attempts.append(
            EndedAttempt(outcome.task, record.site, seconds, outcome.status, busy)
        )

    @property
    def attempts(self) -> list[EndedAttempt]:
        """The newest attempts that have ended."""
        return list(self._attempts)

    def read(self, execution: RunExecution, supply: Supply) -> RunStanding:
        """Return how the run stands now."""
        now, first = execution.dispatcher.now(), execution.dispatcher.now() - execution.elapsed
        figures = execution.dispatcher.figures
        allocations = execution.provision.allocations()
        held: Counter[str] = Counter()
        for one in allocations:
            held[one.site] += 0 if one.is_over else one.processors
        bought = [one for one in allocations if one.copy_of is not None]
        allocations = [one for one in allocations if one.copy_of is None]
        queued = self._queued(allocations, first)
        attempts = figures.attempts()
        return RunStanding(
            now=now - first,
            moment=now,
            ended=figures.ended,
            running=[
                RunningAttempt(
                    one.task, one.worker.site, one.worker.lease, max(now - one.given, 0.0)
                )
                for one in attempts
                if one.number == one.task
            ],
            attempts=self.attempts,
            spent=execution.spent,
            leases={
                **purchases_of(allocations, figures.room(), now, first),
                **{name: purchase for name, (purchase, _) in queued.items()},
            },
            queued={name: request for name, (_, request) in queued.items()},
            opening={
                one.name: self._starts.get(one.site, AT_ONCE)
                for one in allocations
                if one.ready is None
            },
            held=held,
            lease_of=dict(supply.run.bindings.lease_of),
            plan=supply.plan if isinstance(supply, PlannedSupply) else None,
            goal=execution.goal,
            # A pool replaces workers, and a scheduler sends tasks: both ask for more on the way.
            spare={
                name: max(site.facts.processors - held[name], 0)
                for name, site in self._sites.items()
                if supply.replaces_workers or supply.sends_tasks
            },
            copies=self._copies(attempts, bought, now, first),
            stragglers=self.stragglers,
            fresh=self.fresh,
        )

    def _copies(
        self,
        attempts: "Sequence[WorkerClaim[RunTasks]]",
        bought: Sequence[Allocation],
        now: float,
        first: float,
    ) -> list[StandingCopy]:
        """Return the copies that run, and those for which processors are on their way."""
        running = {one.task for one in attempts if one.number == one.task}
        copies = {one.task: one for one in attempts if one.number != one.task}
        lease_of = {one.copy_of: one for one in bought if not one.is_over and not one.leaving}
        queued = self._queued(list(lease_of.values()), first)
        found = []
        for task in sorted(running & {*copies, *lease_of}):
            begun, lease = copies.get(task), lease_of.get(task)
            if lease is None:
                assert begun is not None
                found.append(
                    StandingCopy(
                        task=task,
                        site=begun.worker.site,
                        seconds=max(now - begun.given, 0.0),
                        comes=begun.given - first,
                    )
                )
                continue
            held = lease.paid_from if lease.paid_from is not None else lease.granted
            request = queued.get(lease.name)
            found.append(
                StandingCopy(
                    task=task,
                    site=lease.site,
                    seconds=0.0 if begun is None else max(now - begun.given, 0.0),
                    comes=(now if held is None else min(held, math.nextafter(now, 0.0))) - first,
                    opening=AT_ONCE if begun else self._starts.get(lease.site, AT_ONCE),
                    bought=_purchase(lease, 0.0, lease.processors).slot,
                    queued=None if request is None else request[1],
                )
            )
        return found

    def _queued(
        self, allocations: Sequence[Allocation], first: float
    ) -> dict[str, tuple[Purchase, QueuedRequest]]:
        """Return what stands in a queue that tells how long requests wait, by name."""
        found: dict[str, tuple[Purchase, QueuedRequest]] = {}
        for one in allocations:
            site: object = self._sites.get(one.site)
            begun = one.granted is not None or one.paid_from is not None
            if begun or one.is_over or one.leaving or not one.works or one.start is not None:
                continue
            if isinstance(site, QueuedSite):
                wait = partial(site.queue.expected_wait, one.name)
                request = QueuedRequest(one.asked - first, wait)
                found[one.name] = _purchase(one, one.asked - first, one.processors), request
        return found


def purchases_of(
    allocations: Sequence[Allocation], room: Mapping[str, int], now: float, first: float
) -> dict[str, Purchase]:
    """
    Return what is held, or agreed on for later, as purchases on the clock of a run.

    What was asked for without an agreed start is left out.

    Parameters
    ----------
    room
        Processors of each lease that tasks may use now; another run may have the others.
    now, first
        The present and the run's begin, seconds since the epoch.
    """
    found = {}
    for one in allocations:
        if one.is_over or not one.works or (one.leaving and not one.workload.busy):
            continue
        begin = one.paid_from if one.paid_from is not None else one.granted
        start = one.start if begin is None else begin
        if start is None or not math.isfinite(start):
            continue
        if begin is not None:
            # Open before now: its fixed price is paid.
            start = min(start, math.nextafter(now, -math.inf))
        usable = max(1, min(one.processors, room.get(one.name, one.processors)))
        found[one.name] = _purchase(one, start - first, usable)
    return found


def _purchase(one: Allocation, start: float, processors: int) -> Purchase:
    """Return an allocation as a purchase from a start on the clock of a run."""
    endless = math.isinf(one.duration)
    part = one.paid / one.processors
    slot = Slot(
        site=one.site,
        start=start,
        duration=one.duration,
        processors=processors,
        unit_price=None if one.unit_price is None else one.unit_price * part,
        fixed_price=one.fixed_price,
        divisible=endless or not one.whole,
        leased=endless,
    )
    return Purchase(slot=slot)


def with_more(standing: RunStanding, lease: str, processors: int, opening: float) -> RunStanding:
    """
    Return how a run would stand with more processors beside a lease, open to all tasks.

    Parameters
    ----------
    opening
        Seconds until their workers take tasks.
    """
    beside = standing.leases[lease].slot
    slot = replace(
        beside,
        start=standing.now + opening,
        duration=math.inf,
        processors=processors,
        divisible=True,
        leased=True,
    )
    running = {attempt.task: attempt.lease for attempt in standing.running}
    more = Purchase(slot=slot)
    return replace(standing, leases={**standing.leases, "": more}, lease_of=running)
