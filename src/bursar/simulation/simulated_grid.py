"""A grid of simulated sites: their clusters, what they offer, and how a run meets them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal, cast

import numpy as np

from bursar.broker.pilot_plan import pilot_windows
from bursar.cluster.job_table import Early, Policy
from bursar.formats.trace_files import read_swf
from bursar.model.allocation import Allocation
from bursar.model.campaign import Workflow
from bursar.model.errors import InputError
from bursar.model.money import Refusal
from bursar.model.site import BackgroundLoad, SiteFacts
from bursar.model.trace import Trace
from bursar.simulation.execution_model import ExecutionModel, ExecutionUncertainty, PilotOverhead
from bursar.simulation.loaded_cluster import LoadedCluster
from bursar.simulation.simulated_site import SimulatedSite, advertised_slots

Arrivals = Literal["log", "expected", "none"]
"""
Future jobs of a cluster's own users.

``"log"``: those of the log; ``"expected"``: the week before, again and again; ``"none"``: no
more than are there already.
"""

_TIMES = {"expected": 10, "none": 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class BackgroundImpact:
    """
    The jobs of a site's own that were submitted during a simulation.

    Parameters
    ----------
    wait, wait_without
        Mean time they wait, seconds; and what it would have been without us.
    """

    jobs: int
    wait: float
    wait_without: float


class SimulatedGrid:
    """
    Sites at the moment at which a simulation begins; each simulation works on copies.

    Parameters
    ----------
    sites
        Any: a cluster with a background is simulated with its queue; a local site is
        simulated as one that is idle; of an advertised one there are its slots.

    Raises
    ------
    InputError
        When a log cannot be read.
    """

    def __init__(self, sites: Sequence[SiteFacts]) -> None:
        self._clusters = {
            site.name: cluster
            for site in sites
            if (cluster := _background_cluster(site)) is not None
        }
        self.sites = tuple(self._on_offer(site) for site in sites)

    def _on_offer(self, site: SiteFacts) -> SiteFacts:
        if site.kind != "simulated" or site.slots is not None:
            return site
        return replace(site, slots=advertised_slots(site, self._clusters[site.name]))

    def open(
        self,
        workflow: Workflow,
        chance: ExecutionUncertainty,
        *,
        arrivals: Arrivals = "log",
        work: Mapping[int, float] | None = None,
        overheads: Mapping[str, Sequence[PilotOverhead]] | None = None,
    ) -> dict[str, SimulatedSite]:
        """
        The sites of one simulation, by name.

        Parameters
        ----------
        arrivals
            Which jobs of the clusters' own are still to come.
        work, overheads
            See :class:`bursar.simulation.execution_model.ExecutionModel`.

        Raises
        ------
        InputError
            When a runtime is unknown.
        """
        world = ExecutionModel(workflow, self.sites, chance, work, overheads)
        opened = {}
        for site in self.sites:
            cluster = self._clusters.get(site.name)
            if cluster is not None:
                cluster = (
                    cluster.copy() if arrivals == "log" else cluster.as_expected(_TIMES[arrivals])
                )
            opened[site.name] = SimulatedSite(site, world, cluster)
        return opened

    def clusters(self) -> dict[str, LoadedCluster]:
        """Copies of the machines that have a queue, by site."""
        return {name: cluster.copy() for name, cluster in self._clusters.items()}

    def holds(self, pilots: Sequence[Allocation]) -> bool:
        """
        Whether the clusters would reserve processors for all these pilots when a simulation begins.

        Pilots at sites without a cluster are not looked at.
        """
        for name, cluster in self._clusters.items():
            asked = pilot_windows(pilot for pilot in pilots if pilot.site == name)
            # Tried on a copy: asking must change nothing.
            if isinstance(cluster.copy().reserve(asked), Refusal):
                return False
        return True

    def others(
        self, ran: Mapping[str, SimulatedSite], seconds: float
    ) -> dict[str, BackgroundImpact]:
        """
        Return the impact of a simulation on each site's own jobs that were submitted meanwhile.

        Parameters
        ----------
        ran
            The sites as the simulation left them.
        seconds
            Length of the simulation, seconds.
        """
        found = {}
        for name, before in self._clusters.items():
            after = ran[name].left_behind
            if after is None or not after.has_jobs:
                continue
            first, last = before.now, before.now + seconds
            without = before.copy().waits(first, last)
            found[name] = BackgroundImpact(
                jobs=len(without),
                wait=float(after.waits(first, last).mean()) if len(without) else 0.0,
                wait_without=float(without.mean()) if len(without) else 0.0,
            )
        return found


def _background_cluster(site: SiteFacts) -> LoadedCluster | None:
    """The site's machine at the moment at which the simulation begins; None without a queue."""
    if site.kind == "advertised":
        return None
    background = site.background or BackgroundLoad()
    trace = _NOBODY if background.trace is None else _read_log(background.trace)
    at = background.at
    if at is None:
        at = float(np.floor((trace.submit[0] + trace.submit[-1]) / 2)) if len(trace) else 0.0
    return LoadedCluster(
        trace,
        site.processors,
        at=at,
        policy=cast(Policy, background.policy),
        # Nobody else's: what is given back before its time is there for the next at once.
        early="compress" if background.trace is None else cast(Early, background.early),
        looseness=background.looseness,
    )


@lru_cache(maxsize=8)
def _read_log(path: str) -> Trace:
    trace = read_swf(Path(path))
    if not len(trace):
        raise InputError("has no jobs", where=path)
    return trace


_NO_TIMES, _NO_NUMBERS = np.zeros(0), np.zeros(0, dtype=np.int64)
_NOBODY = Trace(
    name="nobody",
    number=_NO_NUMBERS,
    submit=_NO_TIMES,
    runtime=_NO_TIMES,
    estimate=_NO_TIMES,
    processors=_NO_NUMBERS,
    wait=_NO_TIMES,
    user=_NO_NUMBERS,
)
