"""Races ask several sites for one need: the first to start is kept, others are withdrawn."""

from collections.abc import Iterable

from bursar.model.allocation import Allocation
from bursar.provisioning.pool_snapshot import AllocationRelease


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
        first = min(begun, key=lambda a: (-a.load.busy, a.granted or 0.0, a.name))
        for a in members:
            lost = a.granted is None or (idle_too and not a.load.busy)
            if a is not first and lost and not a.leaving:
                gives.append(AllocationRelease(name=a.name, reason=f"{first.site} was sooner"))
    return gives


def racing(allocations: Iterable[Allocation], site: str) -> int:
    """Count a site's waiting requests whose place others elsewhere may take."""
    return sum(1 for a in allocations if a.site == site and is_racing(a))
