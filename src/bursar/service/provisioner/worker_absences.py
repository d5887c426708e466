"""Whose doing it is that processors of an agreement have no workers."""

from collections.abc import Collection
from dataclasses import dataclass

from bursar.service.workers.worker_server import OUTLIVES


@dataclass(slots=True)
class _LeaseAbsence:
    """What is known of the workers of one lease; times in seconds since the epoch."""

    pool: str
    processors: int
    has_been_ready: bool = False
    ready: int = 0
    missing_since: float = 0.0
    replaced: int = 0
    excused: int = 0


class WorkerAbsences:
    """
    Tells absences that a customer has brought about from those of which the owner is guilty.

    A worker that ends while its node is there was ended by what it ran: a task may kill its own
    worker, or use up its memory. Such an absence is *excused* until the lease has all its workers
    again. It is not excused when the site takes the processors away or refuses others, nor when a
    connection breaks and the same worker comes back.
    """

    def __init__(self) -> None:
        self._leases: dict[str, _LeaseAbsence] = {}
        self._carried: dict[str, int] = {}  # excused with leases that are over, by pool
        self._before: dict[str, int] = {}  # excused until now, in hindsight, by pool

    def observe(
        self,
        lease: str,
        pool: str,
        *,
        processors: int,
        ready: int,
        replaced: int,
        now: float,
    ) -> None:
        """
        Take in the state of a lease's workers.

        Parameters
        ----------
        processors, ready
            Processors of the lease, and of those the ones that have connected workers.
        replaced
            Processors whose workers have said so far that an earlier one ended by itself.
        now
            Seconds since the epoch.
        """
        known = self._leases.setdefault(lease, _LeaseAbsence(pool, processors))
        known.processors = processors
        # A worker that had been replaced before this life of the service says so, too.
        if replaced > known.replaced and known.has_been_ready:
            gone = min(replaced - known.replaced, known.processors - known.ready)
            self._before[pool] = self._before.get(pool, 0) + max(0, gone - known.excused)
        if ready < processors and (known.ready >= known.processors or not known.missing_since):
            known.missing_since = now
        known.replaced, known.ready = replaced, ready
        known.excused = min(known.excused, processors - ready)
        if ready >= processors:
            known.has_been_ready, known.missing_since, known.excused = True, 0.0, 0

    def quit(self, lease: str, now: float) -> None:
        """Note that a lease's last workers have ended by themselves, and their node has not."""
        known = self._leases.get(lease)
        # A lease that never worked is no customer's fault. Nor is one whose workers were cut off
        # for as long as they look for the service: they end for that.
        if known is None or not known.has_been_ready:
            return
        if known.missing_since and now - known.missing_since >= OUTLIVES:
            return
        gone = known.processors - known.ready - known.excused
        if gone > 0:
            known.excused += gone
            self._before[known.pool] = self._before.get(known.pool, 0) + gone

    def over(self, lease: str) -> None:
        """Forget a lease that is over; what is excused of it stays so until others are ready."""
        known = self._leases.pop(lease, None)
        if known is not None and known.excused:
            self._carried[known.pool] = self._carried.get(known.pool, 0) + known.excused

    def failed(self, lease: str, pool: str) -> None:
        """Note that the site took a lease away or refused it: from now on that is the owner's."""
        self._leases.pop(lease, None)
        self._carried.pop(pool, None)

    def keep(self, pools: Collection[str]) -> None:
        """Forget pools whose agreements are over."""
        for known in (self._carried, self._before):
            for pool in known.keys() - set(pools):
                del known[pool]

    def excused(self, pool: str, missing: int) -> tuple[int, int]:
        """
        Return the excused processors of a pool: those until now, in hindsight, and those from now.

        Parameters
        ----------
        missing
            Processors that the pool lacks now.
        """
        before = self._before.pop(pool, 0)
        if missing <= 0:
            self._carried.pop(pool, None)
            return before, 0
        here = sum(known.excused for known in self._leases.values() if known.pool == pool)
        return before, min(missing, here + self._carried.get(pool, 0))
