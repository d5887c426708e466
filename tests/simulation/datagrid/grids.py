"""Small grids and loads that the tests send through the simulator."""

from collections.abc import Sequence

import numpy as np

from bursar.broker.status_feeds import IndexLevel
from bursar.model.matching import Matching, Replica
from bursar.model.network import NetworkLink, Topology
from bursar.model.site import SiteFacts
from bursar.simulation.datagrid.scenario import GridJobClass, GridServices, GridWorkload

ONCE = GridServices(levels=(IndexLevel(every=1e9),))
"""The index is asked at the begin, and never again."""


def site(name: str, processors: int = 1, **more: object) -> SiteFacts:
    return SiteFacts(name=name, kind="simulated", processors=processors, **more)  # type: ignore[arg-type]


def replica(name: str, at: str, size: int) -> Replica:
    return Replica(name=name, site=at, url=f"/{at}/{name}", size=size)


def star(names: Sequence[str], bandwidth: float) -> Topology:
    """Sites around a router, each by a wire of the same bandwidth in each direction."""
    return Topology(
        nodes=(*names, "middle"),
        wires=tuple(
            NetworkLink(source=name, target="middle", bandwidth=bandwidth) for name in names
        ),
        routers=frozenset({"middle"}),
    )


def load_of(*jobs: tuple[float, GridJobClass]) -> GridWorkload:
    """Jobs by the times at which they are submitted."""
    return GridWorkload(
        kinds=tuple(kind for _, kind in jobs),
        at=np.array([at for at, _ in jobs], dtype=np.float64),
        kind=np.arange(len(jobs)),
        work=np.array([kind.runtime for _, kind in jobs], dtype=np.float64),
    )


def job(
    at: float, runtime: float, *data: str, site: str | None = None
) -> tuple[float, GridJobClass]:
    """A job that reads files; where a site is named, it goes there."""
    return at, GridJobClass(runtime=runtime, data=data, matching=Matching(site=site))
