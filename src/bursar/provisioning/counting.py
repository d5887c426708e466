"""
Count processors, their cost and those of unresponsive workers; explain why tasks get none.

A worker is connected to the run; the connection breaks when its machine has not answered for the
heartbeat (:data:`bursar.dispatch.credential.SILENCE`), or at once when its process ends. From
then on its processors count as lost, although its pilot may be said to run for minutes: Slurm
waits for ``SlurmdTimeout``, usually 300 s, before it calls a node dead.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from bursar.model.allocation import Allocation
from bursar.model.provisioning import ProcessorDemand
from bursar.provisioning.pool_snapshot import AllocationRelease, PoolSite, PoolSnapshot
from bursar.provisioning.request_shaping import (
    has_time,
    least_seconds,
    longest_walltime,
    mean_seconds,
)

# Count processors, their room for tasks, and their cost.


def capacity(site: PoolSite) -> int:
    """Return the most processors that may be held at a site at a time."""
    most = site.rules.most
    return site.processors if most is None else min(most, site.processors)


def widest_at(site: PoolSite) -> int:
    """Return the processors of the widest task at a site: no task spans nodes."""
    return min(capacity(site), site.per_node or site.processors)


def price(site: PoolSite) -> tuple[bool, float]:
    """Return a sort key of a site's cost of work; unknown prices come last."""
    if site.unit_price is None:
        return True, 0.0
    # What one request costs besides, over the longest time that one processor of it may last.
    besides = (site.fixed_price or 0.0) / site.rules.longest
    return False, (site.unit_price + besides) / site.speed


def worst_rate(site: PoolSite) -> float:
    """Return the highest price of a processor-second that may be asked; 0 where unknown."""
    return (site.unit_price if site.most_unit_price is None else site.most_unit_price) or 0.0


def worst_cost(site: PoolSite, processors: int, seconds: float) -> float:
    """
    Return the highest cost of one request, currency units, including the unwatched time.

    0 where the price is unknown or the time has no limit.
    """
    rate, fixed = worst_rate(site), site.fixed_price or 0.0
    processors = max(processors, site.smallest)
    seconds += site.unwatched
    return fixed + (processors * rate * seconds if rate and math.isfinite(seconds) else 0.0)


def room(view: PoolSnapshot, allocations: Sequence[Allocation], unit: int) -> int:
    """
    Count processors for waiting tasks: those held or requested that have no task.

    Of a race the largest request counts. Allocations that end before a task would do not count,
    nor processors of an allocation, or of its nodes, beside whole units.

    Parameters
    ----------
    allocations
        Allocations that are not being released.
    unit
        Processors that are of use only together.
    """
    total = 0
    races: dict[str, int] = {}
    begun: set[str] = set()
    # Where an allocation is over before, there is no time for a task.
    needs = {name: view.now + mean_seconds(view.demand, s) for name, s in view.sites.items()}
    for one in allocations:
        if one.site not in needs:
            continue
        if one.race and one.granted is not None:
            begun.add(one.race)
        if one.workload.busy == one.processors or one.until < needs[one.site]:
            continue
        idle = _in_units(one.processors - one.workload.busy, unit, view.sites[one.site])
        if one.race and one.granted is None:
            races[one.race] = max(races.get(one.race, 0), idle)
        else:
            total += idle
    return total + sum(size for race, size in races.items() if race not in begun)


