"""
Draws of the run times of a campaign's tasks, all of them at once for each draw.

In one draw the campaign is fast or slow as a whole, then each kind and each site, then each task.
What has ended or runs already says how fast this execution is: the draws are those of the posterior
distribution. Tasks that still run count as longer than they have run so far; without them, the
first that end, which are the short ones, would make everything look fast.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bursar.forecasts.runtime_model import (
    LEAST_SECONDS,
    SHARED,
    SIZE_EFFECT,
    SPREAD_BETWEEN,
    SPREAD_WITHIN,
    TOGETHER,
    WEIGHT_WITHIN,
    KindModel,
    RuntimeColumns,
    RuntimeModel,
    censored_deviation,
    normal_pool,
    robust_deviation,
)
from bursar.forecasts.stragglers import BEYOND

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

DRIFT = 1.0
"""Part of the deviation between executions by which one changes while it goes on."""

_GRIDS, _POINTS = 3, 61
_KERNELS = 100
_UNLIKE = 0.05  # share of tasks that are unlike all of their kind
_NARROWEST = 0.01
_MOST_TRIES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignTasks:
    """
    Tasks whose run times are wanted.

    Parameters
    ----------
    kind
        Number of the kind of each, shape ``(n,)``.
    features
        Parameters and sizes, shape ``(n, f)``.
    estimate
        Run time that the user states, seconds at speed 1; NaN where there is none.
    elapsed
        Seconds at speed 1 for which each has run so far; 0: it has not begun.
    tries
        Attempts that each may have.
    """

    kind: IntArray
    features: FloatArray
    estimate: FloatArray
    elapsed: FloatArray
    tries: IntArray

    def rows(self, chosen: IntArray) -> "CampaignTasks":
        """Return some of the tasks."""
        return CampaignTasks(
            kind=self.kind[chosen],
            features=self.features[chosen],
            estimate=self.estimate[chosen],
            elapsed=self.elapsed[chosen],
            tries=self.tries[chosen],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Level:
    """
    Knowledge of a kind's level in this execution.

    Parameters
    ----------
    mean
        Expected level.
    shared, own
        Deviations between executions: common to all kinds, and the kind's own. Both are known
        only by few executions.
    fixed
        Deviation by what else is not known of the level.
    drift
        Deviation by which the level may change while the execution goes on.
    together
        Deviation that all kinds have in common of which nothing is known.
    """

    mean: float
    shared: float
    own: float
    fixed: float
    drift: float
    model: KindModel
    together: float = 0.0


class RacedTimes(NamedTuple):
    """
    Run times of two attempts of one task, seconds at speed 1, each of shape ``(draws,)``.

    Parameters
    ----------
    first, copy
        Whole times of the attempt that runs already, and of its copy.
    """

    first: FloatArray
    copy: FloatArray


class RuntimeDraws(NamedTuple):
    """
    Draws of run times.

    Parameters
    ----------
    runtimes
        Seconds at speed 1 of each task, with failed attempts, shape ``(draws, n)``, no less than
        what has elapsed.
    slowness
        Factors of the run times at each site, shape ``(draws, sites)``.
    raced
        Times of two attempts of each task that runs, by its row.
    """

    runtimes: FloatArray
    slowness: FloatArray
    raced: Mapping[int, RacedTimes]


class UnknownRuntimes(Exception):
    """Nothing is known of how long the tasks run."""


def draw_runtimes(
    model: RuntimeModel,
    tasks: CampaignTasks,
    present: RuntimeColumns,
    draws: int,
    random: np.random.Generator,
    *,
    copied: Mapping[int, float] = MappingProxyType({}),
    fresh: float = 0.5,
) -> RuntimeDraws:
    """
    Draw the run times of tasks, and the slowness of sites.

    Parameters
    ----------
    present
        What has ended of this execution already; the tasks that run are those of ``tasks`` with
        an elapsed time.
    draws
        Number of draws.
    copied
        Seconds at speed 1 for which copies have run, by the row of the task; 0: not begun. Two
        attempts are drawn of these tasks.
    fresh
        Probability that a copy takes a time of its own, as its task's first attempt is slow, and
        not the task itself.

    Raises
    ------
    UnknownRuntimes
        When neither the history, nor the user, nor this execution says anything.
    """
    kinds = len(model.kinds)
    y = np.log(np.maximum(present.work, LEAST_SECONDS))
    observed = [
        np.flatnonzero((present.kind == kind) & present.whole & ~present.failed)
        for kind in range(kinds)
    ]
    counts = np.bincount(tasks.kind, minlength=kinds)
    stated = _stated_levels(model, tasks, present, kinds)
    running = [(tasks.kind == kind) & (tasks.elapsed > 0) for kind in range(kinds)]
    rest = y - _effects(model, stated, present)
    if len(present.site):
        rest -= model.site_effect[present.site]
    effect = _effects(model, stated, tasks)
    floor = np.log(np.maximum(tasks.elapsed, LEAST_SECONDS)) - effect
    floors = [floor[rows] for rows in running]
    levels = _prior_levels(model, stated, observed, y, rest, counts, floors)
    seen = [_observe(levels[kind], rest[observed[kind]], floors[kind]) for kind in range(kinds)]
    scale = np.sqrt(model.freedom / random.chisquare(model.freedom, draws))
    # Of few tasks it is known badly how far tasks differ, as in Student's distribution.
    freedom = np.array([one.model.freedom for one in levels])
    widths = np.sqrt(freedom / random.chisquare(freedom, (draws, kinds)))
    drawn = _draw_levels(levels, seen, scale, widths, random)
    runtimes = np.empty((draws, len(tasks.kind)))
    for kind in range(kinds):
        rows = np.flatnonzero(tasks.kind == kind)
        if not len(rows):
            continue
        centre = drawn[:, kind, None] + effect[rows][None, :]
        low = np.zeros((draws, len(rows)))
        going = tasks.elapsed[rows] > 0
        pool, width = levels[kind].model.pool, widths[:, kind, None]
        if going.any():
            beyond = np.log(tasks.elapsed[rows][going])[None, :] - centre[:, going]
            low[:, going] = _share_below(pool, beyond / width)
        share = low + (1 - low) * random.random((draws, len(rows)))
        values = np.exp(np.minimum(centre + width * _quantile(pool, share), 60.0))
        values = np.maximum(values, tasks.elapsed[rows][None, :])
        failures = levels[kind].model.failures
        if failures > 0:
            # A failed attempt takes some part of a whole one.
            again = random.geometric(1 - failures, (draws, len(rows))) - 1
            again = np.minimum(again, np.minimum(tasks.tries[rows], _MOST_TRIES)[None, :] - 1)
            values += values * again * random.random((draws, len(rows)))
        runtimes[:, rows] = values
    slowness = _draw_sites(model, present, rest, levels, seen, draws, random)
    raced = {}
    for row, elapsed in copied.items():
        pool, centre = levels[tasks.kind[row]].model.pool, drawn[:, tasks.kind[row]] + effect[row]
        # The last draws of all: those before are the same whatever is copied.
        first = _beyond_all(runtimes[:, row], float(tasks.elapsed[row]), pool, centre, random)
        raced[row] = RacedTimes(first, _copy_times(first, elapsed, fresh, pool, centre, random))
    return RuntimeDraws(runtimes, slowness, raced)


def _beyond_all(
    times: FloatArray,
    elapsed: float,
    pool: FloatArray,
    centre: FloatArray,
    random: np.random.Generator,
) -> FloatArray:
    """
    Return the times of an attempt, anew where it has run for longer than its whole kind.

    The pool's tail is that of usual tasks. Of what has outlived them all nothing is known but that:
    it takes twice as long in the mean (:mod:`bursar.forecasts.stragglers`), by a Pareto law.
    """
    share = random.random(len(times))
    is_beyond = math.log(max(elapsed, LEAST_SECONDS)) - centre > pool[-1]
    return np.where(is_beyond, elapsed * (1 - share) ** (1 / BEYOND - 1), times)


def _copy_times(
    first: FloatArray,
    elapsed: float,
    fresh: float,
    pool: FloatArray,
    centre: FloatArray,
    random: np.random.Generator,
) -> FloatArray:
    """Return the times of a copy, which is as slow as the first attempt in a part of the draws."""
    draws = len(first)
    low = np.zeros(draws)
    if elapsed > 0:
        low = _share_below(pool, math.log(elapsed) - centre)
    share = low + (1 - low) * random.random(draws)
    own = np.exp(np.minimum(centre + _quantile(pool, share), 60.0))
    return np.maximum(np.where(random.random(draws) < fresh, own, first), elapsed)


def _stated_levels(
    model: RuntimeModel, tasks: CampaignTasks, present: RuntimeColumns, kinds: int
) -> list[float | None]:
    """
    Return the mean logarithm of the user's estimates of each kind; None without any.

    Estimates of tasks that have ended count, so that the mean stays while a run goes on.
    """
    kind = np.concatenate([tasks.kind, present.kind])
    estimate = np.concatenate([tasks.estimate, present.estimate])
    found: list[float | None] = []
    for number in range(kinds):
        stated = estimate[(kind == number) & np.isfinite(estimate)]
        found.append(
            float(np.log(np.maximum(stated, LEAST_SECONDS)).mean()) if len(stated) else None
        )
    return found


def _effects(
    model: RuntimeModel, stated: Sequence[float | None], rows: CampaignTasks | RuntimeColumns
) -> FloatArray:
    """Return what makes each task differ from the level of its kind, before it has run."""
    effect = np.zeros(len(rows.kind))
    for kind, own in enumerate(model.kinds):
        at = np.flatnonzero(rows.kind == kind)
        if not len(at):
            continue
        effect[at] = own.covariates.effect(rows.features[at])
        word = stated[kind]
        if own.level is None and word is not None:
            # Estimates tell tasks of one kind apart where nothing else does.
            apart = np.log(np.maximum(rows.estimate[at], LEAST_SECONDS)) - word
            effect[at] = np.where(np.isfinite(apart), apart, 0.0)
    return effect


def _prior_levels(
    model: RuntimeModel,
    stated: Sequence[float | None],
    observed: Sequence[IntArray],
    y: FloatArray,
    rest: FloatArray,
    counts: IntArray,
    floors: Sequence[FloatArray],
) -> list[_Level]:
    """Return what is known of each kind's level without what this execution has shown."""
    usual = _usual_level(model, stated, observed, y, counts) + model.other_kind
    size = float(np.log(max(counts.sum() + sum(map(len, observed)), 1)))
    within = [one.within for one in model.kinds if one.observed > 3]
    shared = np.sqrt(SHARED)
    levels = []
    for kind, own in enumerate(model.kinds):
        if own.level is not None:
            # What gathers others' work is one task however many these are.
            moved = SIZE_EFFECT * abs(size - own.size)
            apart = np.hypot(own.between, moved)
            levels.append(
                _Level(
                    mean=own.level,
                    shared=float(shared * apart),
                    own=float(np.sqrt(1 - SHARED) * apart),
                    fixed=own.unsure,
                    drift=DRIFT * own.between,
                    model=own,
                )
            )
            continue
        own_times = rest[observed[kind]]
        deviations = own_times - np.median(own_times) if len(own_times) else own_times
        prior = float(np.median(within)) if within else SPREAD_WITHIN
        noise = np.sqrt(
            (WEIGHT_WITHIN * prior**2 + len(deviations) * robust_deviation(deviations) ** 2)
            / (WEIGHT_WITHIN + max(len(deviations) - 1, 0))
        )
        pool = np.concatenate([deviations, normal_pool(float(noise), 9)])
        longer = floors[kind]
        if len(longer):
            # Those that have ended are the short ones: they do not show how far tasks differ.
            noise = censored_deviation(own_times, longer, prior)
            pool = normal_pool(float(noise), 21)
        freedom = WEIGHT_WITHIN + max(len(own_times) + len(longer) - 1, 0)
        fresh = replace(own, within=float(noise), freedom=freedom, pool=np.sort(pool))
        word = stated[kind]
        if word is not None:
            apart = model.estimate_unsure
            mean = word + model.estimate_error
        else:
            apart, mean = model.other_unsure, usual
        # Users are wrong in the same way about all their tasks.
        common = shared if word is not None else 0.0
        unseen = word is None and counts[kind] and not len(own_times) + len(floors[kind])
        together = np.sqrt(TOGETHER) if unseen else 0.0
        levels.append(
            _Level(
                mean=mean,
                shared=float(common * apart),
                own=0.0,
                fixed=float(np.sqrt(1 - common**2 - together**2) * apart),
                drift=DRIFT * float(common * apart),
                together=float(together * apart),
                model=fresh,
            )
        )
    return levels


