"""What an owner reads of an engine: counts, loads and demand."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import islice

from bursar.engine.attendance import add_loads
from bursar.engine.core import EngineCore
from bursar.engine.pool_demand import UnplaceableTasks
from bursar.engine.ready_tasks import ANYWHERE
from bursar.engine.run_tasks import RunTasks, TaskCounts
from bursar.engine.worker_slots import WorkerClaim, WorkerSlot
from bursar.model.allocation import AllocationLoad
from bursar.model.provisioning import ProcessorDemand


class EngineFigures:
    """
    Reads an engine's state; changes nothing.

    Parameters
    ----------
    core
        State of the engine.
    """

    def __init__(self, core: EngineCore) -> None:
        self._core = core

    @property
    def ended(self) -> frozenset[int]:
        """Tasks at their end."""
        core = self._core
        return frozenset(i for i in range(len(core.tasks)) if core.queue.is_at_end(i))

    @property
    def is_done(self) -> bool:
        """Whether nothing runs and nothing more will."""
        # An attempt that was outrun is waited for: it is paid until it has ended.
        return self._core.queue.idle and not self._core.reactions.races

    @property
    def counts(self) -> TaskCounts:
        """Number of tasks in each state; tasks prefetched by a worker count as waiting."""
        counts = self._core.queue.counts
        # Each task once, whichever of its attempts runs.
        copies = sum(len(r.running) - (not r.is_won) for r in self._core.reactions.races.values())
        running = sum(self.running().values()) - copies
        waiting = counts.waiting + counts.running - running
        return replace(counts, running=running, waiting=waiting)

    @property
    def misfits(self) -> UnplaceableTasks:
        """Ready tasks that are too long or too wide for every connected worker."""
        core = self._core
        open_ones = [
            worker
            for worker in core.workers.values()
            if core.is_open(worker) and worker.lease not in core.for_copies
        ]
        return core.queue.misfits(core.clock.now(), open_ones)

    @property
    def awaits_workers(self) -> bool:
        """Whether workers of an earlier life are expected back, with tasks that they may have."""
        return bool(self._core.restored.missing)

    @property
    def refusal(self) -> str:
        """Why nothing more may start; empty when money is no hindrance."""
        return self._core.refusal

    def demand(self) -> ProcessorDemand:
        """Return the demand for processors of all tasks that are bound to no lease."""
        return self._core.queue.demand()

    def widths_ready(self, leases: Collection[str]) -> Mapping[int, int]:
        """Return how many tasks are ready for any of some leases, by their processors."""
        found: dict[int, int] = {}
        for bucket in self._core.queue.tasks.ready_tasks.buckets:
            if bucket.ready and (bucket.place == ANYWHERE or bucket.place in leases):
                found[bucket.processors] = found.get(bucket.processors, 0) + bucket.ready
        return found

    def left(self, lease: str) -> int:
        """Return how many tasks bound to a lease are not at an end, and copies of others there."""
        races = self._core.reactions.races.values()
        copies = sum(race.copy is not None and race.copy.worker.lease == lease for race in races)
        return self._core.queue.tasks.ready_tasks.left(lease) + copies

    def leases(self) -> dict[str, AllocationLoad]:
        """Return the load of each lease that has workers, or had some that have gone silent."""
        core = self._core
        found = add_loads(
            (
                worker.lease,
                worker.processors,
                worker.used,
                worker.idle_since if worker.is_idle else None,
            )
            for worker in core.workers.values()
            if worker.connected
        )
        for lease, seen in core.attendance.items():
            found[lease] = (
                replace(found[lease], joined=seen.joined, silent_since=seen.silent_since)
                if lease in found
                else seen.absent
            )
        return found

    def attempts(self) -> "list[WorkerClaim[RunTasks]]":
        """Return the attempts that have begun, copies included."""
        workers = self._core.workers.values()
        return [c for w in workers for c in islice(w.claims.values(), w.running)]

    def first_attempt(self, task: int) -> int:
        """Return the number of the attempt that a copy of a task runs beside; 0: none runs."""
        race = self._core.reactions.races.get(task)
        return 0 if race is None or race.first is None else race.first.attempt

    def idle_workers(self) -> "list[WorkerSlot[RunTasks]]":
        """Return the workers where copies may run: free processors, nothing is ready for."""
        core = self._core
        return [
            worker
            for worker in core.workers.values()
            if worker.free > 0
            and core.takes_copies(worker)
            and (worker.lease in core.for_copies or not self.widths_ready((worker.lease,)))
        ]

    def busy_leases(self) -> set[str]:
        """Return the leases whose processors have tasks."""
        return {worker.lease for worker in self._core.workers.values() if not worker.is_idle}

    def running(self) -> dict[str, int]:
        """Return the number of tasks running at each site."""
        found: dict[str, int] = {}
        for worker in self._core.workers.values():
            found[worker.site] = found.get(worker.site, 0) + worker.running
        return found

    def room(self) -> dict[str, int]:
        """Return the processors of each lease that tasks may use now, as other runs leave them."""
        found: dict[str, int] = {}
        for worker in self._core.workers.values():
            if worker.connected:
                found[worker.lease] = found.get(worker.lease, 0) + worker.room
        return found

    def busy(self) -> dict[str, int]:
        """Return the number of busy processors at each site."""
        found: dict[str, int] = {}
        for worker in self._core.workers.values():
            used = min(worker.used, worker.processors)
            found[worker.site] = found.get(worker.site, 0) + used
        return found
