"""
How long tasks run: a distribution for each kind, with what the tasks of one execution share.

The logarithm of a run time is a sum: the level of its kind, the effect of its parameters and
inputs, the effect of its site, what this execution does to all kinds, what the execution does to
this kind, and what is the task's own. Executions differ as wholes (a slow disk, a busy network), so
that tasks are not independent and the sum of many run times is less certain than independent tasks
would make it. How much executions of a kind differ is known badly from few: the spread of the other
kinds in the history is the prior, apart for kinds that compute and kinds that wait for something.

References
----------
.. [1] Gelman et al. (2013). Bayesian Data Analysis, 3rd edition, chapters 3 (scaled inverse
   chi-squared prior of a variance) and 5 (hierarchical models).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from bursar.forecasts.covariates import CovariateFit, fit_covariates

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

LEAST_SECONDS = 1e-3
"""Run time as which shorter ones count: below, clocks and starts of processes are measured."""

SHARED = 0.25
"""Share of the variance between executions that all kinds of an execution have in common."""

BUSY = 0.5
"""Share of processor time in run time from which on a kind is said to compute."""

SPREAD_BETWEEN = {"computes": 0.03, "waits": 0.25, "unknown": 0.1}
"""Deviation between the levels of executions (logarithm) before any is known, by class of kind."""

SPREAD_WITHIN = 0.3
"""Deviation of the run times of one kind in one execution (logarithm) before any is known."""

SPREAD_SITE = 0.2
"""Deviation of a site's speed from what it says (logarithm) before a task has run there."""

OTHER_KIND = -1.0
SPREAD_KIND = 1.5
"""Level of a kind of which nothing is known, beside the mean of the other tasks; its deviation."""

TOGETHER = 0.5
"""
Share of the variance of such levels that all kinds of a campaign have in common: what follows a
first step is short in some campaigns and long in others, as a whole.
"""

SPREAD_ESTIMATE = 0.5
"""Deviation of a user's estimates from run times (logarithm) before any has been checked."""

WEIGHT_BETWEEN = 4.0
WEIGHT_WITHIN = 4.0
WEIGHT_SITE = 3.0
WEIGHT_ESTIMATE = 4.0
WEIGHT_KIND = 4.0
"""Number of observations for which a prior counts."""

ALONE = 0.03
"""Deviation of the only task of a kind within an execution (logarithm)."""

SIZE_EFFECT = 0.25
"""Deviation that a level changes by for each factor e between campaigns' numbers of tasks."""

WHOLE = 0.8
"""Share of an execution's tasks from which on it shows how many tasks of each kind there are."""

POOL = 500
"""Deviations of tasks of a kind that are kept, at most."""

