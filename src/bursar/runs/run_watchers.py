"""What acts on a run from beside: signals, replanning for the goal, copies of what takes long."""

import asyncio
import math
import signal
from bisect import insort
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bursar.broker.feasibility import Forecast
from bursar.dispatch.journal_records import AttemptRecord, CopyStart
from bursar.engine.run_tasks import RunTasks
from bursar.engine.worker_slots import WorkerClaim
from bursar.forecasts.stragglers import (
    CopyChoice,
    IdleWorker,
    RunningTask,
    blend_times,
    choose_copies,
    expected_time,
)
from bursar.model.campaign import Campaign
from bursar.model.matching import Matching
from bursar.model.money import from_micros
from bursar.model.plan import Plan
from bursar.model.task import Outcome, Status
from bursar.report.progress import ProgressSnapshot, RunProgress, SiteProgress
from bursar.report.tables import money, span
from bursar.runs.environment import RunEnvironment
from bursar.runs.execution import RunExecution
from bursar.runs.notices import RunNotices
from bursar.runs.supply import UNSENT, PlannedSupply
from bursar.sites.protocol import Site

if TYPE_CHECKING:
    from bursar.forecasts.known_runtimes import ObservationSource

# Signals that end a run, before the begin and afterwards.


def end_by_signals() -> None:
    """
    End the present task by the signals that would else kill the process.

    A run may wait for hours before it begins, with money set aside that is to be given back.
    Once the run has begun, :class:`RunSignals` takes over.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    with suppress(ValueError, RuntimeError):  # not the main thread: a notebook, a server
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, task.cancel)


class RunSignals:
    """
    Handlers of the signals that stop a run: the first stops in order, the second kills all tasks.

    They stay until the processors are given back, which takes a while at a batch scheduler: a
    process that a signal ended in the middle would leave jobs behind, which run on and are paid.
    There the first signal only tells, and the second cancels the task that installed the handlers.

    Parameters
    ----------
    notify
        Called with one line for people.
    """

    _NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self, execution: RunExecution, notify: Callable[[str], None]) -> None:
        self._execution = execution
        self._notify = notify
        self._asked = 0
        self._is_ending = False
        self._task: asyncio.Task[object] | None = None

    def install(self) -> None:
        """Install the handlers; do nothing outside of the main thread: a notebook, a server."""
        loop = asyncio.get_running_loop()
        with suppress(ValueError, RuntimeError):
            for number in self._NUMBERS:
                loop.add_signal_handler(number, self._on_signal)
            self._task = asyncio.current_task()

    def tasks_ended(self) -> None:
        """Note that no task runs any more: from here on processors are given back."""
        self._is_ending, self._asked = True, 0

    def remove(self) -> None:
        """Let signals end the process again."""
        if self._task is not None:
            loop = asyncio.get_running_loop()
            for number in self._NUMBERS:
                loop.remove_signal_handler(number)
            self._task = None

    def _on_signal(self) -> None:
        self._asked += 1
        is_first = self._asked == 1
        if not self._is_ending:
            if is_first:
                why = "stopping: running tasks are asked to end; once more kills them"
                self._execution.stop("user", why)
            else:
                self._execution.stop("user", "killing what runs", grace=0.0)
        elif is_first:
            self._notify("processors are being given back; once more leaves them behind")
        elif self._task is not None:
            self._task.cancel()


# Replanning of a run that is forecast to miss the goal.

MOST = 5
"""Times that a run is planned again for its goal, at the most."""

WORTH = 0.95
"""Share of the expected end or cost that a new plan must come below to be worth the change."""

SURE = 0.02
"""Share of the tasks, and at least three tasks, that must have ended before a forecast counts."""


@dataclass(slots=True)
class ReplanMonitor:
    """
    Compares the forecast with deadline and budget.

    Parameters
    ----------
    every
        Seconds between two checks.
    """

    execution: RunExecution
    supply: PlannedSupply
    forecast: Forecast
    every: float
    _times: int = 0
    _stretch: float = 0.0

    async def watch(self) -> None:
        """Check again and again until the run ends."""
        while self._times < MOST:
            await asyncio.sleep(self.every)
            reason = self._reason()
            if reason is not None:
                # Noted whether or not the plan is worth it: with the same knowledge it would not be
                # a second later either.
                self._stretch = self.forecast.stretch
                if await self._is_worth_it():
                    self._times += 1
                    self.supply.plan_again(reason, self.forecast.stretch)

    def _reason(self) -> str | None:
        """Return why to plan again; None while the goal is met or nothing new is known."""
        execution, forecast = self.execution, self.forecast
        forecast.follow(self.supply.plan)
        counts = execution.counts
        if self.supply.is_planning or execution.cause is not None:
            return None
        # A few tasks say little of the others.
        if counts.succeeded < max(3, SURE * counts.total):
            return None
        # What is left has begun, or will as soon as processors come free: another plan could not
        # move it.
        if counts.waiting <= self.supply.plan.processors:
            return None
        if forecast.stretch < self._stretch * 1.1:
            return None  # as much was known the last time
        goal, finish, cost = execution.goal, *self._expected()
        if goal.deadline is not None and finish is not None and finish > goal.deadline:
            return (
                f"it would end {span(finish)} from the begin, the deadline is {span(goal.deadline)}"
            )
        if goal.budget is not None and cost is not None and cost > goal.budget:
            return f"it would cost {money(cost)}, the budget is {money(goal.budget)}"
        return None

    def _expected(self) -> tuple[float | None, float | None]:
        """Return the expected end and cost of the run; None where unknown."""
        elapsed = self.execution.elapsed
        finish = self.forecast.finish(elapsed)
        if finish is None:
            return None, None
        return finish, self.execution.spent + self.execution.rate * (finish - elapsed)

    async def _is_worth_it(self) -> bool:
        """Whether a new plan would be clearly better than the present one."""
        plan = await self.supply.sketch(self.forecast.stretch)
        goal, finish, cost = self.execution.goal, *self._expected()
        if plan is None or finish is None:
            return False
        elapsed = self.execution.elapsed
        if goal.deadline is not None and finish > goal.deadline:
            # A change costs the end of running tasks and new leases: a small gain on paper is a
            # loss.
            return _is_below(plan.makespan, WORTH * (finish - elapsed))
        return cost is not None and _is_below(plan.cost, WORTH * (cost - self.execution.spent))


def _is_below(value: float | None, limit: float) -> bool:
    return value is not None and value < limit


def can_rebuy(plan: Plan) -> bool:
    """Whether the purchases of a plan can be given back and bought anew at any time."""
    return bool(plan.purchases) and all(purchase.slot.leased for purchase in plan.purchases)


# Copies of tasks that take long.

LOOKS = 0.05
"""Pause between two looks for tasks that take long, as a share of the shortest expected time."""

_PAUSES = (0.1, 60.0)  # seconds: the shortest pause, and the longest


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierTimes:
    """
    How long tasks of a campaign's kinds took in earlier runs.

    Parameters
    ----------
    of_kind
        Times of each kind, ascending, over the usual time.
    usual
        Median of each task's time, seconds at speed 1, by the task's number.
    """

    of_kind: Mapping[str, Sequence[float]] = field(default_factory=dict)
    usual: Mapping[int, float] = field(default_factory=dict)


@dataclass(slots=True)
class StragglerWatch:
    """
    Starts copies of tasks that take longer than others of their kind.

    Parameters
    ----------
    sites
        Sites by name.
    has_links
        Whether files need time from one site to another.
    known
        What earlier runs say.
    """

    execution: RunExecution
    sites: Mapping[str, Site]
    has_links: bool = False
    known: EarlierTimes = field(default_factory=EarlierTimes)
    _seen: dict[str, list[float]] = field(default_factory=dict)
    _done: set[int] = field(default_factory=set)  # tasks that have had a copy, or can have none
    _refused: bool = False

    def learn(self, outcome: Outcome, site: str) -> None:
        """Take in how long a task of this run took."""
        if outcome.status is Status.SUCCEEDED and site in self.sites:
            kind, scale = self._kind_of(outcome.task)
            seconds = (outcome.end - outcome.start) * self._speed_at(site)
            insort(self._seen.setdefault(kind, []), seconds / scale)

    async def watch(self) -> None:
        """Look again and again until the run ends."""
        for record in self.execution.journalled:
            self.learn(record.outcome, record.site)
        while True:
            await asyncio.sleep(self._pause())
            self.look()

    def look(self) -> None:
        """Start the copies that are worth it now."""
        execution = self.execution
        figures = execution.dispatcher.figures
        idle = figures.idle_workers()
        if not idle or execution.cause is not None:
            return
        now, attempts = execution.dispatcher.now(), figures.attempts()
        copies = [claim.task for claim in attempts if claim.number != claim.task]
        running = [self._running(c, now) for c in attempts if c.number == c.task]
        chosen = choose_copies(
            [one for one in running if one.task not in self._done and one.task not in copies],
            [
                IdleWorker(
                    name=worker.name,
                    site=worker.site,
                    free=worker.free,
                    speed=self._speed_at(worker.site),
                    time_left=worker.until - now,
                )
                for worker in idle
            ],
            self._times(),
            tasks=len(running),
            copies=len(copies),
        )
        elapsed = {one.task: one.elapsed for one in running}
        for one in chosen:
            self._start(one, elapsed[one.task])

    def _start(self, one: CopyChoice, elapsed: float) -> None:
        execution, task = self.execution, self.execution.tasks[one.task]
        why = CopyStart(one.task, 0, 0, "", one.worker, elapsed, one.left, one.fresh)
        refusal = execution.dispatcher.copy(one.task, one.worker, why)
        if refusal is None:
            self._done.add(one.task)
            execution.notify(
                f"{task.id} has run for {span(elapsed)}, {span(one.left)} more are expected: "
                f"a copy that should take {span(one.fresh)} has begun"
            )
        elif refusal.final:
            self._done.add(one.task)
        elif not self._refused and execution.guard.money_left is not None:
            self._refused = True  # once: it is asked again at each look
            execution.notify(f"no copy of {task.id}: {refusal.reason}")

    def _pause(self) -> float:
        kinds = {
            self._kind_of(claim.task) for claim in self.execution.dispatcher.figures.attempts()
        }
        times = self._times()
        expected = [expected_time(times[kind]) * scale for kind, scale in kinds if times.get(kind)]
        least, most = _PAUSES
        # While nothing is known of what runs, nothing can be decided before something has ended.
        return min(max(LOOKS * min(expected, default=1 / LOOKS), least), most)

    def _times(self) -> Mapping[str, Sequence[float]]:
        """Return the times of each kind: this run's, and earlier runs' where those are few."""
        return {
            kind: blend_times(self._seen.get(kind, ()), self.known.of_kind.get(kind, ()))
            for kind in {*self._seen, *self.known.of_kind}
        }

    def _running(self, claim: WorkerClaim[RunTasks], now: float) -> RunningTask:
        kind, scale = self._kind_of(claim.task)
        task, site = self.execution.tasks[claim.task], claim.worker.site
        # What it may need of its site, and what it takes to bring its files elsewhere, was decided
        # when it was planned.
        stays = task.matching != Matching() or task.data or self.has_links
        return RunningTask(
            task=claim.task,
            worker=claim.worker.name,
            kind=kind,
            scale=scale,
            elapsed=now - claim.given,
            speed=self._speed_at(site),
            processors=claim.processors,
            sites=frozenset((site,)) if stays else None,
        )

    def _kind_of(self, number: int) -> tuple[str, float]:
        """Return the kind of a task, and the seconds that stand for 1 in the kind's times."""
        task = self.execution.tasks[number]
        # Estimates tell tasks of one kind apart; those without are compared with each other.
        scale = self.known.usual.get(number) or task.runtime
        return (task.name, scale) if scale else (f"{task.name}\0", 1.0)

    def _speed_at(self, site: str) -> float:
        return self.sites[site].facts.speed


