"""Copies of tasks that take longer than others of their kind, while a run goes on."""

import asyncio
import math
from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bursar.dispatch.journal_records import CopyStart
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
from bursar.model.task import Outcome, Status
from bursar.report.tables import span
from bursar.runs.environment import RunEnvironment
from bursar.runs.execution import RunExecution
from bursar.sites.protocol import Site

if TYPE_CHECKING:
    from bursar.forecasts.known_runtimes import KnownRuntimes

LOOKS = 0.05
"""Pause between two looks for tasks that take long, as a share of the shortest expected time."""

_PAUSES = (0.1, 60.0)  # seconds: the shortest pause, and the longest


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
    learn: Callable[[], "KnownRuntimes | None"],
) -> StragglerWatch | None:
    """
    Return what starts copies, where the campaign allows copies and the policy has some.

    Parameters
    ----------
    learn
        Returns what earlier runs say of the run times; None: nothing.

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
    known = learn()
    times = EarlierTimes() if known is None else _earlier_times(known)
    return StragglerWatch(execution, environment.sites, environment.delay is not None, times)
