"""Which tasks of a run are bound to which leases, and whether they fit there."""

from collections.abc import Callable, Mapping, Sequence

from bursar.model.errors import SiteError
from bursar.model.task import Task
from bursar.sites.protocol import Site

Delay = Callable[[int, str, int, str], float]
"""Function of a task, a site, a child and the child's site: seconds until the data are there."""


class TaskBindings:
    """
    Leases to which the tasks of a run are bound, and the sites of the leases.

    Parameters
    ----------
    tasks
        Tasks of the run; the list may grow.
    sites
        Sites by name.
    """

    def __init__(self, tasks: Sequence[Task], sites: Mapping[str, Site]) -> None:
        self.tasks = tasks
        self.sites = sites
        self.lease_of: dict[int, str] = {}
        self.site_of: dict[str, str] = {}

    def delay_between(self, delay: Delay, task: int, child: int) -> float:
        """Return the seconds until a task's data have arrived where a child is bound to run."""
        ran, runs = (self.site_of.get(self.lease_of.get(t, "")) for t in (task, child))
        return delay(task, ran, child, runs) if ran and runs else 0.0

    def speed_of(self, lease: str) -> float:
        """Return the speed of a lease's site; 1 for an unknown one."""
        site = self.site_of.get(lease)
        return 1.0 if site is None else self.sites[site].facts.speed

    def widest(self, site: str) -> int | None:
        """Return the processors of a site's largest worker; None: unknown, or no fixed site."""
        return self.sites[site].view().per_node if site else None

    def too_wide(self, task: int, site: str, most: int | None) -> SiteError | None:
        """Return why a task would wait for ever at a site; None: it fits, or that is unknown."""
        processors = self.tasks[task].processors
        if most is None or processors <= most:
            return None
        return SiteError(
            f'{site}: task "{self.tasks[task].id}" needs {processors} processors, '
            f"the largest worker there has {most}"
        )

    def check_widths(self, placed: dict[int, str], sites: set[str], ended: set[int]) -> None:
        """
        Check that each task has room at the site of its lease, or at some site.

        Raises
        ------
        SiteError
            When a task would wait for ever.
        """
        # Once for each site and not for each task.
        widest = {site: self.widest(site) for site in sorted(sites) if site}
        for task in range(len(self.tasks)):
            if task in ended or self.tasks[task].processors == 1:
                continue
            where = [self.site_of[placed[task]]] if placed.get(task) else list(widest)
            faults = [self.too_wide(task, site, widest.get(site)) for site in where]
            if faults and faults[0] is not None and all(faults):
                raise faults[0]
