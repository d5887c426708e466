"""What several workers share: memory of a machine, and countable resources of a site by name."""

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from bursar.model.task import GPU


class MemoryClaim(Protocol):
    """A task on a worker, which needs memory."""

    @property
    def number(self) -> int:
        """Number of the claim."""

    @property
    def memory(self) -> int:
        """Bytes that it needs."""

    @property
    def worker(self) -> Any:
        """The worker that has the task."""

    @property
    def processors(self) -> int:
        """Processors that it holds."""

    @property
    def ends(self) -> float:
        """When it should end."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class SharedMemory:
    """
    Memory of a machine or a control group, which several workers may share.

    Parameters
    ----------
    total
        Bytes; infinite: not known, and taken to be enough.
    used
        Bytes that claimed tasks need together.
    claims
        Claims of tasks that need some, of all workers, by number.
    """

    total: float = math.inf
    used: int = 0
    claims: "dict[int, MemoryClaim]" = field(default_factory=dict)

    def hold(self, claim: "MemoryClaim") -> None:
        """Count the bytes of a claim."""
        if claim.memory:
            self.used += claim.memory
            self.claims[claim.number] = claim

    def let_go(self, claim: "MemoryClaim") -> None:
        """Count the bytes of a claim no longer."""
        if claim.memory:
            self.used -= claim.memory
            del self.claims[claim.number]


ResourceNeeds = tuple[tuple[str, int], ...]
"""Counted resources that a task holds from its start to its end: pairs of a name and a number."""

UNKNOWN_DEVICES = (-1,)
"""Devices of a task that a worker has from before a restart: not known which of the site's."""


class ResourceClaim(Protocol):
    """A task on a worker."""

    resources: ResourceNeeds
    devices: tuple[int, ...]


class SharedResources:
    """
    Resources that all workers of one site share.

    Parameters
    ----------
    totals
        How many the site has, by name.
    free
        How many of some names are free in all sites together, which hold these numbers in common;
        they are counted besides.
    """

    def __init__(self, totals: Mapping[str, int], free: dict[str, int] | None = None) -> None:
        self._totals = dict(totals)
        self._free_of_all = {} if free is None else free
        self._free = dict(totals)
        self._devices = list(range(self._totals.get(GPU, 0)))  # a heap: the lowest free ones first
        self._unknown = 0

    def could_have(self, needs: ResourceNeeds) -> bool:
        """Whether the site has so many at all."""
        return all(self._totals.get(name, 0) >= count for name, count in needs)

    def has(self, needs: ResourceNeeds) -> bool:
        """Whether so many are free."""
        for name, count in needs:
            # Which devices a task from before a restart has is not known: none is given twice.
            if self._free.get(name, 0) < count or (name == GPU and self._unknown):
                return False
            if self._free_of_all.get(name, count) < count:
                return False
        return True

    def hold(self, claim: ResourceClaim) -> None:
        """Count what a claim holds, and choose its devices unless the task has some already."""
        for name, count in claim.resources:
            self._free[name] = self._free.get(name, 0) - count
            if name in self._free_of_all:
                self._free_of_all[name] -= count
            if name != GPU:
                continue
            if claim.devices == UNKNOWN_DEVICES:
                self._unknown += 1
            else:
                taken = range(min(count, len(self._devices)))
                claim.devices = tuple(heapq.heappop(self._devices) for _ in taken)

    def let_go(self, claim: ResourceClaim) -> None:
        """Count what a claim held no longer."""
        for name, count in claim.resources:
            self._free[name] += count
            if name in self._free_of_all:
                self._free_of_all[name] += count
            if name != GPU:
                continue
            if claim.devices == UNKNOWN_DEVICES:
                self._unknown -= 1
            else:
                for device in claim.devices:
                    heapq.heappush(self._devices, device)


def resources_by_site(
    totals: Mapping[str, Mapping[str, int]], of_all: Mapping[str, int]
) -> dict[str, SharedResources]:
    """
    Return the resources of sites by the sites' names.

    Parameters
    ----------
    totals
        What each site has.
    of_all
        How many of some names tasks of all sites may hold together.
    """
    free = dict(of_all)
    return {site: SharedResources(had, free) for site, had in totals.items()}


NO_RESOURCES = SharedResources({})
"""Resources of a site that has none."""
