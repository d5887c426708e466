"""
Forecasts of the instances of a service: which are due, and what is known when one is made.

A forecast is made in a thread, from copies of an instance's columns; see
:mod:`bursar.service.engine.instance_forecast`, which is loaded with the first one.
"""

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from bursar.engine.task_scheduler import TaskScheduler
from bursar.engine.task_states import CANCELLED, ENDING
from bursar.engine.worker_slots import WorkerClaim, WorkerSlot
from bursar.history.forecast_records import SHARES
from bursar.model.money import from_micros
from bursar.service.billing.pool_admission import PoolAdmission
from bursar.service.engine.instance import Instance
from bursar.service.engine.instance_index import InstanceIndex
from bursar.service.engine.instance_standing import (
    EndedTask,
    ForecastScores,
    InstanceStanding,
    MadeForecast,
)
from bursar.service.engine.recording import TaskEnd
from bursar.service.interfaces import Clock, is_shared
from bursar.service.logs import LOGGER

log = logging.getLogger(f"{LOGGER}.forecasts")

FIRST, FIRST_OF_EACH = 1.0, 2e-3
"""
Seconds between the first end of an instance's tasks and its first forecast, and seconds more for
each task: an instance that is over by then has none.
"""

PAUSE = 2.0
"""Seconds between two forecasts of an instance, at least."""

STILL = 20.0
"""Seconds after which a forecast is made anew although no task has ended."""

LOAD = 0.01
"""
Share of a processor that forecasts of all instances may take together: after each one there is a
pause of a hundred times its processor time. What the first one loads and compiles does not count.
"""

MOST_TASKS = 100_000
"""Unfinished tasks of an instance, at most, for which forecasts are made."""

NEWEST_ENDS = 200
"""Ended tasks of an instance that a forecast learns from, the newest."""

NEWEST_SCORES = 300
"""Scores of earlier forecasts by which new ones are corrected, the newest of each share."""

_MOST_AT_ONCE = 64
"""Ends of one record that are looked at; of more, an even sample."""

_STEP = 0.5


@dataclass(slots=True)
class _Followed:
    """
    Facts that are remembered of an instance whose tasks end.

    Attributes
    ----------
    since
        When the first task ended, on the loop's clock.
    ended
        Number of tasks that have ended meanwhile; that of the last forecast is in ``seen``.
    kept
        Forecasts at shares of the tasks, with what was spent and how many tasks there were.
    """

    since: float
    ends: deque[EndedTask] = field(default_factory=lambda: deque(maxlen=NEWEST_ENDS))
    ended: int = 0
    seen: int = 0
    last: float = -math.inf
    kept: dict[float, tuple[MadeForecast, int, int]] = field(default_factory=dict)


