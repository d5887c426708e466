"""Processors of leases whose workers are connected, and how many of these are busy."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from bursar.model.allocation import AllocationLoad


@dataclass(slots=True)
class LeaseAttendance:
    """Processors of a lease whose workers are connected, and the most that ever were."""

    ready: int = 0
    joined: int = 0
    silent_since: float | None = None
    left_at: float = 0.0

    def come(self, processors: int) -> None:
        """Count a worker that has connected."""
        self.ready += processors
        self.joined = max(self.joined, self.ready)
        if self.ready == self.joined:
            self.silent_since = None

    def go(self, processors: int, now: float, *, took_leave: bool) -> None:
        """Count a worker that is gone; one that took leave is not expected to return."""
        self.ready -= processors
        self.left_at = now
        if not took_leave:
            self.silent_since = now

    @property
    def absent(self) -> AllocationLoad:
        """Load of the lease while none of its workers is connected."""
        return AllocationLoad(
            ready=0,
            busy=0,
            idle_since=self.left_at,
            joined=self.joined,
            silent_since=self.silent_since,
        )


def add_loads(workers: Iterable[tuple[str, int, int, float | None]]) -> dict[str, AllocationLoad]:
    """
    Add up connected workers by lease.

    Parameters
    ----------
    workers
        Lease, processors and used processors of each worker, and the time since which the worker
        is idle, seconds since the epoch; None: it has tasks. Tasks that wait at a worker may use
        more processors than there are; they hold none.
    """
    found: dict[str, AllocationLoad] = {}
    for lease, processors, used, idle_since in workers:
        busy = min(used, processors)
        before = found.get(lease)
        if before is None:
            found[lease] = AllocationLoad(ready=processors, busy=busy, idle_since=idle_since)
            continue
        if idle_since is not None and before.idle_since is not None:
            # A lease is idle from when its last worker became so, and not while one has tasks.
            idle_since = max(idle_since, before.idle_since)
        else:
            idle_since = None
        found[lease] = replace(
            before,
            ready=before.ready + processors,
            busy=before.busy + busy,
            idle_since=idle_since,
        )
    return found
