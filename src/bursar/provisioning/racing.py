"""The same need asked of several sites: the first to start is kept, the others are withdrawn."""

from collections.abc import Iterable

from bursar.provisioning.pool_snapshot import Allocation, AllocationRelease


def is_racing(allocation: Allocation) -> bool:
    """Whether another may take its place."""
    return bool(allocation.race) and allocation.began is None


def requests_to_withdraw(
    allocations: Iterable[Allocation], *, idle_too: bool
) -> list[AllocationRelease]:
    """
    Releases of requests that lost their race to one that has begun.

    Parameters
    ----------
    idle_too
        Whether that holds of one that began in the same moment, too, if it has no task.
    """
    races: dict[str, list[Allocation]] = {}
    for one in allocations:
        if one.race:
            races.setdefault(one.race, []).append(one)
    gives = []
    for members in races.values():
        begun = [a for a in members if a.began is not None and not a.leaving]
        if not begun:
            continue
        first = min(begun, key=lambda a: (-a.busy, a.began or 0.0, a.name))
        for a in members:
            lost = a.began is None or (idle_too and not a.busy)
            if a is not first and lost and not a.leaving:
                gives.append(AllocationRelease(name=a.name, reason=f"{first.site} was sooner"))
    return gives


def racing(allocations: Iterable[Allocation], site: str) -> int:
    """Requests that wait at a site and others elsewhere may take the place of."""
    return sum(1 for a in allocations if a.site == site and is_racing(a))