_ROUNDS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeColumns:
    """
    Observed run times, one row for each attempt that ran to its own end or was cut off.

    Parameters
    ----------
    kind, execution, site
        Numbers of what each belongs to, shape ``(n,)``.
    work
        Seconds that it ran, times the speed that the site says it has.
    whole
        Whether the task ended by itself; otherwise it would have run for longer than ``work``.
    failed
        Whether it ended without success.
    busy
        Share of processor time in run time and processors; NaN where unknown.
    estimate
        Run time that the user had stated, seconds at speed 1; NaN where there was none.
    features
        Parameters and sizes that may explain run times, shape ``(n, f)``; NaN where unknown.
    """

    kind: IntArray
    execution: IntArray
    site: IntArray
    work: FloatArray
    whole: BoolArray
    failed: BoolArray
    busy: FloatArray
    estimate: FloatArray
    features: FloatArray

    def rows(self, chosen: BoolArray | IntArray) -> "RuntimeColumns":
        """Return some of the rows."""
        return RuntimeColumns(
            kind=self.kind[chosen],
            execution=self.execution[chosen],
            site=self.site[chosen],
            work=self.work[chosen],
            whole=self.whole[chosen],
            failed=self.failed[chosen],
            busy=self.busy[chosen],
            estimate=self.estimate[chosen],
            features=self.features[chosen],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KindModel:
    """
    Run times of one kind of task, as logarithms of seconds at speed 1.

    Parameters
    ----------
    level
        Level of the next execution, expected; None: nothing is known of the kind.
    unsure
        Deviation of the level by what is not known of it, besides ``between``.
    between
        Deviation of the levels of executions.
    within
        Deviation of tasks within an execution.
    freedom
        Degrees of freedom by which that deviation is known, those of its prior included.
    pool
        Deviations of tasks from the level of their execution, ascending, never empty.
    covariates
        Effect of parameters and sizes.
    failures
        Probability that an attempt fails.
    observed
        Number of run times that this rests on.
    executions
        Number of executions that these are of.
    tasks
        Number of tasks of an execution, on average; 0: no execution was observed whole.
    size
        Logarithm of the number of tasks of all kinds in an execution, on average. A probe is as
        large as its campaign.
    """

    level: float | None = None
    unsure: float = 0.0
    between: float = SPREAD_BETWEEN["unknown"]
    within: float = SPREAD_WITHIN
    freedom: float = WEIGHT_WITHIN
    pool: FloatArray = field(default_factory=lambda: normal_pool(SPREAD_WITHIN))
    covariates: CovariateFit = field(default_factory=CovariateFit)
    failures: float = 0.0
    observed: int = 0
    executions: int = 0
    tasks: float = 0.0
    size: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeModel:
    """
    Run times of all kinds of tasks.

    Parameters
    ----------
    kinds
        Models of the kinds, by number.
    site_effect, site_unsure
        Effect of each site on the logarithm of run times, besides its speed, and the effect's
        deviation.
    estimate_error
        Expected logarithm of run time by the user's estimate.
    estimate_unsure
        Deviation of that; half of the variance is common to all kinds.
    other_kind, other_unsure
        Expected level of a kind of which nothing is known, beside the logarithm of the mean of the
        other tasks of a campaign, and the level's deviation.
    freedom
        Degrees of freedom by which the deviations between executions are known.
    """

    kinds: tuple[KindModel, ...]
    site_effect: FloatArray
    site_unsure: FloatArray
    estimate_error: float = 0.0
    estimate_unsure: float = SPREAD_ESTIMATE
    other_kind: float = OTHER_KIND
    other_unsure: float = SPREAD_KIND
    freedom: float = WEIGHT_BETWEEN


def learn_runtimes(
    columns: RuntimeColumns, kinds: int, sites: int, sizes: Mapping[int, int] = MappingProxyType({})
) -> RuntimeModel:
    """
    Learn the run times of kinds of tasks from executions that have ended.

    Parameters
    ----------
    columns
        What was observed. Attempts that were cut off count by the time that they ran at least.
    kinds, sites
        Number of kinds and of sites; some may be without observations.
    sizes
        Number of tasks of the campaign by the number of the execution; where it is not told, as
        many as were observed.
    """
    good = columns.work > 0
    columns = columns.rows(good)
    y = np.log(np.maximum(columns.work, LEAST_SECONDS))
    fits = [CovariateFit()] * kinds
    rest = y.copy()
    ended = columns.whole & ~columns.failed
    members = [np.flatnonzero((columns.kind == kind) & ended) for kind in range(kinds)]
    for kind, rows in enumerate(members):
        if len(rows):
            fits[kind] = fit_covariates(y[rows], columns.features[rows], columns.execution[rows])
            rest[rows] -= fits[kind].effect(columns.features[rows])
    site_effect, site_unsure = _site_effects(columns, rest, members, sites)
    rest -= site_effect[columns.site]
    executions = int(columns.execution.max()) + 1 if len(columns.execution) else 0
    observed = np.bincount(columns.execution[ended], minlength=executions)
    told = np.array([max(sizes.get(at, 1), int(seen)) for at, seen in enumerate(observed)])
    whole = observed >= WHOLE * told
    levels = [_levels(rest[rows], columns.execution[rows], told, whole) for rows in members]
    priors = _priors(columns, members, levels)
    error, unsure = _estimate_error(columns, y, members)
    other_kind, other_unsure = _other_kinds(columns)
    models = []
    for kind, rows in enumerate(members):
        every = columns.kind == kind
        lost = int((every & columns.failed).sum())
        tried = int(every.sum())
        # Jeffreys' prior, shifted towards success: most kinds never fail.
        failures = lost / (tried + 1.0) if lost else 0.0
        models.append(
            _kind_model(levels[kind], priors[kind], fits[kind], failures, len(rows))
            if len(rows)
            else KindModel(failures=failures)
        )
    most = max((len(level.means) for level in levels), default=0)
    return RuntimeModel(
        kinds=tuple(models),
        site_effect=site_effect,
        site_unsure=site_unsure,
        estimate_error=error,
        estimate_unsure=unsure,
        other_kind=other_kind,
        other_unsure=other_unsure,
        freedom=WEIGHT_BETWEEN + max(most - 1, 0),
    )


def normal_pool(deviation: float, count: int = 9) -> FloatArray:
    """Return values that stand for a normal distribution with mean 0, ascending."""
    shares = (np.arange(count) + 0.5) / count
    # Quantiles of the logistic distribution scaled to the same deviation: near enough to the
    # normal ones, a little heavier in the tails, and without SciPy.
    return np.asarray(np.log(shares / (1 - shares)) * (deviation * np.sqrt(3) / np.pi))


@dataclass(frozen=True, slots=True)
class _Levels:
    """
    Executions of one kind: their levels, numbers of tasks, and deviations from the levels.

    And the logarithms of the numbers of tasks of all kinds, and whether all these were observed.
    """

    means: FloatArray
    counts: FloatArray
    deviations: FloatArray
    sizes: FloatArray
    whole: BoolArray


def _levels(rest: FloatArray, executions: IntArray, sizes: IntArray, whole: BoolArray) -> _Levels:
    """
    Return the level of each execution of a kind: the median of its tasks.

    Some tasks of a kind end at once, with nothing to do; they would draw a mean far down.
    """
    if not len(rest):
        none = np.zeros(0)
        return _Levels(none, none, none, none, np.zeros(0, np.bool_))
    present, place = np.unique(executions, return_inverse=True)
    counts = np.bincount(place).astype(np.float64)
    means = np.array([np.median(rest[place == at]) for at in range(len(counts))])
    several = counts[place] > 1
    # Deviations from the middle of n are too small by the root of (n - 1) / n.
    widen = np.sqrt(counts / np.maximum(counts - 1, 1))[place]
    deviations = ((rest - means[place]) * widen)[several]
    return _Levels(means, counts, deviations, np.log(sizes[present]), whole[present])


def robust_deviation(deviations: FloatArray) -> float:
    """Return the standard deviation of a normal distribution that most of the values fit."""
    if not len(deviations):
        return 0.0
    plain = float(np.sqrt(np.mean(deviations**2)))
    return min(plain, 1.4826 * float(np.median(np.abs(deviations))))


def censored_deviation(ended: FloatArray, floor: FloatArray, prior: float) -> float:
    """
    Return the deviation of values of which some are known only to be above a floor.

    By expectation maximisation for a normal distribution (Tobin 1958), with the square of ``prior``
    counting as some observations.
    """
    mean = float(np.mean(np.concatenate([ended, floor])))
    deviation = prior
    for _ in range(_ROUNDS):
        z = (floor - mean) / deviation
        # The normal hazard, phi / (1 - Phi): beyond 8 deviations it is the distance itself.
        hazard = np.array(
            [
                math.exp(-x * x / 2) / math.sqrt(2 * math.pi) / (0.5 * math.erfc(x / math.sqrt(2)))
                if x < 8
                else x + 1 / x
                for x in z
            ]
        )
        expected = mean + deviation * hazard
        squares = deviation**2 * (1 + z * hazard - hazard**2) + (expected - mean) ** 2
        mean = float((ended.sum() + expected.sum()) / (len(ended) + len(floor)))
        total = float(((ended - mean) ** 2).sum() + squares.sum())
        count = len(ended) + len(floor)
        moved = math.sqrt((WEIGHT_WITHIN * prior**2 + total) / (WEIGHT_WITHIN + count)) - deviation
        deviation += moved
        if abs(moved) < 1e-5:
            break
    return deviation


def _site_effects(
    columns: RuntimeColumns, rest: FloatArray, members: Sequence[IntArray], sites: int
) -> tuple[FloatArray, FloatArray]:
    """Return the effect of each site and its deviation, by kinds that ran at several sites."""
    total, weight = np.zeros(sites), np.zeros(sites)
    for rows in members:
        at = columns.site[rows]
        present = np.unique(at)
        if len(present) < 2:
            continue
        level = np.mean([rest[rows][at == site].mean() for site in present])
        for site in present:
            here = rest[rows][at == site]
            # Tasks of one execution share its level: executions count, not tasks.
            count = len(np.unique(columns.execution[rows][at == site]))
            total[site] += count * (here.mean() - level)
            weight[site] += count
    effect = total / (weight + WEIGHT_SITE)
    seen = np.zeros(sites)
    for site in range(sites):
        seen[site] = len(np.unique(columns.execution[columns.site == site]))
    return effect, SPREAD_SITE * np.sqrt(WEIGHT_SITE / (WEIGHT_SITE + 4 * seen))


@dataclass(frozen=True, slots=True)
class _Prior:
    between: float
    within: float


def _priors(
    columns: RuntimeColumns, members: Sequence[IntArray], levels: Sequence[_Levels]
) -> list[_Prior]:
    """Return the prior deviations of each kind: those of the kinds of its class."""
    classes = []
    for rows in members:
        busy = columns.busy[rows]
        busy = busy[np.isfinite(busy)]
        if not len(busy):
            classes.append("unknown")
        else:
            classes.append("computes" if np.median(busy) >= BUSY else "waits")
    within = [
        robust_deviation(level.deviations) ** 2 for level in levels if len(level.deviations) > 3
    ]
    usual_within = float(np.exp(np.mean(np.log(np.maximum(within, 1e-6))))) if within else None
    parts = _time_weights(columns, members)
    between = {}
    for name, spread in SPREAD_BETWEEN.items():
        # Each kind with several executions is a vote, in logarithms, and the default is two; kinds
        # that take little of the time say more of clocks than of machines.
        votes, weights = [2 * np.log(spread)], [2.0]
        for own, level, part in zip(classes, levels, parts, strict=True):
            apart, freedom = _within_sizes(level)
            if own == name and freedom and part > 0:
                noise = _noise(level, SPREAD_WITHIN**2) if level.counts.max() > 1 else ALONE**2
                variance = apart - float(np.mean(noise / level.counts))
                votes.append(np.log(max(variance, 1e-4)))
                weights.append(part)
        between[name] = float(np.exp(np.average(votes, weights=weights) / 2))
    spread = SPREAD_WITHIN if usual_within is None else np.sqrt(usual_within)
    return [_Prior(between[own], float(spread)) for own in classes]


def _within_sizes(level: _Levels) -> tuple[float, int]:
    """Return the variance of levels among executions of one size, and its degrees of freedom."""
    squares, freedom = 0.0, 0
    for size in np.unique(level.sizes):
        means = level.means[level.sizes == size]
        squares += float(((means - means.mean()) ** 2).sum())
        freedom += len(means) - 1
    return (squares / freedom if freedom else 0.0), freedom


def _time_weights(columns: RuntimeColumns, members: Sequence[IntArray]) -> list[float]:
    """Return 1 for kinds that take a tenth of their executions' time or more, else less."""
    total = np.bincount(columns.execution, weights=columns.work)
    weights = []
    for rows in members:
        among = total[np.unique(columns.execution[rows])].sum()
        share = columns.work[rows].sum() / among if len(rows) and among > 0 else 0.0
        weights.append(min(1.0, 10 * float(share)))
    return weights


def _noise(level: _Levels, prior: float) -> float:
    """Return the variance of tasks within an execution, shrunk to a prior."""
    n = len(level.deviations)
    own = n * robust_deviation(level.deviations) ** 2
    return (WEIGHT_WITHIN * prior + own) / (WEIGHT_WITHIN + n)


def _estimate_error(
    columns: RuntimeColumns, y: FloatArray, members: Sequence[IntArray]
) -> tuple[float, float]:
    """Return by which factor (logarithm) users' estimates are wrong, and how unsurely."""
    errors = []
    for rows in members:
        stated = columns.estimate[rows]
        known = np.isfinite(stated) & (stated > 0)
        if known.any():
            errors.append(float(np.median(y[rows][known] - np.log(stated[known]))))
    n = len(errors)
    mean = sum(errors) / (n + WEIGHT_ESTIMATE)
    squares = sum((error - mean) ** 2 for error in errors)
    variance = (WEIGHT_ESTIMATE * SPREAD_ESTIMATE**2 + squares) / (WEIGHT_ESTIMATE + n)
    return mean, float(np.sqrt(variance))


def _other_kinds(columns: RuntimeColumns) -> tuple[float, float]:
    """Return how the level of a kind differs from the mean of the other tasks, over executions."""
    apart: dict[int, list[float]] = {}
    for execution in np.unique(columns.execution):
        rows = np.flatnonzero((columns.execution == execution) & columns.whole & ~columns.failed)
        kinds, place = np.unique(columns.kind[rows], return_inverse=True)
        if len(kinds) < 2:
            continue
        work = np.maximum(columns.work[rows], LEAST_SECONDS)
        sums, counts = np.bincount(place, weights=work), np.bincount(place)
        others = (sums.sum() - sums) / (counts.sum() - counts)
        for kind, sum_, count, other in zip(kinds, sums, counts, others, strict=True):
            apart.setdefault(int(kind), []).append(float(np.log(sum_ / count / other)))
    votes = np.array([np.mean(found) for found in apart.values()])
    n = len(votes)
    mean = (WEIGHT_KIND * OTHER_KIND + votes.sum()) / (WEIGHT_KIND + n)
    squares = WEIGHT_KIND * SPREAD_KIND**2 + ((votes - mean) ** 2).sum()
    return float(mean), float(np.sqrt(squares / (WEIGHT_KIND + n)))


def _kind_model(
    levels: _Levels, prior: _Prior, fit: CovariateFit, failures: float, observed: int
) -> KindModel:
    n = len(levels.means)
    # A kind of one task in each execution is the same task again: all its deviation is between.
    noise = _noise(levels, prior.within**2) if levels.counts.max() > 1 else ALONE**2
    own = 0.0
    if n > 1:
        spread = float(((levels.means - levels.means.mean()) ** 2).sum())
        own = max(0.0, spread - (n - 1) * float(np.mean(noise / levels.counts)))
    between = (WEIGHT_BETWEEN * prior.between**2 + own) / (WEIGHT_BETWEEN + n - 1)
    precision = 1 / (between + noise / levels.counts)
    level = float((precision * levels.means).sum() / precision.sum())
    pool = levels.deviations
    if len(pool) > POOL:
        pool = pool[-POOL:]
    if len(pool) < 4 * WEIGHT_WITHIN:
        pool = np.concatenate([pool, normal_pool(float(np.sqrt(noise)), 9)])
    return KindModel(
        level=level,
        unsure=float(np.sqrt(1 / precision.sum())),
        between=float(np.sqrt(between)),
        within=float(np.sqrt(noise)),
        freedom=WEIGHT_WITHIN + float(np.maximum(levels.counts - 1, 0).sum()),
        pool=np.sort(pool),
        covariates=fit,
        failures=failures,
        observed=observed,
        executions=n,
        tasks=float(levels.counts[levels.whole].mean()) if levels.whole.any() else 0.0,
        size=float(levels.sizes.mean()),
    )