def _usual_level(
    model: RuntimeModel,
    stated: Sequence[float | None],
    observed: Sequence[IntArray],
    y: FloatArray,
    counts: IntArray,
) -> float:
    """Return the logarithm of the mean run time of those tasks of which something is known."""
    total, tasks = 0.0, 0.0
    for kind, own in enumerate(model.kinds):
        number = max(counts[kind] + len(observed[kind]), 1)
        word = stated[kind]
        if len(observed[kind]):
            level = float(np.median(y[observed[kind]]))
        elif own.level is not None and counts[kind]:
            level = own.level
        elif word is not None:
            level = word + model.estimate_error
        else:
            continue
        total += number * np.exp(level)
        tasks += number
    if not tasks:
        raise UnknownRuntimes
    return float(np.log(total / tasks))


@dataclass(frozen=True, slots=True)
class _Seen:
    """Mean deviation of a kind from its prior mean in this execution, and the mean's variance."""

    deviation: float = 0.0
    variance: float = np.inf


def _observe(level: _Level, ended: FloatArray, floor: FloatArray) -> _Seen:
    """
    Return what ended and running tasks of a kind say of its level.

    The likelihood of a level is the density of the pool at what has ended and the pool's share
    above what still runs. The posterior's mean and variance are those of a normal observation,
    which is returned (assumed density filtering).
    """
    if not len(ended) and not len(floor):
        return _Seen()
    prior = level.shared**2 + level.own**2 + level.fixed**2
    density, above, points = _pool_likelihood(level.model.pool, level.model.within)
    ended, weight_ended = _thinned(ended)
    floor, weight_floor = _thinned(floor)
    values = np.concatenate([ended, floor])
    reach = 4 * math.sqrt(prior)
    low = min(level.mean - reach, float(values.min()) - points[-1])
    high = max(level.mean + reach, float(values.max()) - points[0])
    mean, variance = level.mean, prior
    # Each grid is laid where the one before found the posterior.
    for _ in range(_GRIDS):
        grid = np.linspace(low, high, _POINTS)
        weight = -((grid - level.mean) ** 2) / (2 * prior)
        weight += weight_ended * np.interp(ended[None, :] - grid[:, None], points, density).sum(1)
        weight += weight_floor * np.interp(floor[None, :] - grid[:, None], points, above).sum(1)
        share = np.exp(weight - weight.max())
        share /= share.sum()
        mean = float(share @ grid)
        variance = float(share @ (grid - mean) ** 2)
        near = 5 * math.sqrt(variance) + (grid[1] - grid[0])
        low, high = mean - near, mean + near
    # Where the tasks say nothing, the posterior is the prior.
    gained = 1 / variance - 1 / prior
    if gained <= 1e-6 / prior:
        return _Seen()
    return _Seen((mean - level.mean) * (1 + 1 / (prior * gained)), 1 / gained)


