"""
Deadline and budget strategies: how many of the jobs that are left each resource gets.

The three of the Nimrod/G paper (section 3), cost-time optimisation (Buyya et al., SPE 2005)
and conservative time optimisation (Buyya's thesis, Monash 2002). They are asked anew whenever
something has happened, with what has been measured by then, so a job counts as given only
once it is sent. Functions of data: a resource's numbers in, jobs for each resource out.
"""

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

Strategy = Literal["time", "cost", "none", "cost-time", "conservative-time"]
"""Goals of the strategies: ``time`` minimises the time within the budget, ``cost`` the cost within
the deadline, ``none`` neither within both, ``cost-time`` the cost and, at equal cost, the time;
``conservative-time`` the time, with a share of the budget kept for each waiting job."""

Named = Literal["adaptive", "time", "cost", "none", "cost-time", "conservative-time"]
"""Our own (:mod:`bursar.broker.adaptive`), or one of the papers'."""

Policy = Literal["planned", Named]
"""A plan made at the begin, or a strategy."""

POLICIES: tuple[Policy, ...] = ("planned", *get_args(Named))

OutOfReach = Literal["fit", "refuse"]
"""Policy once not all jobs can be done: as many as fit, or no more at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyResource:
    """
    Measured figures of a resource at one time.

    Parameters
    ----------
    seconds
        Mean seconds that a job takes. Positive.
    cost
        Mean cost of a job, currency units.
    free_at
        When each of its processors has ended what it has been given, seconds from now;
        one entry for each.
    """

    seconds: float
    cost: float
    free_at: tuple[float, ...]


def allocate_jobs(
    strategy: Strategy,
    resources: Sequence[StrategyResource],
    jobs: int,
    time_left: float,
    money_left: float,
) -> list[int]:
    """
    Return the number of jobs for each resource; fewer than ``jobs`` in all where not all fit.

    Parameters
    ----------
    jobs
        Number of jobs that have not been assigned.
    time_left, money_left
        To the deadline, seconds, and of the budget, currency units, what has been given
        out taken off; infinite for no limit.
    """
    return _STRATEGIES[strategy](resources, jobs, time_left, money_left)


def optimise_time(
    resources: Sequence[StrategyResource], jobs: int, time_left: float, money_left: float
) -> list[int]:
    """
    Time minimisation: each job to who completes it first, of those that it can afford.

    A resource is affordable while its cost per job is at most the remaining budget per job.
    """
    return _earliest(resources, range(len(resources)), jobs, time_left, money_left)[0]


def optimise_cost(
    resources: Sequence[StrategyResource], jobs: int, time_left: float, money_left: float
) -> list[int]:
    """Cost minimisation: the cheapest gets as many as it completes in time, then the next."""
    given = [0] * len(resources)
    for i in sorted(range(len(resources)), key=lambda i: (resources[i].cost, i)):
        fits = min(jobs, _in_time(resources[i], time_left), _paid(resources[i], money_left))
        given[i] = fits
        jobs -= fits
        money_left -= fits * resources[i].cost
    return given


def share_within_budget(
    resources: Sequence[StrategyResource], jobs: int, time_left: float, money_left: float
) -> list[int]:
    """
    Neither minimised: those whose cost is at most the budget per job share the jobs.

    In inverse proportion to their completion time. For the dearer ones the same again,
    with what is left of jobs and money, until all jobs are given or nobody is left.
    """
    given = [0] * len(resources)
    open_to = set(range(len(resources)))
    while jobs and open_to:
        limit = money_left / jobs
        cheap = sorted(i for i in open_to if resources[i].cost <= limit)
        if not cheap:
            break
        share = _in_proportion(
            [len(resources[i].free_at) / resources[i].seconds for i in cheap], jobs
        )
        for i, wanted in zip(cheap, share, strict=True):
            fits = min(wanted, _in_time(resources[i], time_left), _paid(resources[i], money_left))
            given[i] = fits
            jobs -= fits
            money_left -= fits * resources[i].cost
        open_to -= set(cheap)
    return given


def optimise_cost_time(
    resources: Sequence[StrategyResource], jobs: int, time_left: float, money_left: float
) -> list[int]:
    """Cost-time: of resources that cost the same, cheapest first, the earliest completion."""
    given = [0] * len(resources)
    groups: dict[float, list[int]] = {}
    for i, resource in enumerate(resources):
        # Costs are products of floats: equal prices must meet in one group despite rounding.
        groups.setdefault(round(resource.cost, 9), []).append(i)
    for cost, group in sorted(groups.items()):
        if not jobs:
            break
        paid = min((_paid(resources[i], money_left) for i in group), default=0)
        made, left = _earliest(resources, group, min(jobs, paid), time_left, math.inf)
        for i in group:
            given[i] = made[i]
        sent = min(jobs, paid) - left
        jobs -= sent
        money_left -= sent * cost
    return given


def optimise_conservative_time(
    resources: Sequence[StrategyResource], jobs: int, time_left: float, money_left: float
) -> list[int]:
    """
    Conservative time: the time rule, with every waiting job's even share kept for it.

    Those whose cost is at most the budget per job get all that they complete in time, each
    job who ends it first. For the dearer ones the same again with what is left.
    """
    given = [0] * len(resources)
    open_to = set(range(len(resources)))
    while jobs and open_to:
        limit = money_left / jobs
        cheap = sorted(i for i in open_to if resources[i].cost <= limit)
        if not cheap:
            break
        made, jobs = _earliest(resources, cheap, jobs, time_left, math.inf)
        given = [a + b for a, b in zip(given, made, strict=True)]
        money_left -= sum(n * resource.cost for n, resource in zip(made, resources, strict=True))
        open_to -= set(cheap)
    return given


def _earliest(
    resources: Sequence[StrategyResource],
    among: Sequence[int],
    jobs: int,
    time_left: float,
    money_left: float,
) -> tuple[list[int], int]:
    """Assign each job to the processor with the earliest completion within the money per job."""
    given = [0] * len(resources)
    ends = [
        (free + resources[i].seconds, i, p)
        for i in among
        for p, free in enumerate(resources[i].free_at)
    ]
    heapq.heapify(ends)
    # A heap of its own: kept in the other, dear processors would be looked at again for every job.
    too_dear: list[tuple[float, float, int, int]] = []  # by cost, and what lies in the other heap
    while jobs and ends:
        end, i, p = heapq.heappop(ends)
        # The heap's first entry ends soonest: all others are too late as well.
        if end > time_left:
            break
        resource = resources[i]
        if resource.cost > money_left / jobs:
            heapq.heappush(too_dear, (resource.cost, end, i, p))
            continue
        given[i] += 1
        jobs -= 1
        money_left -= resource.cost
        heapq.heappush(ends, (end + resource.seconds, i, p))
        # A cheap job leaves more for each of the others.
        while jobs and too_dear and too_dear[0][0] <= money_left / jobs:
            heapq.heappush(ends, heapq.heappop(too_dear)[1:])
    return given, jobs


def _in_time(resource: StrategyResource, time_left: float) -> int:
    """Count the jobs that a resource completes within a time."""
    if math.isinf(time_left):
        return _ALL
    return sum(
        max(0, math.floor((time_left - free) / resource.seconds + _ROUNDING))
        for free in resource.free_at
    )


def _paid(resource: StrategyResource, money_left: float) -> int:
    """Count the jobs at a resource that an amount pays for."""
    if math.isinf(money_left) or resource.cost <= 0:
        return _ALL
    return max(0, math.floor(money_left / resource.cost + _ROUNDING))


def _in_proportion(weights: Sequence[float], jobs: int) -> list[int]:
    """Round proportional shares to whole jobs by largest remainders, keeping the sum."""
    total = sum(weights)
    exact = [jobs * weight / total for weight in weights]
    share = [math.floor(value) for value in exact]
    by_rest = sorted(range(len(weights)), key=lambda i: (share[i] - exact[i], i))
    for i in by_rest[: jobs - sum(share)]:
        share[i] += 1
    return share


_ALL = 1 << 60
_ROUNDING = 1e-9

_STRATEGIES: dict[
    Strategy, Callable[[Sequence[StrategyResource], int, float, float], list[int]]
] = {
    "time": optimise_time,
    "cost": optimise_cost,
    "none": share_within_budget,
    "cost-time": optimise_cost_time,
    "conservative-time": optimise_conservative_time,
}
