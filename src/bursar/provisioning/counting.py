"""Count processors, their room for tasks, and their cost."""

import math
from collections.abc import Sequence

from bursar.model.allocation import Allocation
from bursar.provisioning.pool_snapshot import PoolSite, PoolSnapshot
from bursar.provisioning.walltime import mean_seconds


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


def worst_cost(site: PoolSite, processors: int, seconds: float) -> float:
    """
    Return the highest cost of one request, currency units, including the unwatched time.

    0 where the price is unknown or the time has no limit.
    """
    rate, fixed = site.unit_price or 0.0, site.fixed_price or 0.0
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
        if one.load.busy == one.processors or one.until < needs[one.site]:
            continue
        idle = _in_units(one.processors - one.load.busy, unit, view.sites[one.site])
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