def _pool_likelihood(pool: FloatArray, within: float) -> tuple[FloatArray, FloatArray, FloatArray]:
    """
    Return logarithms of the density of a pool and of its share above, at points ascending.

    A logistic kernel at each value, and a wide one for tasks unlike all that were seen.
    """
    chosen, _ = _thinned(pool, _KERNELS)
    within = max(within, _NARROWEST)
    width = 0.6 * within * len(chosen) ** -0.2
    reach = float(np.abs(pool).max()) + 8 * within
    points = np.linspace(-reach, reach, 401)
    density, above = np.zeros(401), np.zeros(401)
    for centres, scale, share in (
        (chosen, width, 1 - _UNLIKE),
        (np.zeros(1), 2 * within, _UNLIKE),
    ):
        over = 1 / (1 + np.exp(np.clip((points[:, None] - centres[None, :]) / scale, -60, 60)))
        above += share * over.mean(axis=1)
        density += share * (over * (1 - over)).mean(axis=1) / scale
    return np.log(np.maximum(density, 1e-300)), np.log(np.maximum(above, 1e-300)), points


def _thinned(values: FloatArray, most: int = 400) -> tuple[FloatArray, float]:
    """Return at most so many of some values, evenly by rank, and how many each stands for."""
    if len(values) <= most:
        return values, 1.0
    places = (np.arange(most) + 0.5) * len(values) / most
    return np.sort(values)[places.astype(np.int64)], len(values) / most


