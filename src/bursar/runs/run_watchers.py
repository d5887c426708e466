"""What acts on a run from beside: signals, replanning for the goal, copies of what takes long."""

import asyncio
import math
import signal
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from bursar.dispatch.journal_records import AttemptRecord
from bursar.model.campaign import Campaign, Goal, odds_in_words
from bursar.model.errors import BursarError
from bursar.model.money import from_micros
from bursar.model.plan import Plan
from bursar.model.site import SiteFacts
from bursar.report.progress import ProgressSnapshot, RunProgress, SiteProgress
from bursar.report.tables import money, span
from bursar.runs.amendments import SITE_ADDED, SiteAddition, SiteAdditionReply
from bursar.runs.environment import RunEnvironment
from bursar.runs.execution import RunExecution
from bursar.runs.folder import RunFolder, RunManifest
from bursar.runs.forecasting.live_forecast import ForecastUpdate
from bursar.runs.forecasting.run_forecast import RunForecast
from bursar.runs.notices import RunNotices
from bursar.runs.supply import UNSENT, PlannedSupply, Supply

if TYPE_CHECKING:
    pass

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


# Replanning of a run that is expected to miss the goal.

MOST = 5
"""Times that a run is planned again for its goal, at the most."""

WORTH = 0.95
"""Share of the expected end or cost that a new plan must come below to be worth the change."""

SURE = 0.02
"""Share of the tasks, and at least three tasks, that must have ended before a forecast counts."""


BETTER = 0.05
"""Odds by which a new plan must be better to be worth the change."""

LOWER = 0.1
"""Odds by which a forecast must be lower than when a plan was last sought, to seek another."""

MORE = 2.0
"""Times as many ended tasks as when a plan was last sought, after which another one is sought."""

LONGEST = 3.0
"""Factor by which tasks are planned to take longer for the sake of a confidence, at most."""


@dataclass(slots=True)
class ReplanMonitor:
    """
    Compares what is expected of a run with deadline and budget.

    Where there is a forecast, the odds of keeping both are compared with the confidence that the
    goal asks for; else the end and cost at the present pace with the limits.

    Parameters
    ----------
    every
        Seconds between two checks.
    """

    execution: RunExecution
    supply: PlannedSupply
    forecast: RunForecast
    every: float
    _times: int = 0
    _stretch: float = 0.0
    _odds: float = math.inf
    _ended: int = 0
    _goal: Goal | None = None

    async def watch(self) -> None:
        """Check again and again until the run ends."""
        while self._times < MOST:
            await asyncio.sleep(self.every)
            live = self.forecast.live
            if live is not None and live.latest is not None:
                await self._check_odds(live.latest)
                continue
            reason = self._reason()
            if reason is not None:
                # Noted whether or not the plan is worth it: with the same knowledge it would not be
                # a second later either.
                self._stretch = self.forecast.pace.stretch
                if await self._is_worth_it():
                    self._times += 1
                    self.supply.plan_again(reason, self.forecast.pace.stretch)

    @property
    def _can_plan(self) -> bool:
        """Whether enough is known, and enough is left that another plan could move."""
        execution = self.execution
        self.forecast.pace.follow(self.supply.plan)
        counts = execution.counts
        if self.supply.is_planning or execution.cause is not None:
            return False
        # A few tasks say little of the others.
        if counts.succeeded < max(3, SURE * counts.total):
            return False
        # What is left has begun, or will as soon as processors come free: another plan could not
        # move it.
        return counts.waiting > self.supply.plan.processors

    async def _check_odds(self, update: ForecastUpdate) -> None:
        """Plan again where the odds are under the confidence and another plan has better ones."""
        fan, goal, live = update.fan, update.standing.goal, self.forecast.live
        if goal != self._goal:
            self._goal, self._odds, self._ended = goal, math.inf, 0
        if fan.odds is None or fan.odds >= goal.confidence or goal != self.execution.goal:
            return
        # With the same knowledge no plan would be better a second later either. Odds near nothing
        # cannot fall any more: there, twice as many ends are knowledge that may find another plan.
        ended = self.execution.counts.succeeded
        has_learned = fan.odds <= self._odds - LOWER or ended >= MORE * self._ended
        if not has_learned or not self._can_plan or live is None:
            return
        self._odds, self._ended = fan.odds, ended
        left = update.forecast.end.quantile(0.5) - update.standing.now
        late = update.forecast.end.quantile(goal.confidence) - update.standing.now
        longer = min(max(late / left if left > 0 else 1.0, 1.0), LONGEST)
        odds, stretch = 0.0, self.forecast.pace.stretch
        # Planned for the expected run times; then for those that are not exceeded with the
        # confidence, by which a plan is faster where the money allows it.
        for factor in (1.0, longer):
            plan = await self.supply.sketch(self.forecast.pace.stretch * factor)
            # A plan of unknown run times does not say where tasks run.
            if plan is None or plan.makespan is None or not plan.placements:
                continue
            found = await live.odds_of(update, plan)
            if found is not None and found > odds:
                odds, stretch = found, self.forecast.pace.stretch * factor
            if odds >= goal.confidence:
                break
        if odds < fan.odds + BETTER or self.supply.is_planning:
            return
        self._times += 1
        reason = (
            f"the odds of the goal are {odds_in_words(fan.odds)}, "
            f"another plan has {odds_in_words(odds)}"
        )
        self.supply.plan_again(reason, stretch)

    def _reason(self) -> str | None:
        """Return why to plan again; None while the goal is met or nothing new is known."""
        if not self._can_plan or self.forecast.pace.stretch < self._stretch * 1.1:
            return None  # as much was known the last time
        goal, finish, cost = self.execution.goal, *self._expected()
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
        finish = self.forecast.pace.finish(elapsed)
        if finish is None:
            return None, None
        return finish, self.execution.spent + self.execution.rate * (finish - elapsed)

    async def _is_worth_it(self) -> bool:
        """Whether a new plan would be clearly better than the present one."""
        plan = await self.supply.sketch(self.forecast.pace.stretch)
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


