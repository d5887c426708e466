"""
Decide when processors are released (DRP section 3.1), and which requests are withdrawn.

Centralised, by the queue of tasks: all that is idle when no task waits, or one request's when
fewer than so many are queued. Distributed, by the processors themselves: whoever is idle for a
time. What was acquired by one request goes back together, unless the scheduler can take a part.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from bursar.model.allocation import Allocation
from bursar.model.provisioning import ProcessorDemand
from bursar.provisioning.pool_snapshot import AllocationRelease, PoolSite

# Decide when processors are released (DRP section 3.1).

AHEAD = 60.0
"""Seconds before an allocation's end at which a replacement is requested for the least number."""

SETTLING = 5.0
"""Seconds for which idle processors are kept while waiting tasks may still be sent there."""

USELESS = 120.0
"""Seconds after which centralised rules let idle processors go although tasks wait."""

SILENT = 300.0
"""Seconds that a worker has to register; until then the worker's processors are not idle."""

ROUNDING = 1e-9
"""Seconds by which the clock may be early."""


def is_active(demand: ProcessorDemand) -> bool:
    """Whether anything waits, runs or is to come."""
    return bool(demand.tasks or demand.running or demand.later)


def ends_soon_at(allocation: Allocation) -> float:
    """
    Return the time at which a replacement for an allocation is due, for the least number's sake.

    Infinite for a waiting allocation, and for one without an end.
    """
    if allocation.granted is None or math.isinf(allocation.until):
        return math.inf
    # Half its time at most: an allocation of a minute would else be replaced as it begins.
    return allocation.until - min(AHEAD, (allocation.until - allocation.granted) / 2)


def remaining_processors(allocations: Iterable[Allocation], now: float) -> int:
    """Count processors of allocations that do not end soon."""
    return sum(
        a.processors for a in allocations if not a.leaving and now < ends_soon_at(a) - ROUNDING
    )


def allocations_to_release(
    site: PoolSite,
    allocations: Sequence[Allocation],
    demand: ProcessorDemand,
    now: float,
    spare: int,
) -> tuple[list[AllocationRelease], float]:
    """
    Return the releases that are due at a site now.

    Parameters
    ----------
    allocations
        Allocations of the site.
    spare
        Idle processors, there or asked for, beyond what the waiting tasks hold, everywhere.

    Returns
    -------
    gives
        Releases of idle ones only; not so many that fewer than the rules' fewest are held while
        there is work, unless these are of no use for it.
    wake
        When the rules should be asked again, if nothing happens before; infinite: never.
    """
    rules = site.rules
    keep = rules.fewest if is_active(demand) else 0
    there = [a for a in allocations if a.granted is not None]
    if all(a.workload.busy or a.leaving for a in there):
        return [], math.inf
    total = sum(a.processors for a in there if not a.leaving)
    free = remaining_processors(there, now) - keep
    leaving = any(a.leaving for a in there)
    gives: list[AllocationRelease] = []
    wake = math.inf
    # The largest first: with what is spare they go as a whole, and small ones fill the remainder.
    for group in _groups(there, apart=site.shrinks):
        size, last = sum(a.processors for a in group), remaining_processors(group, now)
        needed = total - size < keep or bool(last and last > free)
        choices = [
            (moment, reason)
            for moment, reason in _choices(group, site, demand, spare)
            if not (needed and reason not in _USELESS)
            # One request at a time: the next when this one has gone.
            and not (reason == _QUEUE and (leaving or gives))
        ]
        moment, reason = min(choices, default=(math.inf, ""))
        if now < moment - ROUNDING:
            wake = min(wake, moment)
            continue
        gives.extend(AllocationRelease(name=a.name, reason=reason) for a in group)
        free -= last
        total -= size
        spare -= size
    return gives, wake


_QUEUE = "few tasks are queued"
_USELESS = ("no worker has registered", "no waiting task runs there")
"""Reasons that hold even below the rules' least number: other processors may be of use."""


def _choices(
    group: Sequence[Allocation], site: PoolSite, demand: ProcessorDemand, spare: int
) -> Iterator[tuple[float, str]]:
    """Yield moments from which a group may be released, each with the reason."""
    if any(a.workload.busy or a.workload.idle_since is None for a in group):
        return
    rules = site.rules
    since = max(a.workload.idle_since or 0.0 for a in group)
    is_ready = any(a.workload.ready for a in group)
    match rules.release:
        case "adaptive" if not demand.tasks and not demand.later:
            yield since, "no task is left for it"
        case "adaptive" | "idle" if is_ready or not is_active(demand):
            least = SETTLING if demand.tasks else 0.0
            yield since + max(rules.idle, least), f"idle for {rules.idle:g} s"
        case "no-tasks" if not demand.tasks and not demand.later:
            yield since, "no task waits"
        case "queue" if demand.tasks < rules.below:
            if not demand.tasks or sum(a.processors for a in group) <= spare:
                yield since, _QUEUE
    if not is_ready:
        yield since + max(rules.idle, SILENT), _USELESS[0]
    elif demand.tasks:
        # Idle while tasks wait: they do not fit into the time that is left, or not there at all.
        fits_until = max(a.until for a in group) - demand.longest / site.speed
        yield max(since + SETTLING, fits_until), "no waiting task fits into its time"
        yield since + max(rules.idle, USELESS), _USELESS[1]


def _groups(allocations: Iterable[Allocation], *, apart: bool) -> list[list[Allocation]]:
    """Group held allocations that are released together, the largest group first."""
    groups: dict[str, list[Allocation]] = {}
    alone: list[list[Allocation]] = []
    for a in allocations:
        if a.leaving:
            continue
        if a.bundle and not apart:
            groups.setdefault(a.bundle, []).append(a)
        else:
            alone.append([a])
    return sorted(
        chain(groups.values(), alone),
        key=lambda group: (-sum(a.processors for a in group), group[0].name),
    )


# Races ask several sites for one need: the first to start is kept, others are withdrawn.


def is_racing(allocation: Allocation) -> bool:
    """Whether another request may still take the place of this one."""
    return bool(allocation.race) and allocation.granted is None


def requests_to_withdraw(
    allocations: Iterable[Allocation], *, idle_too: bool
) -> list[AllocationRelease]:
    """
    Return releases of requests that lost a race to a request that has begun.

    Parameters
    ----------
    idle_too
        Whether begun allocations without a task are released, too.
    """
    races: dict[str, list[Allocation]] = {}
    for one in allocations:
        if one.race:
            races.setdefault(one.race, []).append(one)
    gives = []
    for members in races.values():
        begun = [a for a in members if a.granted is not None and not a.leaving]
        if not begun:
            continue
        # Two may begin between two looks: the one with tasks stays, or work would be thrown away.
        first = min(begun, key=lambda a: (-a.workload.busy, a.granted or 0.0, a.name))
        for a in members:
            lost = a.granted is None or (idle_too and not a.workload.busy)
            if a is not first and lost and not a.leaving:
                gives.append(AllocationRelease(name=a.name, reason=f"{first.site} was sooner"))
    return gives


def racing(allocations: Iterable[Allocation], site: str) -> int:
    """Count a site's waiting requests whose place others elsewhere may take."""
    return sum(1 for a in allocations if a.site == site and is_racing(a))
