"""
Simulate a strategy before the run, with the jobs' estimated or drawn runtimes.

The economy that will bring the jobs to their sites is carried through on a clock of its own,
with the budget guard that will hold the money. So an expectation, or a counter-offer that is
checked by it, includes what the rules of the strategy and the holds of the guard cost.
"""

import heapq
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from bursar.broker.dynamic_scheduler import Ended, ResumeState
from bursar.broker.economy import EconomyScheduler
from bursar.market.guard import BudgetGuard, budget_amount
from bursar.market.lease import Lease, lease_of
from bursar.model.allocation import Allocation
from bursar.model.campaign import Goal
from bursar.model.money import Refusal, from_micros
from bursar.model.task import Outcome, Status


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategySimulationResult:
    """
    Result of a simulated run.

    Parameters
    ----------
    done, left
        Jobs that end in the simulation, and jobs that were left at its start.
    finish
        End of the last job, seconds since the run's begin.
    cost
        Currency units spent by then, over the whole run.
    """

    done: int
    left: int
    finish: float
    cost: float

    @property
    def is_whole(self) -> bool:
        """Whether every job that was left is done."""
        return self.done == self.left

    def meets(self, goal: Goal) -> bool:
        """Whether every job is done by the deadline and within the budget."""
        in_time = goal.deadline is None or self.finish <= goal.deadline * (1 + _CLOSE)
        paid = goal.budget is None or self.cost <= goal.budget * (1 + _CLOSE)
        return self.is_whole and in_time and paid


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyDraw:
    """
    Conditions that a strategy meets in one simulation.

    Parameters
    ----------
    takes
        Seconds that a job, by its number, really takes at a site; None: as the scheduler estimates.
    late
        Share of workers that start sooner than those of this draw.
    number
        Number of the draw, by which waits in queues are drawn; None: the median of the waits.
    """

    takes: Callable[[int, str], float] | None = None
    late: float = 0.5
    number: int | None = None


EXPECTED = StrategyDraw()
"""All as it is expected."""