def _draw_levels(
    levels: Sequence[_Level],
    seen: Sequence[_Seen],
    scale: FloatArray,
    widths: FloatArray,
    random: np.random.Generator,
) -> FloatArray:
    """Draw the level of each kind, shape ``(draws, kinds)``, given what has been seen."""
    draws, kinds = len(scale), len(levels)
    shared = np.array([one.shared for one in levels])[None, :] * scale[:, None]
    own = np.array([one.own for one in levels])[None, :] ** 2 * scale[:, None] ** 2
    own = own + np.array([one.fixed for one in levels])[None, :] ** 2
    deviation = np.array([one.deviation for one in seen])[None, :]
    variance = np.array([one.variance for one in seen])[None, :] * widths**2
    # The common factor z is standard normal; a kind's observed mean is normal about shared * z.
    precision = 1 + (shared**2 / (own + variance)).sum(axis=1)
    centre = (shared * deviation / (own + variance)).sum(axis=1) / precision
    z = centre + random.standard_normal(draws) / np.sqrt(precision)
    rest = deviation - shared * z[:, None]
    finite = np.isfinite(variance)
    gain = np.where(finite, own / (own + np.where(finite, variance, 1.0)), 0.0)
    left = own * (1 - gain)
    drawn = shared * z[:, None] + gain * rest
    # What tasks have shown may change as executions do; the effect of size is there at once.
    least = SPREAD_BETWEEN["computes"]
    drift = np.array([max(one.drift, DRIFT * least) for one in levels])
    left = left + np.where(finite, drift**2, 0.0)
    drawn += np.sqrt(left) * random.standard_normal((draws, kinds))
    if (together := np.array([one.together for one in levels])).any():
        drawn += together[None, :] * random.standard_normal(draws)[:, None]
    return np.asarray(np.array([one.mean for one in levels])[None, :] + drawn)