class InstanceForecasts:
    """
    Forecasts the end and cost of each instance whose tasks have begun to end.

    Parameters
    ----------
    index, scheduler, billing
        Instances, what workers have of them, and what their tasks cost.
    """

    def __init__(
        self,
        index: InstanceIndex,
        scheduler: TaskScheduler[Instance],
        billing: PoolAdmission,
        clock: Clock,
    ) -> None:
        self._index = index
        self._scheduler = scheduler
        self._billing = billing
        self._clock = clock
        self._followed: dict[int, _Followed] = {}
        self._scores: dict[float, tuple[deque[float], deque[float]]] = {}
        self._is_first = True
        self._cost = 0.0  # processor seconds of the forecast under way

    def take_in(self, instance: Instance, endings: Sequence[TaskEnd]) -> None:
        """Note ends of tasks, whose labels are still known."""
        followed = self._followed.get(instance.number)
        if followed is None:
            followed = _Followed(asyncio.get_running_loop().time())
            self._followed[instance.number] = followed
        followed.ended += len(endings)
        labels = instance.tasks.labels
        for ending in endings[:: 1 + len(endings) // _MOST_AT_ONCE]:
            outcome = ending.outcome
            seconds = outcome.end - outcome.start
            if ending.processors and seconds > 0:
                used = outcome.user_seconds + outcome.system_seconds
                busy = used / (seconds * ending.processors) if used else math.nan
                label = labels.get(ending.task, "")
                followed.ends.append(EndedTask(label, seconds, outcome.status, busy))

    async def run(self) -> None:
        """Make forecasts until cancelled."""
        clock = asyncio.get_running_loop().time
        resting = 0.0
        while True:
            await asyncio.sleep(_STEP)
            now = clock()
            self._close_ended()
            instance = self._next_due(now) if now >= resting else None
            if instance is not None:
                self._cost = 0.0
                await self._forecast(instance, now)
                resting = now + (0.0 if self._is_first else self._cost / LOAD)
                self._is_first = False

    def _close_ended(self) -> None:
        """Score the forecasts of instances that are over, and forget what is gone."""
        for number in list(self._followed):
            instance = self._index.by_number.get(number)
            if instance is None:
                del self._followed[number]
            elif instance.is_over:
                self._keep_scores(instance, self._followed.pop(number))
                instance.forecast = None
                instance.wake()

    def _next_due(self, now: float) -> Instance | None:
        """Return the instance whose forecast is the oldest of those that are due; None: none is."""
        due = [
            (followed.last, number)
            for number, followed in self._followed.items()
            if self._is_due(self._index.by_number[number], followed, now)
        ]
        return self._index.by_number[min(due)[1]] if due else None

    def _is_due(self, instance: Instance, followed: _Followed, now: float) -> bool:
        tasks = instance.tasks
        if not followed.ends or tasks.unfinished > MOST_TASKS:
            return False
        if now < followed.since + FIRST + FIRST_OF_EACH * tasks.unfinished:
            return False
        return now - followed.last >= (PAUSE if followed.ended != followed.seen else STILL)

    async def _forecast(self, instance: Instance, now: float) -> None:
        followed = self._followed[instance.number]
        began = time.thread_time()
        standing = self._standing(instance, followed)
        followed.last, followed.seen = now, followed.ended
        self._cost += time.thread_time() - began
        share = self._share(instance)
        made = None
        if standing is not None:
            made = await asyncio.to_thread(self._made, standing, share)
        if instance.destroyed or instance.is_over:
            return
        told = None if made is None else made.told
        if made is not None and share not in followed.kept:
            spent = self._billing.came_to(instance.user, instance.handle)
            followed.kept[share] = made, spent, instance.tasks.total
        if told != instance.forecast:
            instance.forecast = told
            instance.wake()

    def _made(self, standing: InstanceStanding, share: float) -> MadeForecast | None:
        """Return a forecast; in a thread."""
        from bursar.service.engine.instance_forecast import forecast_instance

        began = time.thread_time()
        end, cost = self._scores.get(share, ((), ()))
        try:
            return forecast_instance(standing, ForecastScores(tuple(end), tuple(cost)))
        except Exception:
            # Nobody's tasks depend on a forecast: the service goes on without this one.
            log.exception("an instance cannot be forecast")
            return None
        finally:
            self._cost += time.thread_time() - began

    def _standing(self, instance: Instance, followed: _Followed) -> InstanceStanding | None:
        """Return copies of what is known of an instance; None: no processors are there for it."""
        tasks, now = instance.tasks, self._clock()
        claims = [c for c in self._scheduler.claims.values() if c.instance is instance]
        running = [(claim.task, max(now - claim.given, 0.0)) for claim in running_claims(claims)]
        room = max(self._room(instance), sum(tasks.processors[task] for task, _ in running))
        if not room:
            return None
        return InstanceStanding(
            now=now,
            states=bytes(tasks.states),
            processors=tasks.processors[:],
            estimates=tasks.estimates[:],
            labels=dict(tasks.labels),
            after=dict(tasks.after),
            groups={} if tasks.groups is None else tasks.groups.limits(range(len(tasks.states))),
            running=running,
            ends=list(followed.ends),
            room=room,
            price=self._billing.price_of(instance.pool, instance.user),
            spent=self._billing.came_to(instance.user, instance.handle),
            deadline=instance.deadline,
            budget=instance.budget,
        )

    def _room(self, instance: Instance) -> int:
        """Return the connected processors of a pool, or the instance's part of shared ones."""
        pool = self._scheduler.pools.get(instance.pool)
        workers = self._scheduler.workers.values()
        there = sum(w.processors for w in workers if w.pool == instance.pool and w.connected)
        if pool is None or not is_shared(instance.pool):
            return there
        others = [one for one in self._index if one.pool == instance.pool and not one.is_over]
        users = len({one.user for one in others} | {instance.user})
        own = sum(1 for one in others if one.user == instance.user)
        return max(min(there, 1), there // (users * max(own, 1)))

    @staticmethod
    def _share(instance: Instance) -> float:
        ended = sum(instance.tasks.counts[ENDING:]) / max(instance.tasks.total, 1)
        return max(share for share in SHARES if share <= ended)

    def _keep_scores(self, instance: Instance, followed: _Followed) -> None:
        """Keep how far the forecasts of an instance were off, unless it was changed meanwhile."""
        if not followed.kept or instance.tasks.counts[CANCELLED]:
            return
        from bursar.forecasts.calibration import score_beside

        spent = self._billing.came_to(instance.user, instance.handle)
        for share, (made, before, total) in followed.kept.items():
            if total != instance.tasks.total:
                continue
            ends, costs = self._scores.setdefault(
                share, (deque(maxlen=NEWEST_SCORES), deque(maxlen=NEWEST_SCORES))
            )
            ends.append(score_beside(instance.results.at - made.told.at, made.end))
            if made.cost is not None:
                costs.append(score_beside(from_micros(spent - before), made.cost))


def running_claims(claims: Sequence[WorkerClaim[Instance]]) -> list[WorkerClaim[Instance]]:
    """Return the claims that run: of each worker the first that its processors hold together."""
    used: dict[WorkerSlot[Instance], int] = {}
    running = []
    for claim in sorted(claims, key=lambda claim: claim.given):
        taken = used.get(claim.worker, 0) + claim.processors
        if taken <= claim.worker.processors:
            used[claim.worker] = taken
            running.append(claim)
    return running