LATE = StrategyDraw(late=1.0)
"""Run times as expected, and workers that start late: what is offered must hold with these, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PilotTimes:
    """
    Times that a site adds to those of a pilot's jobs; all in seconds.

    Parameters
    ----------
    waits
        From a request until a processor is held, and paid. Those that are made while one waits come
        with it; the first after that has the next of these waits, and after the last there is none.
    start_up
        From when a processor is held until the pilot's worker takes a job.
    added
        Added to the time that a pilot asks for, see :attr:`bursar.model.site.SiteFacts.added`.
    unwatched
        Paid beyond the lease at the worst, see :attr:`bursar.model.site.SiteFacts.unwatched`.
    """

    waits: Sequence[float] = ()
    start_up: float = 0.0
    added: float = 0.0
    unwatched: float = 0.0


@dataclass(slots=True)
class _SimulatedPilot:
    """A pilot in a simulated run: its jobs in order, the first of which runs."""

    pilot: Allocation
    until: float
    more: float
    tasks: list[int] = field(default_factory=list)
    since: float = 0.0
    ends: float = math.inf
    starting: float = 0.0  # seconds until its worker is there


class StrategySimulation:
    """
    Runs an economy scheduler to the end of the campaign in simulation.

    Parameters
    ----------
    economy
        New scheduler with the goal to be simulated.
    goal
        The same goal.
    past
        How the run stands; its clock and what is spent are taken at the begin.
    times
        What sites add to the time of pilots, by their names; others add nothing.
    takes
        Seconds that a job, by its number, really takes at a site; None: as the scheduler estimates.
    running
        Numbers of the jobs that run: their processors neither queue nor start.
    """

    def __init__(
        self,
        economy: EconomyScheduler,
        goal: Goal,
        past: ResumeState,
        times: Mapping[str, PilotTimes] = MappingProxyType({}),
        takes: Callable[[int, str], float] | None = None,
        running: Iterable[int] = (),
    ) -> None:
        self._economy = economy
        self._takes = takes or economy.seconds_of
        self._times = times
        self._running = set(running)
        self._granted: dict[str, tuple[int, float]] = {}  # waits that passed, and the last's end
        self._now, self._paid_before = past.clock(), past.spent()
        budget = None if goal.budget is None else max(0.0, goal.budget - self._paid_before)
        self._guard = BudgetGuard(budget_amount(budget), limit_of=lambda _: None)
        self._past = replace(past, clock=lambda: self._now, spent=self._spent)
        self._leased: dict[str, _SimulatedPilot] = {}
        self._due: list[tuple[float, str]] = []  # moments at which a pilot is to be looked at
        self._attempts = 0
        self._done = 0

    def run(self, jobs: int) -> StrategySimulationResult | None:
        """
        Simulate to the end.

        Parameters
        ----------
        jobs
            Number of jobs of the whole run.

        Returns
        -------
        StrategySimulationResult or None
            None while nothing is known of how long jobs take.
        """
        economy, left = self._economy, jobs - len(self._past.ended)
        self._guard.begin(self._now)
        asked = economy.begin(self._past)
        if not economy.estimates.is_known:
            return None
        self._take(asked)
        finish, polls = self._now, 0
        # A bound: a strategy that wakes again and again without sending a job must not hang the
        # planner.
        while polls < _MOST * (left + 1):
            polls += 1
            moment = min(self._due[0][0] if self._due else math.inf, economy.wake)
            if math.isinf(moment) or (economy.verdict and not self._leased):
                break
            self._now = max(self._now, moment)
            done = self._done
            ended = self._end_due()
            if self._done > done:
                finish = self._now
            if ended:
                self._take(economy.ended(ended))
            if economy.wake <= self._now:
                self._take(economy.poll())
            self._close_idle()
        return StrategySimulationResult(
            done=self._done, left=left, finish=finish, cost=self._spent()
        )

    def _spent(self) -> float:
        return self._paid_before + from_micros(self._guard.spent(self._now))

    def _take(self, pilots: Sequence[Allocation]) -> None:
        """Open or prolong a lease for each pilot; without money, the pilot's jobs wait."""
        now = self._now
        self._economy.take_events()
        for pilot in pilots:
            leased = self._leased.get(pilot.name)
            if leased is not None:
                refused = self._prolong(leased, now + pilot.duration)
            else:
                begin = self._begin(pilot, now)
                refused = self._guard.open(self._lease(pilot, begin), now) is not None
            if refused:
                self._economy.short(pilot)
                continue
            if leased is None:
                times = self._times_of(pilot)
                starting = begin - now + times.start_up
                leased = _SimulatedPilot(
                    pilot, begin + pilot.duration, pilot.duration, starting=starting
                )
                self._leased[pilot.name] = leased
                if times.added:
                    # Without the money the lease ends as agreed, as it does in a run.
                    self._prolong(leased, leased.until + times.added)
            else:
                leased.until, leased.more = now + pilot.duration, pilot.duration
            leased.tasks += pilot.tasks
            if math.isinf(leased.ends):
                self._start(leased)
            self._watch(leased)

    def _start(self, leased: _SimulatedPilot) -> None:
        """Begin the first job of a pilot."""
        seconds = self._takes(leased.tasks[0], leased.pilot.site)
        self._running.discard(leased.tasks[0])
        leased.since = self._now + leased.starting
        leased.ends, leased.starting = leased.since + seconds, 0.0

    def _watch(self, leased: _SimulatedPilot) -> None:
        heapq.heappush(self._due, (min(leased.ends, leased.until), leased.pilot.name))

    def _end_due(self) -> list[Ended]:
        """Return jobs that end now, and jobs whose pilot's time is over."""
        ended: list[Ended] = []
        while self._due and self._due[0][0] <= self._now:
            leased = self._leased.get(heapq.heappop(self._due)[1])
            if leased is None or not leased.tasks:
                continue
            if leased.ends <= self._now:
                ended.append(self._outcome(leased, leased.tasks.pop(0), Status.SUCCEEDED))
                self._done += 1
                leased.ends = math.inf
                if leased.tasks:
                    self._start(leased)
            elif leased.until <= self._now and not self._goes_on(leased):
                ended += [self._outcome(leased, task, Status.LOST) for task in leased.tasks]
                leased.tasks.clear()
                leased.ends = math.inf
            if leased.tasks:
                self._watch(leased)
        return ended

    def _outcome(self, leased: _SimulatedPilot, task: int, status: Status) -> Ended:
        self._attempts += 1
        start = min(leased.since, self._now)
        outcome = Outcome(
            task=task, attempt=self._attempts, status=status, start=start, end=self._now
        )
        return outcome, status is Status.SUCCEEDED

    def _goes_on(self, leased: _SimulatedPilot) -> bool:
        """Prolong a lease as a run would; return whether the job goes on."""
        if not leased.pilot.extensible:
            return False
        # Doubled each time: a job of wrong estimate is prolonged a few times, not every second.
        leased.more *= 2
        if not self._prolong(leased, self._now + leased.more / 2):
            return True
        # Not the whole step: what money is left may still carry the job to its end.
        seconds = self._guard.affordable(leased.pilot.name) * (1 - _CLOSE)
        return seconds > _LEAST and not self._prolong(leased, self._now + seconds)

    def _prolong(self, leased: _SimulatedPilot, until: float) -> bool:
        """Move the end of a lease; return whether the guard refused."""
        changed = self._guard.end_at(leased.pilot.name, until, self._now)
        if isinstance(changed, Refusal):
            return True
        leased.until = until
        return False

    def _lease(self, pilot: Allocation, begin: float) -> Lease:
        until = begin + pilot.duration
        unwatched = self._times_of(pilot).unwatched
        return lease_of(pilot, begin, currency="SU", until=until, unwatched=unwatched)

    def _close_idle(self) -> None:
        idle = [name for name, leased in self._leased.items() if not leased.tasks]
        for name in idle:
            del self._leased[name]
            self._guard.charges.close(name, self._now)

    def _begin(self, pilot: Allocation, now: float) -> float:
        """Return when a pilot's processor is held from: later for a booking, or after a wait."""
        if pilot.start is not None:
            return max(now, pilot.start)
        waits = self._times_of(pilot).waits
        passed, comes = self._granted.get(pilot.site, (0, -math.inf))
        if waits and now >= comes:
            comes = now + (waits[passed] if passed < len(waits) else 0.0)
            self._granted[pilot.site] = passed + 1, comes
        return max(now, comes) if waits else now

    def _times_of(self, pilot: Allocation) -> PilotTimes:
        times = self._times.get(pilot.site, _AT_ONCE)
        if self._running.isdisjoint(pilot.tasks[:1]):
            return times
        return replace(times, waits=(), start_up=0.0)


_AT_ONCE = PilotTimes()
_CLOSE = 1e-9
_LEAST = 0.05
"""Least prolongation of a lease, seconds, when money is short."""

_MOST = 50
"""Events per job after which a simulation is given up."""