def _draw_sites(
    model: RuntimeModel,
    present: RuntimeColumns,
    rest: FloatArray,
    levels: Sequence[_Level],
    seen: Sequence[_Seen],
    draws: int,
    random: np.random.Generator,
) -> FloatArray:
    """Draw by which factor each site is slower than it says, given what has ended there."""
    sites = len(model.site_effect)
    effect = np.zeros((draws, sites))
    several = len(np.unique(present.site)) > 1
    for site in range(sites):
        mean, variance = 0.0, float(model.site_unsure[site]) ** 2
        here = np.flatnonzero((present.site == site) & present.whole & ~present.failed)
        if len(here):
            # With one site, what its tasks say of it is in the levels of the kinds already.
            if several:
                moved = [
                    rest[i] - levels[present.kind[i]].mean - seen[present.kind[i]].deviation
                    for i in here
                ]
                noise = float(np.mean([levels[present.kind[i]].model.within ** 2 for i in here]))
                gain = variance / (variance + noise / len(here))
                mean, variance = gain * float(np.mean(moved)), variance * (1 - gain)
            else:
                variance = 0.0
        effect[:, site] = model.site_effect[site] + mean
        effect[:, site] += np.sqrt(variance) * random.standard_normal(draws)
    return np.exp(effect)


def _tail(pool: FloatArray) -> float:
    """Return the mean excess over the largest value of a pool: that over the largest tenth."""
    top = pool[-max(len(pool) // 10, 2) :]
    return max(float(top.mean() - top[0]), 1e-3)


def _share_below(pool: FloatArray, values: FloatArray) -> FloatArray:
    """Return the share of the distribution of a pool that lies below values, below 1."""
    n = len(pool)
    points = (np.arange(n) + 0.5) / n
    inside = np.interp(values, pool, points, left=0.0, right=1.0)
    spread = _tail(pool)
    # Beyond the largest value the rest of the probability falls off exponentially.
    tail = 1 - 0.5 / n * np.exp(-np.maximum(values - pool[-1], 0) / spread)
    return np.asarray(np.minimum(np.where(values > pool[-1], tail, inside), 1 - 1e-12))


def _quantile(pool: FloatArray, shares: FloatArray) -> FloatArray:
    """Return the values that shares of the distribution of a pool lie below."""
    n = len(pool)
    points = (np.arange(n) + 0.5) / n
    inside = np.interp(shares, points, pool)
    spread = _tail(pool)
    tail = pool[-1] + spread * np.log(0.5 / n / np.maximum(1 - shares, 1e-300))
    return np.asarray(np.where(shares > points[-1], tail, inside))