def _in_units(processors: int, unit: int, site: PoolSite) -> int:
    node = site.per_node
    if unit == 1 or not node or processors <= node:
        return processors // unit * unit
    nodes, rest = divmod(processors, node)
    return (nodes * (node // unit) + rest // unit) * unit


# Explain why tasks get no processors.


def starvation_reason(view: PoolSnapshot, given_up: Mapping[str, str]) -> str | None:
    """
    Return in one line why a waiting task will never run; None: it may run.

    Parameters
    ----------
    given_up
        Sites that are no longer asked, with the reason.
    """
    demand = view.demand
    if not demand.tasks:
        return None
    sites = list(view.sites.values())
    if not sites:
        return "there is no site to ask for processors"
    open_sites = [site for site in sites if site.name not in given_up]
    if not open_sites and not any(not a.leaving for a in view.allocations):
        return "; ".join(f"{name}: {why}" for name, why in given_up.items())
    candidates = open_sites or sites
    wide = [site for site in candidates if widest_at(site) >= demand.widest]
    if not wide:
        best = max(candidates, key=widest_at)
        what = "allocation" if capacity(best) == widest_at(best) else "node"
        return (
            f"a task needs {_processors(demand.widest)}, "
            f"the largest {what} at {best.name} has {widest_at(best)}"
        )
    if not any(has_time(demand, site) for site in wide):
        best = max(wide, key=lambda site: longest_walltime(site) * site.speed)
        return (
            f"a task needs {_span(demand.longest / best.speed)}, "
            f"the longest allocation at {best.name} is {_span(longest_walltime(best))}"
        )
    if view.affordable is not None and not view.allocations and not view.settling:
        cheapest = min(_cost(site, view) for site in wide)
        if cheapest > view.affordable:
            return (
                f"a task costs up to {cheapest:.6g} where it is cheapest, "
                f"{max(view.affordable, 0.0):.6g} are left"
            )
    return None


def _cost(site: PoolSite, view: PoolSnapshot) -> float:
    seconds = view.demand.longest / site.speed
    if site.batch:  # what would be asked for, at the least
        seconds = least_seconds(view.demand, site, longest_walltime(site))
    return worst_cost(site, max(view.demand.widest, 1), seconds)


def _processors(count: int) -> str:
    return f"{count} processor" + ("s" if count != 1 else "")


def _span(seconds: float) -> str:
    """Format a duration in the largest unit that fits."""
    for unit, size in (("d", 86_400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"


# Count processors of unresponsive workers, which cost money but run no tasks.

STARTING = 120.0
"""Seconds after an allocation began for which processors without a worker count as starting."""

RETURNING = 1.0
"""Seconds to wait for a lost worker: a pilot replaces a dead worker within that time."""

PARTING = 10.0
"""
Seconds of silence after which an allocation without any worker is given back.

A pilot that has lost its connection tries to return at once and ever more rarely, so that six
attempts have failed by then.
"""

SILENCE = "its workers have gone silent"
"""Reason for releasing a silent allocation, for people and the journal."""

ROUNDING = 1e-9
"""Seconds by which the clock may be early."""


def responsive_allocation(allocation: Allocation, now: float) -> Allocation:
    """
    Reduce an allocation to the processors that tasks can count on.

    These are the ones with a connected worker, those whose worker may still be starting, and
    those whose worker went away just now and may be back in a moment.
    """
    a = allocation
    if a.granted is None or a.workload.joined is None:
        return a
    count = a.workload.ready
    if now < a.granted + STARTING - ROUNDING:
        count += a.processors - a.workload.joined
    if a.workload.silent_since is not None and now < a.workload.silent_since + RETURNING - ROUNDING:
        count += a.workload.joined - a.workload.ready
    count = max(0, min(count, a.processors))
    return a if count == a.processors else replace(a, processors=count)


def is_unresponsive(allocation: Allocation) -> bool:
    """Whether an allocation had workers and has none left."""
    return bool(allocation.workload.joined) and not allocation.workload.ready


def release_unresponsive(
    allocations: Sequence[Allocation], demand: ProcessorDemand, now: float
) -> list[tuple[AllocationRelease, float]]:
    """
    Give back allocations that have been silent for too long.

    An allocation goes back as a whole: one of several nodes of which some still answer keeps
    working, and only its silent processors are replaced.

    Returns
    -------
    list of (AllocationRelease, float)
        Releases, each with the time since which the allocation is silent.
    """
    is_wanted = demand.tasks or demand.later
    found = []
    for a in allocations:
        if a.leaving or not is_unresponsive(a) or a.workload.silent_since is None:
            continue
        # Without tasks there is nothing to wait for: silent processors only cost.
        if is_wanted and now < a.workload.silent_since + PARTING - ROUNDING:
            continue
        found.append((AllocationRelease(name=a.name, reason=SILENCE), a.workload.silent_since))
    return found


def next_silence_check(allocations: Iterable[Allocation], now: float) -> float:
    """Time at which silence or a slow start is next judged otherwise; infinite: never."""
    moments = []
    for a in allocations:
        if a.granted is None or a.workload.joined is None or a.leaving:
            continue
        if a.workload.joined < a.processors:
            moments.append(a.granted + STARTING)
        if a.workload.silent_since is not None:
            moments.append(a.workload.silent_since + RETURNING)
            if not a.workload.ready:
                moments.append(a.workload.silent_since + PARTING)
    return min((moment for moment in moments if moment > now + ROUNDING), default=math.inf)