def _earlier_times(campaign: Campaign, history: "ObservationSource") -> EarlierTimes:
    """
    Return how long tasks of a campaign's kinds took in earlier runs.

    Raises
    ------
    InputError, BursarError
        When the history cannot be read.
    """
    from bursar.forecasts.known_runtimes import known_runtimes  # late: it loads the kernels

    known = known_runtimes(campaign, (), history)
    return EarlierTimes(
        of_kind={
            kind: [math.exp(value) for value in one.pool.tolist()]
            for kind, one in zip(known.kinds, known.model.kinds, strict=False)
            if one.executions
        },
        usual={n: value for n, value in enumerate(known.medians().tolist()) if value > 0},
    )


def straggler_watch(
    execution: RunExecution,
    campaign: Campaign,
    environment: RunEnvironment,
    history: "ObservationSource | None",
) -> StragglerWatch | None:
    """Return what starts copies, where the campaign allows copies and the policy has some."""
    if not campaign.retry.copies:
        return None
    if environment.supply.sends_tasks:
        execution.notify("no copies are made: a strategy or the broker sends each task by itself")
        return None
    known = EarlierTimes() if history is None else _earlier_times(campaign, history)
    return StragglerWatch(execution, environment.sites, environment.delay is not None, known)


# What is shown of a run while it goes on.

