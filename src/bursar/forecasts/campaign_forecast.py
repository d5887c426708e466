"""When a campaign ends and what it costs, as distributions, for one plan or many."""

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bursar.forecasts.calibration import Distribution, EarlierScore
from bursar.forecasts.dispatch_replay import (
    ANYWHERE,
    DispatchProblem,
    DispatchReplay,
    replay_dispatch,
)
from bursar.forecasts.known_runtimes import KnownRuntimes
from bursar.forecasts.runtime_draws import draw_runtimes
from bursar.forecasts.runtime_model import RuntimeColumns
from bursar.forecasts.score_prior import recorded_scores
from bursar.model.campaign import Workflow
from bursar.model.plan import Placement, Purchase
from bursar.model.provisioning import AT_ONCE, WorkerStarts
from bursar.model.slot import Slot

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

DRAWS = 1000
"""Draws of a forecast that is shown."""

DRAWS_TO_CHOOSE = 200
"""Draws for each plan while one of many is chosen."""

RunTimeOf = Callable[[int, str], float]
"""Seconds that a task, by its number, takes at a site in one draw."""

HOLD = 0.95
"""Share of the draws in which a race is decided before the processors of its copy go back."""

SEED = 20071
"""Seed of the draws: the same question gets the same answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignForecast:
    """
    Distributions of a campaign's end and cost.

    Parameters
    ----------
    end
        Seconds from the campaign's begin to the last task's end.
    cost
        Currency units in all; None where a price is unknown.
    basis
        What the run times are known from: ``"history"``, ``"other size"`` (campaigns with another
        number of tasks, or parts of one), ``"estimates"`` (the user's) or ``"nothing"``.
    observed, executions
        Number of earlier tasks and executions that this rests on.
    waiting
        Seconds of the end that go to waits in batch queues: how much sooner the campaign would end
        if each request were granted at once. None where nothing waits there.
    copies_held
        Seconds for which the processors of each copy are held in :data:`HOLD` of the draws.
    """

    end: Distribution
    cost: Distribution | None
    basis: str
    observed: int = 0
    executions: int = 0
    waiting: Distribution | None = None
    copies_held: tuple[float, ...] = ()

    def odds(self, deadline: float | None, budget: float | None) -> float:
        """
        Return the probability that the deadline and the budget are kept; 1 without any.

        A late campaign is also a dear one, so that the two are no more likely than the less likely
        of both, and this is what is returned.
        """
        odds = 1.0
        if deadline is not None:
            odds = min(odds, self.end.probability(deadline))
        if budget is not None and self.cost is not None:
            odds = min(odds, self.cost.probability(budget))
        return odds


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskProgress:
    """
    Progress of a campaign at one moment.

    Parameters
    ----------
    now
        Seconds since its begin.
    ended
        Numbers of the tasks that will not run again.
    elapsed
        Seconds at speed 1 for which tasks have been running, by number.
    observed
        Run times of this execution's tasks; kinds and sites by the numbers of the known run times.
    spent
        Currency units that have been paid, or are owed for what is over.
    copied
        Seconds at speed 1 for which copies have run, by number; 0: such a copy is thought of.
    fresh
        Probability that a copy takes a time of its own, as its task's first attempt is slow, and
        not the task itself.
    """

    now: float = 0.0
    ended: frozenset[int] = frozenset()
    elapsed: Mapping[int, float]
    observed: RuntimeColumns
    spent: float = 0.0
    copied: Mapping[int, float] = field(default_factory=dict)
    fresh: float = 0.5


class TaskCopy(NamedTuple):
    """
    A copy of a task that runs; what ends first of both attempts counts.

    Parameters
    ----------
    task
        Number of the task, one of ``copied`` of the progress.
    first_site, site
        Names of the sites of its first attempt and of the copy.
    comes
        When the copy's processors are held, seconds since the campaign's begin, at least one for
        each draw.
    opening
        How long the copy takes to begin from then on.
    bought
        What is bought for the copy alone, and given back when the race is decided; None: it runs
        on what is held in any case.
    """

    task: int
    first_site: str
    site: str
    comes: FloatArray
    opening: WorkerStarts = AT_ONCE
    bought: Slot | None = None


NO_PROGRESS = TaskProgress(
    elapsed={},
    observed=RuntimeColumns(
        kind=np.zeros(0, np.int64),
        execution=np.zeros(0, np.int64),
        site=np.zeros(0, np.int64),
        work=np.zeros(0),
        whole=np.zeros(0, np.bool_),
        failed=np.zeros(0, np.bool_),
        busy=np.zeros(0),
        estimate=np.zeros(0),
        features=np.zeros((0, 0)),
    ),
)


class CampaignForecaster:
    """
    Forecasts plans of one campaign, all on the same draws of run times.

    Common draws make plans comparable: a plan that is better in each draw is better, however wide
    the distributions are.

    Parameters
    ----------
    workflow
        Tasks and their order, all of them, also those that have ended.
    known
        What is known of the tasks.
    progress
        How far the campaign has come.
    end_scores, cost_scores
        Scores of earlier forecasts of this kind, newest last, by which distributions are corrected.
        Where these are few, those of recorded executions are taken, too.
    share
        Share of the tasks that have ended; None: as the progress has it.

    Raises
    ------
    UnknownRuntimes
        When nothing is known of how long the tasks run.
    """

    def __init__(
        self,
        workflow: Workflow,
        known: KnownRuntimes,
        progress: TaskProgress = NO_PROGRESS,
        *,
        draws: int = DRAWS,
        seed: int = SEED,
        end_scores: Sequence[EarlierScore] = (),
        cost_scores: Sequence[EarlierScore] = (),
        share: float | None = None,
    ) -> None:
        self._workflow = workflow
        self._known = known
        self._progress = progress
        self._scores = end_scores, cost_scores
        count = len(workflow.tasks)
        done = len(progress.ended) / count if share is None else share
        self._prior = recorded_scores(known.basis, done)
        self._left = np.array([i for i in range(count) if i not in progress.ended], dtype=np.int64)
        elapsed = np.array([progress.elapsed.get(int(i), 0.0) for i in self._left])
        tasks = replace(known.tasks.rows(self._left), elapsed=elapsed)
        random = np.random.default_rng(seed)
        place = {int(task): row for row, task in enumerate(self._left)}
        copied = {place[task]: ran for task, ran in progress.copied.items() if task in place}
        runtimes, self._slowness, raced = draw_runtimes(
            known.model,
            tasks,
            progress.observed,
            draws,
            random,
            copied=copied,
            fresh=progress.fresh,
        )
        for row, times in raced.items():
            runtimes[:, row] = times.first
        # What is left of the copy of a task, by the task's row.
        self._copies = {row: times.copy - copied[row] for row, times in raced.items()}
        self._copies_cost: FloatArray | None = np.zeros(draws)
        self._copies_held: tuple[float, ...] = ()
        # Workers that start slowly do so at all sites: what slows them is common, such as a disk.
        self._started = random.random(draws)
        # What is left of a task that runs.
        self._runtimes = np.maximum(runtimes - elapsed[None, :], 0.0)
        self._running = elapsed > 0
        self._parents = _parents_left(workflow, self._left)

    def of_plan(
        self,
        purchases: Sequence[Purchase],
        placements: Sequence[Placement],
        speeds: Mapping[str, float],
        *,
        draws: int | None = None,
        starts: Mapping[str, WorkerStarts] = MappingProxyType({}),
        comes: Mapping[int, FloatArray] = MappingProxyType({}),
        anywhere: bool = False,
    ) -> CampaignForecast:
        """
        Forecast a plan, or what is left of it.

        Parameters
        ----------
        purchases
            What is bought; starts are seconds from the campaign's begin.
        placements
            Where each task goes, by its number in the whole workflow. A task without a place runs
            wherever processors are free first.
        speeds
            Speed of each site by name.
        draws
            Draws to use; None: all.
        starts
            How long workers of each site take to start once its processors are held, and paid; at
            others they start at once.
        comes
            When processors come that queue, by the number of the purchase: seconds from the
            campaign's begin, at least one for each draw. Others come as planned.
        anywhere
            Whether each task runs wherever processors are free first, as in a pool.
        """
        numbers: dict[str, list[int]] = {}
        for number, purchase in enumerate(purchases):
            numbers.setdefault(purchase.slot.site, []).append(number)
        # A site's purchases own its processor numbers one after the other.
        owner: dict[str, IntArray] = {
            site: np.repeat(np.array(members), [purchases[n].slot.processors for n in members])
            for site, members in numbers.items()
        }
        count = len(self._workflow.tasks)
        lease = np.full(count, ANYWHERE, dtype=np.int64)
        order = np.full(count, np.inf)
        for placed in placements:
            order[placed.task] = placed.start
            if anywhere:
                continue
            if placed.processors and placed.site in owner:
                lease[placed.task] = owner[placed.site][placed.processors[0]]
            elif placed.site in numbers:
                lease[placed.task] = numbers[placed.site][0]
        opening = [starts.get(purchase.slot.site, AT_ONCE) for purchase in purchases]
        lots = self._lots(purchases, speeds, opening, comes, draws or len(self._runtimes))
        return self._with_waiting(lots, lease[self._left], order[self._left], comes)

    def of_leases(
        self,
        purchases: Sequence[Purchase],
        lease: IntArray,
        start: FloatArray,
        speeds: Mapping[str, float],
        *,
        starts: Sequence[WorkerStarts] = (),
        comes: Mapping[int, FloatArray] = MappingProxyType({}),
    ) -> CampaignForecast:
        """
        Forecast what is left on given leases, as :meth:`of_plan` does.

        Parameters
        ----------
        lease
            Number of the purchase on which each task of the workflow runs, or ``ANYWHERE``; shape
            ``(n,)``.
        start
            Numbers by which the tasks are given out, the least first; shape ``(n,)``.
        starts
            As there, for each purchase; empty: none.
        """
        opening = starts or [AT_ONCE] * len(purchases)
        lots = self._lots(purchases, speeds, opening, comes, len(self._runtimes))
        return self._with_waiting(lots, lease[self._left], start[self._left], comes)

    def with_copies(
        self, copies: Sequence[TaskCopy], speeds: Mapping[str, float]
    ) -> "CampaignForecaster":
        """Return what forecasts the same campaign with copies of some tasks, on the same draws."""
        raced, now = copy.copy(self), self._progress.now
        draws = len(self._runtimes)
        runtimes, cost, holds = self._runtimes.copy(), np.zeros(draws), list[float]()
        for one in copies:
            row = self._left.tolist().index(one.task)
            comes = one.comes[:draws]
            held = np.maximum(comes - now, 0.0)
            ends = held + self._opening(one.opening, now - comes, draws)
            ends += self._copies[row] * self._slowness_at(one.site, speeds, draws)
            slowness = self._slowness_at(one.first_site, speeds, draws)
            decided = np.minimum(runtimes[:, row] * slowness, ends)
            runtimes[:, row] = decided / slowness
            holds.append(float(np.quantile(np.maximum(decided - held, 0.0), HOLD)))
            slot = one.bought
            if slot is None:
                continue
            if slot.unit_price is None or slot.fixed_price is None:
                cost = np.full(draws, np.nan)
                continue
            cost += slot.processors * slot.unit_price * np.maximum(decided - held, 0.0)
            # Nothing is paid for a request that is taken back, nor again for what has begun.
            cost += slot.fixed_price * ((decided > held) & (comes >= now))
        raced._runtimes = runtimes
        raced._copies_cost = None if np.isnan(cost).any() else cost
        raced._copies_held = tuple(holds)
        return raced

    def run_times(
        self, speeds: Mapping[str, float], draws: range, batch_of: IntArray | None = None
    ) -> Iterator[RunTimeOf]:
        """
        Yield what tells the run times of each draw, by which a policy can be carried out.

        Parameters
        ----------
        speeds
            Speed of each site by name.
        draws
            Numbers of the draws to use.

        batch_of
            Number of the batch of each task, shape ``(n,)``: the run times are those of batches.
            None: of tasks.
        """
        place = {int(task): at for at, task in enumerate(self._left)}
        if batch_of is not None:
            place = {at: at for at in range(int(batch_of.max()) + 1)}
        for draw in draws:
            runtimes, slowness = self._runtimes[draw], self._slowness[draw]
            if batch_of is not None:
                runtimes = np.bincount(batch_of[self._left], weights=runtimes, minlength=len(place))

            def seconds(
                task: int, site: str, of: FloatArray = runtimes, by: FloatArray = slowness
            ) -> float:
                at = self._known.sites.get(site)
                factor = 1.0 if at is None else float(by[at])
                return float(of[place[task]]) * factor / speeds.get(site, 1.0)

            yield seconds

    def of_outcomes(self, outcomes: Iterable[tuple[float, float]]) -> CampaignForecast:
        """
        Forecast a policy that decides on the way from what came of it with the draws.

        The forecast is not corrected by scores, which are of forecasts on given processors.

        Parameters
        ----------
        outcomes
            End and cost of the whole campaign with one draw each; the end is infinite where tasks
            are left undone.
        """
        ends, costs = [], []
        for end, cost in outcomes:
            ends.append(max(end - self._progress.now, 0.0))
            costs.append(max(cost - self._progress.spent, 0.0))
        return CampaignForecast(
            end=Distribution.of(np.array(ends), offset=self._progress.now),
            cost=Distribution.of(np.array(costs), offset=self._progress.spent),
            basis=self._known.basis,
            observed=self._known.observed,
            executions=self._known.executions,
        )

    def _lots(
        self,
        purchases: Sequence[Purchase],
        speeds: Mapping[str, float],
        starts: Sequence[WorkerStarts],
        comes: Mapping[int, FloatArray],
        draws: int,
    ) -> "_Lots":
        """Return what is bought as arrays, a row for each draw."""
        held = np.empty((draws, len(purchases)))
        opening = np.empty((draws, len(purchases)))
        slowness = np.empty((draws, len(purchases)))
        now = self._progress.now
        for number, purchase in enumerate(purchases):
            site, start = purchase.slot.site, purchase.slot.start
            come = comes[number][:draws] if number in comes else start
            held[:, number] = np.maximum(come - now, 0.0)
            opening[:, number] = held[:, number] + self._opening(starts[number], now - come, draws)
            slowness[:, number] = self._slowness_at(site, speeds, draws)
        return _Lots(purchases, held, opening, slowness)

    def _opening(
        self, starts: WorkerStarts, held_for: FloatArray | float, draws: int
    ) -> FloatArray:
        """Return the seconds until workers take tasks whose processors have been held so long."""
        waited = np.maximum(held_for, 0.0)
        between = starts.latest - starts.soonest
        # Of workers that could have started by now, only later starts are left.
        gone = np.sqrt(np.clip((waited - starts.soonest) / (between or 1.0), 0.0, 1.0))
        share = gone + (1 - gone) * self._started[:draws]
        return np.maximum(starts.at(share) - waited, 0.0)

    def _slowness_at(self, site: str, speeds: Mapping[str, float], draws: int) -> FloatArray:
        """Return the factor of the run times at a site in each draw."""
        at = self._known.sites.get(site)
        factor = np.ones(draws) if at is None else self._slowness[:draws, at]
        return np.asarray(factor / speeds.get(site, 1.0))

    def _with_waiting(
        self,
        lots: "_Lots",
        lease: IntArray,
        start: FloatArray,
        comes: Mapping[int, FloatArray],
    ) -> CampaignForecast:
        """Replay the tasks, and tell what the waits of requests add to the end."""
        replay = self._replay(lots, lease, start)
        found = self._forecast(lots, replay)
        if not comes:
            return found
        opening = lots.opening.copy()
        for number in comes:
            # The same without the wait: workers start at once.
            held = lots.held[:, number]
            opening[:, number] -= np.where(np.isfinite(held), held, 0.0)
        at_once = self._replay(lots._replace(opening=opening), lease, start)
        # Not less: in rare draws a later lease has another task end first.
        sooner = np.where(np.isfinite(at_once.end), at_once.end, 0.0)
        return replace(found, waiting=Distribution.of(np.maximum(replay.end - sooner, 0.0)))

    def _replay(self, lots: "_Lots", lease: IntArray, start: FloatArray) -> DispatchReplay:
        """Replay the tasks that are left, each on its lease and in the order of planned starts."""
        purchases = lots.purchases
        # Running tasks have their processors; then in the plan's order.
        order = np.lexsort((np.arange(len(start)), start, ~self._running))
        processors = np.array([p.slot.processors for p in purchases], dtype=np.int64)
        problem = _dispatch_problem(
            self._workflow, self._left, self._parents, order, lease, processors
        )
        runtimes = np.ascontiguousarray(self._runtimes[: len(lots.opening)][:, order])
        return replay_dispatch(problem, runtimes, lots.opening, lots.slowness)

    def _forecast(self, lots: "_Lots", replay: DispatchReplay) -> CampaignForecast:
        """Return the distributions of a replay, corrected by the scores of earlier forecasts."""
        now = self._progress.now
        ends, costs = self._scores
        cost = _costs(lots.purchases, now, lots.held, replay.last_use, replay.busy)
        if self._copies_cost is None:
            cost = None
        elif cost is not None:
            cost += self._copies_cost[: len(cost)]
        return CampaignForecast(
            end=Distribution.of(replay.end, scores=ends, prior=self._prior.end, offset=now),
            cost=None
            if cost is None
            else Distribution.of(
                cost, scores=costs, prior=self._prior.cost, offset=self._progress.spent
            ),
            basis=self._known.basis,
            observed=self._known.observed,
            executions=self._known.executions,
            copies_held=self._copies_held,
        )


class _Lots(NamedTuple):
    """
    Purchases as arrays of shape ``(draws, purchases)``.

    Parameters
    ----------
    held, opening
        Seconds from now until processors are held, and until they take tasks.
    slowness
        Factor of the run times.
    """

    purchases: Sequence[Purchase]
    held: FloatArray
    opening: FloatArray
    slowness: FloatArray


def _parents_left(workflow: Workflow, left: IntArray) -> list[tuple[int, ...]]:
    """Return the parents of each task left that are left themselves, by their place among these."""
    place = {int(task): at for at, task in enumerate(left)}
    return [
        tuple(place[parent] for parent in workflow.parents[task] if parent in place)
        for task in map(int, left)
    ]


def _dispatch_problem(
    workflow: Workflow,
    left: IntArray,
    parents: Sequence[tuple[int, ...]],
    order: IntArray,
    lease: IntArray,
    processors: IntArray,
) -> DispatchProblem:
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    widest = int(processors.max()) if len(processors) else 1
    waiting = np.array([len(parents[at]) for at in order], dtype=np.int64)
    children: list[list[int]] = [[] for _ in order]
    for at, above in enumerate(parents):
        for parent in above:
            children[place[parent]].append(int(place[at]))
    lengths = np.array([len(below) for below in children], dtype=np.int64)
    return DispatchProblem(
        lease=lease[order],
        # A task wider than its lease would never start: the plan knows better how it fits.
        width=np.array(
            [min(workflow.tasks[task].processors, widest) for task in left[order]], dtype=np.int64
        ),
        parents=waiting,
        first_child=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        children=np.array([child for below in children for child in below], dtype=np.int64),
        processors=processors,
    )


def _costs(
    purchases: Sequence[Purchase],
    now: float,
    held: FloatArray,
    last_use: FloatArray,
    busy: FloatArray,
) -> FloatArray | None:
    """
    Return what the purchases cost from now on in each draw; None where a price is unknown.

    A leased slot is paid from its start to its last use, a divisible one by what tasks use, and any
    other to its end or its last use, whichever is later.
    """
    total = np.zeros(len(last_use))
    for number, purchase in enumerate(purchases):
        slot = purchase.slot
        if slot.unit_price is None or slot.fixed_price is None:
            return None
        start = held[:, number]
        used = np.maximum(last_use[:, number] - start, 0.0)
        if slot.leased or math.isinf(slot.duration):
            seconds = slot.processors * used
        elif slot.divisible:
            seconds = busy[:, number]
        else:
            seconds = slot.processors * np.maximum(used, max(slot.end - now, 0.0) - start)
        total += seconds * slot.unit_price
        if slot.start >= now:
            total += slot.fixed_price
    return total
