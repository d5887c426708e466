"""Copies of tasks that take longer than others of their kind, while a run goes on."""

import asyncio
import math
from bisect import insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from bursar.dispatch.journal_records import AttemptRecord, CopyStart
from bursar.engine.run_tasks import RunTasks
from bursar.engine.worker_slots import WorkerClaim
from bursar.forecasts.stragglers import (
    CopyChoice,
    IdleWorker,
    RunningTask,
    blend_times,
    choose_copies,
    copy_chance,
    expected_rest,
    expected_time,
)
from bursar.model.campaign import Campaign
from bursar.model.matching import Matching
from bursar.model.task import Status
from bursar.report.tables import span
from bursar.runs.environment import RunEnvironment
from bursar.runs.execution import RunExecution
from bursar.runs.forecasting.copy_buyer import CopyBuyer
from bursar.runs.forecasting.run_forecast import RunForecast
from bursar.sites.protocol import Site

if TYPE_CHECKING:
    from bursar.forecasts.known_runtimes import KnownRuntimes

LOOKS = 0.05
"""Pause between two looks for tasks that take long, as a share of the shortest expected time."""

_PAUSES = (0.1, 60.0)  # seconds: the shortest pause, and the longest
_AWAITING = 0.25  # seconds between two looks while processors that were bought are on their way


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierTimes:
    """
    Times of a campaign's kinds of tasks in earlier runs.

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
    buyer
        Buys processors for copies; None: copies run on idle ones only.
    """

    execution: RunExecution
    sites: Mapping[str, Site]
    has_links: bool = False
    known: EarlierTimes = field(default_factory=EarlierTimes)
    buyer: CopyBuyer | None = None
    _seen: dict[str, list[float]] = field(default_factory=dict)
    _done: set[int] = field(default_factory=set)  # tasks that have had a copy, or can have none
    _refused: bool = False
    _races: dict[int, int] = field(default_factory=dict)  # numbers of first attempts, by task
    _won: list[bool] = field(default_factory=list)  # of races that are decided: by the copy

    def learn(self, record: AttemptRecord) -> None:
        """Take in how long a task of this run took, and who has won its race."""
        outcome, site = record.outcome, record.site
        if outcome.status is Status.SUCCEEDED and site in self.sites:
            kind, scale = self._kind_of(outcome.task)
            seconds = (outcome.end - outcome.start) * self._speed_at(site)
            insort(self._seen.setdefault(kind, []), seconds / scale)
            first = self._races.pop(outcome.task, None)
            if first is not None:
                self._won.append(outcome.attempt > first)
        if self.buyer is not None:
            self.buyer.note(record)

    async def watch(self) -> None:
        """Look again and again until the run ends."""
        for record in self.execution.journalled:
            self.learn(record)
        while True:
            await asyncio.sleep(self._pause())
            self.look()

    def look(self) -> None:
        """Start the copies that are worth it now."""
        execution = self.execution
        figures = execution.dispatcher.figures
        idle = figures.idle_workers()
        if execution.cause is not None or not (idle or self.buyer):
            return
        now, attempts = execution.dispatcher.now(), figures.attempts()
        copies = {claim.task for claim in attempts if claim.number != claim.task}
        running = [self._running(c, now) for c in attempts if c.number == c.task]
        elapsed = {one.task: one.elapsed for one in running}
        if self.buyer is not None:
            bought = self.buyer.awaited()
            for worker in idle:
                choice = bought.get(worker.lease)
                if choice is not None and choice.task in elapsed.keys() - copies:
                    # It has gone on since they were bought.
                    left = next(self._left(one) for one in running if one.task == choice.task)
                    choice = replace(choice, worker=worker.name, left=left)
                    self._start(choice, elapsed[choice.task])
                    copies.add(choice.task)
            idle = [worker for worker in idle if worker.lease not in bought]
            copies |= self.buyer.tasks
        able = [one for one in running if one.task not in self._done and one.task not in copies]
        chosen = choose_copies(
            able,
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
        for one in chosen:
            self._start(one, elapsed[one.task])
        if self.buyer is not None:
            taken = {one.task for one in chosen}
            self.buyer.consider(
                [one for one in able if one.task not in taken],
                self._times(),
                tasks=len(running),
                copies=len(copies | taken),
                fresh=copy_chance(sum(self._won), len(self._won) - sum(self._won)),
            )

    def _start(self, one: CopyChoice, elapsed: float) -> None:
        execution, task = self.execution, self.execution.tasks[one.task]
        why = CopyStart(one.task, 0, 0, "", one.worker, elapsed, one.left, one.fresh)
        refusal = execution.dispatcher.copy(one.task, one.worker, why)
        if refusal is None:
            self._done.add(one.task)
            if self.buyer is not None:
                self.buyer.begin(one.task)
            self._races[one.task] = execution.dispatcher.figures.first_attempt(one.task)
            execution.notify(
                f"{task.id} has run for {span(elapsed)}, {span(one.left)} more are expected: "
                f"a copy that should take {span(one.fresh)} has begun"
            )
        elif refusal.final:
            self._done.add(one.task)
            if self.buyer is not None:
                self.buyer.give_back(one.task)
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
        if self.buyer is not None and self.buyer.tasks:
            return _AWAITING
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

    def _left(self, one: RunningTask) -> float:
        """Return the seconds that an attempt is expected to take yet; its kind is known."""
        seen = self._times()[one.kind]
        return expected_rest(seen, one.elapsed * one.speed / one.scale) * one.scale / one.speed

    def _kind_of(self, number: int) -> tuple[str, float]:
        """Return the kind of a task, and the seconds that stand for 1 in the kind's times."""
        task = self.execution.tasks[number]
        # Estimates tell tasks of one kind apart; those without are compared with each other.
        scale = self.known.usual.get(number) or task.runtime
        return (task.name, scale) if scale else (f"{task.name}\0", 1.0)

    def _speed_at(self, site: str) -> float:
        return self.sites[site].facts.speed


def _earlier_times(known: "KnownRuntimes") -> EarlierTimes:
    """Return how long tasks of a campaign's kinds took in earlier runs."""
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
    forecast: RunForecast,
    currency: str,
) -> StragglerWatch | None:
    """
    Return what starts copies, where the campaign allows copies and the policy has some.

    Parameters
    ----------
    forecast
        Forecast of the run, by which processors are bought for copies.

    Raises
    ------
    InputError, BursarError
        When the history cannot be read.
    """
    if not campaign.retry.copies:
        return None
    if environment.supply.sends_tasks:
        execution.notify("no copies are made: a strategy or the broker sends each task by itself")
        return None
    known = forecast.known()
    times = EarlierTimes() if known is None else _earlier_times(known)
    buyer = None
    if campaign.retry.buys_copies and forecast.live is None:
        execution.notify("no processors are bought for copies: this run is not forecast")
    elif campaign.retry.buys_copies and forecast.live is not None:
        buyer = CopyBuyer(execution, environment.supply, environment.sites, forecast.live, currency)
        forecast.listener = buyer.decide
    has_links = environment.delay is not None
    return StragglerWatch(execution, environment.sites, has_links, times, buyer)