# What is shown of a run while it goes on.

_LEAST = 1e-3
"""Seconds between two checks of the deadline."""


async def show_progress(
    execution: RunExecution,
    campaign: Campaign,
    plan: Plan,
    forecast: RunForecast,
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
    execution: RunExecution, campaign: Campaign, plan: Plan, forecast: RunForecast
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
        forecast=forecast.fan,
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


# Sites that are added while the run goes on.


async def add_site(
    execution: RunExecution,
    environment: RunEnvironment,
    folder: RunFolder,
    info: RunManifest,
    addition: SiteAddition,
) -> None:
    """Let a run use a further site, and journal the answer; what is left is planned again."""
    facts, supply = addition.site, environment.supply
    known = next((site for site in info.sites if site.name == facts.name), None)
    refused = "" if known == facts else _reason_against(facts, info, environment, supply)
    if not refused and known is None:
        try:
            assert environment.added is not None
            await environment.added.add(facts)
        except BursarError as error:
            refused = str(error)
        else:
            # Before anything is bought there: a later life must know the site of each lease.
            info.sites.append(facts)
            folder.write_info(info)
    answer = SiteAdditionReply(id=addition.id, site=facts.name, refused=refused)
    execution.note(SITE_ADDED, msgspec.json.encode(answer).decode())
    if not refused and known is None:
        said = f"site {facts.name} was added"
        if isinstance(supply, PlannedSupply):
            supply.plan_again(f"{said}: what is left is planned again", 1.0)
        else:
            execution.notify(said)


def _reason_against(
    facts: SiteFacts, info: RunManifest, environment: RunEnvironment, supply: Supply
) -> str:
    """Return why a site cannot be added to a run; empty: it can."""
    if any(site.name == facts.name for site in info.sites):
        return f"the run has another site of the name {facts.name}"
    if info.policy.kind not in ("planned", "pool") or environment.added is None:
        return "only runs that follow a plan or keep a pool take further sites"
    if isinstance(supply, PlannedSupply) and not supply.can_rebuy:
        return "the processors of its plan cannot be bought anew"
    if facts.currency != info.sites[0].currency:
        return f"the run counts in {info.sites[0].currency}, the site in {facts.currency}"
    if facts.kind in ("remote", "dask") or facts.buying.negotiates or facts.resources:
        return "a site that negotiates, or has counted resources, must be there from the begin"
    return ""


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