_LEAST = 1e-3
"""Seconds between two checks of the deadline."""


async def show_progress(
    execution: RunExecution,
    campaign: Campaign,
    plan: Plan,
    forecast: Forecast,
    shown: RunProgress,
    refresh: float,
    notices: RunNotices,
) -> None:
    """Show how the run stands again and again, and say once when its deadline has passed."""
    told: float | None = None
    while True:
        pause, deadline = math.inf, execution.goal.deadline
        if shown.enabled:
            shown.update(snapshot_of(execution, campaign, plan, forecast))
            pause = refresh
        if deadline is not None and deadline != told:
            if execution.elapsed > deadline:
                execution.notify("the deadline has passed; the run goes on")
                notices.trouble("deadline", "the deadline has passed; the run goes on")
                told = deadline
            else:
                pause = min(pause, max(deadline - execution.elapsed, _LEAST))
        if math.isinf(pause):
            await asyncio.get_running_loop().create_future()
        await asyncio.sleep(pause)


def snapshot_of(
    execution: RunExecution, campaign: Campaign, plan: Plan, forecast: Forecast
) -> ProgressSnapshot:
    """Return how a run stands."""
    counts = execution.counts
    now = execution.dispatcher.now()
    busy, running = execution.dispatcher.figures.busy(), execution.dispatcher.figures.running()
    there = execution.provision.by_site()
    ledger, spent = execution.guard.ledger, execution.guard.spent(now)
    return ProgressSnapshot(
        campaign=campaign.name,
        elapsed=execution.elapsed,
        total=counts.total,
        succeeded=counts.succeeded,
        running=counts.running,
        waiting=counts.waiting,
        failed=counts.failed,
        skipped=counts.skipped,
        spent=from_micros(spent),
        # What leases have accrued is still held in the ledger, and shown as spent.
        held=from_micros(max(0, ledger.spent + ledger.held - spent)),
        budget=execution.goal.budget,
        currency=plan.currency,
        predicted_finish=plan.makespan,
        current_finish=forecast.finish(execution.elapsed, sum(held for held, _ in there.values())),
        deadline=execution.goal.deadline,
        follows_plan=plan.processors > 0,
        sites=tuple(
            SiteProgress(
                name=site,
                processors=held,
                busy=busy.get(site, 0),
                running=running.get(site, 0),
                asked=asked,
                spent=from_micros(execution.guard.spent_at(site, now)),
            )
            for site, (held, asked) in there.items()
        ),
    )


# A run of some tasks only, which ends with them.


class ProbeSupply(PlannedSupply):
    """
    Runs some tasks of a run by a plan, and ends the run when these have ended.

    Parameters
    ----------
    plan
        Plan of these tasks; where runtimes are unknown, the plan places none.
    wanted
        Numbers of the tasks; no other one begins.
    """

    def __init__(self, plan: Plan, wanted: Collection[int]) -> None:
        super().__init__(plan)
        self._wanted = frozenset(wanted)

    async def begin(self) -> None:
        """Keep all other tasks from every lease, then agree on what the plan buys."""
        others = [t for t in range(len(self.run.bindings.tasks)) if t not in self._wanted]
        self.run.bind(dict.fromkeys(others, UNSENT), {task: task for task in others})
        await super().begin()

    def on_outcome(self, record: AttemptRecord, lease: str | None) -> None:
        """End the run after the last of the tasks."""
        super().on_outcome(record, lease)
        # A task whose parent failed has come to its end, too, and has no outcome.
        if record.final and self._wanted <= self.run.dispatcher.figures.ended:
            self.run.stop("probe", "runtimes are measured")
