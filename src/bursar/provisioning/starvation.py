"""Explain why tasks get no processors."""

from collections.abc import Mapping

from bursar.provisioning.counting import capacity, widest_at, worst_cost
from bursar.provisioning.pool_snapshot import PoolSite, PoolSnapshot
from bursar.provisioning.walltime import has_time, least_seconds, longest_walltime


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
